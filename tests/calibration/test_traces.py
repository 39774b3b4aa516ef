"""What traces accept, what they refuse, and how they are split and joined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dspark.calibration import (
    CalibrationError,
    Provenance,
    SamplingSettings,
    acceptance_by_position,
    concatenate,
    fingerprint,
    make_traces,
    sampling_settings,
    split_by_request,
)
from dspark.calibration.traces import count_within


def three_rounds(**changes: Any) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "request": [0, 0, 1],
        "accepted": [0, 2, 1],
        "confidence_logits": np.array([[0.5, 1.0], [2.0, -1.0], [0.1, 0.2]]),
    }
    return columns | changes


def test_defaults_are_full_blocks_judged_up_to_the_first_rejection() -> None:
    traces = make_traces(**three_rounds())
    assert traces.gamma == 2
    assert traces.drafted.tolist() == traces.verified.tolist() == [2, 2, 2]
    assert traces.observed.tolist() == [1, 2, 2]
    assert traces.round.tolist() == [0, 1, 0]
    assert [(p.successes, p.trials) for p in acceptance_by_position(traces)] == [(2, 3), (1, 2)]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"confidence_logits": np.array([[0.5, 1.0], [np.nan, 1], [0, 0]])}, r"1 confidence logits .* NaN or infinite"),
        ({"confidence_logits": np.array([[0.5, np.inf], [0, -np.inf], [0, 0]])}, r"2 .*row 0, position 2, inf"),
        ({"confidence_logits": np.zeros(3)}, r"have shape \(3,\)"),
        ({"confidence_logits": np.zeros((3, 0))}, r"have shape \(3, 0\)"),
        ({"confidence_logits": np.zeros((2, 2))}, r"`request` has shape \(3,\) beside 2 rows"),
        ({"accepted": [0, 3, 1]}, "more positions were accepted than verified"),
        ({"verified": [2, 1, 2], "accepted": [0, 1, 1], "observed": [1, 2, 2]}, "were observed than verified"),
        ({"accepted": [-1, 2, 1]}, "accepted is negative"),
        ({"accepted": [0.5, 2, 1]}, "`accepted` does not hold whole numbers"),
        ({"accepted": [np.nan, 2, 1]}, "`accepted` does not hold whole numbers"),
        ({"accepted": ["no", 2, 1]}, "`accepted` does not hold whole numbers"),
        ({"accepted": [0, 2, 70_000]}, "`accepted` has 70000 in row 2, which is above"),
        ({"drafted": 32_768}, "`drafted` has 32768 in row 0, which is above"),
        ({"request": [0.0, 1.0, 2.0**63]}, r"`request` has 9\.22\d+e\+18 in row 2, which is above"),
        ({"round": [0, 1, -5]}, "`round` has -5 in row 2, which is below"),
        ({"text_position": [3, -9, 4]}, "`text_position` has -9 in row 1, which is below"),
        ({"temperature": -5.0}, r"`temperature` has -5\.0 in row 0, which is below"),
        ({"temperature": [0.0, np.inf, 1.0]}, "`temperature` has inf in row 1, which is above"),
        ({"temperature": 1e300}, r"`temperature` has 1e\+300 in row 0, which is above"),
        ({"temperature": np.array([1, 2, 3], dtype="M8[s]")}, "`temperature` does not hold numbers"),
        ({"temperature": ["0.5", "1", "1"]}, "`temperature` does not hold numbers"),
        ({"top_p": 7.0}, r"`top_p` has 7\.0 in row 0, which is above"),
        ({"top_p": [0.5, -0.1, np.nan]}, r"`top_p` has -0\.1 in row 1, which is below"),
        ({"top_k": -7}, "`top_k` has -7 in row 0, which is below"),
        ({"top_k": 1e20}, r"`top_k` has 1e\+20 in row 0, which is above"),
        ({"confidence_logits": np.full((3, 2), 1e39)}, "6 confidence logits .* NaN or infinite"),
        (
            {"signals": {"draft_max_probability": np.full((3, 2), 5.0)}},
            "`draft_max_probability` is 5 in row 0 at position",
        ),
        ({"signals": {"draft_margin": [[0, 0], [0, -1], [0, 0]]}}, "`draft_margin` is -1 in row 1 at position 2"),
        ({"signals": {"oracle_acceptance": np.full((3, 2), 1e300)}}, "`oracle_acceptance` is inf in row 0"),
        ({"observed": [2, 2, 1]}, "observed goes on past a rejected position"),
        ({"observed": [1, 1, 1]}, "more positions were accepted than observed"),
        ({"drafted": [1, 2, 1], "verified": 2}, "more positions were verified than drafted"),
        ({"drafted": 3, "verified": 2}, "more positions were drafted than the 2 that have logits"),
        ({"round": [4, 4, 4]}, r"1 rounds appear more than once \(request 0, round 4\)"),
        ({"signals": {"draft_margin": np.zeros((3, 1))}}, "signal `draft_margin`"),
        ({"signals": {"mood": np.zeros((3, 2))}}, "signal `mood`"),
    ],
)
def test_contradictions_are_one_sentence_with_a_remedy(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CalibrationError, match=sentence) as caught:
        make_traces(**three_rounds(**changes), source="rounds.csv")
    assert str(caught.value).startswith("rounds.csv: ")
    assert caught.value.remedy


def test_logits_behind_what_was_drafted_do_not_matter() -> None:
    logits = np.array([[0.5, np.inf], [2.0, np.nan], [0.1, 0.2]])
    traces = make_traces(**three_rounds(accepted=[0, 1, 1], drafted=[1, 1, 2], confidence_logits=logits))
    assert np.isnan(traces.confidence_logits[:2, 1]).all()
    assert np.isinf(logits[0, 1]), "the caller's array was changed"


def test_settings_at_their_limits_and_not_recorded_are_taken() -> None:
    traces = make_traces(
        **three_rounds(
            temperature=[0.0, 1e6, np.nan],
            top_k=[-1, 0, 2**31 - 1],
            top_p=[np.nan, 1e-50, 1.0],
            text_position=[-1, 0, 2**63 - 1],
            signals={"draft_max_probability": [[1.0000001, np.nan], [0.0, 1.0], [np.nan, np.nan]]},
        )
    )
    assert traces.top_k.tolist() == [-1, 0, 2**31 - 1]
    assert traces.text_position.tolist() == [-1, 0, 2**63 - 1]


def test_signals_behind_what_was_drafted_do_not_matter() -> None:
    signals = {"draft_margin": np.array([[0.5, 9.0], [0.5, -9.0], [0.1, 0.2]])}
    assert len(make_traces(**three_rounds(accepted=[0, 1, 1], drafted=[1, 1, 2], signals=signals))) == 3


def test_zero_rows_are_traces_too() -> None:
    traces = make_traces(request=[], accepted=[], confidence_logits=np.zeros((0, 7)))
    assert (len(traces), traces.gamma) == (0, 7)
    assert sampling_settings(traces) == ()
    assert all(p.rate is None for p in acceptance_by_position(traces))


def test_rounds_are_counted_within_their_request() -> None:
    assert count_within(np.array([3, 1, 3, 3, 1])).tolist() == [0, 0, 1, 2, 1]


@pytest.mark.parametrize("holdout", [0.01, 0.3, 0.99])
def test_no_request_is_on_both_sides(simulate, holdout: float) -> None:
    traces = simulate(1000, (1.0, 1.0))
    fit, held_out = split_by_request(traces, holdout=holdout, rng=np.random.default_rng(0))
    assert len(fit) + len(held_out) == 1000
    assert set(fit.request) & set(held_out.request) == set()
    assert len(set(held_out.request)) == max(1, min(49, round(holdout * 50)))


def test_one_request_cannot_be_split() -> None:
    traces = make_traces(request=[5], accepted=[1], confidence_logits=[[0.0]])
    fit, held_out = split_by_request(traces, holdout=0.5, rng=np.random.default_rng(0))
    assert (len(fit), len(held_out)) == (1, 0)


def test_joining_keeps_requests_rounds_and_texts(simulate) -> None:
    one = simulate(100, (1.0, 2.0), seed=1, policy="fixed:2", dataset="math", temperature=1.0)
    two = simulate(60, (1.0, 2.0), seed=2, policy="async", dataset="chat", temperature=0.7)
    both = concatenate([one, two], names=["one", "two"])
    assert len(both) == 160
    assert [both.policy.names[c] for c in both.policy.codes[[0, 100]]] == ["fixed:2", "async"]
    assert [both.dataset.names[c] for c in both.dataset.codes[[0, 100]]] == ["math", "chat"]
    # Request 0 of both runs is one prompt: it must not be fitted on in one file and held out in the other.
    assert both.request[100] == both.request[0]
    assert {s.temperature for s in sampling_settings(both)} == {0.7, 1.0}
    assert fingerprint(both) != fingerprint(one)


def test_row_runs_that_stand_for_requests_are_numbered_on(simulate) -> None:
    parts = [simulate(40, (1.0,), seed=seed, requests_known=False) for seed in (1, 2)]
    assert concatenate(parts, names=["a", "b"]).request[[0, 39, 40, 79]].tolist() == [0, 1, 2, 3]


def test_files_that_do_not_fit_together_are_refused(simulate) -> None:
    rounds = simulate(30, (1.0, 1.0))
    with pytest.raises(CalibrationError, match=r"a has 2 draft positions and b has 3"):
        concatenate([rounds, simulate(30, (1.0, 1.0, 1.0))], names=["a", "b"])
    with pytest.raises(CalibrationError, match=r"b holds the same 30 rounds as a"):
        concatenate([rounds, rounds], names=["a", "b"])
    with pytest.raises(CalibrationError, match=r"10 rounds .* more than one of the 2 trace files"):
        concatenate([rounds.select(slice(0, 20)), rounds.select(slice(10, 30))], names=["a", "b"])
    with pytest.raises(CalibrationError, match=r"drafter of a is x and that of b is y"):
        concatenate(
            [simulate(9, (1.0,), seed=s, provenance=Provenance(drafter=d)) for s, d in enumerate("xy")],
            names=["a", "b"],
        )
    with pytest.raises(CalibrationError, match="no traces"):
        concatenate([], names=[])


def test_settings_that_were_not_recorded_are_one_setting() -> None:
    traces = make_traces(**three_rounds(temperature=[0.7, 0.7, np.nan], top_k=[20, 20, -1], top_p=[0.95, 0.95, np.nan]))
    assert set(sampling_settings(traces)) == {SamplingSettings(0.7, 20, 0.95), SamplingSettings()}
