"""What each figure shows, in a sentence that is computed from its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dspark.calibration import PredictionMetrics
from dspark.calibration.verdict import FEW_ROUNDS, FEWEST_MEASURED
from dspark.engine.report.acceptance import AcceptanceLengths, DatasetAcceptance
from dspark.engine.report.audit import CALIBRATED, HEAD, ORACLE, SignalScores
from dspark.engine.report.drift import Drift
from dspark.engine.report.sweep import ThresholdSweep
from dspark.profiles import Profile
from dspark.profiles.trust import doubts_about

# A difference that fewer random splits than this show is told as one.
_SIGNIFICANT = 0.05
# Fewer rounds than this make no sentence.
_TELLING = 50


def joined(parts: Iterable[str]) -> str:
    """a, b and c."""
    *head, last = list(parts)
    return f"{', '.join(head)} and {last}" if head else last


def plural(count: int, noun: str) -> str:
    """A count and its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def if_held(sentence: str) -> str:
    """A claim that rests on times which may be wrong."""
    return f"If these times hold, {sentence[0].lower()}{sentence[1:]}"


def about_raw_reliability(metrics: Sequence[PredictionMetrics]) -> str:
    """Of a head that was not calibrated."""
    rounds = [sum(m.reliability.count) if m.reliability is not None else 0 for m in metrics]
    if not any(rounds):
        return "No position has a known outcome."
    known = [m for m, count in zip(metrics, rounds, strict=True) if count >= FEWEST_MEASURED]
    if not known:
        return (
            f"Uncalibrated, and too few rounds to tell how well: {max(rounds)} at a position, and it takes "
            f"{FEWEST_MEASURED}."
        )
    outside = [k for k, m in enumerate(metrics, start=1) if m in known and m.calibrated is False]
    mean_ece = sum(m.ece or 0.0 for m in known) / len(known)
    if not outside:
        inside = "every position lies inside what perfect calibration would show"
        if max(rounds) < FEW_ROUNDS:
            inside += f", of which {max(rounds)} rounds show little"
        return f"Uncalibrated: mean ECE {mean_ece:.3f}; {inside}."
    positions = joined(str(k) for k in outside)
    word = "position" if len(outside) == 1 else "positions"
    return f"Uncalibrated: mean ECE {mean_ece:.3f}; {word} {positions} beyond what perfect calibration would show."


def about_acceptance(datasets: Sequence[DatasetAcceptance]) -> str:
    """How acceptance falls along the block."""
    first = datasets[0]
    reached = [(k, p.rate) for k, p in enumerate(first.positions, start=1) if p.rate is not None]
    if not reached:
        return "No position was reached."
    often = [(k, rate) for k, rate in reached if first.positions[k - 1].trials >= _TELLING]
    (start, at_first), (last, at_last) = reached[0], (often or reached)[-1 if often else 0]
    # Rounds that drafted nothing, or ended before their first draft was judged, are none of these.
    judged = first.positions[start - 1].trials
    sentence = f"Position {start} is accepted in {at_first:.0%} of {plural(judged, 'round')}"
    if last > start:
        sentence += f", position {last} in {at_last:.0%} of those that reach it"
    named = [d for d in datasets if d.positions[0].rate is not None and d is not first]
    if len(named) > 1:
        ordered = sorted(named, key=lambda d: d.positions[0].rate or 0.0)
        low, high = ordered[0], ordered[-1]
        sentence += (
            f"; at position 1, {high.dataset} is the easiest data set ({high.positions[0].rate:.0%}) and {low.dataset} "
            f"the hardest ({low.positions[0].rate:.0%})"
        )
    return sentence + "."


def about_lengths(lengths: Sequence[AcceptanceLengths]) -> str:
    """How many tokens a round yields, by source."""
    parts = []
    for entry in lengths:
        if not entry.rounds or entry.mean_accepted is None:
            parts.append(f"{entry.source}: no round tells")
            continue
        none, most = entry.counts[0] / entry.rounds, entry.counts[-1] / entry.rounds
        part = (
            f"{entry.source}: {entry.mean_accepted:.2f} drafted tokens accepted a round on average, none in {none:.0%} "
            f"of the rounds, all {len(entry.counts) - 1} in {most:.0%}"
        )
        if entry.left_out:
            part += f" ({plural(entry.left_out, 'round')} cut short by a stop, a limit or a policy left out)"
        parts.append(part)
    sentence = "; ".join(parts) + "."
    return sentence[0].upper() + sentence[1:]


