"""Every round that the method authors' own code ran, run again by the engine.

Where README ("How the numbers are counted") counts otherwise, the tests say so by name:

- stop inside the accepted tokens: the authors' proposal length of that round ends at the stop token; here `verified`
  counts all that the target ran and `observed` ends at the stop token. Accepted and emitted agree.
- the authors' extra last round: their loop runs one more round when the last token asked for is the anchor; ours has
  then finished.
- acceptance past the token limit: their last round may accept tokens that are not output; ours verifies at most the
  tokens left less one, since one comes from the target itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from round_recorder import Round, RoundRecorder
from safetensors.torch import load_file

from dspark.engine import Completion, Engine, Request, SamplingParams
from dspark.engine.config import EngineConfig

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAMES = ("dspark_vanilla", "dspark_rnn", "dspark_sliding")
GAMMA = 7
# On a GPU, runs that are watched are eager; the others replay graphs.
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
TOLERANCE = {"rtol": 0.0, "atol": 1e-4}
# Room for the authors' extra last round, so that no limit trims the rounds that are compared.
BEYOND = 3 * (GAMMA + 1)


@cache
def expected(name: str) -> dict[str, Any]:
    return json.loads((FIXTURES / name / "expected.json").read_text())


@cache
def expected_tensors(name: str) -> dict[str, torch.Tensor]:
    return load_file(FIXTURES / name / "expected.safetensors")


@dataclass
class EndToken:
    """A tokenizer of which only the end token is known."""

    eos_token_id: int

    def decode(self, token_ids: object) -> str:
        raise AssertionError("nothing here needs the text")


def make_engine(
    name: str,
    device: str,
    *,
    policy: str = "fixed:7",
    stop_token: int | None = None,
    concurrency: int = 1,
    graphs: bool = True,
) -> Engine:
    folder = FIXTURES / name
    config = EngineConfig(
        target=str(folder / "target"),
        drafter=str(folder / "draft"),
        device=device,
        dtype="float32",
        policy=policy,
        concurrency=concurrency,
        page_size=4,
        graphs=graphs,
    )
    return Engine(config, detokenizer=None if stop_token is None else EndToken(stop_token))


def run(engine: Engine, prompt: list[int], max_tokens: int) -> Completion:
    [completion] = engine.generate([Request(0, prompt, SamplingParams(max_tokens=max_tokens))])
    return completion


@cache
def recorded(name: str, prompt_index: int, device: str, policy: str = "fixed:7") -> tuple[Completion, list[Round]]:
    engine = make_engine(name, device, policy=policy, graphs=False)
    recorder = RoundRecorder(engine)
    prompt = expected(name)["prompts"][prompt_index]["prompt_ids"]
    completion = run(engine, prompt, expected(name)["max_new_tokens"] + BEYOND)
    return completion, recorder.rounds


def check_round(mine: Round, following: Round, theirs: dict[str, Any]) -> None:
    """Tokens and counts of one round; what it accepted shows in where the next one starts."""
    assert mine.start == theirs["start"]
    assert mine.anchor == theirs["anchor_token"]
    assert mine.draft_tokens == theirs["draft_tokens"]
    assert mine.verified_ids == theirs["verify_input_ids"]
    assert len(mine.verified_ids) - 1 == theirs["effective_proposal_length"]
    assert following.start - mine.start - 1 == theirs["accepted"]
    assert following.anchor == theirs["next_token"]
    emitted = [*mine.draft_tokens[: theirs["accepted"]], following.anchor]
    assert emitted == theirs["emitted_tokens"]


def summary_of(rounds_of_prompts: list[list[Round]], counts: list[int]) -> dict[str, Any]:
    """The authors' metrics over the first `counts[i]` rounds of prompt i."""
    pairs = [
        (len(mine.verified_ids) - 1, following.start - mine.start - 1)
        for rounds, count in zip(rounds_of_prompts, counts, strict=True)
        for mine, following in pairwise(rounds[: count + 1])
    ]
    proposed, accepted = np.array(pairs).T
    place = np.arange(1, GAMMA + 1)
    return {
        "sample_count": len(rounds_of_prompts),
        "proposal_count": len(pairs),
        "acceptance_length_sum": int(accepted.sum()) + len(pairs),
        "proposal_length_sum": int(proposed.sum()),
        "proposals_at_pos": (proposed[:, None] >= place).sum(axis=0).tolist(),
        "accepted_at_pos": (accepted[:, None] >= place).sum(axis=0).tolist(),
    }


