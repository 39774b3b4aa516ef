"""Counts of several answers add up; sampling parameters are within their bounds."""

import pytest
from refusals import assert_reads_well

from dspark.engine.errors import RequestError
from dspark.engine.requests import SamplingParams, SpecCounts


@pytest.mark.parametrize(
    ("name", "value", "bounds"),
    [("top_k", -2, "from 0"), ("top_k", 2**31, "to 2147483647"), ("max_tokens", 2**31, "from 1 to 2147483647")],
)
def test_a_refused_count_names_its_bounds(name, value, bounds):
    with pytest.raises(RequestError, match=f"{name} is {value}") as refused:
        SamplingParams(**{name: value})
    assert_reads_well(refused.value)
    assert bounds in refused.value.remedy


def test_top_k_minus_one_is_off():
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)


def test_counts_add_up_field_by_field():
    first = SpecCounts(1, 2, 3, 4, 5, 6, (1, 0, 2))
    second = SpecCounts(10, 20, 30, 40, 50, 60, (5,))
    total = SpecCounts(11, 22, 33, 44, 55, 66, (6, 0, 2))
    assert first + second == second + first == total
    assert first + SpecCounts() == first
