"""Profiling an engine: what is planned, what really runs, and what comes of it."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from fixture_engine import FIXTURES, make_engine
from graph_engine import graph_device, make_pair_engine

from dspark.calibration import Provenance, calibrate, make_traces
from dspark.engine import Engine, EngineConfig
from dspark.engine.errors import EngineError, UsageError
from dspark.engine.jobs.export import Source, export_for
from dspark.engine.profiling.conditions import engine_conditions
from dspark.engine.profiling.eager_timer import EagerTimer
from dspark.engine.profiling.job import profile_engine
from dspark.engine.profiling.plan import Planner, token_ladder
from dspark.engine.profiling.settings import ProfileSettings
from dspark.engine.profiling.timer import Sample
from dspark.profiles import check_conditions, load_profile, profile_to_dict, save_profile

__all__ = ["graph_device"]


class Watcher:
    """Remembers what progress said."""

    def __init__(self):
        self.steps, self.samples = [], Counter()

    def step(self, name, done=0, total=0):
        self.steps.append(name)

    def measured(self, point, samples_s):
        self.samples[point] = len(samples_s)


class ModelTimer:
    """Takes exactly the time that a formula says, in the buckets of a padded runner."""

    runner = "graphs"
    token_buckets = (1, 4, 8, 16, 32)
    request_buckets = (1, 2, 4)

    def __init__(self, *, gpu=True, capacity=40_000, wrong=None, short_context=None):
        self.calls, self.gpu, self.capacity, self.wrong = [], gpu, capacity, wrong
        self.short_context = short_context

    def longest_context(self, num_requests):
        return min(2000, self.capacity // num_requests) - 8

    def measure_target(self, num_tokens, *, num_requests, context_tokens):
        assert num_requests <= num_tokens <= 8 * num_requests
        assert context_tokens <= self.longest_context(num_requests)
        bucket = next(b for b in self.token_buckets if b >= num_tokens)
        kv_tokens = num_requests * context_tokens + num_tokens
        long = self._is_long(context_tokens - (-num_tokens // num_requests))
        return self._sample("target", bucket, 0.001 * bucket + 0.004 * long + 1e-7 * kv_tokens)

    def measure_draft(self, num_requests, *, context_tokens):
        long = self._is_long(context_tokens + 7)
        kv_tokens = num_requests * (context_tokens + 7)
        return self._sample("draft", num_requests, 0.0005 * num_requests + 0.002 * long + 1e-8 * kv_tokens)

    def measure_verification(self, num_tokens, *, num_requests, context_tokens, sampled):
        return self._sample("verify", num_requests, (1e-4 if sampled else 1e-5) * (1 + num_tokens))

    def _is_long(self, visible):
        return self.short_context is not None and visible > self.short_context

    def _sample(self, kind, bucket, seconds):
        self.calls.append((kind, bucket))
        if self.wrong == bucket:
            bucket += 1
        return Sample(bucket, 2 * seconds, seconds if self.gpu else None)


@pytest.fixture(scope="module")
def engine():
    return make_engine("dspark_rnn", concurrency=4)


@pytest.fixture(scope="module")
def measured(engine):
    watcher = Watcher()
    settings = ProfileSettings(context_tokens=(16, 48, 5000), repeats=3, seed=1, target_name="tiny")
    return profile_engine(engine, settings, watcher), watcher


def test_a_block_with_a_slot_that_drafts_nothing_is_exported_with_the_calibration_of_its_drafts():
    """The z-lab format: 7 drafted tokens in a block of 8 slots."""
    engine = make_engine("zlab_dflash", concurrency=2)
    settings = ProfileSettings(context_tokens=(16,), repeats=2, target_name="tiny", drafter_name="tiny-drafter")
    profile = profile_engine(engine, settings, Watcher())
    assert (profile.curve.gamma, profile.curve.block_width) == (7, 8)
    accepted = np.arange(640) % 8
    calibration = calibrate(
        make_traces(
            request=np.arange(640) // 8,
            accepted=accepted,
            confidence_logits=np.ones((640, 7)),
            provenance=Provenance("tiny", "tiny-drafter", "rejection", None, None),
        )
    )
    made = export_for("vllm", Source(profile=profile, calibration=calibration, scope="round"))
    assert json.loads(made.files["vllm.speculative.json"])["num_speculative_tokens"] == 7


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 7, 16, 63, 128, 2048])
def test_ladder_rises_to_its_limit(limit):
    ladder = token_ladder(limit)
    assert ladder[-1] == limit
    assert list(ladder) == sorted(set(ladder))
    # Past the smallest, a bucket wastes under a third of itself.
    assert all(low >= 0.66 * high for low, high in pairwise(ladder) if low >= 8)


def plan(timer, contexts=(256, 1024), concurrency=4):
    planner = Planner(timer, concurrency=concurrency, tokens_per_request=8, block_width=7, contexts=contexts)
    return planner.plan(np.random.default_rng(0))


def test_plan_covers_every_bucket_with_full_blocks_and_with_all_requests():
    points = plan(ModelTimer()).points
    fitted = [p for p in points if p.kind == "target" and not p.held_out]
    assert {(p.bucket, p.num_requests) for p in fitted} == {
        (1, 1),
        (4, 1),
        (4, 4),
        (8, 1),
        (8, 4),
        (16, 2),
        (16, 4),
        (32, 4),
    }
    assert {p.context_tokens for p in fitted} == {256, 1024}
    assert all(p.num_tokens == p.bucket for p in fitted)
    for kind in ("draft", "verify_greedy", "verify_sampled"):
        assert {p.num_requests for p in points if p.kind == kind} == {1, 2, 4}
    assert {p.num_tokens for p in points if p.kind == "verify_greedy" and p.num_requests == 4} == {4, 32}
    assert len(set(points)) == len(points)


def test_held_out_points_are_no_fitted_ones():
    points = plan(ModelTimer()).points
    held_out = [p for p in points if p.held_out]
    assert held_out
    fitted = {(p.num_tokens, p.num_requests, p.context_tokens) for p in points if not p.held_out}
    assert not fitted & {(p.num_tokens, p.num_requests, p.context_tokens) for p in held_out}
    assert all(256 <= p.context_tokens <= 1024 for p in held_out)


@pytest.mark.parametrize("buckets", [(1, 3), (1, 2)], ids=str)
def test_nothing_is_measured_beyond_the_largest_batch(buckets):
    timer = ModelTimer()
    timer.token_buckets = buckets
    points = plan(timer).points
    assert points and all(point.num_tokens <= buckets[-1] for point in points if point.kind != "draft")


def test_what_does_not_fit_is_said():
    clipped = plan(ModelTimer(capacity=2500), contexts=(256, 1024, 4096))
    # 2,000 positions less a block; two requests share 2,500 rows.
    assert clipped.context_tokens == (256, 1024, 1992)
    assert clipped.notes == (
        "A context of 4,096 tokens is longer than the models allow: 1,992 were measured.",
        "The KV memory holds 2 of 4 requests with 1,024 tokens of context: larger batches were measured behind "
        "shorter ones.",
        "The KV memory holds 1 of 4 requests with 1,992 tokens of context: larger batches were measured behind "
        "shorter ones.",
    )
    # A pool too small for any context asked for is measured with what it holds.
    tight = plan(ModelTimer(capacity=400), contexts=(256,))
    assert {p.context_tokens for p in tight.points if p.num_requests == 4 and not p.held_out} == {92}


@pytest.mark.parametrize("gpu", [True, False], ids=["device events", "wall clock"])
def test_a_timer_that_follows_a_formula_is_recovered(engine, gpu):
    timer, watcher = ModelTimer(gpu=gpu), Watcher()
    profile = profile_engine(engine, ProfileSettings(context_tokens=(256, 1024), repeats=2), watcher, timer=timer)
    curve, scale = profile.curve, 1 if gpu else 2
    assert curve.target.buckets.tolist() == [1, 4, 8, 16, 32]
    kv_tokens = curve.reference_kv_tokens(curve.target.buckets)
    np.testing.assert_allclose(curve.target.time_s, scale * (0.001 * curve.target.buckets + 1e-7 * kv_tokens))
    np.testing.assert_allclose(curve.target.load_s, scale * 1e-7)
    assert curve.draft is not None
    np.testing.assert_allclose(curve.draft_time_s([1, 2, 3]), scale * np.array([1, 2, 4]) * (0.0005 + 1e-8 * 263))
    np.testing.assert_allclose(curve.verification_time_s(4, 20), scale * 21e-5)
    np.testing.assert_allclose(curve.verification_time_s(4, 20, sampled=True), scale * 21e-4)
    # Held-out batches are padded to the same buckets, so they are predicted exactly.
    assert profile.validation.num_points > 3
    assert profile.validation.largest == pytest.approx(0, abs=1e-9)
    assert profile.manifest["clock"] == ("device events" if gpu else "wall")
    assert set(watcher.samples.values()) == {2}


@pytest.mark.parametrize("capacity", [40_000, 1_200], ids=["ample memory", "long contexts of few requests only"])
def test_times_either_side_of_the_context_at_which_attention_changes_are_told_apart(engine, capacity):
    timer = ModelTimer(short_context=512, capacity=capacity)
    profile = profile_engine(engine, ProfileSettings(context_tokens=(256, 1024), repeats=1), Watcher(), timer=timer)
    curve = profile.curve
    assert curve.long_context_tokens == 512
    for tokens, requests, context in ((8, 1, 300), (8, 1, 900), (12, 4, 100), (16, 2, 511)):
        kv_tokens = requests * context + tokens
        longest = context - (-tokens // requests)
        bucket = next(b for b in timer.token_buckets if b >= tokens)
        expected = 0.001 * bucket + 0.004 * (longest > 512) + 1e-7 * kv_tokens
        if capacity == 40_000 or bucket <= 8:
            assert float(curve.step_time_s(tokens, kv_tokens, longest_context=longest)) == pytest.approx(expected)
    assert profile.validation.num_points > 3
    if capacity == 40_000:
        np.testing.assert_allclose(curve.draft_time_s(2, 2 * 607, longest_context=607), 0.003 + 1e-8 * 2 * 607)
        assert profile.validation.largest == pytest.approx(0, abs=1e-9)
    else:
        # What memory cannot hold is predicted as if its contexts were short, rather than not at all.
        assert curve.target_long.buckets.tolist() == curve.target.buckets.tolist()


def test_orders_are_shuffled_and_differ(engine):
    timer = ModelTimer()
    profile_engine(engine, ProfileSettings(context_tokens=(256,), repeats=3), Watcher(), timer=timer)
    rounds = np.array_split(np.array(timer.calls[-3 * (len(timer.calls) // 4) :], dtype=object), 3)
    assert len({str(r.tolist()) for r in rounds}) == 3


@pytest.mark.parametrize(("once_s", "repeats"), [(0.0, 20), (2.9, 20), (10.0, 6), (59.0, 5)], ids=str)
def test_repeats_fit_into_a_minute(once_s, repeats):
    assert ProfileSettings().repeats_for(once_s) == repeats
    assert ProfileSettings(repeats=7).repeats_for(once_s) == 7


def test_another_bucket_than_asked_for_is_an_error(engine):
    with pytest.raises(EngineError, match="bucket 17 ran where 16 was asked for"):
        profile_engine(engine, ProfileSettings(), Watcher(), timer=ModelTimer(wrong=16))


def test_a_timer_that_never_settles_is_noted(engine):
    class Restless(ModelTimer):
        def _sample(self, kind, bucket, seconds):
            return super()._sample(kind, bucket, seconds * (1 + len(self.calls) % 2))

    profile = profile_engine(engine, ProfileSettings(repeats=1), Watcher(), timer=Restless())
    assert any("unsteady, warming up did not end within 5%" in note for note in profile.notes)
    assert profile.manifest["steady_after_warm_up"] is False


def test_repeats_that_differ_are_noted(engine):
    class Noisy(ModelTimer):
        def _sample(self, kind, bucket, seconds):
            return super()._sample(kind, bucket, seconds * (1 if len(self.calls) < 200 else 1 + len(self.calls) % 7))

    profile = profile_engine(engine, ProfileSettings(repeats=9), Watcher(), timer=Noisy())
    assert profile.manifest["spread"] > 0.2
    assert any("unsteady, repeats differ by" in note for note in profile.notes)


def test_the_engine_itself(measured, engine, tmp_path):
    profile, watcher = measured
    curve = profile.curve
    assert curve.target.buckets.tolist() == list(token_ladder(4 * 8))
    assert curve.max_batch_tokens == 32
    assert curve.draft is not None
    assert curve.draft.buckets.tolist() == [1, 2, 4]
    assert (curve.target.p20_s <= curve.target.time_s).all()
    assert (curve.target.time_s <= curve.target.p80_s).all()
    assert set(profile.fit) == {"target", "draft", "verify_greedy", "verify_sampled"}
    assert profile.validation.num_points >= 5
    assert set(watcher.samples.values()) == {3}
    assert {"Warming up", "Measuring, repeat 3 of 3"} <= set(watcher.steps)
    assert any("longer than the models allow" in note for note in profile.notes)
    manifest = profile.manifest
    assert (manifest["repeats"], manifest["dtype"], manifest["clock"]) == (3, "float32", "wall")
    assert manifest["device_name"] == profile.conditions.device_name
    path = tmp_path / "profile.json"
    save_profile(profile, path)
    loaded = load_profile(path)
    assert profile_to_dict(loaded) == profile_to_dict(profile)
    assert check_conditions(loaded.conditions, engine_conditions(engine, runner="eager")) == []


def test_without_a_drafter():
    engine = make_engine("dspark_rnn", drafter="none", policy=None, concurrency=3)
    profile = profile_engine(engine, ProfileSettings(context_tokens=(8,), repeats=1), Watcher())
    assert profile.curve.draft is None
    assert profile.conditions.drafter is None
    assert profile.curve.target.buckets.tolist() == [1, 2, 3]
    assert profile.curve.round_time_s(3) > profile.curve.step_time_s(3)


def test_random_weights_have_a_shape_and_no_fingerprint():
    folder = str(FIXTURES / "dspark_rnn" / "target")
    config = EngineConfig(target=folder, device="cpu", dtype="float32", load_format="dummy", concurrency=2)
    conditions = engine_conditions(Engine(config), runner="eager")
    assert conditions.drafter is not None
    assert conditions.drafter.name == f"a drafter shaped for {folder}"
    assert conditions.target.fingerprint is conditions.drafter.fingerprint is None
    real = engine_conditions(make_engine("dspark_rnn", concurrency=2), runner="eager")
    assert real.target.fingerprint
    assert real.target.shape == conditions.target.shape


def test_replays_of_graphs(graph_device):
    engine = make_pair_engine("dspark_rnn", graph_device, graphs=True, concurrency=4)
    assert engine.graphs is not None
    profile = profile_engine(engine, ProfileSettings(context_tokens=(16, 48), repeats=2), Watcher())
    curve = profile.curve
    assert profile.conditions.runner == "graphs"
    assert curve.target.buckets.tolist() == list(engine.graphs.target.buckets.sizes)
    assert curve.draft is not None
    for stairs in (curve.draft, curve.verify_greedy, curve.verify_sampled):
        assert stairs.buckets.tolist() == list(engine.graphs.verification.buckets.sizes)
    timed_by_device = [m.device_s is not None for m in profile.measurements]
    assert all(timed_by_device) if graph_device == "cuda" else not any(timed_by_device)
    if graph_device == "cuda":
        state = profile.manifest["device_states"][0]
        assert state["sm_clock_mhz"] > 0
        assert all(w >= d for m in profile.measurements for w, d in zip(m.wall_s, m.device_s or (), strict=True))


def test_graphs_are_measured_up_to_the_bucket_that_holds_the_most_tokens(graph_device):
    engine = make_pair_engine("dspark_rnn", graph_device, graphs=True, concurrency=4)
    settings = ProfileSettings(context_tokens=(16,), repeats=1, max_batch_tokens=13)
    assert profile_engine(engine, settings, Watcher()).curve.target.buckets.tolist() == [1, 2, 4, 8, 16]


def test_the_timer_runs_what_it_says(engine):
    """The target's step sees the packed batch asked for, and verification does not run the target."""
    seen = []
    original = engine.target_step

    def target_step(batch, **options):
        seen.append(batch)
        return original(batch, **options)

    engine.target_step = target_step
    try:
        timer = EagerTimer(engine, max_batch_tokens=32, seed=0)
        sample = timer.measure_target(11, num_requests=3, context_tokens=20)
    finally:
        del engine.target_step
    (batch,) = seen
    assert sample.bucket == 12
    assert torch.diff(batch.attention.query_starts).tolist() == [4, 4, 3]
    assert batch.attention.kv_lens.tolist() == [24, 24, 23]
    assert batch.positions.tolist() == [20, 21, 22, 23, 20, 21, 22, 23, 20, 21, 22]
    assert batch.cache_rows.min() >= engine.page_size  # never the padding page
    assert len(set(batch.cache_rows.tolist())) == 11
    timer.measure_verification(11, num_requests=3, context_tokens=20, sampled=True)
    assert timer.measure_draft(3, context_tokens=20).bucket == 4
    assert len(seen) == 1


def test_no_row_that_is_read_was_never_written(engine):
    """Untouched memory is read from one page of zeros, which is faster than any real cache."""
    EagerTimer(engine, max_batch_tokens=32, seed=0)
    for cache in (engine.target_cache, engine.draft_cache):
        assert (cache.k[:, engine.page_size :] != 0).any(dim=-1).all()
        assert not cache.k[:, : engine.page_size].any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"context_tokens": ()}, "context lengths"),
        ({"context_tokens": (0,)}, "context lengths"),
        ({"repeats": 0}, "repeats is 0"),
        ({"max_batch_tokens": 0}, "max_batch_tokens is 0"),
        ({"max_batch_tokens": 33}, "33 tokens is beyond 4 requests of 8 tokens: 32"),
    ],
    ids=["none", "zero", "repeats", "tokens", "too many tokens"],
)
def test_settings_that_make_no_sense(engine, settings, message):
    with pytest.raises(UsageError, match=message):
        profile_engine(engine, ProfileSettings(**settings), Watcher())