@DEVICES
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prompt_index", range(4))
def test_rounds(device: str, name: str, prompt_index: int) -> None:
    theirs = expected(name)["prompts"][prompt_index]
    completion, rounds = recorded(name, prompt_index, device)
    assert completion.token_ids[: len(theirs["greedy_ids"])] == theirs["greedy_ids"]
    assert len(rounds) > len(theirs["rounds"])
    for j, their_round in enumerate(theirs["rounds"]):
        check_round(rounds[j], rounds[j + 1], their_round)
        if "confidence_probs" in their_round:  # dspark_sliding has no confidence head
            probabilities = rounds[j].confidence_logits.sigmoid()
            torch.testing.assert_close(probabilities, torch.tensor(their_round["confidence_probs"]), **TOLERANCE)


@DEVICES
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prompt_index", range(4))
def test_tensors(device: str, name: str, prompt_index: int) -> None:
    tensors = expected_tensors(name)
    prompt_length = len(expected(name)["prompts"][prompt_index]["prompt_ids"])
    rounds = recorded(name, prompt_index, device)[1]
    torch.testing.assert_close(
        rounds[0].context_features[:prompt_length], tensors[f"p{prompt_index}.prompt_features"], **TOLERANCE
    )
    compared = 0
    for j, mine in enumerate(rounds[: len(expected(name)["prompts"][prompt_index]["rounds"])]):
        prefix = f"p{prompt_index}.r{j}."
        theirs = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        for kind, value in theirs.items():
            if kind == "ctx_features":
                own = mine.context_features[-len(value) :]
            elif kind.startswith("draft_cache_after_crop"):
                layer, which = kind.split(".")[1:]
                own = mine.draft_cache[int(layer[1:])]["kv".index(which)].transpose(0, 1)
            else:
                own = getattr(mine, kind)
            torch.testing.assert_close(own, value, **TOLERANCE, msg=lambda text, at=prefix + kind: f"{at}: {text}")
            compared += 1
    # Features, hidden states, base and corrected logits at least.
    assert compared >= 4 * len(expected(name)["prompts"][prompt_index]["rounds"])


@DEVICES
@pytest.mark.parametrize("name", NAMES)
def test_metric_summary(device: str, name: str) -> None:
    theirs = expected(name)
    counts = [len(prompt["rounds"]) for prompt in theirs["prompts"]]
    rounds = [recorded(name, i, device)[1] for i in range(len(counts))]
    found = summary_of(rounds, counts)
    assert found == theirs["metric_summary"]
    row = theirs["metrics_row"]
    assert found["acceptance_length_sum"] / found["proposal_count"] == pytest.approx(row["acceptance_length"])
    at_least = [found["proposal_count"], *found["accepted_at_pos"], 0]
    histogram = {str(k): n - more for k, (n, more) in enumerate(pairwise(at_least)) if n > more}
    assert histogram == theirs["accepted_histogram"]


@DEVICES
@pytest.mark.parametrize(
    ("name", "run_index"), [(n, i) for n in NAMES for i in range(3) if i < len(expected(n)["threshold_runs"])]
)
def test_threshold_runs(device: str, name: str, run_index: int) -> None:
    theirs = expected(name)["threshold_runs"][run_index]
    policy = f"threshold-position:{theirs['confidence_threshold']}"
    all_rounds = []
    for prompt in theirs["prompts"]:
        rounds = recorded(name, prompt["prompt_index"], device, policy)[1]
        for j, their_round in enumerate(prompt["rounds"]):
            assert len(rounds[j].verified_ids) - 1 == their_round["draft_token_count"]
            check_round(rounds[j], rounds[j + 1], their_round)
            logits = torch.tensor(their_round["confidence_logits_full"])
            torch.testing.assert_close(rounds[j].confidence_logits, logits, **TOLERANCE)
        all_rounds.append(rounds)
    found = summary_of(all_rounds, [len(prompt["rounds"]) for prompt in theirs["prompts"]])
    assert found == theirs["metric_summary"]


