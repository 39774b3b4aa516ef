"""Rounds with looked-up drafts: the text stays the target's, whatever is verified."""

from __future__ import annotations

from typing import Any

import pytest
from fixture_engine import Detokenizer, make_engine, prompts, reference, requests, say, texts
from graph_engine import graph_device, make_pair_engine
from step_curves import step_curve

from dspark.engine import Completion, Engine, EngineConfig, Request, SamplingParams
from dspark.engine.errors import UsageError
from dspark.engine.ngram.drafter import NgramDrafter
from dspark.engine.observation import ObservedRound
from dspark.engine.profiling.job import profile_engine
from dspark.engine.profiling.settings import ProfileSettings
from dspark.engine.scheduler.planner import RoundPlanner
from dspark.engine.scheduler.policies import Planned
from dspark.engine.scheduler.round_time import RoundClock

__all__ = ["graph_device"]

NAME, GAMMA, CONCURRENCY = "dspark_rnn", 7, 6
# Two shelves with a cliff between them: what is worth verifying changes from round to round.
CURVE = step_curve((6, 20, CONCURRENCY * (1 + GAMMA)), (0.010, 0.013, 0.024), gamma=GAMMA, draft_s=1e-4)
POLICIES = ["fixed:7", "fixed:2", "threshold:0.3", "threshold-position:0.5", "async", "causal"]
EVERY_POLICY = pytest.mark.parametrize("policy", POLICIES, ids=str)


def ngram_engine(policy: Any, *, device: str = "cpu", graphs: bool = False, **config: Any) -> Engine:
    """Over a fixture's target; planned policies follow `CURVE` alone."""
    settings = {"drafter": "ngram", "concurrency": CONCURRENCY, **config}
    detokenizer = settings.pop("detokenizer", None)
    planner = None
    if policy in ("async", "causal"):
        causal = policy == "causal"
        clock = RoundClock(CURVE, adapt=False)
        planner, policy = RoundPlanner(clock, gamma=GAMMA, causal=causal, certain=True), Planned(causal=causal)
    if graphs or device != "cpu":
        engine = make_pair_engine(NAME, device, graphs=graphs, policy=policy, planner=planner, **settings)
        engine.detokenizer = detokenizer
        return engine
    return make_engine(NAME, policy=policy, planner=planner, detokenizer=detokenizer, **settings)


@EVERY_POLICY
@pytest.mark.parametrize("config", [{}, {"kv_cache_tokens": 160, "max_context": 100}], ids=["roomy", "preempting"])
def test_greedy_text_is_the_targets(policy: Any, config: dict[str, Any]) -> None:
    engine = ngram_engine(policy, **config)
    assert texts(engine.generate(requests())) == reference(NAME)
    assert (engine.stats.preemptions > 0) == bool(config)
    counts = engine.stats.spec
    assert counts.drafted >= counts.verified >= counts.observed >= counts.accepted > 0
    assert counts.emitted == sum(len(text) - 1 for text in reference(NAME))


@EVERY_POLICY
def test_sampled_and_greedy_rows_in_graphs_as_in_calls(graph_device: str, policy: Any) -> None:
    asked = [
        Request(i, prompt, SamplingParams(max_tokens=30, temperature=(0.0, 0.8)[i % 2], top_k=i % 3 * 10))
        for i, prompt in enumerate(prompts())
    ]
    found = [
        {c.index: c for c in ngram_engine(policy, device=graph_device, graphs=graphs).generate(asked)}
        for graphs in (True, False)
    ]
    assert found[0] == found[1]


def test_graphs_keep_no_distribution_of_what_is_certain(graph_device: str) -> None:
    engine = ngram_engine("fixed:7", device=graph_device, graphs=True)
    assert engine.graphs is not None and engine.graphs.memory.draft_logits is None
    assert engine.graph_sizes.report()["draft logits (q)"] == 0


def test_looking_up_is_timed_in_graphs_as_in_calls(graph_device: str) -> None:
    class Silent:
        def step(self, name: str, done: int = 0, total: int = 0) -> None: ...

        def measured(self, point: Any, samples_s: Any) -> None: ...

    for graphs in (True, False):
        engine = ngram_engine("fixed:7", device=graph_device, graphs=graphs)
        profile = profile_engine(engine, ProfileSettings(context_tokens=(16,), repeats=1), Silent())
        assert profile.conditions.runner == ("graphs" if graphs else "eager")
        draft = profile.curve.draft
        assert draft is not None and draft.largest == CONCURRENCY and (draft.time_s > 0).all()


@EVERY_POLICY
def test_coupled_text_is_that_of_plain_sampling(policy: Any) -> None:
    plain = make_engine(NAME, drafter="none", policy="none", acceptance="coupled")
    expected = texts(plain.generate(requests(temperature=0.7, top_p=0.95)))
    engine = ngram_engine(policy, acceptance="coupled")
    assert texts(engine.generate(requests(temperature=0.7, top_p=0.95))) == expected
    assert engine.stats.spec.accepted > 0


