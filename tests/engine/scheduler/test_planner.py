"""Plans against the best of all budgets, and what they may depend on."""

from __future__ import annotations

import numpy as np
import pytest

from dspark.engine.scheduler.block_gains import BlockGains
from dspark.engine.scheduler.capacity import first_drop_budget, gain_curve
from dspark.engine.scheduler.gain_average import GainAverage, rescaled
from dspark.engine.scheduler.planner import RoundPlan, RoundPlanner
from dspark.engine.scheduler.round_time import RoundClock, RoundLoad
from dspark.engine.scheduler.survival import hazards, survival
from dspark.profiles import Staircase, StepCurve

GAMMA = 4
BUCKETS = np.array([1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160])


def make_curve(*, draft_s: float = 0.05, step_s: np.ndarray | None = None, one_s: float | None = None) -> StepCurve:
    """0.3 s a step and 10 ms a token; one_s: of a block of one token, None: it was not measured."""

    def stairs(buckets: np.ndarray, times: np.ndarray) -> Staircase:
        zeros = np.zeros(len(buckets), dtype=int)
        return Staircase("tokens", "none", buckets, times, times, times, *3 * (zeros, zeros.astype(float)))

    requests = np.array([1, 2, 4, 8, 16, 32, 64])
    return StepCurve(
        target=stairs(BUCKETS, 0.3 + 0.01 * BUCKETS if step_s is None else step_s),
        draft=stairs(requests, np.full(len(requests), draft_s)),
        verify_greedy=stairs(requests, np.full(len(requests), 1e-3)),
        verify_sampled=stairs(requests, np.full(len(requests), 2e-3)),
        tokens_per_request=1 + GAMMA,
        block_width=GAMMA,
        reference_context_tokens=1,
        draft_one=None if one_s is None else stairs(requests, np.full(len(requests), one_s)),
    )


def make_planner(curve: StepCurve | None = None, **options: object) -> RoundPlanner:
    clock = RoundClock(make_curve() if curve is None else curve, adapt=False)
    return RoundPlanner(clock, gamma=GAMMA, **options)  # type: ignore[arg-type]


def learn_and_plan(planner: RoundPlanner, seen: np.ndarray, caps: np.ndarray, load: RoundLoad) -> RoundPlan:
    """By blocks that have just become known."""
    planner.learn(seen)
    return planner.plan(seen, caps, load)


def random_hazards(requests: int, *, seed: int, mean: float = 1.0) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(mean, 1.5, (requests, GAMMA)).astype(np.float32)
    return hazards(logits, np.ones(GAMMA))


def best_by_hand(seen: np.ndarray, requests: int, curve: StepCurve, *, draft: bool = True) -> int:
    """Budget of the largest throughput, one look-up a budget."""
    ordered = np.sort(survival(seen).ravel())[::-1]
    fixed_s = 1e-3 + (float(curve.draft_time_s(requests)) if draft else 0.0)
    most = min(len(ordered), curve.max_batch_tokens - requests)
    theta = [
        (requests + ordered[:m].sum()) / (float(curve.step_time_s(requests + m)) + fixed_s) for m in range(most + 1)
    ]
    return int(np.argmax(theta))


@pytest.mark.parametrize("requests", [16, 20, 32])
def test_many_requests_plan_for_the_block_before(requests: int) -> None:
    curve = make_curve()
    planner, caps = make_planner(curve), np.full(requests, GAMMA)
    for seed in range(5):
        seen = random_hazards(requests, seed=seed)
        plan = learn_and_plan(planner, seen, caps, RoundLoad(requests, 100))
        assert plan.budget == best_by_hand(seen, requests, curve)
        assert plan.num_tokens == requests + plan.budget and plan.next_steps == GAMMA
        assert plan.expected_tokens == pytest.approx(requests + gain_curve(seen, caps)[plan.budget])
        assert plan.expected.round_s == pytest.approx(
            float(curve.round_time_s(plan.num_tokens, num_requests=requests, kv_tokens=0))
        )


def test_what_a_request_may_not_use_is_not_planned() -> None:
    seen, caps = random_hazards(20, seed=1, mean=4.0), np.full(20, GAMMA)
    caps[::2] = 1
    plan = make_planner().plan(seen, caps, RoundLoad(20, 100))
    assert plan.budget <= caps.sum()
    assert make_planner().plan(seen, np.zeros(20, dtype=int), RoundLoad(20, 100)).budget == 0