def about_sweep(sweep: ThresholdSweep) -> str:
    """What a threshold on survival saves and costs."""
    full_verified, full_accepted = sweep.verified[0], sweep.accepted[0]
    verified, accepted = sweep.at(0.5)
    sentence = (
        f"Of {full_verified:.2f} drafted tokens a round {full_accepted:.2f} are accepted "
        f"({_rate(full_accepted, full_verified)}) when all are verified"
    )
    if not full_accepted:
        return sentence + "."
    kept = accepted / full_accepted
    spared = full_verified - full_accepted - (verified - accepted)
    share = spared / (full_verified - full_accepted) if full_verified > full_accepted else 0.0
    return (
        f"{sentence}; a survival threshold of 0.5 keeps {kept:.0%} of the accepted tokens and spares {share:.0%} of "
        f"the rejected ones (acceptance rate {_rate(accepted, verified)})."
    )


def about_curve(profile: Profile) -> str:
    """How the target's step time rises with the batch."""
    curve = profile.curve
    stairs = curve.reference_target
    one, most = float(stairs.time_s[0]), float(stairs.time_s[-1])
    jumps = (stairs.time_s[1:] / stairs.time_s[:-1]) - 1
    sentence = (
        f"A target step over {stairs.buckets[0]:,} packed token{'' if stairs.buckets[0] == 1 else 's'} takes "
        f"{one * 1e3:.2f} ms, one over {curve.max_batch_tokens:,} {most * 1e3:.2f} ms ({most / one:.1f} times as long)"
    )
    if jumps.size:
        i = int(jumps.argmax())
        low, high = stairs.buckets[i : i + 2]
        sentence += f"; the steepest stair leads from {low:,} to {high:,} tokens ({jumps[i]:+.0%})"
    doubts = doubts_about(profile)
    return f"{sentence}. {doubts.sentence}" if doubts else sentence + "."


def about_audit(scores: Sequence[SignalScores], described: str, *, greedy: bool) -> str:
    """How well confidence predicts acceptance beside signals that cost nothing.

    Greedily decoded, a draft passes or does not, and its true acceptance probability tells which: no news.
    """
    by_name = {signal.name: signal for signal in scores}
    head = by_name.get(CALIBRATED, by_name[HEAD])
    free = [s for s in scores if s.name.startswith("draft_") and s.pooled_auc is not None]
    if head.pooled_auc is None:
        return f"Of {described}, all that were reached went one way: nothing can be told apart."
    sentence = (
        f"On {described}, over all positions, the head tells accepted from rejected with AUC {head.pooled_auc:.3f}"
    )
    if free:
        best = max(free, key=lambda s: s.pooled_auc or 0.0)
        gain = head.pooled_auc - (best.pooled_auc or 0.0)
        how = "better than" if gain > 0.005 else "worse than" if gain < -0.005 else "as well as"
        sentence += (
            f", {how} the best number that comes for free ({best.label.removeprefix('free: ')}, {best.pooled_auc:.3f})"
        )
    oracle = by_name.get(ORACLE)
    if oracle is not None and oracle.pooled_auc is not None and not greedy:
        sentence += f"; the true acceptance probability would reach {oracle.pooled_auc:.3f}"
    if not free and oracle is None:
        sentence += "; these traces record neither the free signals nor the true acceptance to hold it against"
    return sentence + "."


def about_drift(found: Drift) -> str:
    """Whether acceptance differs between the two halves of the texts."""
    first, second = found.halves
    if found.difference is None:
        return "Too few full blocks in one of the halves to compare."
    sentence = (
        f"{first.mean_accepted:.2f} drafted tokens accepted a round in the first half "
        f"({plural(first.requests, 'request')}), {second.mean_accepted:.2f} in the second "
        f"({plural(second.requests, 'request')})"
    )
    if found.p_value is None:
        return sentence + "."
    if found.p_value < _SIGNIFICANT:
        return (
            f"{sentence}: a drift, since only {found.p_value:.1%} of random splits of the requests differ as much; "
            f"the head expected {first.mean_expected:.2f} and {second.mean_expected:.2f}."
        )
    return f"{sentence}: no drift, {found.p_value:.0%} of random splits of the requests differ as much."


def _rate(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "of nothing"
