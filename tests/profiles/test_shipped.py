"""The step curves that come with the package."""

from __future__ import annotations

import numpy as np
import pytest

from dspark.profiles import ProfileError, find_profile, prediction_error, shipped_profiles


@pytest.mark.parametrize("name", ["h200-qwen3-4b", "h200-smollm2-135m"])
def test_a_shipped_curve_predicts_what_was_kept_from_its_fit(name: str) -> None:
    profile = find_profile(name)
    assert profile.conditions.device_name == "NVIDIA H200"
    held_out = [point for point in profile.measurements if point.held_out]
    error = prediction_error([profile.curve.predict(point) for point in held_out], held_out)
    assert error.num_points == profile.validation.num_points >= 20
    assert error.median is not None and error.p90 is not None
    assert error.median < 0.05 and error.p90 < 0.1
    assert [error.median, error.p90] == pytest.approx([profile.validation.median, profile.validation.p90], rel=1e-3)
    times = profile.curve.step_time_s(np.arange(1, profile.curve.max_batch_tokens + 1))
    assert (times > 0).all()


def test_all_of_them_are_named_where_one_is_not_found() -> None:
    assert sorted(shipped_profiles()) == ["h200-qwen3-4b", "h200-smollm2-135m"]
    with pytest.raises(ProfileError, match="neither a file nor one of the shipped profiles") as caught:
        find_profile("h100-llama")
    assert "h200-qwen3-4b, h200-smollm2-135m" in caught.value.remedy
