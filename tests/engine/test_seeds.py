"""Seeds use all the bits that the generator's key has."""

import numpy as np
import pytest

from dspark.engine.seeds import fold_seed, row_seed


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**63), -(2**64) + 1, 2**64 + 5])
def test_a_seed_is_its_low_64_bits_in_twos_complement(seed):
    folded = fold_seed(seed)
    assert np.int64(folded).view(np.uint64) == np.uint64(seed % 2**64)


def test_the_highest_bit_counts():
    assert len({fold_seed(seed) for seed in (5, 5 + 2**63, -5, 2**63 - 5)}) == 4


def test_row_seeds_differ_in_every_bit():
    seeds = np.array([row_seed(7, index) for index in range(400)]).view(np.uint64)
    assert len(set(seeds.tolist())) == 400
    ones = [(seeds >> np.uint64(bit) & np.uint64(1)).sum() for bit in range(64)]
    # Five standard deviations of 400 fair coins.
    assert min(ones) > 150 and max(ones) < 250
    assert row_seed(7, 0) != row_seed(8, 0)
