"""What `dspark decode` says when it is done: totals, the first answers, and what could not be decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark.engine.jobs import strict_json
from dspark.engine.jobs.output_format import answer_of
from dspark.engine.wording import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Any

    from dspark.cli.output import Sink
    from dspark.engine.jobs.decode_job import DecodeJob

_ANSWERS, _ANSWER_CHARACTERS = 2, 200
_NAMES, _NAME_CHARACTERS = 4, 30
# A speed that is off by a larger share of what was predicted says that the profile no longer fits.
_FITTING = 0.25


def render(totals: Mapping[str, Any], job: DecodeJob, sink: Sink, *, why: str) -> None:
    """Tell a finished job: `totals` as `DecodeSummary.to_dict` gives them, `why` its policy was chosen."""
    written = {"output": str(job.output), "metrics": str(job.metrics)}
    if job.rounds is not None and job.rounds.path.exists():
        written["rounds"] = str(job.rounds.path)
    sink.document({"command": "decode", **written, "policy_reason": why, **totals})
    this_run = totals["this_run"]
    run = [("speed", _speed(this_run)), *_schedule(this_run, why)]
    files = list(written.items())
    if totals["unused_fields"]["rows"]:
        files.insert(0, ("fields not used", _unused(totals["unused_fields"])))
    if totals["resumed_rows"]:
        sink.table("decode, this run", [*_counts(this_run), *run])
        sink.table("decode, whole file", [*_counts(totals), *files])
    else:
        sink.table("decode", [*_counts(totals), *run, *files])
    if sink.for_people:
        for name, text in first_answers(job.output):
            sink.note(f"{name}: {text}")
    rounds = this_run["engine_rounds"]
    misfit = None if rounds is None else about_misfit(rounds["plan"])
    if misfit:
        sink.note(misfit)
    _tell_errors(totals, job.output, sink)


def first_answers(output: Path) -> Iterator[tuple[str, str]]:
    """Names and texts of the first rows that have a text, shortened to be looked at."""
    found = 0
    with output.open("rb") as file:
        for line in file:
            name, answer = answer_of(strict_json.loads(line.decode("utf-8")))
            text = one_line(answer, _ANSWER_CHARACTERS)
            if text:
                yield one_line(name, _NAME_CHARACTERS), text
                found += 1
            if found == _ANSWERS:
                return


def about_misfit(plan: Mapping[str, Any] | None) -> str | None:
    """A sentence if planned rounds were much slower or faster than the profile told; `plan` as in `engine_rounds`."""
    if plan is None or abs(plan["measured_tokens_per_s"] / plan["predicted_tokens_per_s"] - 1) <= _FITTING:
        return None
    return (
        "The profile does not fit this machine's present state, so rounds may have been planned badly: "
        "`dspark profile` measures it again."
    )


def _counts(totals: Mapping[str, Any]) -> list[tuple[str, str]]:
    reasons, spec = totals["finish_reasons"], totals["spec"]
    length, per_round, wasted = (
        spec[name] for name in ("mean_acceptance_length", "verified_per_round", "wasted_verification")
    )
    rows = f"{totals['rows']:,} ({reasons['stop']:,} stop, {reasons['length']:,} length, {reasons['error']:,} error)"
    verified = "-"
    if per_round and wasted is not None:
        accepted = spec["draft_acceptance_rate"]
        verified = f"{per_round:.2f} draft tokens a round, {accepted:.1%} accepted, {wasted:.1%} wasted"
    return [
        ("rows", rows),
        ("tokens", f"{totals['completion_tokens']:,} from {totals['prompt_tokens']:,} prompt tokens"),
        ("mean acceptance length", f"{length:.2f} tokens a round" if length else "-"),
        ("verified", verified),
    ]


def _speed(this_run: Mapping[str, Any]) -> str:
    speed = this_run["tokens_per_s"]
    return f"{speed:,.1f} tok/s over {this_run['decode_s']:.1f} s" if speed else "-"


def _schedule(this_run: Mapping[str, Any], why: str) -> list[tuple[str, str]]:
    """The policy, what it promised against what came, and what was run for nobody."""
    rounds = this_run["engine_rounds"]
    rows = [("policy", f"{this_run['policy']} ({why})")]
    if rounds is None:
        return rows
    if rounds["plan"] is not None:
        promised, found = (rounds["plan"][f"{kind}_tokens_per_s"] for kind in ("predicted", "measured"))
        rows.append(
            (
                "planned rounds",
                f"{promised:,.1f} tok/s predicted, {found:,.1f} measured ({found / promised - 1:+.1%}) "
                f"over {rounds['plan']['rounds']:,} rounds",
            )
        )
    if rounds["wasted_tokens"]:
        share = rounds["wasted_tokens"] / rounds["batch_tokens"]
        rows.append(
            ("wasted tokens", f"{rounds['wasted_tokens']:,} ({share:.1%} of the packed ones), of ended requests")
        )
    return rows


def _unused(fields: Mapping[str, Any]) -> str:
    names = list(fields["rows_by_name"])
    shown = ", ".join(one_line(name, _NAME_CHARACTERS) for name in names[:_NAMES])
    more = f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else ""
    return f"{shown}{more}, in {fields['rows']:,} of the input's rows"


def _tell_errors(totals: Mapping[str, Any], output: Path, sink: Sink) -> None:
    num_errors, shown = totals["finish_reasons"]["error"], totals["first_errors"]
    if not num_errors:
        return
    more = num_errors - len(shown)
    details = [*shown, *([f"and {more:,} more: `error` of their rows says why"] if more else [])]
    sink.alert(f"{num_errors:,} of {totals['rows']:,} rows could not be decoded, see `error` in {output}", details)
