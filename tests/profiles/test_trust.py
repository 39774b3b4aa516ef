"""Which profiles are doubted, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from profile_samples import make_profile

from dspark.profiles import PredictionError
from dspark.profiles.trust import doubts_about


def measured(*, validation=(0, None, None, None), **manifest):
    return replace(make_profile(), validation=PredictionError(*validation), manifest=manifest)


@pytest.mark.parametrize(
    ("profile", "told"),
    [
        (measured(spread=0.19, steady_after_warm_up=True, validation=(5, 0.09, 0.5, 0.6)), ()),
        (measured(), ()),
        (measured(spread="wide"), ()),
        (measured(spread=0.65, steady_after_warm_up=False), ("repeats differ by 65% (p20-p80)",)),
        (measured(spread=0.1, steady_after_warm_up=False), ("warming up did not end within 5%",)),
        (
            measured(spread=0.65, validation=(5, 0.3, 0.438, 0.5)),
            (
                "repeats differ by 65% (p20-p80)",
                "the curve predicts new points poorly (error 30.0% median, 43.8% p90)",
            ),
        ),
    ],
    ids=["sound", "nothing recorded", "no number", "unsteady", "never warm", "both"],
)
def test_doubts_are_what_the_profile_recorded_against_itself(profile, told):
    doubts = doubts_about(profile)
    assert doubts.told == told
    assert bool(doubts) == bool(told)
