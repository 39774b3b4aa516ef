"""What is said of a calibration rests on enough rounds, or says that it does not."""

from __future__ import annotations

import pytest

from dspark.calibration import calibrate


@pytest.mark.parametrize(
    ("rounds", "begins"),
    [
        (300, "Too few rounds to tell whether calibration helps: 80 at a position to measure on, and it takes 100."),
        (1000, "300 rounds are too few to tell whether calibration was needed or helped: mean held-out ECE"),
        (20_000, "The confidences were calibrated already"),
    ],
    ids=["too few", "few", "enough"],
)
def test_calibrated_confidences_are_called_so_on_enough_rounds_only(simulate, rounds, begins):
    # One temperature, so that chance does not pile up.
    result = calibrate(simulate(rounds, (1.0,)), "nll")
    assert result.verdict.startswith(begins)


def test_miscalibration_that_few_rounds_show_is_told(simulate):
    assert calibrate(simulate(1500, (4.0, 4.0, 4.0)), "nll").verdict.startswith("Calibration helped")
