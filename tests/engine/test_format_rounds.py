"""Every round that the peers' own code ran with drafters of their formats, run again by the engine.

The loops around the peers' models run one more round when the last token asked for is the anchor, and count acceptance
past the token limit; ours is given room for that, so that the rounds are the same.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from round_recorder import Round, RoundRecorder
from safetensors.torch import load_file

from dspark.engine import Completion, Engine, Request, SamplingParams
from dspark.engine.config import EngineConfig

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAMES = ("spec_dspark_d2t", "zlab_dflash")
GAMMA = 7
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
TOLERANCE = {"rtol": 0.0, "atol": 1e-4}
BEYOND = 3 * (GAMMA + 1)
# Tensors of a round by the name that the recorder has for them: the z-lab format has no Markov head.
RECORDED = {"slot_logits": "base_logits"}


@cache
def expected(name: str) -> dict[str, Any]:
    return json.loads((FIXTURES / name / "expected.json").read_text())


def make_engine(name: str, device: str, *, policy: str = "fixed:7", **config: Any) -> Engine:
    folder = FIXTURES / name
    settings = {"concurrency": 1, "graphs": True} | config
    return Engine(
        EngineConfig(
            target=str(folder / "target"),
            drafter=str(folder / "draft"),
            device=device,
            dtype="float32",
            policy=policy,
            page_size=4,
            **settings,
        )
    )


@cache
def recorded(
    name: str, prompt_index: int, device: str, policy: str = "fixed:7"
) -> tuple[Completion, list[Round], list[int]]:
    """The run of one prompt, its rounds, and the target id of each row of the drafter's head."""
    engine = make_engine(name, device, policy=policy, graphs=False)
    vocabulary = engine.drafter.vocabulary
    ids = list(range(256)) if vocabulary is None else vocabulary.ids.tolist()
    recorder = RoundRecorder(engine)
    theirs = expected(name)
    sampling = SamplingParams(max_tokens=theirs["max_new_tokens"] + BEYOND)
    [completion] = engine.generate([Request(0, theirs["prompts"][prompt_index]["prompt_ids"], sampling)])
    return completion, recorder.rounds, ids


@DEVICES
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prompt_index", range(4))
def test_rounds(device: str, name: str, prompt_index: int) -> None:
    theirs = expected(name)["prompts"][prompt_index]
    completion, rounds, _ = recorded(name, prompt_index, device)
    assert completion.token_ids[: len(theirs["greedy_ids"])] == theirs["greedy_ids"] == theirs["generated"]
    assert len(rounds) > len(theirs["rounds"])
    for (mine, following), their_round in zip(pairwise(rounds), theirs["rounds"], strict=False):
        assert mine.start == their_round["start"] == their_round["anchor_position"]
        assert mine.anchor == their_round["anchor_token"]
        assert mine.draft_tokens == their_round["draft_tokens"]
        assert mine.verified_ids == [mine.anchor, *mine.draft_tokens]
        accepted = following.start - mine.start - 1
        assert accepted == their_round["accepted"]
        assert following.anchor == their_round["next_token"]
        assert [*mine.draft_tokens[:accepted], following.anchor] == their_round["emitted_tokens"]
    lengths = [following.start - mine.start for mine, following in pairwise(rounds[: len(theirs["rounds"]) + 1])]
    assert lengths == theirs["acceptance_lengths"]


@DEVICES
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prompt_index", range(4))
def test_tensors(device: str, name: str, prompt_index: int) -> None:
    tensors = load_file(FIXTURES / name / "expected.safetensors")
    _, rounds, ids = recorded(name, prompt_index, device)
    num_rounds = len(expected(name)["prompts"][prompt_index]["rounds"])
    compared = Counter[str]()
    for j, mine in enumerate(rounds[:num_rounds]):
        prefix = f"p{prompt_index}.r{j}."
        for key in [key for key in tensors if key.startswith(prefix)]:
            kind, value = key.removeprefix(prefix), tensors[key]
            if kind == "ctx_features":
                own = mine.context_features[-len(value) :]
            elif kind == "corrected_logits":
                own = mine.corrected_logits[:, ids]
            else:
                own = getattr(mine, RECORDED.get(kind, kind))
            torch.testing.assert_close(own, value, **TOLERANCE, msg=lambda text, at=key: f"{at}: {text}")
            compared[kind] += 1
    kinds = {"ctx_features", "block_hidden"}
    kinds |= {"slot_logits"} if name == "zlab_dflash" else {"base_logits", "corrected_logits", "confidence_logits"}
    assert compared == dict.fromkeys(kinds, num_rounds)


@pytest.mark.parametrize("name", NAMES)
def test_accepted_lengths(name: str) -> None:
    theirs = expected(name)
    found = Counter[int]()
    for prompt_index, prompt in enumerate(theirs["prompts"]):
        rounds = recorded(name, prompt_index, "cpu")[1][: len(prompt["rounds"]) + 1]
        found.update(following.start - mine.start - 1 for mine, following in pairwise(rounds))
    assert found == {int(length): count for length, count in theirs["accepted_histogram"].items()}


@DEVICES
@pytest.mark.parametrize("prompt_index", range(4))
def test_a_drafter_without_confidence_head_is_as_confident_as_its_likeliest_token(
    device: str, prompt_index: int
) -> None:
    """The expected probability comes from the peer's logits; a threshold schedules by it."""
    tensors = load_file(FIXTURES / "zlab_dflash" / "expected.safetensors")
    _, rounds, _ = recorded("zlab_dflash", prompt_index, device)
    threshold = 0.6
    starts = {mine.start: mine for mine in recorded("zlab_dflash", prompt_index, device, f"threshold:{threshold}")[1]}
    trimmed = 0
    for j, mine in enumerate(rounds[: len(expected("zlab_dflash")["prompts"][prompt_index]["rounds"])]):
        # Slot 0 is the anchor's own, and drafts nothing.
        largest = tensors[f"p{prompt_index}.r{j}.slot_logits"][1:].double().softmax(-1).amax(-1)
        torch.testing.assert_close(mine.confidence_logits.double().sigmoid(), largest, **TOLERANCE)
        if mine.start in starts:
            wanted = int((largest.cumprod(0) >= threshold).sum())
            assert len(starts[mine.start].verified_ids) - 1 == wanted
            trimmed += wanted < GAMMA
    assert trimmed > 0


@DEVICES
@pytest.mark.parametrize("name", NAMES)
def test_all_prompts_at_once(device: str, name: str) -> None:
    prompts = expected(name)["prompts"]
    engine = make_engine(name, device, concurrency=4)
    sampling = SamplingParams(max_tokens=expected(name)["max_new_tokens"])
    completions = list(engine.generate([Request(p["index"], p["prompt_ids"], sampling) for p in prompts]))
    assert len(completions) == len(prompts)
    for completion in completions:
        assert completion.token_ids == prompts[completion.index]["greedy_ids"]
