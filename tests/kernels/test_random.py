"""Philox against the known answers that the Random123 authors publish (kat_vectors), and what is built on it."""

import math

import pytest
import torch

from dspark.kernels.random import ACCEPT, DRAFT, SAMPLE, NoiseKeys, gumbel, philox_words, uniform
from dspark.kernels.random.host import host_words
from dspark.kernels.random.reference import philox4x32

ONES = 0xFFFFFFFF
KNOWN_ANSWERS = {
    "zeros": ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    "ones": ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    "pi": (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
}


def make_keys(seeds, *, positions=None, generations=None, purpose=SAMPLE):
    seeds = torch.tensor(seeds)
    zeros = torch.zeros_like(seeds)
    return NoiseKeys(
        seeds=seeds,
        positions=zeros if positions is None else torch.tensor(positions),
        generations=zeros if generations is None else torch.tensor(generations),
        purpose=purpose,
    )


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS.values(), ids=KNOWN_ANSWERS)
def test_philox_known_answers(counter, key, answer):
    words = philox4x32(tuple(torch.tensor([c]) for c in counter), tuple(torch.tensor([k]) for k in key))
    assert tuple(int(word) for word in words) == answer


def test_counter_and_key_layout():
    # counter = (index >> 2, position, generation, purpose), key = (seed low, seed high), word index & 3
    counter, key, _ = KNOWN_ANSWERS["pi"]
    block = 12345
    expected = philox4x32(
        tuple(torch.tensor([c]) for c in (block, counter[1], counter[2], ACCEPT)), tuple(torch.tensor([k]) for k in key)
    )
    seed = key[0] | key[1] << 32
    keys = make_keys([seed], positions=[counter[1]], generations=[counter[2]], purpose=ACCEPT)
    words = philox_words(keys, torch.arange(4 * block, 4 * block + 4))
    assert words[0].tolist() == [int(word) for word in expected]


def test_negative_seed_is_its_64_bit_pattern():
    all_ones, known = make_keys([-1]), make_keys([(1 << 62) - 1])
    zero = torch.tensor([0])
    low_high = (torch.tensor([ONES]), torch.tensor([ONES]))
    expected = philox4x32((zero, zero, zero, zero), low_high)
    assert philox_words(all_ones, zero).item() == int(expected[0])
    assert philox_words(known, zero).item() != int(expected[0])


@pytest.mark.parametrize("vocab_size", [1, 3, 4, 255, 1001])
def test_rows_do_not_depend_on_the_batch(vocab_size):
    keys = make_keys([7, -3, 1 << 40], positions=[5, 6, 7], generations=[0, 2, 9], purpose=DRAFT)
    together = gumbel(keys, vocab_size)
    assert together.shape == (3, vocab_size) and together.dtype == torch.float32
    for row in range(3):
        alone = NoiseKeys(
            seeds=keys.seeds[row : row + 1],
            positions=keys.positions[row : row + 1],
            generations=keys.generations[row : row + 1],
            purpose=DRAFT,
        )
        assert torch.equal(gumbel(alone, vocab_size)[0], together[row])
        assert uniform(alone).item() == uniform(keys)[row].item()


def test_gumbel_is_the_transform_of_the_words():
    keys = make_keys([11, 12], positions=[3, 4])
    words = philox_words(keys, torch.arange(301)).double()
    expected = -torch.log(-torch.log1p(-(words + 0.5) * 2.0**-32))
    torch.testing.assert_close(gumbel(keys, 301).double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_blocks", [1, 2, 63, 20_000])
def test_numpy_makes_the_words_of_the_tensor_form(num_blocks):
    keys = make_keys([-1, 0, 1 << 33, 77], positions=[1, ONES, 3, 0], generations=[9, 8, 7, 0], purpose=ACCEPT)
    made = host_words(keys.seeds, (keys.positions, keys.generations, keys.purpose), num_blocks)
    assert torch.equal(made, philox_words(keys, torch.arange(4 * num_blocks)).float())


@pytest.mark.parametrize(
    "change",
    [{"seeds": [2]}, {"positions": [1]}, {"generations": [1]}, {"purpose": DRAFT}, {"purpose": ACCEPT}],
    ids=["seed", "position", "generation", "draft", "accept"],
)
def test_every_part_of_the_key_changes_the_noise(change):
    base = gumbel(make_keys([1]), 64)
    other = gumbel(make_keys(**({"seeds": [1]} | change)), 64)
    assert (base == other).float().mean() < 0.1


def test_at_moves_the_position_only():
    keys = make_keys([1, 2], positions=[10, 20], generations=[3, 4], purpose=DRAFT)
    moved = make_keys([1, 2], positions=[15, 25], generations=[3, 4], purpose=DRAFT)
    assert torch.equal(gumbel(keys.at(5), 9), gumbel(moved, 9))


def test_uniform_stays_inside_the_open_interval_and_is_uniform():
    n = 200_000
    draws = uniform(make_keys(list(range(n)), purpose=ACCEPT)).double()
    assert draws.min() > 0 and draws.max() < 1
    assert abs(draws.mean() - 0.5) < 4 / math.sqrt(12 * n)
    counts = torch.histc(draws, bins=50, min=0, max=1)
    chi2 = ((counts - n / 50) ** 2 / (n / 50)).sum()
    assert chi2 < 94  # 49 degrees of freedom, p = 1e-4


def test_gumbel_extremes_are_finite():
    from dspark.kernels.random.reference import _to_uniform

    extremes = _to_uniform(torch.tensor([0, ONES]).float())
    assert extremes[0] > 0 and extremes[1] < 1
    assert torch.isfinite(-(-torch.log1p(-extremes)).log()).all()
