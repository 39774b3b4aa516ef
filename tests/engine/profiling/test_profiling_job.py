"""What a profile makes of the times that a timer gives."""

from __future__ import annotations

import numpy as np
import pytest
from model_timer import ModelTimer, Watcher

from dspark.engine.errors import EngineError, UsageError
from dspark.engine.profiling.job import profile_engine
from dspark.engine.profiling.settings import ProfileSettings


@pytest.mark.parametrize("gpu", [True, False], ids=["device events", "wall clock"])
def test_a_timer_that_follows_a_formula_is_recovered(engine, gpu):
    timer, watcher = ModelTimer(gpu=gpu), Watcher()
    profile = profile_engine(engine, ProfileSettings(context_tokens=(256, 1024), repeats=2), watcher, timer=timer)
    curve, scale = profile.curve, 1 if gpu else 2
    assert curve.target.buckets.tolist() == [1, 4, 8, 16, 32]
    # Full blocks of 8 tokens, each request behind 256.
    requests = -(-curve.target.buckets // 8)
    kv_tokens = 256 * requests + curve.target.buckets
    at_reference_s = 0.001 * curve.target.buckets + 1e-7 * kv_tokens + 2e-5 * requests
    np.testing.assert_allclose(curve.target.time_s, scale * at_reference_s)
    np.testing.assert_allclose(curve.target.load_s, scale * 1e-7)
    # Of 1 and 32 tokens there is one number of requests, so that the others' points tell what one costs.
    np.testing.assert_allclose(curve.target.request_s, scale * 2e-5)
    assert curve.target.reference_requests.tolist() == requests.tolist()
    assert curve.draft is not None
    for steps in (1, 3, 7):
        for sampled in (False, True):
            each = 0.0002 + (0.00005 if sampled else 0.00002) * steps
            block_s = curve.draft_time_s([1, 2, 3], steps=steps, sampled=sampled)
            np.testing.assert_allclose(block_s, scale * np.array([1, 2, 4]) * (each + 1e-8 * 263))
    fitted = [error.largest for kind, error in profile.fit.items() if kind.startswith("draft")]
    assert len(fitted) == 4 and max(fitted) < 1e-9
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
        expected = 0.001 * bucket + 0.004 * (longest > 512) + 1e-7 * kv_tokens + 2e-5 * requests
        if capacity == 40_000 or bucket <= 8:
            found = curve.step_time_s(tokens, kv_tokens, num_requests=requests, longest_context=longest)
            assert float(found) == pytest.approx(expected)
    assert profile.validation.num_points > 3
    if capacity == 40_000:
        for steps, sampled, each in ((7, False, 0.00034), (1, False, 0.00022), (4, True, 0.0004)):
            for context, more in ((307, 0.0), (607, 0.002)):
                block_s = curve.draft_time_s(2, 2 * context, steps=steps, sampled=sampled, longest_context=context)
                np.testing.assert_allclose(block_s, 2 * each + more + 1e-8 * 2 * context)
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
