"""The replay of recorded blocks: what can be computed by hand, and the policies against each other."""

from __future__ import annotations

import numpy as np
import pytest
from profile_samples import make_profile
from scipy.special import expit

from dspark.engine.errors import UsageError
from dspark.engine.scheduler.replay import ReplayBlocks, ReplayResult, replay
from dspark.profiles import Staircase, StepCurve

GAMMA = 7
BASELINES = ("none", "fixed:1", "fixed:3", "fixed:7", "threshold:0.5", "causal")


def device_curve(*, draft: float = 1.0, drafts: tuple[float, float, float] | None = None) -> StepCurve:
    """Shelves like a GPU's: slow growth while weights are read, then in proportion to the tokens.

    drafts: what one token, a sampled block and one sampled token take, as shares of a greedy block.
    """
    buckets = np.array([1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048])
    requests = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256])

    def stairs(at: np.ndarray, times: np.ndarray) -> Staircase:
        zeros = np.zeros(len(at), dtype=int)
        none = zeros.astype(float)
        return Staircase("tokens", "none", at, times, times, times, *3 * (zeros, none))

    block_s = draft * (1.5e-4 + 1.2e-6 * requests)
    names = ("draft_one", "draft_sampled", "draft_sampled_one")
    return StepCurve(
        **{name: stairs(requests, share * block_s) for name, share in zip(names, drafts or (), strict=bool(drafts))},
        target=stairs(buckets, 5.5e-4 + 6e-5 * np.log2(buckets) + 9e-7 * buckets),
        draft=stairs(requests, block_s),
        verify_greedy=stairs(requests, 3e-5 + 8e-7 * requests),
        verify_sampled=stairs(requests, 9e-5 + 8e-7 * requests),
        tokens_per_request=1 + GAMMA,
        block_width=GAMMA,
        reference_context_tokens=256,
    )


def recorded_blocks(mean: float, *, seed: int = 0) -> ReplayBlocks:
    """Requests of 40 rounds that differ in how easy they are; confidence is calibrated."""
    rng = np.random.default_rng(seed)
    request = np.repeat(np.arange(200), 40)
    logits = rng.normal(mean, 0.8, 200)[request][:, None] + rng.normal(0, 1, (len(request), GAMMA))
    accepted = np.logical_and.accumulate(rng.random(logits.shape) < expit(logits), axis=1).sum(axis=1)
    return ReplayBlocks.of(request=request, accepted=accepted, confidence_logits=logits, temperatures=np.ones(GAMMA))


def run(blocks: ReplayBlocks, curve: StepCurve, policy: str, concurrency: int, **options: object) -> ReplayResult:
    rng = np.random.default_rng(1)
    return replay(blocks, curve, policy=policy, concurrency=concurrency, rng=rng, **options)  # type: ignore[arg-type]


def always(accepted: int, logit: float = 2.0) -> ReplayBlocks:
    """Thirty blocks of three requests, of which `accepted` tokens pass."""
    return ReplayBlocks.of(
        request=np.repeat([5, 2, 9], 10),
        accepted=np.full(30, accepted),
        confidence_logits=np.full((30, GAMMA), logit),
        temperatures=np.ones(GAMMA),
    )


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("policy", "verified", "tokens"),
    [("none", 0, 1), ("fixed:2", 2, 3), ("fixed:7", 7, 5), ("threshold:0.5", 5, 5)],
)
def test_constant_blocks_give_what_one_round_gives(policy: str, verified: int, tokens: int, sampled: bool) -> None:
    # Survival of five tokens of logit 2 is .53. Four of seven pass.
    curve, requests, context = make_profile(0.0).curve, 4, 500
    result = run(always(4), curve, policy, requests, context_tokens=context, sampled=sampled)
    batch = requests * (1 + verified)
    round_s = curve.round_time_s(
        batch,
        num_requests=requests,
        kv_tokens=requests * context + batch,
        drafts=policy != "none",
        sampled=sampled,
    )
    assert result.tokens_per_s == pytest.approx(requests * tokens / float(round_s))
    assert result.tokens_per_s_per_user == pytest.approx(result.tokens_per_s / requests)
    assert result.verified_per_request == verified
    assert result.mean_accepted == tokens - 1 and result.drafting_share == (policy != "none")


@pytest.mark.parametrize("passing", [0, 1, 4, 7])
def test_the_oracle_finds_the_best_of_what_passes(passing: int) -> None:
    curve, requests = device_curve(), 64
    plain = requests / float(curve.round_time_s(requests, num_requests=requests, kv_tokens=0, drafts=False))
    theta = [
        (requests + n) / float(curve.round_time_s(requests + n, num_requests=requests, kv_tokens=0))
        for n in range(requests * passing + 1)
    ]
    assert run(always(passing), curve, "oracle", requests).tokens_per_s == pytest.approx(max(plain, *theta))


@pytest.mark.parametrize("concurrency", [1, 16, 256])
def test_no_policy_beats_the_oracle(concurrency: int) -> None:
    blocks, curve = recorded_blocks(0.3), device_curve()
    oracle = run(blocks, curve, "oracle", concurrency).tokens_per_s
    assert all(run(blocks, curve, policy, concurrency).tokens_per_s < oracle for policy in BASELINES)


