"""What a round leaves of each request: both forms against a request at a time, written down plainly."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.kernels import NO_STOP, ResultField, SlotField
from dspark.kernels.commit.reference import commit_round as reference

FIXTURES = Path(__file__).parents[1] / "fixtures"
SLOTS, VOCAB = 9, 12


@dataclass
class Case:
    """R requests at the end of a round."""

    slots: torch.Tensor
    lengths: torch.Tensor
    accepted: torch.Tensor
    next_tokens: torch.Tensor
    drafts: torch.Tensor | None
    logits: torch.Tensor
    query_starts: torch.Tensor
    state: torch.Tensor
    stop_ids: torch.Tensor

    def run(self, op, device: torch.device | str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
        """The result and the state behind it."""
        steps = 0 if self.drafts is None else self.drafts.shape[1]
        state = self.state.to(device, copy=True)
        wide = torch.full((len(self.slots), len(ResultField) + steps + 3), -7, dtype=torch.int64, device=device)
        out = wide[:, : len(ResultField) + steps]
        names = ("slots", "lengths", "accepted", "next_tokens", "logits", "query_starts", "stop_ids")
        tensors = {name: getattr(self, name).to(device) for name in names}
        op(state, drafts=None if self.drafts is None else self.drafts.to(device), out=out, **tensors)
        assert (wide[:, out.shape[1] :] == -7).all()
        return out.cpu(), state.cpu()


def made_up(seed: int, *, requests: int, steps: int, stops: int) -> Case:
    """Some requests have finished before, some take their last tokens, some never stop."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(-1, steps + 1, requests)
    accepted = np.array([rng.integers(0, max(length, 0) + 1) for length in lengths], dtype=np.int64)
    state = rng.integers(0, 50, (SLOTS, len(SlotField)))
    slots = rng.permutation(SLOTS)[:requests]
    state[:, SlotField.FINISHED] = 0
    state[:, SlotField.IGNORE_EOS] = rng.integers(0, 2, SLOTS)
    state[slots, SlotField.TOKENS_LEFT] = lengths + 1 + rng.integers(0, 2, requests) * 5
    logits = torch.from_numpy(rng.normal(size=(int((lengths + 1).sum()) + 2, VOCAB)).astype(np.float32))
    logits[rng.random(logits.shape) < 0.2] = float(rng.choice([np.nan, np.inf, -np.inf]))
    return Case(
        slots=torch.from_numpy(slots),
        lengths=torch.from_numpy(lengths),
        accepted=torch.from_numpy(accepted),
        next_tokens=torch.from_numpy(rng.integers(0, VOCAB, requests)),
        drafts=torch.from_numpy(rng.integers(0, VOCAB, (requests, steps))) if steps else None,
        logits=logits,
        query_starts=torch.from_numpy(np.concatenate([[0], np.cumsum(lengths + 1)]).astype(np.int32)),
        state=torch.from_numpy(state),
        stop_ids=torch.from_numpy(rng.choice(VOCAB, stops, replace=False)) if stops else torch.tensor([NO_STOP]),
    )


def check(case: Case, out: torch.Tensor, state: torch.Tensor) -> None:
    """One request after the other."""
    before, stops = case.state.tolist(), set(case.stop_ids.tolist())
    moved = set()
    for r, (slot, length, accepted) in enumerate(
        zip(case.slots.tolist(), case.lengths.tolist(), case.accepted.tolist(), strict=True)
    ):
        assert out[r, ResultField.LENGTH] == length
        if length < 0:
            assert not out[r, 1 : len(ResultField)].any()
            continue
        moved.add(slot)
        own = dict(zip(SlotField, before[slot], strict=True))
        text = [] if case.drafts is None else case.drafts[r, :accepted].tolist()
        text.append(int(case.next_tokens[r]))
        ends = [] if own[SlotField.IGNORE_EOS] else [i for i, token in enumerate(text) if token in stops]
        kept = text[: ends[0] + 1] if ends else text
        left = own[SlotField.TOKENS_LEFT] - len(kept)
        assert state[slot].tolist() == [
            own[SlotField.START] + len(kept),
            kept[-1],
            left,
            int(bool(ends) or left == 0),
            own[SlotField.IGNORE_EOS],
        ]
        chosen = case.logits[int(case.query_starts[r]) + accepted, text[-1]]
        assert out[r, 1 : len(ResultField)].tolist() == [
            accepted,
            len(kept),
            int(bool(ends)),
            int(chosen.isfinite()),
            text[-1],
        ]
        if case.drafts is not None:
            assert out[r, len(ResultField) :].tolist() == case.drafts[r].tolist()
    for slot in set(range(SLOTS)) - moved:
        assert state[slot].tolist() == before[slot]


SHAPES = [(1, 0, 0), (1, 7, 1), (9, 7, 3), (7, 3, 0), (5, 1, 2), (4, 0, 1)]


@pytest.mark.parametrize(("requests", "steps", "stops"), SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_kernel(device: torch.device, requests: int, steps: int, stops: int, seed: int) -> None:
    from dspark.kernels.commit.triton import commit_round

    case = made_up(seed, requests=requests, steps=steps, stops=stops)
    check(case, *case.run(commit_round, device))


@settings(deadline=None, max_examples=200)
@given(seed=st.integers(0, 2**32), requests=st.integers(0, SLOTS), steps=st.integers(0, 7), stops=st.integers(0, 3))
def test_reference(seed: int, requests: int, steps: int, stops: int) -> None:
    case = made_up(seed, requests=requests, steps=steps, stops=stops)
    check(case, *case.run(reference))


@pytest.mark.parametrize(("name", "case_index"), [("dspark_vanilla", i) for i in range(5)])
def test_the_authors_stop_cases_keep_the_same_tokens(name: str, case_index: int) -> None:
    theirs = json.loads((FIXTURES / name / "expected.json").read_text())["stop_cases"][case_index]
    for expected in theirs["rounds"]:
        emitted = expected["emitted_tokens"]
        drafts = torch.tensor([expected["draft_tokens"]])
        accepted = int(sum(expected["accept_prefix_mask"]))
        state = torch.zeros(1, len(SlotField), dtype=torch.int64)
        state[0, SlotField.TOKENS_LEFT] = 100
        # Behind an accepted stop token no other was drawn.
        next_token = expected["next_token"] if len(emitted) > accepted else 0
        case = Case(
            slots=torch.tensor([0]),
            lengths=torch.tensor([drafts.shape[1]]),
            accepted=torch.tensor([accepted]),
            next_tokens=torch.tensor([next_token]),
            drafts=drafts,
            logits=torch.zeros(1 + drafts.shape[1], 256),
            query_starts=torch.tensor([0, 1 + drafts.shape[1]]),
            state=state,
            stop_ids=torch.tensor(theirs["stop_token_ids"]),
        )
        out, after = case.run(reference)
        assert out[0, ResultField.EMITTED] == len(emitted)
        assert after[0, SlotField.ANCHOR] == emitted[-1]
        assert bool(out[0, ResultField.STOPPED]) == (emitted[-1] in theirs["stop_token_ids"])
