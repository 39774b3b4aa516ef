"""The verification kernels against the reference."""

from dataclasses import replace

import pytest
import torch

from dspark.kernels.sampling import SamplingRows
from dspark.kernels.verification import reference

MODES = pytest.mark.parametrize("acceptance", ["rejection", "coupled"])
DRAFTS = pytest.mark.parametrize("certain", [False, True], ids=["q", "one_hot"])


def make_rows(temperature: torch.Tensor, truncated: bool) -> SamplingRows:
    rows = len(temperature)
    return SamplingRows.of(
        temperature.tolist(),
        top_k=[(0, 30, 5)[row % 3] if truncated else 0 for row in range(rows)],
        top_p=[(0.9, 1.0)[row % 2] if truncated else 1.0 for row in range(rows)],
        seeds=[50 - 3 * row for row in range(rows)],
    )


def make_inputs(rows: int, vocab_size: int, settings: str, certain: bool, gamma: int = 4) -> dict:
    """Requests of every length 0 .. gamma whose drafts are good enough that some of each pass and some fail."""
    torch.manual_seed(rows)
    lengths = torch.arange(rows) * 3 % (gamma + 1)
    query_starts = torch.cat((torch.zeros(1, dtype=torch.int64), (lengths + 1).cumsum(0)))
    target = torch.randn(int(query_starts[-1]), vocab_size) * 3
    kinds = {"greedy": [0.0], "sampled": [0.9], "mixed": [0.0, 0.6, 1.3], "truncated": [1.0, 0.0, 0.7]}
    temperature = torch.tensor([kinds[settings][row % len(kinds[settings])] for row in range(rows)])
    draft_logits = torch.full((rows, gamma, vocab_size), float("nan"))
    draft_tokens = torch.randint(vocab_size, (rows, gamma))
    for row, length in enumerate(lengths.tolist()):
        own = target[query_starts[row] : query_starts[row] + length]
        q = own + 0.4 * torch.randn(own.shape)
        draft_logits[row, :length] = q
        if temperature[row] > 0 and length:
            draft_tokens[row, :length] = torch.multinomial((q / temperature[row]).softmax(-1), 1)[:, 0]
        else:
            draft_tokens[row, :length] = q.argmax(-1)
    return {
        "target_logits": target,
        "query_starts": query_starts.int(),
        "lengths": lengths,
        "draft_tokens": draft_tokens,
        "draft_logits": None if certain else draft_logits,
        "rows": make_rows(temperature, settings == "truncated"),
        "positions": torch.arange(rows) * 5 + 17,
        "generations": torch.arange(rows) % 4,
        "max_length": gamma,
    }


def move(inputs: dict, device: torch.device) -> dict:
    moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
    rows = inputs["rows"]
    fields = ("temperature", "top_k", "top_p", "seeds")
    moved["rows"] = replace(rows, **{name: getattr(rows, name).to(device) for name in fields})
    return moved


def check(device, inputs: dict, acceptance: str) -> reference.Verdict:
    from dspark.kernels.verification.triton import verify

    vocab_size = inputs["target_logits"].shape[1]
    # Beyond what a CPU does in a moment the reference runs on the GPU too.
    home = device if vocab_size > 10_000 else torch.device("cpu")
    verdict = reference.verify(**move(inputs, home), acceptance=acceptance)
    expected = reference.Verdict(accepted=verdict.accepted.cpu(), next_token=verdict.next_token.cpu())
    moved = move(inputs, device)
    # Padding behind the last request, which nothing may read.
    padding = torch.full((3, vocab_size), float("nan"), device=device)
    moved["target_logits"] = torch.cat((moved["target_logits"], padding))
    for _ in range(2):
        verdict = verify(**moved, acceptance=acceptance)
        assert torch.equal(verdict.accepted.cpu(), expected.accepted)
        assert torch.equal(verdict.next_token.cpu(), expected.next_token)
    return expected