def test_every_policy_is_shown_the_same_blocks() -> None:
    blocks, curve = recorded_blocks(0.5), device_curve()
    seven, again = (run(blocks, curve, "fixed:7", 8) for _ in range(2))
    assert seven == again
    # What passes of the first token is part of what passes of seven, block by block.
    one = run(blocks, curve, "fixed:1", 8)
    threshold = run(blocks, curve, "threshold:1e-9", 8)
    assert one.mean_accepted < seven.mean_accepted == threshold.mean_accepted


@pytest.mark.parametrize("policy", ["async", "causal"])
def test_equal_generators_give_equal_results(policy: str) -> None:
    blocks, curve = recorded_blocks(0.0), device_curve()
    assert run(blocks, curve, policy, 16, rounds=200) == run(blocks, curve, policy, 16, rounds=200)


@pytest.mark.parametrize("concurrency", [4, 64, 256])
@pytest.mark.parametrize("mean", [1.2, 0.0, -3.0], ids=["good", "fair", "useless"])
def test_async_is_as_good_as_the_best_of_the_others(mean: float, concurrency: int) -> None:
    blocks, curve = recorded_blocks(mean), device_curve()
    best = max(run(blocks, curve, policy, concurrency).tokens_per_s for policy in BASELINES)
    assert run(blocks, curve, "async", concurrency).tokens_per_s > 0.99 * best


@pytest.mark.parametrize("concurrency", [1, 4, 16, 64, 256])
@pytest.mark.parametrize("mean", [1.2, 0.0, -1.0], ids=["good", "fair", "poor"])
def test_async_drafts_as_much_as_the_best_of_the_others(mean: float, concurrency: int) -> None:
    """Where every token that is drafted costs, as on a large vocabulary, fixed lengths pay for theirs alone."""
    blocks, curve = recorded_blocks(mean), device_curve(draft=2.0, drafts=(0.3, 1.5, 0.35))
    best = max(run(blocks, curve, policy, concurrency, sampled=True).tokens_per_s for policy in BASELINES)
    assert run(blocks, curve, "async", concurrency, sampled=True).tokens_per_s > 0.99 * best


def test_a_fixed_length_pays_for_as_many_tokens() -> None:
    curve, requests = device_curve(drafts=(0.3, 1.5, 0.35)), 4
    for length, sampled in ((1, False), (3, True), (7, True)):
        result = run(always(4), curve, f"fixed:{length}", requests, sampled=sampled, context_tokens=0)
        batch = requests * (1 + length)
        round_s = curve.round_time_s(batch, num_requests=requests, kv_tokens=batch, draft_steps=length, sampled=sampled)
        assert result.tokens_per_s == pytest.approx(requests * (1 + min(length, 4)) / float(round_s))


def test_at_many_requests_knowing_the_survival_beats_every_constant() -> None:
    blocks, curve = recorded_blocks(1.2), device_curve()
    best = max(run(blocks, curve, policy, 256).tokens_per_s for policy in BASELINES)
    result = run(blocks, curve, "async", 256)
    assert result.tokens_per_s > 1.05 * best
    assert run(blocks, curve, "oracle", 256).tokens_per_s > 1.1 * result.tokens_per_s


@pytest.mark.parametrize("concurrency", [1, 4, 64, 256])
def test_a_drafter_that_never_helps_costs_less_than_one_per_cent(concurrency: int) -> None:
    blocks, curve = recorded_blocks(-4.0), device_curve(draft=2.0)
    plain = run(blocks, curve, "none", concurrency).tokens_per_s
    assert run(blocks, curve, "async", concurrency).tokens_per_s > 0.99 * plain


def test_drafting_is_kept_at_the_loads_at_which_it_helps() -> None:
    blocks, curve = recorded_blocks(-0.3), device_curve(draft=2.0)
    assert run(blocks, curve, "async", 4).drafting_share > 0.95
    assert run(blocks, curve, "async", 256).drafting_share < 0.05


def test_no_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="no blocks"):
        ReplayBlocks.of(request=[], accepted=[], confidence_logits=np.zeros((0, 7)), temperatures=np.ones(7))


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(UsageError):
        run(always(4), device_curve(), "fixed:8", 4)


def offers_sometimes(share: float) -> ReplayBlocks:
    """Blocks that pass in full and whose confidence says so, or nothing at all; in no order."""
    offers = np.random.default_rng(4).random(4_000) < share
    return ReplayBlocks.of(
        request=np.arange(4_000) // 40,
        accepted=np.where(offers, GAMMA, 0),
        confidence_logits=np.where(offers[:, None], np.full((1, GAMMA), 9.0), np.nan),
        temperatures=np.ones(GAMMA),
    )


def test_what_was_not_drafted_is_not_verified() -> None:
    blocks, curve = offers_sometimes(0.3), device_curve()
    for policy, most in (("fixed:7", 7), ("fixed:2", 2), ("threshold:0.5", 7), ("oracle", 7)):
        result = run(blocks, curve, policy, 1, context_tokens=500)
        assert result.verified_per_request == pytest.approx(0.3 * most, rel=0.1)
        assert result.mean_accepted == result.verified_per_request


@pytest.mark.parametrize("policy", ["async", "causal"])
def test_a_plan_that_may_look_at_the_block_itself_verifies_all_that_pays(policy: str) -> None:
    """One request at a time: verifying seven certain tokens always pays, and an older block tells nothing of them."""
    blocks, curve = offers_sometimes(0.3), device_curve()
    certain = run(blocks, curve, policy, 1, certain=True)
    assert certain.mean_accepted == certain.verified_per_request
    assert certain.mean_accepted == run(blocks, curve, "threshold:0.5", 1).mean_accepted
