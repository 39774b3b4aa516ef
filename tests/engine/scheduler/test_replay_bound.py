"""The oracle of a replay is as fast as any schedule can be: against all schedules of a few rounds."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from profile_samples import CONTEXT, GAMMA, make_profile

from dspark.engine.scheduler.replay import ReplayBlocks, replay
from dspark.profiles import StepCurve

CURVE = make_profile().curve


def curve_of(target_s, draft_s):
    """The sample curve with other times, whatever the load."""
    document = CURVE.to_dict()
    for name, times in (("target", target_s), ("draft", draft_s)):
        zeros = [0.0] * len(times)
        document[name] |= {"time_s": times, "p20_s": times, "p80_s": times, "load_s": zeros, "longest_s": zeros}
    return StepCurve.from_dict(document)


def fastest(curve, accepted, requests):
    """Tokens a second of the best choice of budget, or of no drafting, in every round."""

    def round_s(tokens, *, drafts):
        kv_tokens = requests * CONTEXT + tokens
        return float(curve.round_time_s(tokens, num_requests=requests, kv_tokens=kv_tokens, drafts=drafts))

    choices = [
        [
            (requests, round_s(requests, drafts=False)),
            *(
                (requests + min(budget, total), round_s(requests + budget, drafts=True))
                for budget in range(requests * GAMMA + 1)
            ),
        ]
        for total in accepted
    ]
    return max(sum(t for t, _ in taken) / sum(s for _, s in taken) for taken in product(*choices))


@pytest.mark.parametrize("draft_s", [1e-4, 0.02, 1.0], ids=["cheap drafts", "dear drafts", "drafts that never pay"])
@pytest.mark.parametrize("seed", range(5))
def test_no_schedule_is_faster(seed, draft_s):
    rng = np.random.default_rng(seed)
    curve = curve_of(rng.uniform(0.01, 0.05, size=6).tolist(), [draft_s] * 3)
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
def test_every_policy_is_at_most_as_fast(policy, requests):
    rng = np.random.default_rng(requests)
    blocks = ReplayBlocks.of(
        request=np.arange(100) // 10,
        accepted=rng.integers(0, GAMMA + 1, size=100),
        confidence_logits=rng.normal(size=(100, GAMMA)),
        temperatures=np.ones(GAMMA),
    )
    speeds = [
        replay(blocks, CURVE, policy=name, concurrency=requests, rng=np.random.default_rng(0), rounds=200).tokens_per_s
        for name in (policy, "oracle")
    ]
    # A planned round pays for the block of the next one, so one draft more or less may fall among those counted.
    assert speeds[0] <= speeds[1] * (1 + 1 / 180)
