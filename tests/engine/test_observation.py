"""What an observer is told, against the method authors' own rounds and distributions written down anew."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from fixture_engine import FIXTURES, SometimesNothing, make_engine, requests
from graph_engine import graph_device, make_pair_engine
from safetensors.torch import load_file
from sampling_oracle import target_probs

from dspark.calibration import SIGNALS
from dspark.engine import Request, SamplingParams
from dspark.engine.observation import ObservedRound
from dspark.engine.proposals import DraftOutput
from dspark.engine.signals import round_signals
from dspark.kernels import SamplingRows, TopQ

__all__ = ["graph_device"]

GAMMA = 7
# Room for the authors' extra last round, so that no limit trims the rounds that are compared.
BEYOND = 3 * (GAMMA + 1)


def observe(engine: Any, asked: list[Request]) -> tuple[list[ObservedRound], dict[int, Any]]:
    rounds: list[ObservedRound] = []
    engine.observer = rounds.append
    return rounds, {completion.index: completion for completion in engine.generate(asked)}


@pytest.mark.parametrize("name", ["dspark_vanilla", "dspark_rnn"])
def test_rounds_are_those_of_the_authors(name: str) -> None:
    theirs = json.loads((FIXTURES / name / "expected.json").read_text())
    tensors = load_file(FIXTURES / name / "expected.safetensors")
    sampling = SamplingParams(max_tokens=theirs["max_new_tokens"] + BEYOND)
    asked = [Request(i, prompt["prompt_ids"], sampling) for i, prompt in enumerate(theirs["prompts"])]
    rounds, _ = observe(make_engine(name), asked)
    for i, prompt in enumerate(theirs["prompts"]):
        mine = [(r, list(r.request).index(i)) for r in rounds if i in r.request]
        for j, expected in enumerate(prompt["rounds"]):
            observed, row = mine[j]
            assert observed.text_position[row] == expected["start"]
            assert observed.drafted[row] == observed.verified[row] == GAMMA
            assert observed.accepted[row] == expected["accepted"]
            assert observed.observed[row] == min(expected["accepted"] + 1, GAMMA)
            logits = tensors[f"p{i}.r{j}.confidence_logits"].numpy()
            np.testing.assert_allclose(observed.confidence_logits[row], logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("policy", ["fixed:7", "fixed:2", SometimesNothing()], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rounds_add_up_to_the_counts_of_each_request(policy: Any, temperature: float) -> None:
    """With preemptions, stops, limits, and more requests than run at once."""
    asked = requests(temperature=temperature)
    engine = make_engine(policy=policy, concurrency=5, max_context=96, kv_cache_tokens=256)
    rounds, completions = observe(engine, asked)
    assert engine.stats.preemptions
    for index, completion in completions.items():
        mine = [(r, list(r.request).index(index)) for r in rounds if index in r.request]
        counts = completion.counts
        assert len(mine) == counts.rounds
        for name in ("drafted", "verified", "observed", "accepted"):
            assert sum(int(getattr(r, name)[row]) for r, row in mine) == getattr(counts, name)
        # The anchor of the first round stands right behind the prompt, and anchors only go forward.
        positions = [int(r.text_position[row]) for r, row in mine]
        if positions:
            assert positions[0] == len(asked[index].prompt_token_ids)
            assert (np.diff(positions) > 0).all()


def test_sampling_settings_are_each_requests_own() -> None:
    settings = [SamplingParams(max_tokens=9), SamplingParams(max_tokens=9, temperature=0.5, top_k=3, top_p=0.75)]
    rounds, _ = observe(make_engine(), [Request(4 + i, [5, 6, 7], s) for i, s in enumerate(settings)])
    for observed in rounds:
        for row, request in enumerate(observed.request):
            own = settings[request - 4]
            assert (observed.temperature[row], observed.top_k[row], observed.top_p[row]) == (
                np.float32(own.temperature),
                own.top_k,
                np.float32(own.top_p),
            )


def test_observing_changes_no_text() -> None:
    asked = requests(temperature=1.0)
    _, watched = observe(make_engine(), asked)
    alone = {completion.index: completion for completion in make_engine().generate(asked)}
    assert watched == alone


SETTINGS = {
    "greedy": {},
    "sampled": {"temperature": 0.7},
    "truncated": {"temperature": 1.3, "top_k": 4, "top_p": 0.9},
}


def top_of(q: np.ndarray, count: int) -> TopQ:
    """q [R, n, V], of `count` tokens each."""
    ids = np.sort(np.argsort(-q, axis=-1, kind="stable")[..., :count], axis=-1)
    log_probs = np.log(np.take_along_axis(q, ids, axis=-1))
    return TopQ(torch.from_numpy(ids.astype(np.int32)), torch.from_numpy(log_probs.astype(np.float32)))


@pytest.mark.parametrize("kept", [None, 4, 1, 0], ids=["drawn drafts", "from four", "from one", "certain drafts"])
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())
def test_signals_follow_their_definitions(setting: dict[str, Any], kept: int | None) -> None:
    """kept: tokens that q is cut to; 0: none is drawn."""
    certain = kept == 0
    generator = torch.Generator().manual_seed(1)
    vocab, lengths = 11, torch.tensor([3, 0, 2])
    target_logits = 2 * torch.randn(int((1 + lengths).sum()), vocab, generator=generator)
    draft_logits = 2 * torch.randn(3, 3, vocab, generator=generator)
    tokens = draft_logits.argmax(dim=-1)
    tokens[0, 0] = target_logits[0].argmax()
    temperature = setting.get("temperature", 0.0)
    options = {"temperature": temperature or 1.0, "top_k": kept or 0}
    drawn_from = np.array([[target_probs(row, **options) for row in block] for block in draft_logits.numpy()])
    draft = DraftOutput(
        tokens,
        None if kept is not None else draft_logits,
        torch.zeros(3, 3),
        top=top_of(drawn_from, kept) if kept else None,
    )
    rows = SamplingRows.of(
        [temperature] * 3, top_k=[setting.get("top_k", 0)] * 3, top_p=[setting.get("top_p", 1.0)] * 3, seeds=[0] * 3
    )
    signals = round_signals(draft, target_logits, lengths=lengths, rows=rows, acceptance="rejection")
    first_row = [0, 4, 5]
    for request in range(3):
        for k in range(3):
            one_hot = np.eye(vocab)[int(tokens[request, k])]
            soft = drawn_from[request, k]
            top = np.sort(one_hot if certain else soft)[::-1]
            assert signals["draft_max_probability"][request, k] == pytest.approx(top[0], abs=1e-6)
            assert signals["draft_margin"][request, k] == pytest.approx(top[0] - top[1], abs=1e-6)
            oracle = signals["oracle_acceptance"][request, k]
            if k >= lengths[request]:
                assert np.isnan(oracle)
                continue
            p = target_probs(target_logits[first_row[request] + k].numpy(), **setting or {"temperature": 0.0})
            q = soft if temperature and not certain else one_hot
            assert oracle == pytest.approx(1 - 0.5 * np.abs(p - q).sum(), abs=1e-5)


def test_coupled_draws_have_no_oracle() -> None:
    rounds, _ = observe(make_engine(acceptance="coupled"), requests(temperature=1.0))
    assert all(set(r.signals) == {"draft_max_probability", "draft_margin"} for r in rounds if r.drafted.any())


@pytest.mark.parametrize("top_k", [None, 4], ids=["from all", "from four"])
def test_the_oracle_is_the_mean_acceptance(top_k: int | None) -> None:
    """Over many sampled rounds, what is accepted averages to what the two distributions share."""
    asked = [Request(i, [3 + i % 200, 7], SamplingParams(max_tokens=40, temperature=1.0)) for i in range(64)]
    rounds, _ = observe(make_engine(draft_top_k=top_k), asked)
    oracle = np.concatenate([r.signals["oracle_acceptance"] for r in rounds if r.signals])
    observed = np.concatenate([r.observed for r in rounds if r.signals])[:, None]
    accepted = np.concatenate([r.accepted for r in rounds if r.signals])[:, None]
    place = np.arange(GAMMA)
    share = oracle[place < observed].astype(np.float64)
    passed = (place < accepted)[place < observed]
    deviation = np.sqrt((share * (1 - share)).sum())
    assert abs(passed.sum() - share.sum()) < 4 * deviation


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
def test_graph_replays_tell_the_same_rounds(graph_device: str, temperature: float) -> None:
    """`fixed` reads no confidence, so that a replay leaves it on the device until somebody asks."""
    told = []
    for graphs in (True, False):
        engine = make_pair_engine("dspark_rnn", graph_device, graphs=graphs, concurrency=4)
        rounds, completions = observe(engine, requests(temperature=temperature))
        told.append((rounds, completions))
    (replayed, texts), (eager, same_texts) = told
    assert texts == same_texts
    assert len(replayed) == len(eager)
    seen = set()
    for one, other in zip(replayed, eager, strict=True):
        for name in ("request", "text_position", "drafted", "verified", "observed", "accepted"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        np.testing.assert_allclose(one.confidence_logits, other.confidence_logits, rtol=0, atol=1e-4)
        for name, values in one.signals.items():
            np.testing.assert_allclose(values, other.signals[name], rtol=0, atol=1e-4)
        seen |= set(one.signals)
    # A graph of greedy blocks keeps no logits to read the drafter's own signals off.
    assert seen == ({"oracle_acceptance"} if temperature == 0 else set(SIGNALS))
