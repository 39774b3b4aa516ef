"""Counts of several answers add up."""

from dspark.engine.requests import SpecCounts


def test_counts_add_up_field_by_field():
    first = SpecCounts(1, 2, 3, 4, 5, 6, (1, 0, 2))
    second = SpecCounts(10, 20, 30, 40, 50, 60, (5,))
    total = SpecCounts(11, 22, 33, 44, 55, 66, (6, 0, 2))
    assert first + second == second + first == total
    assert first + SpecCounts() == first