@MODES
@DRAFTS
@pytest.mark.parametrize("settings", ["greedy", "sampled", "mixed", "truncated"])
@pytest.mark.parametrize("rows, vocab_size", [(1, 67), (10, 67), (5, 5001)])
def test_verify(device, rows: int, vocab_size: int, settings: str, certain: bool, acceptance: str) -> None:
    if device.type == "cpu" and settings == "truncated":
        rows = min(rows, 5 if vocab_size < 1000 else 2)
    check(device, make_inputs(rows, vocab_size, settings, certain), acceptance)


@pytest.mark.gpu
@MODES
@DRAFTS
@pytest.mark.parametrize("settings", ["greedy", "sampled", "mixed", "truncated"])
@pytest.mark.parametrize("rows, vocab_size", [(1, 50257), (7, 49152), (63, 50257), (100, 49152)])
def test_verify_large(device, gpu_only, rows: int, vocab_size: int, settings: str, certain: bool, acceptance) -> None:
    check(device, make_inputs(rows, vocab_size, settings, certain), acceptance)


@pytest.mark.gpu
@MODES
@pytest.mark.parametrize("settings", ["greedy", "mixed", "truncated"])
def test_verify_widest(device, gpu_only, settings: str, acceptance: str) -> None:
    check(device, make_inputs(7, 151936, settings, False, gamma=7), acceptance)


@MODES
@pytest.mark.parametrize("settings", ["greedy", "sampled", "mixed"])
def test_requests_without_rows_change_nothing_for_the_others(device, settings: str, acceptance: str) -> None:
    from dspark.kernels.verification.triton import verify

    inputs = make_inputs(7, 67, settings, False)
    expected = reference.verify(**inputs, acceptance=acceptance)
    gone = torch.tensor([True, False, True, False, False, True, True])
    starts = inputs["query_starts"].tolist()
    kept = [inputs["target_logits"][starts[r] : starts[r + 1]] for r in range(7) if not gone[r]]
    inputs["target_logits"] = torch.cat((*kept, torch.full((2, 67), float("nan"))))
    inputs["lengths"] = torch.where(gone, -1, inputs["lengths"])
    inputs["query_starts"] = torch.cat((torch.zeros(1), (inputs["lengths"] + 1).cumsum(0))).int()
    for verdict in (
        reference.verify(**inputs, acceptance=acceptance),
        verify(**move(inputs, device), acceptance=acceptance),
    ):
        assert torch.equal(verdict.accepted.cpu()[~gone], expected.accepted[~gone])
        assert torch.equal(verdict.next_token.cpu()[~gone], expected.next_token[~gone])


@pytest.mark.parametrize("settings", ["greedy", "mixed"])
def test_nothing_drafted(device, settings: str) -> None:
    inputs = make_inputs(5, 130, settings, True)
    starts = torch.arange(6, dtype=torch.int32)
    inputs |= {"target_logits": inputs["target_logits"][:5], "query_starts": starts, "lengths": torch.zeros(5).long()}
    inputs |= {"draft_tokens": None, "max_length": 0}
    assert check(device, inputs, "rejection").accepted.tolist() == [0] * 5


def test_equal_distributions_accept_and_an_absent_token_is_refused(device) -> None:
    inputs = make_inputs(5, 67, "sampled", False)
    for row, length in enumerate(inputs["lengths"].tolist()):
        start = int(inputs["query_starts"][row])
        inputs["draft_logits"][row, :length] = inputs["target_logits"][start : start + length]
    assert torch.equal(check(device, inputs, "rejection").accepted, inputs["lengths"])
    # A draft token that the target cannot emit leaves a residual of p itself.
    row = int((inputs["lengths"] == 4).nonzero()[0])
    start = int(inputs["query_starts"][row])
    inputs["target_logits"][start + 1, inputs["draft_tokens"][row, 1]] = -torch.inf
    assert check(device, inputs, "rejection").accepted[row] == 1
