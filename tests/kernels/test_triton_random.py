"""The kernels' random numbers against the reference: words bit for bit, noise up to the rounding of logarithms."""

import pytest
import torch

from dspark.kernels.random import ACCEPT, DRAFT, SAMPLE, NoiseKeys
from dspark.kernels.random import reference as expected

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
device_functions = pytest.importorskip("dspark.kernels.random.triton")
to_gumbel = device_functions.to_gumbel

TOLERANCE = {"atol": 4e-6, "rtol": 4e-6}


def make_keys(rows: int, purpose: int, device: torch.device | str = "cpu") -> NoiseKeys:
    generator = torch.Generator().manual_seed(rows)
    seeds = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator)
    positions = torch.randint(2**31, (rows,), generator=generator)
    generations = torch.randint(1000, (rows,), generator=generator)
    return NoiseKeys(
        seeds=seeds.to(device), positions=positions.to(device), generations=generations.to(device), purpose=purpose
    )


@pytest.mark.parametrize("purpose", [SAMPLE, DRAFT, ACCEPT])
@pytest.mark.parametrize("rows", [1, 7, 63])
def test_words(device, rows: int, purpose: int) -> None:
    indices = torch.randint(200_000, (1301,))
    words = device_functions.philox_words(make_keys(rows, purpose, device), indices.to(device)).cpu()
    assert torch.equal(words, expected.philox_words(make_keys(rows, purpose), indices))


@pytest.mark.parametrize("rows", [1, 63, 1100])
def test_uniform(device, rows: int) -> None:
    assert torch.equal(
        device_functions.uniform(make_keys(rows, ACCEPT, device)).cpu(), expected.uniform(make_keys(rows, ACCEPT))
    )


@pytest.mark.parametrize("vocab_size", [1, 3, 4, 255, 5025])
def test_gumbel(device, vocab_size: int) -> None:
    noise = device_functions.gumbel(make_keys(7, DRAFT, device), vocab_size).cpu()
    torch.testing.assert_close(noise, expected.gumbel(make_keys(7, DRAFT), vocab_size), **TOLERANCE)


@triton.jit
def _gumbel_of_word(word, out):
    tl.store(out, to_gumbel(tl.load(word).to(tl.uint32)))


@pytest.mark.parametrize("word", [0, 1, 2**29 - 1, 2**29, 2**31, 2**32 - 129, 2**32 - 1])
def test_gumbel_at_the_edges_of_its_ranges(device, word: int) -> None:
    out = torch.empty(1, device=device)
    _gumbel_of_word[(1,)](torch.tensor([word], device=device), out)
    u = min((word + 0.5) * 2.0**-32, 1 - 2.0**-24)
    exact = -torch.log(-torch.log1p(torch.tensor(-u, dtype=torch.float64)))
    torch.testing.assert_close(out.cpu().double(), exact[None], **TOLERANCE)
