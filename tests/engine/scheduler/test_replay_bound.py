"""The oracle of a replay is as fast as any schedule can be: against all schedules of a few rounds."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from profile_samples import CONTEXT, GAMMA, make_profile

from dspark.engine.scheduler.replay import ReplayBlocks, replay
from dspark.profiles import StepCurve

CURVE = make_profile().curve


def curve_of(target_s, draft_s, one_s=None):
    """The sample curve with other times, whatever the load; one_s: of blocks of one token, if they are known."""
    document = CURVE.to_dict()
    document["draft_one"] = None if one_s is None else dict(document["draft"])
    for name, times in (("target", target_s), ("draft", draft_s), ("draft_one", one_s)):
        if times is not None:
            zeros = [0.0] * len(times)
            document[name] |= {"time_s": times, "p20_s": times, "p80_s": times, "load_s": zeros, "longest_s": zeros}
    return StepCurve.from_dict(document)


def fastest(curve, accepted, requests):
    """Tokens a second of the best choice of budget, and of how much to draft, in every round."""

    def round_s(tokens, **drafting):
        kv_tokens = requests * CONTEXT + tokens
        return float(curve.round_time_s(tokens, num_requests=requests, kv_tokens=kv_tokens, **drafting))

    def choices(total):
        yield requests, round_s(requests, drafts=False)
        for steps in range(1, GAMMA + 1):
            for budget in range(requests * steps + 1):
                yield requests + min(budget, total, requests * steps), round_s(requests + budget, draft_steps=steps)

    def undominated(total):
        """Without those that take as long as another and give no more: no best schedule needs them."""
        best = {}
        for tokens, time in choices(total):
            best[tokens] = min(time, best.get(tokens, time))
        return list(best.items())

    schedules = product(*map(undominated, accepted))
    return max(sum(t for t, _ in taken) / sum(s for _, s in taken) for taken in schedules)


@pytest.mark.parametrize("share", [None, 0.1, 0.6], ids=["whole blocks", "cheap first tokens", "dear first tokens"])
@pytest.mark.parametrize("draft_s", [1e-4, 0.02, 1.0], ids=["cheap drafts", "dear drafts", "drafts that never pay"])
@pytest.mark.parametrize("seed", range(5))
def test_no_schedule_is_faster(seed, draft_s, share):
    rng = np.random.default_rng(seed)
    one_s = None if share is None else [share * draft_s] * 3
    curve = curve_of(rng.uniform(0.01, 0.05, size=6).tolist(), [draft_s] * 3, one_s)
    # Blocks of one request in one place: two requests would be too many schedules.
    accepted = rng.integers(0, GAMMA + 1, size=4)
    blocks = ReplayBlocks.of(
        request=np.zeros(4), accepted=accepted, confidence_logits=np.zeros((4, GAMMA)), temperatures=np.ones(GAMMA)
    )
    drawn = []

    class Draws(np.random.Generator):
        """Notes which blocks are drawn."""

        def random(self, size):
            picks = super().random(size)
            drawn.extend(accepted[(picks[:, 0] * 4).astype(int)].tolist())
            return picks

    found = replay(
        blocks,
        curve,
        policy="oracle",
        concurrency=1,
        rng=Draws(np.random.PCG64(seed)),
        rounds=4,
        context_tokens=CONTEXT,
    )
    assert found.tokens_per_s == pytest.approx(fastest(curve, drawn, 1))


@pytest.mark.parametrize("policy", ["none", "fixed:1", "fixed:3", "fixed:7", "threshold:0.5", "async", "causal"])
@pytest.mark.parametrize("requests", [1, 2, 4])
@pytest.mark.parametrize("share", [None, 0.3], ids=["whole blocks", "shorter blocks"])
def test_every_policy_is_at_most_as_fast(policy, requests, share):
    rng = np.random.default_rng(requests)
    blocks = ReplayBlocks.of(
        request=np.arange(100) // 10,
        accepted=rng.integers(0, GAMMA + 1, size=100),
        confidence_logits=rng.normal(size=(100, GAMMA)),
        temperatures=np.ones(GAMMA),
    )
    times = CURVE.draft.time_s
    curve = CURVE if share is None else curve_of(CURVE.target.time_s.tolist(), times.tolist(), (share * times).tolist())
    speeds = [
        replay(blocks, curve, policy=name, concurrency=requests, rng=np.random.default_rng(0), rounds=200).tokens_per_s
        for name in (policy, "oracle")
    ]
    # A planned round pays for the block of the next one, so one draft more or less may fall among those counted.
    assert speeds[0] <= speeds[1] * (1 + 1 / 180)