def test_a_batch_never_outgrows_the_profile() -> None:
    certain = np.zeros((40, GAMMA), dtype=np.int32)
    flat = make_curve(step_s=np.full(len(BUCKETS), 0.3))
    assert make_planner(flat).plan(certain, np.full(40, GAMMA), RoundLoad(40, 100)).num_tokens == 160


def test_nothing_known_counts_as_certain() -> None:
    planner = make_planner()
    view = np.zeros((3, GAMMA), dtype=np.int32)
    plan = planner.plan(view, np.full(3, GAMMA), RoundLoad(3, 9), known=np.zeros(3, dtype=bool))
    assert plan.budget == best_by_hand(view, 3, planner.clock.curve)


def test_a_request_without_history_counts_as_an_average_one() -> None:
    seen = random_hazards(48, seed=3, mean=-1.0)
    caps, known = np.full(64, GAMMA), np.arange(64) < 48
    view = np.concatenate([seen, np.zeros((16, GAMMA), dtype=np.int32)])
    plan = make_planner().plan(view, caps, RoundLoad(64, 100), known=known)
    gain = gain_curve(seen, caps[known])
    expected = np.interp(plan.budget * 48 / 64, np.arange(len(gain)), gain) * 64 / 48
    assert plan.expected_tokens == pytest.approx(64 + expected)
    certain = make_planner().plan(view, caps, RoundLoad(64, 100))
    assert certain.budget > plan.budget


def test_one_request_settles_on_the_best_constant_budget() -> None:
    # By turns a hopeless and a promising block: what the last one promised says nothing of the next.
    hopeless, promising = (hazards(np.full((1, GAMMA), x, np.float32), np.ones(GAMMA)) for x in (-3.0, 3.0))
    curve = make_curve()
    planner, load, budgets = make_planner(curve), RoundLoad(1, 50), []
    for i in range(80):
        seen = hopeless if i % 2 else promising
        budgets.append(learn_and_plan(planner, seen, np.array([GAMMA]), load).budget)
    mean = np.append(0, np.cumsum((survival(hopeless) + survival(promising))[0] / 2))
    theta = (1 + mean) / [float(curve.step_time_s(1 + m)) + 0.051 for m in range(GAMMA + 1)]
    assert set(budgets[40:]) == {int(np.argmax(theta))}


def test_drafting_stops_where_it_does_not_pay_and_then_is_no_part_of_the_round() -> None:
    planner = make_planner(make_curve(draft_s=0.4))
    load, view = RoundLoad(32, 100), random_hazards(32, seed=4, mean=-4.0)
    steps, steps_before, plans = planner.first_steps, 0, []
    for _ in range(400):
        planner.learn(view if steps_before else None)
        plans.append(planner.plan(view, np.full(32, steps), load))
        steps_before, steps = steps, plans[-1].next_steps
    assert planner.first_steps == 0
    paused = [p for p in plans if p.next_steps == 0]
    assert len(paused) > 380 and all(p.expected.draft_s == 0 for p in paused)
    assert [p for p in plans[50:] if p.next_steps == GAMMA], "it is probed again"


def test_drafting_resumes_when_a_probe_shows_that_it_pays() -> None:
    planner, load = make_planner(make_curve(draft_s=0.2)), RoundLoad(32, 100)
    steps, steps_before, stood = planner.first_steps, 0, []
    for i in range(600):
        view = random_hazards(32, seed=i, mean=-4.0 if i < 200 else 4.0)
        planner.learn(view if steps_before else None)
        steps_before, steps = steps, planner.plan(view, np.full(32, steps), load).next_steps
        stood.append(planner.first_steps)
    assert stood[199] == 0 and stood[-1] == GAMMA
    # The memory of 512 blocks, sixteen rounds of 32, gives way to what probes see.
    assert all(stood[500:])


def lengths_of(planner: RoundPlanner, rounds: int, *, requests: int, mean: float, seed: int = 0) -> list[int]:
    """Tokens of the blocks that are drafted round by round; a block's survival becomes known a round later."""
    load, steps, steps_before, lengths = RoundLoad(requests, 100), planner.first_steps, 0, []
    view, known = np.zeros((requests, GAMMA), np.int32), np.zeros(requests, dtype=bool)
    for i in range(rounds):
        planner.learn(view if steps_before else None)
        lengths.append(planner.plan(view, np.full(requests, steps), load, known=known).next_steps)
        if steps:
            view, known = random_hazards(requests, seed=seed + i, mean=mean)[:, :steps], np.ones(requests, dtype=bool)
        steps_before, steps = steps, lengths[-1]
    return lengths


