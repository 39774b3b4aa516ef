"""The kernel that cuts q and draws, and verification by what it leaves, against their references."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dspark.kernels.draft_top import TopQ, reference
from dspark.kernels.random import DRAFT, NoiseKeys
from dspark.kernels.sampling import SamplingRows
from dspark.kernels.verification import reference as verification

TOLERANCE = {"atol": 3e-6, "rtol": 3e-6}


def make_keys(rows: int, device: torch.device | str = "cpu") -> NoiseKeys:
    numbers = torch.arange(rows)
    return NoiseKeys(
        seeds=(numbers * 7 - 3).to(device),
        positions=(numbers + 5).to(device),
        generations=(numbers % 3).to(device),
        purpose=DRAFT,
    )


def temperatures(rows: int) -> torch.Tensor:
    return torch.tensor([(0.8, 0.0, 1.5)[row % 3] for row in range(rows)])


def check_draw(device, *, rows: int, size: int, count: int, kind: str) -> None:
    from dspark.kernels.draft_top.triton import draw_from_top

    torch.manual_seed(size + count)
    block = torch.full((rows, 3, size), float("nan"))
    block[:, 1] = torch.randn(rows, size) * 3
    if kind == "ties":
        block = block.round()
    ids = torch.arange(size) * 3 + 2 if kind == "reduced" else None
    out, expected = (TopQ.uniform(rows, 3, count=count, device=where) for where in (device, "cpu"))
    tokens = draw_from_top(
        block.to(device)[:, 1],
        noise=make_keys(rows, device),
        temperature=temperatures(rows).to(device),
        out=out[:, 1],
        ids=None if ids is None else ids.to(device),
    )
    own = reference.draw_from_top(
        block[:, 1], noise=make_keys(rows), temperature=temperatures(rows), out=expected[:, 1], ids=ids
    )
    assert torch.equal(tokens.cpu(), own)
    # Positions beside it included, which nobody may touch.
    assert torch.equal(out.ids.cpu(), expected.ids)
    torch.testing.assert_close(out.log_probs.cpu(), expected.log_probs, **TOLERANCE)


@pytest.mark.parametrize("kind", ["distinct", "ties", "reduced"])
@pytest.mark.parametrize(("rows", "size", "count"), [(1, 3, 1), (5, 67, 2), (3, 67, 66), (4, 67, 16), (2, 5001, 2500)])
def test_draw(device, rows: int, size: int, count: int, kind: str) -> None:
    check_draw(device, rows=rows, size=size, count=count, kind=kind)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["distinct", "ties", "reduced"])
@pytest.mark.parametrize(
    ("rows", "size", "count"), [(1, 49152, 16), (256, 49152, 16), (63, 151936, 64), (7, 50257, 20_000)]
)
def test_draw_large(device, gpu_only, rows: int, size: int, count: int, kind: str) -> None:
    check_draw(device, rows=rows, size=size, count=count, kind=kind)


@pytest.mark.parametrize("broken", [slice(None), slice(2, 3), slice(70, None)], ids=["all", "one", "half"])
def test_logits_that_overflowed_still_give_tokens_of_the_vocabulary(device, broken: slice) -> None:
    from dspark.kernels.draft_top.triton import draw_from_top

    logits = torch.randn(3, 130, generator=torch.Generator().manual_seed(0))
    logits[:, broken] = float("nan")
    logits[2, broken] *= -1
    out = TopQ.uniform(3, count=5, device=device)
    tokens = draw_from_top(
        logits.to(device), noise=make_keys(3, device), temperature=temperatures(3).to(device), out=out
    )
    for ids in (tokens, out.ids):
        assert ((ids >= 0) & (ids < 130)).all()


def make_batch(rows: int, size: int, count: int, *, settings: str, gamma: int = 4) -> dict:
    """Requests of every length 0 .. gamma whose drafts are good enough that some of each pass and some fail."""
    torch.manual_seed(rows + count)
    lengths = torch.arange(rows) * 3 % (gamma + 1)
    starts = torch.cat((torch.zeros(1, dtype=torch.int64), (lengths + 1).cumsum(0)))
    target = torch.randn(int(starts[-1]), size) * 3
    kinds = {"sampled": [0.9], "mixed": [0.0, 0.6, 1.3], "truncated": [1.0, 0.0, 0.7]}[settings]
    temperature = torch.tensor([kinds[row % len(kinds)] for row in range(rows)])
    cuts = settings == "truncated"
    top, tokens = TopQ.uniform(rows, gamma, count=count), torch.zeros(rows, gamma, dtype=torch.int64)
    for step in range(gamma):
        near = target[(starts[:-1] + step).clamp(max=len(target) - 1)] + 0.4 * torch.randn(rows, size)
        keys = replace(make_keys(rows), positions=torch.arange(rows) * 5 + 18 + step)
        tokens[:, step] = reference.draw_from_top(near, noise=keys, temperature=temperature, out=top[:, step])
    return {
        "target_logits": target,
        "query_starts": starts.int(),
        "lengths": lengths,
        "draft_tokens": tokens,
        "draft_logits": None,
        "draft_top": top,
        "rows": SamplingRows.of(
            temperature.tolist(),
            top_k=[(0, 30, 5)[row % 3] if cuts else 0 for row in range(rows)],
            top_p=[(0.9, 1.0)[row % 2] if cuts else 1.0 for row in range(rows)],
            seeds=range(rows),
        ),
        "positions": torch.arange(rows) * 5 + 17,
        "generations": torch.arange(rows) % 3,
        "max_length": gamma,
    }


def on(device, batch: dict) -> dict:
    moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    rows, top = batch["rows"], batch["draft_top"]
    fields = ("temperature", "top_k", "top_p", "seeds")
    moved["rows"] = replace(rows, **{name: getattr(rows, name).to(device) for name in fields})
    moved["draft_top"] = TopQ(top.ids.to(device), top.log_probs.to(device))
    return moved


def check_verify(device, batch: dict, acceptance: str) -> verification.Verdict:
    from dspark.kernels.verification.triton import verify

    expected = verification.verify(**batch, acceptance=acceptance)
    for _ in range(2):
        verdict = verify(**on(device, batch), acceptance=acceptance)
        assert torch.equal(verdict.accepted.cpu(), expected.accepted)
        assert torch.equal(verdict.next_token.cpu(), expected.next_token)
    return expected


@pytest.mark.parametrize("acceptance", ["rejection", "coupled"])
@pytest.mark.parametrize("settings", ["sampled", "mixed", "truncated"])
@pytest.mark.parametrize(("rows", "size", "count"), [(1, 67, 1), (10, 67, 5), (5, 67, 66), (4, 5001, 300)])
def test_verify(device, rows: int, size: int, count: int, settings: str, acceptance: str) -> None:
    if device.type == "cpu" and settings == "truncated":
        rows = min(rows, 2)
    check_verify(device, make_batch(rows, size, count, settings=settings), acceptance)


@pytest.mark.gpu
@pytest.mark.parametrize("settings", ["sampled", "mixed", "truncated"])
@pytest.mark.parametrize(
    ("rows", "size", "count"), [(1, 49152, 16), (63, 50257, 1), (100, 49152, 64), (9, 49152, 20_000)]
)
def test_verify_large(device, gpu_only, rows: int, size: int, count: int, settings: str) -> None:
    check_verify(device, make_batch(rows, size, count, settings=settings), "rejection")


@pytest.mark.parametrize("step", [0, 2])
def test_a_rejected_token_is_replaced_from_what_p_has_beyond_q(device, step: int) -> None:
    """Where p is 0 but for tokens of q, at the ends of the vocabulary and of a program's part of it."""
    size, edges = 4200, [0, 127, 128, 2047, 2048, 4095, 4096, 4199]
    batch = make_batch(6, size, len(edges), settings="sampled")
    batch["lengths"] = torch.full((6,), 4)
    batch["query_starts"] = torch.arange(7, dtype=torch.int32) * 5
    target = torch.full((30, size), -torch.inf)
    target[:, edges] = 2 * torch.randn(30, len(edges))
    batch["draft_top"].ids[:] = torch.tensor(edges, dtype=torch.int32)
    batch["draft_top"].log_probs[:] = (target[:, edges] / 0.9).log_softmax(-1).view(6, 5, -1)[:, :4]
    # The draws of q = p pass, and one token that p has not much of does not.
    batch["draft_tokens"] = torch.tensor(edges)[batch["draft_top"].log_probs.argmax(-1)]
    shares = torch.tensor([1e-6] + [0.1] * 6 + [0.4 - 1e-6])
    batch["draft_top"].log_probs[:, step] = shares.flip(0).log()
    target.view(6, 5, size)[:, step, edges] = 0.9 * shares.log()
    batch["draft_tokens"][:, step] = edges[0]
    batch["target_logits"] = target
    verdict = check_verify(device, batch, "rejection")
    assert verdict.accepted.tolist() == [step] * 6
    # p exceeds q at the last edge alone.
    assert verdict.next_token.tolist() == [edges[-1]] * 6
