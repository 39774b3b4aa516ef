"""The sampling kernels against their references."""

import pytest
import torch

from dspark.kernels.sampling import SamplingRows, reference

SETTINGS = ["greedy", "sampled", "mixed", "truncated"]


def make_rows(rows: int, settings: str, device: torch.device | str = "cpu") -> SamplingRows:
    temperature = {"greedy": [0.0], "sampled": [0.9], "mixed": [0.0, 0.5, 1.0, 1.7], "truncated": [0.8, 0.0, 1.2]}
    top_k = [0, 5, 40, 1] if settings == "truncated" else [0]
    top_p = [0.9, 1.0, 0.6, 0.3, 0.99] if settings == "truncated" else [1.0]

    def cycled(values: list) -> list:
        return [values[row % len(values)] for row in range(rows)]

    return SamplingRows.of(
        cycled(temperature[settings]),
        top_k=cycled(top_k),
        top_p=cycled(top_p),
        seeds=[1000 + 7 * row for row in range(rows)],
        device=device,
    )


def check_sample(device, *, rows: int, vocab_size: int, settings: str) -> None:
    from dspark.kernels.sampling.triton import sample

    torch.manual_seed(rows)
    # Beyond what a CPU does in a moment the reference runs on the GPU too.
    home = device if vocab_size > 10_000 else torch.device("cpu")
    wide = torch.full((rows, vocab_size + 16), float("nan"), device=home)
    wide[:, :vocab_size] = torch.randn(rows, vocab_size, device=home) * 3
    positions = torch.arange(rows, device=home) * 3 + 5
    expected = reference.sample(wide[:, :vocab_size].clone(), make_rows(rows, settings, home), positions).cpu()
    logits = wide.to(device)[:, :vocab_size]
    for _ in range(2):
        assert torch.equal(sample(logits, make_rows(rows, settings, device), positions.to(device)).cpu(), expected)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("rows, vocab_size", [(1, 101), (7, 3), (3, 9001)])
def test_sample(device, rows: int, vocab_size: int, settings: str) -> None:
    check_sample(device, rows=rows, vocab_size=vocab_size, settings=settings)


@pytest.mark.gpu
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("vocab_size", [49152, 50257, 151936])
@pytest.mark.parametrize("rows", [1, 7, 63, 100])
def test_sample_large(device, gpu_only, rows: int, vocab_size: int, settings: str) -> None:
    check_sample(device, rows=rows, vocab_size=vocab_size, settings=settings)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_nan_wins_so_that_somebody_notices(device, settings: str) -> None:
    from dspark.kernels.sampling.triton import sample

    logits = torch.randn(5, 9001, device=device)
    bad = torch.tensor([0, 17, 4500, 8999, 9000])
    logits[torch.arange(5), bad] = float("nan")
    tokens = sample(logits, make_rows(5, settings, device), torch.arange(5, device=device))
    assert torch.equal(tokens.cpu(), bad)


def test_ties_go_to_the_lowest_id_across_programs(device) -> None:
    from dspark.kernels.sampling.triton import sample

    logits = torch.zeros(2, 9001, device=device)
    logits[1, [4500, 8999]] = 1.0
    tokens = sample(logits, make_rows(2, "greedy", device), torch.zeros(2, dtype=torch.int64, device=device))
    assert tokens.tolist() == [0, 4500]


def check_limits(device, *, rows: int, vocab_size: int, tied: bool, slack: int) -> None:
    from dspark.kernels.sampling.limits import truncation_limits

    torch.manual_seed(vocab_size)
    logits = torch.randn(rows, vocab_size) * 3
    if tied:
        logits = logits.round()
    settings = make_rows(rows, "truncated")
    limits = truncation_limits(
        logits.to(device), make_rows(rows, "truncated", device), starts=None, lengths=None, max_length=0
    )
    threshold, cutoff = limits[:, 0, 0:1].cpu(), limits[:, 0, 1:2].cpu()
    bits = torch.where(logits == 0, 0.0, logits).view(torch.int32)
    key = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    kept = (key > threshold) | ((key == threshold) & (torch.arange(vocab_size) <= cutoff))
    largest = logits.amax(-1, keepdim=True)
    sampled = settings.temperature > 0
    scaled = (logits - largest) / settings.temperature.where(sampled, 1.0)[:, None]
    expected = reference.kept_tokens(scaled, settings.top_k, settings.top_p) | ~sampled[:, None]
    assert ((kept != expected).sum(-1) <= slack).all()


@pytest.mark.parametrize("tied", [False, True], ids=["distinct", "tied"])
@pytest.mark.parametrize("rows, vocab_size", [(5, 1), (20, 7), (20, 100), (5, 5000)])
def test_limits_keep_what_the_reference_keeps(device, rows: int, vocab_size: int, tied: bool) -> None:
    check_limits(device, rows=rows, vocab_size=vocab_size, tied=tied, slack=0)


@pytest.mark.gpu
@pytest.mark.parametrize("tied", [False, True], ids=["distinct", "tied"])
@pytest.mark.parametrize("vocab_size", [49152, 50257, 151936])
def test_limits_large(device, gpu_only, vocab_size: int, tied: bool) -> None:
    # Where the tail is thin, the rounding of a sum may move top-p's boundary by a token or two.
    check_limits(device, rows=100, vocab_size=vocab_size, tied=tied, slack=2)
