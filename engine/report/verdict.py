"""Will scheduled verification pay here, from where on, by how much, and what stands in its way: in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dspark.calibration import Traces
from dspark.engine.report.counterfactual import recalibrated_logits, true_logits
from dspark.engine.report.frontier import ASYNC, ORACLE, Frontier, FrontierLine, are_apart, replay_parts, replayed
from dspark.engine.report.rounds import replayable
from dspark.engine.report.words import if_held, joined, plural
from dspark.profiles import Profile
from dspark.profiles.trust import Doubts, doubts_about

FLAT_CURVE, DRAFTER, CALIBRATION, HEAD, NOTHING = "flat curve", "drafter", "calibration", "confidence head", "nothing"

# Fewer requests than this are told to be few.
_MANY_REQUESTS = 30
# Less than this is not worth a scheduler.
WORTH = 0.01
# Verifying whole blocks may cost this much more than verifying nothing before the curve counts as steep.
_FLAT = 0.15
# A bound that gains less than this leaves a scheduler nothing to win.
_NO_ROOM = 0.03
_EVERYTHING = 0.9


@dataclass(frozen=True, slots=True)
class Gain:
    """Throughput of one policy over another's at one concurrency, less 1, with its 95 % interval over the repeats."""

    concurrency: int
    against: str
    gain: float
    low: float
    high: float

    @property
    def pays(self) -> bool:
        """Is it large enough to be worth having, and beyond doubt above 0?"""
        return self.low > 0 and self.gain >= WORTH


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer, and what it rests on."""

    pays: bool
    pays_from: int | None  # the concurrency from which on it does everywhere that was looked at, else None
    sentences: tuple[str, ...]
    scheduled: tuple[Gain, ...]  # `async` against the best policy that does not schedule
    bound: tuple[Gain, ...]  # the oracle against the same
    limit: str  # what stands in the way, by the names above
    extra_cost: tuple[float, ...]  # of verifying whole blocks in place of nothing, as a share of the round
    doubts: Doubts  # about the times that all of it rests on


def unscheduled(frontier: Frontier) -> list[FrontierLine]:
    """Plain decoding and fixed lengths."""
    return [line for line in frontier.lines if line.policy == "none" or line.policy.startswith("fixed:")]


def gains(frontier: Frontier, line: FrontierLine, against: Sequence[FrontierLine]) -> list[Gain]:
    """`line` at every concurrency against the best of the others there; repeats are paired, since they share draws."""
    from scipy.stats import t

    found = []
    for i, concurrency in enumerate(frontier.concurrency):
        best = max(against, key=lambda other: other.tokens_per_s[i])
        ratios = np.array(line.repeats_tokens_per_s[i]) / np.array(best.repeats_tokens_per_s[i]) - 1
        spread = float(ratios.std(ddof=1) / np.sqrt(ratios.size) * t.ppf(0.975, ratios.size - 1))
        mean = float(ratios.mean())
        found.append(Gain(concurrency, best.policy, mean, mean - spread, mean + spread))
    return found


def judge(frontier: Frontier, traces: Traces, profile: Profile, temperatures: NDArray[np.float64]) -> Verdict:
    """The verdict on a replay of `traces` with `profile`."""
    scheduled = gains(frontier, frontier.line(ASYNC), unscheduled(frontier))
    bound = gains(frontier, frontier.line(ORACLE), unscheduled(frontier))
    extra_cost = _extra_cost(frontier)
    limit, reason = _limit(frontier, replayable(traces), temperatures, scheduled, bound, max(extra_cost))
    paying = [gain.pays for gain in scheduled]
    pays_from = next((g.concurrency for i, g in enumerate(scheduled) if all(paying[i:])), None)
    doubts = doubts_about(profile)
    found = [_answer(scheduled, pays_from, profile.conditions.device_name), _against_plain(frontier)]
    if doubts:
        found = [doubts.sentence, *map(if_held, found), f"What limits it, if these times hold: {reason}"]
    else:
        found.append(f"What limits it: {reason}")
    if frontier.requests < _MANY_REQUESTS:
        found.append(_few_requests(frontier))
    return Verdict(any(paying), pays_from, tuple(found), tuple(scheduled), tuple(bound), limit, extra_cost, doubts)


def _extra_cost(frontier: Frontier) -> tuple[float, ...]:
    """By what share verifying every block whole prolongs a round that drafts."""
    setting, requests = frontier.setting, np.array(frontier.concurrency)
    curve = setting.curve

    def round_s(tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        return curve.round_time_s(
            tokens,
            num_requests=requests,
            kv_tokens=requests * setting.context_tokens + tokens,
            longest_context=setting.context_tokens + curve.tokens_per_request,
            sampled=setting.sampled,
        )

    return tuple((round_s(requests * curve.tokens_per_request) / round_s(requests) - 1).tolist())


def _few_requests(frontier: Frontier) -> str:
    one = frontier.requests == 1
    sentence = f"All of this rests on {plural(frontier.requests, 'recorded request')}: other requests may well differ"
    if not are_apart(frontier.requests):
        sentence += f", and since every repeat draws from {'it' if one else 'all of them'}, the intervals do not tell"
    return sentence + "."


def _draft_cost(frontier: Frontier) -> str:
    """Drafting as a share of a round that verifies nothing, at the least and the most requests at once."""
    curve, requests = frontier.setting.curve, np.array([frontier.concurrency[0], frontier.concurrency[-1]])
    sampled = frontier.setting.sampled
    with_draft = curve.round_time_s(requests, num_requests=requests, sampled=sampled)
    low, high = sorted((curve.draft_time_s(requests, sampled=sampled) / with_draft).tolist())
    share = f"{low:.0%}" if round(low, 2) == round(high, 2) else f"{low:.0%} to {high:.0%}"
    return f"drafting takes {share} of a round that verifies nothing"


def _answer(scheduled: Sequence[Gain], pays_from: int | None, device: str) -> str:
    paying = [gain for gain in scheduled if gain.pays]
    may_pay = [gain for gain in scheduled if gain.high >= WORTH]
    most = max(paying or may_pay or scheduled, key=lambda gain: gain.gain)
    best = f"{most.gain:+.1%} ({most.low:+.1%} to {most.high:+.1%}) against `{most.against}`"
    losing = [gain for gain in scheduled if gain.high < 0 and gain.gain <= -WORTH]
    if may_pay and not paying:
        answer = (
            f"Whether scheduled verification pays on {device} with this drafter cannot be told from so few requests: "
            f"at no load up to {_counted(scheduled[-1].concurrency)} is `async` ahead of the best policy that does not "
            f"schedule by {WORTH:.0%} and beyond chance; its best is {best}, at {_counted(most.concurrency)}. Record "
            "more requests."
        )
    elif not paying:
        answer = (
            f"Scheduled verification does not pay on {device} with this drafter: at no load up to "
            f"{_counted(scheduled[-1].concurrency)} does `async` give {WORTH:.0%} more tokens a second than the best "
            f"policy that does not schedule; its best is {best}, at {_counted(most.concurrency)}."
        )
    else:
        if len(paying) == len(scheduled):
            where = "at every load"
        elif pays_from is not None:
            where = f"from {_counted(pays_from)} on"
        else:
            where = f"but only at {_counted(*(gain.concurrency for gain in paying))}"
        gained = f"{most.gain:.1%}" if len(paying) == 1 else f"{min(g.gain for g in paying):.1%} to {most.gain:.1%}"
        answer = (
            f"Scheduled verification pays on {device} with this drafter, {where}: `async` gives {gained} more tokens a "
            f"second there than the best policy that does not schedule; most at {_counted(most.concurrency)}, {best}."
        )
    if losing:
        loads = _counted(*(gain.concurrency for gain in losing))
        answer += f" It costs up to {-min(gain.gain for gain in losing):.1%} at {loads}."
    return answer


def _against_plain(frontier: Frontier) -> str:
    ratios = np.array(frontier.line(ASYNC).tokens_per_s) / np.array(frontier.line("none").tokens_per_s)
    first, last = frontier.concurrency[0], frontier.concurrency[-1]
    sentence = f"Against plain decoding `{ASYNC}` gives {ratios[0]:.2f} times the tokens at {_counted(first)}"
    return f"{sentence} and {ratios[-1]:.2f} times at {_counted(last)}." if last > first else sentence + "."


def _limit(
    frontier: Frontier,
    full: Traces,
    temperatures: NDArray[np.float64],
    scheduled: Sequence[Gain],
    bound: Sequence[Gain],
    extra_cost: float,
) -> tuple[str, str]:
    """The name of what limits it, and why."""
    room = max(0.0, *(gain.gain for gain in bound))
    mean, gamma = float(full.accepted.mean()), full.gamma
    drafts = f"{mean:.2f} of {gamma} drafts are accepted on average"
    if room < _NO_ROOM:
        knowing = f"a scheduler that knew every outcome beforehand would gain {room:.1%} at most"
        if extra_cost < _FLAT:
            return FLAT_CURVE, (
                f"the step curve is flat. Verifying whole blocks takes at most {extra_cost:.0%} longer than verifying "
                f"nothing, so {knowing}."
            )
        if mean >= _EVERYTHING * gamma:
            return DRAFTER, f"the drafter is so good that little is rejected. {drafts}, and {knowing}."
        return DRAFTER, f"the drafter leaves little to choose from. {drafts}, {_draft_cost(frontier)}, and {knowing}."
    # The highest load with room: with few requests at once, a budget that is set beforehand can use little knowledge.
    i = max(i for i, gain in enumerate(bound) if gain.gain >= _NO_ROOM)
    room, reached, at = bound[i].gain, scheduled[i].gain, _counted(bound[i].concurrency)
    start = f"Knowing every outcome beforehand would gain {room:.1%} at {at}, where `async` gains {reached:.1%}"
    if room - reached < WORTH:
        return NOTHING, f"nothing that a better confidence could change. {start}."
    recalibrated = _gain_with(recalibrated_logits(full, temperatures), frontier, full, i, bound[i].against)
    if recalibrated - reached >= WORTH:
        return CALIBRATION, f"calibration. {start} and {recalibrated:.1%} with confidences calibrated freely."
    start += f" and, with confidences calibrated freely, {recalibrated:.1%}"
    truth = true_logits(full)
    if truth is None:
        return HEAD, f"how well the confidence head tells. {start}; what could tell better, the traces do not say."
    perfect = _gain_with(truth, frontier, full, i, bound[i].against)
    start += f"; the true chances of acceptance would give {perfect:.1%}"
    if perfect - reached >= WORTH:
        return HEAD, f"how well the confidence head tells. {start}."
    drafts += f", and {_draft_cost(frontier)}"
    return DRAFTER, f"the drafter; its confidences are about as good as can be. {drafts}. {start}."


def _gain_with(logits: NDArray[np.float64], frontier: Frontier, full: Traces, index: int, against: str) -> float:
    """Gain of `async` with other confidences at the `index`-th concurrency."""
    setting = frontier.setting
    parts = replay_parts(full, logits, np.ones(full.gamma), seed=setting.seed)
    results = replayed(parts, ASYNC, frontier.concurrency[index], setting)
    reference = np.array(frontier.line(against).repeats_tokens_per_s[index])
    return float(np.mean(np.array([result.tokens_per_s for result in results]) / reference - 1))


def _counted(*concurrency: int) -> str:
    requests = "request" if concurrency == (1,) else "requests"
    return f"{joined(f'{c:,}' for c in concurrency)} {requests} at once"
