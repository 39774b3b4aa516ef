"""Totals of the whole file and of this run are two things."""

import pytest

from dspark.engine.jobs.summary import DecodeSummary


def record(index, *, emitted=4, rounds=2, verified=6, accepted=2, reason="stop"):
    spec = {"rounds": rounds, "drafted": 8, "verified": verified, "accepted": accepted}
    row = {
        "index": index,
        "finish_reason": reason,
        "usage": {"prompt_tokens": 3, "completion_tokens": emitted + 1},
        "spec": {**spec, "acceptance_histogram": [rounds - 1, 1, 0]},
        "error": f"line {index + 1}: it is so" if reason == "error" else None,
    }
    return {"observed": accepted, "emitted": emitted, "row": row}


def test_a_resumed_run_keeps_its_own_tokens_apart_from_the_files():
    summary = DecodeSummary(3)
    summary.add(record(0, emitted=90, rounds=30), resumed=True)
    summary.add(record(2, emitted=4), resumed=False)
    summary.add(record(1, emitted=5, reason="length"), resumed=False)
    summary.decode_s = 0.5
    totals = summary.to_dict()
    assert (totals["rows"], totals["resumed_rows"], totals["this_run"]["rows"]) == (3, 1, 2)
    assert totals["completion_tokens"] == 91 + 5 + 6
    assert totals["this_run"]["completion_tokens"] == 11
    assert totals["this_run"]["tokens_per_s"] == 22.0
    assert totals["spec"]["mean_acceptance_length"] == pytest.approx(99 / 34)
    assert totals["this_run"]["spec"]["mean_acceptance_length"] == pytest.approx(9 / 4)
    assert totals["this_run"]["finish_reasons"] == {"stop": 1, "length": 1, "error": 0}
    # A speed belongs to a run and a time to it: neither stands among the file's totals.
    assert not {"tokens_per_s", "decode_s"} & totals.keys()


def test_verification_per_round_and_what_of_it_is_wasted():
    summary = DecodeSummary(2)
    summary.add(record(0, rounds=2, verified=6, accepted=2), resumed=False)
    summary.add(record(1, rounds=3, verified=4, accepted=2), resumed=False)
    spec = summary.to_dict()["spec"]
    assert spec["verified_per_round"] == 10 / 5
    assert spec["draft_acceptance_rate"] == 4 / 10
    assert spec["wasted_verification"] == 6 / 10


def test_counts_of_single_requests_are_told_by_their_quantiles():
    summary = DecodeSummary(3)
    for index, rounds in enumerate((2, 3, 9)):
        summary.add(record(index, rounds=rounds, verified=2 * rounds, accepted=1), resumed=index == 0)
    counts = summary.to_dict()["per_request"]
    assert counts["rounds"] == {"p10": 2, "p50": 3, "p90": 9}
    assert counts["verified"] == {"p10": 4, "p50": 6, "p90": 18}
    assert counts["observed"] == counts["accepted"] == {"p10": 1, "p50": 1, "p90": 1}


def test_without_rounds_no_rate_is_known():
    summary = DecodeSummary(1)
    summary.add(record(0, emitted=0, rounds=0, verified=0, accepted=0), resumed=False)
    totals = summary.to_dict()
    rates = ("mean_acceptance_length", "draft_acceptance_rate", "verified_per_round", "wasted_verification")
    assert [totals["spec"][name] for name in rates] == [None] * 4
    assert totals["this_run"]["tokens_per_s"] is None


def test_the_first_errors_are_those_of_the_first_lines_in_whatever_order_they_come():
    summary = DecodeSummary(9)
    for index in (7, 3, 8, 1, 5, 2, 6, 4):
        summary.add(record(index, reason="error"), resumed=index % 2 == 0)
    assert summary.to_dict()["first_errors"] == [f"line {index + 1}: it is so" for index in (1, 2, 3, 4, 5)]
    assert summary.to_dict()["finish_reasons"]["error"] == 8