def best_length(curve: StepCurve, requests: int, mean: float) -> int:
    """That of the largest throughput, budget by budget, over many blocks."""
    many = random_hazards(64 * requests, seed=999, mean=mean)
    worth = {0: requests / (float(curve.step_time_s(requests)) + 1e-3)}
    for length in (1, 2, GAMMA):
        gain = np.append(0, np.cumsum(np.sort(survival(many[:, :length]).ravel())[::-1]))[::64] / 64
        draft_s = float(curve.draft_time_s(requests, steps=length))
        worth[length] = max(
            (requests + gain[m]) / (float(curve.step_time_s(requests + m)) + 1e-3 + draft_s) for m in range(len(gain))
        )
    return max(worth, key=worth.__getitem__)


@pytest.mark.parametrize(("mean", "best"), [(3.0, GAMMA), (1.5, 2), (0.5, 1), (-4.0, 0)])
def test_as_much_is_drafted_as_pays(mean: float, best: int) -> None:
    curve = make_curve(draft_s=0.15, one_s=0.03)
    assert best_length(curve, 32, mean) == best
    settled = lengths_of(make_planner(curve), 600, requests=32, mean=mean)[100:]
    assert settled.count(best) > 0.9 * len(settled)
    # Whole blocks are looked at now and then.
    assert set(settled) == {best, GAMMA}


@pytest.mark.parametrize("options", [{"certain": True}, {}], ids=["looked-up drafts", "an older profile"])
def test_blocks_are_whole_where_shorter_ones_cost_as_much(options: dict[str, bool]) -> None:
    curve = make_curve(draft_s=0.3, one_s=0.05 if options else None)
    assert set(lengths_of(make_planner(curve, **options), 300, requests=32, mean=0.5)) <= {0, GAMMA}


def test_few_blocks_decide_nothing() -> None:
    planner = make_planner(make_curve(draft_s=0.4, one_s=0.2))
    # The 32nd block of one request is known a round after it was drafted.
    assert set(lengths_of(planner, 32, requests=1, mean=-6.0)) == {GAMMA} and not planner.is_informed
    assert 0 in lengths_of(planner, 20, requests=1, mean=-6.0) and planner.is_informed


def test_a_longer_block_than_those_before_is_verified_as_such_blocks_were() -> None:
    curve = make_curve(draft_s=0.01, one_s=0.005)
    planner, load = make_planner(curve), RoundLoad(32, 100)
    whole = random_hazards(32, seed=1, mean=3.0)
    for _ in range(30):
        before = learn_and_plan(planner, whole, np.full(32, GAMMA), load)
    plan = learn_and_plan(planner, whole[:, :1], np.full(32, GAMMA), load)
    assert plan.budget == before.budget > 32
    assert plan.expected_tokens == pytest.approx(before.expected_tokens, rel=0.01)


def test_a_shorter_block_than_those_before_is_verified_by_what_they_tell_of_its_tokens() -> None:
    curve = make_curve(draft_s=0.01, one_s=0.005)
    seen, caps = random_hazards(32, seed=1, mean=1.0), np.full(32, 2)
    plan = make_planner(curve).plan(seen, caps, RoundLoad(32, 100))
    own = make_planner(curve).plan(seen[:, :2], caps, RoundLoad(32, 100))
    assert (plan.budget, plan.expected_tokens) == (own.budget, own.expected_tokens) and 0 < plan.budget <= 64


def test_the_causal_plan_is_the_walk_over_the_block_itself() -> None:
    curve = make_curve()
    planner, caps = make_planner(curve, causal=True), np.full(8, GAMMA)
    times = np.array([float(curve.step_time_s(8 + m)) + 1e-3 + 0.05 for m in range(8 * GAMMA + 1)])
    for seed in range(5):
        own = random_hazards(8, seed=seed, mean=3.0)
        plan = planner.plan(own, caps, RoundLoad(8, 100))
        assert plan.budget == first_drop_budget(gain_curve(own, caps), times, num_requests=8)


@pytest.mark.parametrize("one_s", [None, 0.05], ids=["whole blocks", "blocks of all lengths"])
@pytest.mark.parametrize("round_of_interest", [0, 3, 60])
def test_how_much_of_the_next_block_is_drafted_does_not_depend_on_the_block_being_walked(
    round_of_interest: int, one_s: float | None
) -> None:
    decisions = []
    for mean in (-6.0, 6.0):
        planner, steps = make_planner(make_curve(draft_s=0.3, one_s=one_s), causal=True), GAMMA
        for i in range(round_of_interest + 1):
            own = random_hazards(8, seed=i, mean=mean if i == round_of_interest else -1.0)[:, :steps]
            steps = planner.plan(own, np.full(8, steps), RoundLoad(8, 1)).next_steps
        decisions.append(steps)
    assert decisions[0] == decisions[1]