@DEVICES
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case_index", range(5))
def test_stop_cases(device: str, name: str, case_index: int) -> None:
    theirs = expected(name)["stop_cases"][case_index]
    prompt = expected(name)["prompts"][theirs["prompt_index"]]["prompt_ids"]
    [stop_token] = theirs["stop_token_ids"]
    completion = run(make_engine(name, device, stop_token=stop_token), prompt, expected(name)["max_new_tokens"])
    counts, their_run = completion.counts, theirs["run"]
    assert completion.finish_reason == "stop"
    assert completion.token_ids == their_run["generated"]
    assert counts.emitted == len(completion.token_ids) - 1 == sum(their_run["acceptance_lengths"])
    assert counts.rounds == their_run["verify_count"] == len(theirs["rounds"])
    assert counts.accepted == sum(their_run["accepted_draft_lengths"])
    histogram = np.bincount(their_run["accepted_draft_lengths"], minlength=GAMMA + 1) if counts.rounds else [0] * 8
    assert list(counts.acceptance_histogram) == list(histogram)
    # Stop inside the accepted tokens: what lies behind it was verified but is not an observation.
    assert counts.verified == GAMMA * counts.rounds
    observed = sum(min(r["accepted"] + 1, r["effective_proposal_length"]) for r in theirs["rounds"])
    assert counts.observed == observed
    if theirs["case"] in ("mid", "last_accepted"):
        assert theirs["rounds"][-1]["effective_proposal_length"] == theirs["rounds"][-1]["accepted"]


def limited(rounds: list[dict[str, Any]], prompt_length: int, max_tokens: int) -> list[tuple[int, int]]:
    """(verified, accepted) of the rounds that are left of the authors' when `max_tokens` bounds verification."""
    result = []
    for theirs in rounds:
        tokens_left = max_tokens - (theirs["start"] - prompt_length + 1)
        if tokens_left > 0:  # else: the authors' extra last round
            verified = min(GAMMA, tokens_left - 1)
            # Acceptance past the token limit ends at what could be verified.
            result.append((verified, min(theirs["accepted"], verified)))
    return result


@DEVICES
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_tokens", [1, 2, 9, 48])
@pytest.mark.parametrize("prompt_index", range(4))
def test_limited_runs(device: str, name: str, max_tokens: int, prompt_index: int) -> None:
    prompt = expected(name)["prompts"][prompt_index]
    completion = run(make_engine(name, device), prompt["prompt_ids"], max_tokens)
    counts = completion.counts
    assert completion.finish_reason == "length"
    assert completion.token_ids == prompt["greedy_ids"][:max_tokens]
    rounds = limited(prompt["rounds"], len(prompt["prompt_ids"]), max_tokens)
    assert counts.rounds == len(rounds)
    assert counts.emitted == max_tokens - 1 == sum(accepted + 1 for _, accepted in rounds)
    assert counts.verified == sum(verified for verified, _ in rounds)
    assert counts.accepted == sum(accepted for _, accepted in rounds)
    assert counts.observed == sum(min(accepted + 1, verified) for verified, accepted in rounds)
    histogram = np.bincount([accepted for _, accepted in rounds], minlength=GAMMA + 1) if rounds else [0] * 8
    assert list(counts.acceptance_histogram) == list(histogram)


@DEVICES
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("run_index", range(3))
def test_max_new_tokens_runs(device: str, name: str, run_index: int) -> None:
    theirs = expected(name)["max_new_tokens_runs"][run_index]
    prompt = expected(name)["prompts"][theirs["prompt_index"]]
    completion = run(make_engine(name, device), prompt["prompt_ids"], theirs["max_new_tokens"])
    assert completion.token_ids == theirs["run"]["generated"]
    their_rounds = [{"start": s, "accepted": a} for s, a in zip(theirs["starts"], theirs["accepted"], strict=True)]
    rounds = limited(their_rounds, len(prompt["prompt_ids"]), theirs["max_new_tokens"])
    assert completion.counts.rounds == len(rounds)
    # Their numbers are those of the same rounds before a limit trims them.
    untrimmed = recorded(name, theirs["prompt_index"], device)[1]
    assert [r.start for r in untrimmed[: len(their_rounds)]] == theirs["starts"]
    starts = [r.start for r in untrimmed[: len(their_rounds) + 1]]
    assert (np.diff(starts) - 1).tolist() == theirs["accepted"] == theirs["run"]["accepted_draft_lengths"]


@DEVICES
@pytest.mark.parametrize("name", NAMES)
def test_all_prompts_at_once(device: str, name: str) -> None:
    prompts = expected(name)["prompts"]
    engine = make_engine(name, device, concurrency=4)
    sampling = SamplingParams(max_tokens=expected(name)["max_new_tokens"])
    completions = list(engine.generate([Request(p["index"], p["prompt_ids"], sampling) for p in prompts]))
    for completion in completions:
        prompt = prompts[completion.index]
        assert completion.token_ids == prompt["greedy_ids"]
        rounds = limited(prompt["rounds"], len(prompt["prompt_ids"]), sampling.max_tokens)
        assert completion.counts.accepted == sum(accepted for _, accepted in rounds)
        assert completion.counts.verified == sum(verified for verified, _ in rounds)
