"""The confidence kernels against their references."""

import pytest
import torch

from dspark.kernels.confidence import reference

TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)


@DTYPES
@pytest.mark.parametrize("source", ["hidden", "w1", "embedding"])
@pytest.mark.parametrize("rows, width, rank", [(1, 576, 64), (7, 1100, 12), (100, 48, 16)])
def test_head_by_column_and_by_block(device, rows: int, width: int, rank: int, source: str, dtype) -> None:
    from dspark.kernels.confidence.triton import confidence_logits

    if device.type == "cpu" and rows > 7:
        rows = 9
    torch.manual_seed(rows)
    steps, vocab_size = 3, 60
    hidden = torch.randn(rows, steps, width).to(dtype)
    w1 = torch.randn(vocab_size, rank).to(dtype)
    embedding = torch.randn(rows, steps, rank).to(dtype) if source == "embedding" else None
    previous = torch.randint(vocab_size, (rows, steps))
    weight = torch.randn(1, width + (rank if source != "hidden" else 0)).mul_(width**-0.5).to(dtype)
    bias = torch.randn(1).to(dtype)

    expected = torch.empty(rows, steps)
    columns = torch.full((rows, steps + 2), float("nan"), device=device)
    moved, moved_w1, moved_previous = hidden.to(device), w1.to(device), previous.to(device)
    moved_head = {"weight": weight.to(device), "bias": bias.to(device)}
    for step in range(steps):
        own = None if embedding is None else embedding[:, step]
        reference.confidence_logits(
            hidden[:, step], w1, previous[:, step], weight=weight, bias=bias, out=expected[:, step], embedding=own
        )
        confidence_logits(
            moved[:, step],
            moved_w1,
            moved_previous[:, step],
            **moved_head,
            out=columns[:, step],
            embedding=None if own is None else own.to(device),
        )
    block = torch.empty(rows, steps, device=device)
    confidence_logits(
        moved,
        moved_w1,
        moved_previous,
        **moved_head,
        out=block,
        embedding=None if embedding is None else embedding.to(device),
    )
    torch.testing.assert_close(columns[:, :steps].cpu(), expected, **TOLERANCE)
    assert columns[:, steps:].isnan().all()
    torch.testing.assert_close(block.cpu(), expected, **TOLERANCE)


def check_headless(device, *, rows: int, steps: int | None, vocab_size: int) -> None:
    from dspark.kernels.confidence.triton import headless_confidence_logits

    torch.manual_seed(vocab_size)
    shape = (rows,) if steps is None else (rows, steps)
    # Beyond what a CPU does in a moment the reference runs on the GPU too.
    home = device if vocab_size > 10_000 else torch.device("cpu")
    logits = torch.randn(*shape, vocab_size, device=home) * 3
    temperature = torch.tensor([0.0, 0.5, 1.0, 1.5], device=home).repeat(rows)[:rows]
    expected, out = torch.empty(shape, device=home), torch.empty(shape, device=device)
    reference.headless_confidence_logits(logits, temperature=temperature, out=expected)
    for _ in range(2):
        headless_confidence_logits(logits.to(device), temperature=temperature.to(device), out=out.fill_(float("nan")))
        # Where one token holds nearly all mass, the rest of it is what two sums leave in common.
        torch.testing.assert_close(out.cpu().sigmoid(), expected.cpu().sigmoid(), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("vocab_size", [5, 97, 9001])
def test_headless(device, steps: int | None, vocab_size: int) -> None:
    check_headless(device, rows=5, steps=steps, vocab_size=vocab_size)


@pytest.mark.gpu
@pytest.mark.parametrize("vocab_size", [49152, 50257, 151936])
@pytest.mark.parametrize("rows", [1, 7, 63, 100])
def test_headless_large(device, gpu_only, rows: int, vocab_size: int) -> None:
    check_headless(device, rows=rows, steps=7, vocab_size=vocab_size)


def test_headless_stays_finite_when_the_draft_is_certain(device) -> None:
    from dspark.kernels.confidence.triton import headless_confidence_logits

    logits = torch.zeros(1, 10, device=device)
    logits[0, 4] = 500.0
    out = torch.empty(1, device=device)
    headless_confidence_logits(logits, temperature=torch.zeros(1, device=device), out=out)
    assert torch.isfinite(out).all() and out > 15