def test_observed_times_come_back_in_later_plans() -> None:
    planner = RoundPlanner(RoundClock(make_curve()), gamma=GAMMA)
    view, caps, load = random_hazards(20, seed=1), np.full(20, GAMMA), RoundLoad(20, 1)
    for _ in range(300):
        plan = learn_and_plan(planner, view, caps, load)
        curve = plan.curve
        planner.observe(plan, target_s=1.3 * curve.target_s, verify_s=2 * curve.verify_s)
        if plan.next_steps:
            planner.observe_draft(load, steps=plan.next_steps, draft_s=0.7 * curve.draft_s)
    plan = planner.plan(view, caps, load)
    assert plan.expected.target_s == pytest.approx(1.3 * plan.curve.target_s, rel=0.02)
    assert plan.expected.verify_s == pytest.approx(2 * plan.curve.verify_s, rel=0.02)
    assert plan.expected.draft_s == pytest.approx(0.7 * plan.curve.draft_s, rel=0.02)


@pytest.mark.parametrize("share", [0.6, 1.0, 1.3])
def test_acceptance_that_differs_from_calibration_is_found(share: float) -> None:
    curve = make_curve()
    planner = RoundPlanner(RoundClock(curve), gamma=GAMMA)
    view, caps, load = random_hazards(32, seed=1), np.full(32, GAMMA), RoundLoad(32, 1)
    rng = np.random.default_rng(0)
    for _ in range(400):
        plan = learn_and_plan(planner, view, caps, load)
        planner.observe(plan, accepted=int(rng.poisson(share * plan.survival_sum)))
    assert plan.expected_tokens == pytest.approx(32 + share * plan.survival_sum, rel=0.03)
    frozen = make_planner(curve)
    for _ in range(50):
        plan = learn_and_plan(frozen, view, caps, load)
        frozen.observe(plan, accepted=0)
    assert plan.expected_tokens == pytest.approx(32 + plan.survival_sum)


def test_gain_averages_are_means_over_blocks() -> None:
    average = GainAverage(2, window=6)
    np.testing.assert_array_equal(average.at(2), [0, 1, 2, 3, 4])
    curves = [np.array([0, 0.9, 1.2]), np.array([0, 0.5, 0.6]), np.array([0, 0.1])]
    for curve in curves:
        average.update(curve, num_requests=1, idle_rounds=0)
    np.testing.assert_allclose(average.at(1), [0, 0.5, (1.2 + 0.6 + 0.1) / 3])
    # Two requests of that kind are worth twice as much.
    np.testing.assert_allclose(average.at(2)[[0, 2, 4]], 2 * average.at(1))
    # As many blocks as the window push everything older out.
    average.update(np.linspace(0, 3, 13), num_requests=6, idle_rounds=0)
    np.testing.assert_allclose(average.at(6), np.linspace(0, 3, 13))


def test_longer_blocks_are_worth_more_or_less_as_shorter_ones_have_become() -> None:
    gains = BlockGains((1, 2))
    hard, easy = (np.tile(hazards(np.full((1, 2), x, np.float32), np.ones(2)), (600, 1)) for x in (-1.0, 1.0))
    gains.take_in(easy)
    gains.digest()
    before = gains.lasting(2, 1)
    np.testing.assert_allclose(before, np.append(0, np.cumsum(survival(easy)[0])))
    gains.take_in(hard[:, :1])
    gains.digest()
    change = survival(hard)[0, 0] / survival(easy)[0, 0]
    assert change < 0.5
    np.testing.assert_allclose(gains.lasting(1, 1), [0, survival(hard)[0, 0]])
    # By half at most: further than that, a longer block has to be seen.
    np.testing.assert_allclose(gains.lasting(2, 1), 0.5 * before)
    gains.take_in(hard)
    gains.digest()
    np.testing.assert_allclose(gains.lasting(2, 1), np.append(0, np.cumsum(survival(hard)[0])))


def test_rescaling_keeps_the_gain_of_each_request() -> None:
    gain = np.array([0.0, 0.9, 1.6, 2.0])
    assert rescaled(gain, 1) is gain
    np.testing.assert_allclose(rescaled(gain, 2)[::2], 2 * gain)
