"""Profiles of real engines: what runs is what was planned, and what comes of it."""

from __future__ import annotations

import json
import re
from collections import Counter

import numpy as np
import pytest
import torch
from fixture_engine import FIXTURES, make_engine
from graph_engine import graph_device, make_pair_engine
from model_timer import Watcher

from dspark.calibration import Provenance, calibrate, make_traces
from dspark.engine import Engine, EngineConfig
from dspark.engine.jobs.export import Source, export_for
from dspark.engine.models.drafter import Drafter
from dspark.engine.profiling.conditions import engine_conditions
from dspark.engine.profiling.eager_timer import EagerTimer
from dspark.engine.profiling.job import profile_engine
from dspark.engine.profiling.plan import token_ladder
from dspark.engine.profiling.settings import ProfileSettings
from dspark.profiles import check_conditions, load_profile, profile_to_dict, save_profile

__all__ = ["graph_device"]


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


def test_the_engine_itself(measured, engine, tmp_path):
    profile, watcher = measured
    curve = profile.curve
    assert curve.target.buckets.tolist() == list(token_ladder(4 * 8))
    assert curve.max_batch_tokens == 32
    assert curve.draft is not None
    assert curve.draft.buckets.tolist() == [1, 2, 4]
    assert (curve.target.p20_s <= curve.target.time_s).all()
    assert (curve.target.time_s <= curve.target.p80_s).all()
    blocks = {"draft", "draft_one", "draft_sampled", "draft_sampled_one"}
    assert set(profile.fit) == {"target", *blocks, "verify_greedy", "verify_sampled"}
    assert profile.validation.num_points >= 5
    assert set(watcher.samples.values()) == {3}
    assert {"Warming up", "Measuring, repeat 3 of 3"} <= set(watcher.steps)
    foretold = re.compile(rf"{len(watcher.samples)} points, 3 times each: about (\d+:\d\d minutes|\d+ s)")
    assert any(map(foretold.fullmatch, watcher.steps))
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
    blocks = (curve.draft, curve.draft_one, curve.draft_sampled, curve.draft_sampled_one)
    for stairs in (*blocks, curve.verify_greedy, curve.verify_sampled):
        assert stairs is not None
        assert stairs.buckets.tolist() == list(engine.graphs.verification.buckets.sizes)
    timed_by_device = [m.device_s is not None for m in profile.measurements]
    assert all(timed_by_device) if graph_device == "cuda" else not any(timed_by_device)
    if graph_device == "cuda":
        state = profile.manifest["device_states"][0]
        assert state["sm_clock_mhz"] > 0
        assert all(w >= d for m in profile.measurements for w, d in zip(m.wall_s, m.device_s or (), strict=True))


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_blocks_of_one_token_and_sampled_ones_are_drafted_to_be_measured(graph_device, graphs, monkeypatch):
    """Each kind as often as the others, with the tokens and the noise that its name says."""
    drafted, own = Counter(), Drafter.draft

    def draft(self, block, cache, **options):
        drafted[block.steps, block.noise is not None] += 1
        return own(self, block, cache, **options)

    # Before there is an engine: it captures some of its graphs at once, and graphs call nobody.
    monkeypatch.setattr(Drafter, "draft", draft)
    engine = make_pair_engine("dspark_rnn", graph_device, graphs=graphs, concurrency=4)
    profile = profile_engine(engine, ProfileSettings(context_tokens=(16,), repeats=2), Watcher())
    kinds = Counter(m.kind for m in profile.measurements)
    assert kinds["draft"] == kinds["draft_one"] == kinds["draft_sampled"] == kinds["draft_sampled_one"] == 3
    assert set(drafted) == {(7, False), (1, False), (7, True), (1, True)}
    if not graphs:
        assert set(drafted.values()) == {3 * 3}


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
    assert timer.measure_draft(3, context_tokens=20, steps=7, sampled=False).bucket == 4
    assert len(seen) == 1


def test_no_row_that_is_read_was_never_written(engine):
    """Untouched memory is read from one page of zeros, which is faster than any real cache."""
    EagerTimer(engine, max_batch_tokens=32, seed=0)
    for cache in (engine.target_cache, engine.draft_cache):
        assert (cache.k[:, engine.page_size :] != 0).any(dim=-1).all()
        assert not cache.k[:, : engine.page_size].any()
