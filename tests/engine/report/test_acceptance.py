"""Acceptance by position, data set and length, against counting by hand."""

from __future__ import annotations

import pytest
from report_samples import decode_metrics

from dspark.calibration import make_traces
from dspark.engine.report.acceptance import dataset_acceptance, decoded_lengths, traced_lengths

# accepted, observed, verified of six rounds, γ = 3; a stop ends the fourth, a policy cuts the fifth.
ROUNDS = [(0, 1, 3), (2, 3, 3), (3, 3, 3), (1, 1, 3), (2, 2, 2), (0, 1, 3)]


def traces(dataset=("a", "a", "a", "a", "b", "b")):
    accepted, observed, verified = zip(*ROUNDS, strict=True)
    return make_traces(
        request=[0, 0, 1, 1, 2, 2],
        accepted=accepted,
        observed=observed,
        verified=verified,
        confidence_logits=[[0.0] * 3] * 6,
        dataset=dataset,
    )


def test_conditional_acceptance_of_each_data_set():
    everything, a, b = dataset_acceptance(traces())
    assert [(p.successes, p.trials) for p in everything.positions] == [(4, 6), (3, 3), (1, 2)]
    assert (a.dataset, [(p.successes, p.trials) for p in a.positions]) == ("a", [(3, 4), (2, 2), (1, 2)])
    assert (b.dataset, [(p.successes, p.trials) for p in b.positions]) == ("b", [(1, 2), (1, 1), (0, 0)])


@pytest.mark.parametrize(("dataset", "names"), [("", ["all rounds"]), ("a", ["a"])], ids=["unnamed", "only one"])
def test_one_data_set_is_shown_once(dataset, names):
    assert [entry.dataset for entry in dataset_acceptance(traces(dataset))] == names


def test_lengths_leave_out_what_was_cut_short():
    lengths = traced_lengths(traces())
    assert (lengths.counts, lengths.rounds, lengths.left_out) == ((2, 0, 1, 1), 4, 2)
    assert lengths.mean_accepted == pytest.approx((0 + 2 + 3 + 0) / 4)


def test_lengths_of_a_decoded_file_are_all_of_its_rounds():
    lengths = decoded_lengths(decode_metrics())
    assert (lengths.counts, lengths.rounds, lengths.source) == ((3, 2, 1), 6, "decode, fixed:2")
    assert lengths.mean_accepted == pytest.approx(4 / 6)


def test_no_rounds_have_no_mean():
    metrics = decode_metrics()
    metrics["spec"] |= {"acceptance_histogram": [], "rounds": 0}
    assert decoded_lengths(metrics).mean_accepted is None
