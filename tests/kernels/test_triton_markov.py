"""The Markov kernel against its reference."""

import pytest
import torch

from dspark.kernels.markov import reference
from dspark.kernels.random import DRAFT, NoiseKeys

TOLERANCE = {"atol": 3e-5, "rtol": 3e-5}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)


def make_keys(rows: int, device: torch.device | str = "cpu") -> NoiseKeys:
    numbers = torch.arange(rows)
    return NoiseKeys(
        seeds=(numbers * 7 - 3).to(device),
        positions=(numbers + 5).to(device),
        generations=(numbers % 3).to(device),
        purpose=DRAFT,
    )


def check(device, *, rows: int, vocab_size: int, rank: int, dtype: torch.dtype, source: str, noise: str) -> None:
    from dspark.kernels.markov.triton import markov_step

    torch.manual_seed(rows + rank)
    # Beyond what a CPU does in a moment the reference runs on the GPU too.
    home = device if vocab_size > 10_000 else torch.device("cpu")
    block = torch.full((rows, 3, vocab_size), float("nan"), device=home)
    block[:, 1] = torch.randn(rows, vocab_size, device=home) * 3
    w1, w2 = None, None
    if rank:
        w1, w2 = torch.randn(2, vocab_size, rank, device=home).mul_(rank**-0.5).to(dtype)
    previous = torch.randint(vocab_size, (rows,), device=home)
    embedding = torch.randn(rows, rank, device=home).to(dtype) if source == "embedding" else None
    temperature = torch.zeros(rows, device=home)
    if noise == "mixed":
        temperature[::2] = torch.linspace(0.3, 1.7, len(temperature[::2]))

    def on_device(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.to(device)

    moved = block.to(device, copy=True)
    # Twice: the second launch finds what it shares with the first as that one left it.
    for column in (moved.clone()[:, 1], moved[:, 1]):
        tokens = markov_step(
            column,
            on_device(w1),
            on_device(w2),
            previous.to(device),
            noise=None if noise == "none" else make_keys(rows, device),
            temperature=temperature.to(device),
            embedding=on_device(embedding),
        )
        keys = None if noise == "none" else make_keys(rows, home)
        logits = block[:, 1].clone()
        reference.markov_step(logits, w1, w2, previous, noise=keys, temperature=temperature, embedding=embedding)
        torch.testing.assert_close(column.to(home), logits, **TOLERANCE)
        # The draw is judged on the kernel's own logits, so that no near-tie can depend on the order of a sum.
        own = reference.markov_step(column.to(home), None, None, previous, noise=keys, temperature=temperature)
        assert torch.equal(tokens.to(home), own)
    assert moved[:, [0, 2]].isnan().all()


@DTYPES
@pytest.mark.parametrize("source", ["w1", "embedding"])
@pytest.mark.parametrize("rows, vocab_size, rank", [(1, 301, 12), (17, 131, 16), (35, 131, 100)])
def test_small(device, rows: int, vocab_size: int, rank: int, source: str, dtype: torch.dtype) -> None:
    check(device, rows=rows, vocab_size=vocab_size, rank=rank, dtype=dtype, source=source, noise="mixed")


@pytest.mark.parametrize("noise", ["none", "greedy", "mixed"])
@pytest.mark.parametrize("rank", [0, 24])
def test_noise(device, rank: int, noise: str) -> None:
    check(device, rows=5, vocab_size=259, rank=rank, dtype=torch.bfloat16, source="w1", noise=noise)


@pytest.mark.gpu
@DTYPES
@pytest.mark.parametrize("vocab_size, rank", [(49152, 64), (50257, 256), (151936, 16)])
@pytest.mark.parametrize("rows", [1, 7, 63, 100])
@pytest.mark.parametrize("noise", ["none", "mixed"])
def test_large(device, gpu_only, rows: int, vocab_size: int, rank: int, dtype: torch.dtype, noise: str) -> None:
    check(device, rows=rows, vocab_size=vocab_size, rank=rank, dtype=dtype, source="w1", noise=noise)


def test_ties_go_to_the_lowest_id_across_programs(device) -> None:
    from dspark.kernels.markov.triton import markov_step

    logits = torch.full((3, 700), -1.0, device=device)
    logits[0, [130, 131, 650]] = 2.0
    logits[1, 699] = -0.5
    # The two zeros are equal.
    logits[2, [5, 300]] = torch.tensor([-0.0, 0.0], device=device)
    zeros = torch.zeros(3, device=device)
    tokens = markov_step(logits, None, None, zeros.long(), noise=None, temperature=zeros)
    assert tokens.tolist() == [130, 699, 5]


def test_logits_stay_when_nobody_keeps_them(device) -> None:
    from dspark.kernels.markov.triton import markov_step

    torch.manual_seed(0)
    logits, w1, w2 = torch.randn(2, 200), torch.randn(200, 16), torch.randn(200, 16)
    previous = torch.tensor([4, 9])
    moved = logits.to(device, copy=True)
    arguments = (w1.to(device), w2.to(device), previous.to(device))
    temperature = torch.zeros(2, device=device)
    tokens = markov_step(moved, *arguments, noise=None, temperature=temperature, keep_logits=False)
    assert torch.equal(moved.cpu(), logits)
    assert torch.equal(tokens.cpu(), (logits + w1[previous] @ w2.T).argmax(-1))