@pytest.mark.parametrize("place", [0, 2, 11, 39])
def test_a_stop_string_ends_a_text_inside_a_block(place: int) -> None:
    stop = f"<{reference(NAME)[5][place]}>"
    engine = ngram_engine("fixed:7", detokenizer=Detokenizer())
    for completion in engine.generate(requests(stop=(stop,))):
        text = "".join(f"<{token}>" for token in reference(NAME)[completion.index])
        ends = stop in text
        assert completion.finish_reason == ("stop" if ends else "length")
        if ends:
            assert completion.text == text[: text.index(stop)]


def accepted_by_reading(prompt: list[int], text: list[int]) -> list[int]:
    """Accepted tokens of every round of fixed:7, read off the finished text."""
    whole, at, found = prompt + text, len(prompt) + 1, []
    while at < len(whole):
        known = whole[:at]
        drafted: list[int] = []
        for length in range(min(8, at - 1), 0, -1):
            places = [i for i in range(length, at) if known[i - length : i] == known[at - length :]]
            if places:
                for step in range(GAMMA):
                    drafted.append((known + drafted)[places[-1] + step])
                break
        # A round may verify all but the last token that is left.
        room = len(whole) - at - 1
        accepted = 0
        while accepted < min(len(drafted), room) and drafted[accepted] == whole[at + accepted]:
            accepted += 1
        found.append(accepted)
        at += accepted + 1
    return found


def histogram(accepted: list[int]) -> tuple[int, ...]:
    return tuple(accepted.count(k) for k in range(GAMMA + 1))


def test_rounds_accept_what_a_plain_reading_of_the_text_finds() -> None:
    for completion in ngram_engine("fixed:7").generate(requests()):
        expected = accepted_by_reading(prompts()[completion.index], reference(NAME)[completion.index])
        assert completion.counts.acceptance_histogram == histogram(expected)


@pytest.mark.parametrize("policy", ["fixed:7", "threshold:0.2"])
def test_a_text_that_repeats_itself_is_accepted_in_full_blocks(policy: str) -> None:
    engine = ngram_engine(policy)
    say(engine.target, lambda positions: (positions + 1) % 5 + 3)
    prompt = [position % 5 + 3 for position in range(10)]
    [completion] = engine.generate([Request(0, prompt, SamplingParams(max_tokens=81))])
    assert completion.token_ids == [position % 5 + 3 for position in range(10, 91)]
    # 80 tokens behind the prefill's: ten rounds of seven drafts and a token of the target's own.
    assert completion.counts.rounds == 10 and completion.counts.accepted == 70


def test_a_request_without_a_match_has_no_candidates() -> None:
    engine = ngram_engine("fixed:7")
    rounds: list[ObservedRound] = []
    engine.observer = rounds.append
    list(engine.generate(requests()))
    nothing = matched = 0
    for told in rounds:
        for drafted, verified, logits in zip(told.drafted, told.verified, told.confidence_logits, strict=True):
            assert verified <= drafted and drafted in (0, GAMMA)
            nothing += drafted == 0
            matched += drafted > 0
            if drafted:
                assert abs(logits).max() < 10
    assert nothing and matched


def test_without_adaptation_the_schedule_is_that_of_each_request_alone() -> None:
    together = {c.index: c for c in ngram_engine("threshold:0.4", adapt=False).generate(requests())}
    for request in requests():
        [alone] = ngram_engine("threshold:0.4", adapt=False).generate([request])
        assert alone == together[request.index]


def test_a_drafter_in_memory_and_its_name_are_the_same() -> None:
    def run(engine: Engine) -> list[Completion]:
        return sorted(engine.generate(requests()), key=lambda completion: completion.index)

    named = ngram_engine("fixed:7")
    given = Engine(
        EngineConfig(device="cpu", dtype="float32", concurrency=CONCURRENCY, policy="fixed:7"),
        target=named.target,
        drafter=NgramDrafter(),
    )
    assert run(named) == run(given)
    assert named.fingerprint()["drafter"] == given.fingerprint()["drafter"] == "ngram-8-7"


def test_rounds_in_flight_are_refused() -> None:
    with pytest.raises(UsageError, match="pipeline_depth is 1") as refused:
        ngram_engine("fixed:7", pipeline_depth=1)
    assert refused.value.remedy
    assert ngram_engine("fixed:7", pipeline_depth=0).gamma == GAMMA


def test_longer_blocks_than_it_drafts_are_refused() -> None:
    with pytest.raises(UsageError, match="asks for 8 draft tokens, but this drafter proposes 7"):
        ngram_engine("fixed:8")


def test_every_policy_is_plain_decoding_where_nothing_repeats() -> None:
    """A text of which no token occurs twice."""
    engine = ngram_engine("fixed:7")
    say(engine.target, lambda positions: positions + 101)
    [completion] = engine.generate([Request(0, [100], SamplingParams(max_tokens=20))])
    assert completion.token_ids == list(range(101, 121))
    assert (completion.counts.drafted, completion.counts.rounds) == (0, 19)
