"""A calibration as other engines read it."""

from __future__ import annotations

import ast
import json
from dataclasses import replace

import numpy as np
import pytest

from dspark.calibration import Calibration, calibrate, make_traces, survival
from dspark.calibration.combine import split_by_request
from dspark.calibration.export import mean_survival, sts_document, temperature_tuple


@pytest.fixture(scope="module")
def made(simulate) -> Calibration:
    return calibrate(simulate(4000, (0.5, 2.0, 1.0), dataset=["maths", "code"] * 2000), seed=2)


def test_both_keys_hold_the_temperatures_and_every_number_is_one(made: Calibration) -> None:
    document = json.loads(json.dumps(sts_document(made), allow_nan=False))
    assert document["temperatures"] == document["sts_temperatures"] == list(made.temperatures)
    assert all(t > 0 for t in document["temperatures"])
    assert document["dataset"] == "code, maths"
    assert document["num_samples"] == made.fitted_on.rounds
    assert document["ece_before"] == [p.metrics.before.ece for p in made.positions]
    assert document["ece_after"] == [p.metrics.after.ece for p in made.positions]


def test_a_position_that_was_never_measured_leaves_the_lists_empty() -> None:
    traces = make_traces(request=np.arange(300), accepted=0, verified=1, confidence_logits=np.zeros((300, 2)))
    document = sts_document(calibrate(traces))
    assert document["temperatures"] == [1.0, 1.0]
    assert document["ece_before"] == document["ece_after"] == []


def test_the_tuple_can_be_pasted_into_python() -> None:
    assert ast.literal_eval(temperature_tuple((0.8123456789, 2.0, 1.0))) == (0.812346, 2.0, 1.0)
    assert ast.literal_eval(temperature_tuple((0.5,))) == (0.5,)


def test_mean_survival_is_of_the_held_out_rounds_after_calibration(simulate) -> None:
    traces = simulate(4000, (0.5, 2.0, 1.0))
    result = calibrate(traces, seed=2)
    _, held_out = split_by_request(traces, holdout=result.holdout, rng=np.random.default_rng(2))
    expected = survival(held_out.confidence_logits, result.temperatures).mean(axis=0)
    np.testing.assert_allclose(mean_survival(result), expected)


def test_mean_survival_never_rises_and_is_zero_where_nothing_was_measured(made: Calibration) -> None:
    def with_means(*means: float | None) -> Calibration:
        return replace(
            made,
            positions=tuple(
                replace(p, metrics=replace(p.metrics, after=replace(p.metrics.after, mean_prediction=mean)))
                for p, mean in zip(made.positions, means, strict=True)
            ),
        )

    assert mean_survival(with_means(0.8, 0.5, 0.6)) == [0.8, 0.5, 0.5]
    assert mean_survival(with_means(0.8, None, 0.6)) == [0.8, 0.0, 0.0]
