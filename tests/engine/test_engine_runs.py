"""One engine over many runs, and its accounts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fixture_engine import (
    PROMPT_LENGTHS,
    Detokenizer,
    SometimesNothing,
    make_engine,
    prompts,
    reference,
    requests,
    texts,
)

from dspark.engine import Request, SamplingParams, admission
from dspark.engine.eager import EagerRunner
from dspark.engine.errors import EngineError
from dspark.engine.loop import DecodeLoop
from dspark.engine.requests import NOT_YET, Completion, NotYet
from dspark.engine.slots import RUNNING


def test_generate_again() -> None:
    engine = make_engine(concurrency=3)
    for _ in range(2):
        assert texts(engine.generate(requests())) == reference("dspark_rnn")
    assert engine.stats.spec.emitted == sum(len(text) - 1 for text in reference("dspark_rnn"))


def test_no_requests() -> None:
    assert list(make_engine().generate([])) == []


def test_one_run_at_a_time() -> None:
    engine = make_engine(concurrency=2)
    running = engine.generate(requests())
    next(running)
    with pytest.raises(EngineError) as raised:
        next(engine.generate(requests()))
    assert raised.value.remedy
    # The first run goes on as if nothing had happened.
    rest = sorted(running, key=lambda completion: completion.index)
    assert len(rest) == len(PROMPT_LENGTHS) - 1
    assert all(completion.token_ids == reference("dspark_rnn")[completion.index] for completion in rest)


def test_closed_halfway() -> None:
    engine = make_engine(concurrency=4)
    running = engine.generate(requests())
    next(running)
    running.close()
    assert texts(engine.generate(requests())) == reference("dspark_rnn")


def test_source_that_fails() -> None:
    engine = make_engine(concurrency=4)

    def source() -> Iterator[Request]:
        yield from requests()[:6]
        raise OSError("the input is gone")

    with pytest.raises(OSError, match="the input is gone"):
        list(engine.generate(source()))
    assert texts(engine.generate(requests())) == reference("dspark_rnn")


def test_requests_are_pulled_as_slots_become_free() -> None:
    engine = make_engine(concurrency=3)
    pulled: list[int] = []

    def endless() -> Iterator[Request]:
        for index in range(10**9):
            pulled.append(index)
            yield Request(index, prompts()[0], SamplingParams(max_tokens=4))

    running = engine.generate(endless())
    for done in range(10):
        next(running)
        assert len(pulled) <= done + 1 + 2 * engine.concurrency
    running.close()


def test_requests_wait_for_company_but_never_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(concurrency=4)
    engine.prefills_in_company = True
    monkeypatch.setattr(admission, "worthwhile_company", lambda num_slots, rounds: 3)
    admitted: list[int] = []
    run_prefill = EagerRunner.prefill

    def watched(self: EagerRunner, rows: np.ndarray, *others: Any) -> Any:
        running = int((self.slots.status == RUNNING).sum())
        admitted.append(len(rows) if running else -len(rows))
        return run_prefill(self, rows, *others)

    monkeypatch.setattr(EagerRunner, "prefill", watched)
    lengths = [3, 30, 30, 30, 5, 7, 9, 11, 13, 2, 4, 6]
    rows = [Request(i, prompts()[0], SamplingParams(max_tokens=length)) for i, length in enumerate(lengths)]
    assert len(list(engine.generate(rows))) == len(rows)
    assert admitted[0] == -4
    # Beside running requests at least three come in together, until the source has no more.
    assert all(count >= 3 for count in admitted[1:-1] if count > 0)
    assert sum(map(abs, admitted)) == len(rows)


@pytest.mark.parametrize("rounds", [12.0, 97.0, 360.0, 2000.0])
def test_the_company_that_a_prefill_waits_for_loses_the_least_time(rounds: float) -> None:
    slots, prefill = 64, 0.7

    def lost(company: int) -> float:
        """Share of the time: idle slots, and the rest of the batch during prefills."""
        return (company - 1) / 2 / slots + prefill * slots / (company * rounds)

    best = min(range(1, slots // 4 + 1), key=lost)
    assert lost(admission.worthwhile_company(slots, rounds)) < 1.03 * lost(best)
    assert admission.worthwhile_company(1, rounds) == 1


@pytest.mark.parametrize("depth", [0, 1, 2], ids=["one-by-one", "overlapped", "two-in-flight"])
def test_a_source_may_have_the_next_request_only_once_others_are_done(depth: int) -> None:
    engine = make_engine(concurrency=3, pipeline_depth=depth)
    wanted = list(requests())
    done: list[int] = []

    def source() -> Iterator[Request | NotYet]:
        """Two at the start, and one more behind every second that is done."""
        for asked, request in enumerate(wanted):
            while asked > 1 + len(done) // 2 and len(done) < asked:
                yield NOT_YET
            yield request

    def noted() -> Iterator[Completion]:
        for completion in engine.generate(source()):
            done.append(completion.index)
            yield completion

    assert texts(noted()) == reference("dspark_rnn")


def test_nobody_waits_for_company_that_the_source_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(concurrency=4)
    engine.prefills_in_company = True
    monkeypatch.setattr(admission, "worthwhile_company", lambda num_slots, rounds: 3)
    finished: list[int] = []

    def source() -> Iterator[Request | NotYet]:
        yield Request(0, prompts()[0], SamplingParams(max_tokens=40))
        yield Request(1, prompts()[1], SamplingParams(max_tokens=3))
        while 1 not in finished:
            yield NOT_YET
        yield Request(2, prompts()[2], SamplingParams(max_tokens=3))
        while 0 not in finished:
            yield NOT_YET

    for completion in engine.generate(source()):
        finished.append(completion.index)
    assert finished == [1, 2, 0]


# Accounts


@pytest.mark.parametrize("config", [{}, {"kv_cache_tokens": 120, "max_context": 100}], ids=["roomy", "preempting"])
@pytest.mark.parametrize("depth", [0, 1, 2], ids=["one-by-one", "overlapped", "two-in-flight"])
def test_pages_come_back(config: dict[str, Any], depth: int) -> None:
    engine = make_engine(detokenizer=Detokenizer(reference("dspark_rnn")[5][7]), **config)
    loop = DecodeLoop(engine, requests(), depth=depth)
    assert len(list(loop.run())) == len(PROMPT_LENGTHS)
    assert loop.pool.num_free == engine.num_pages - 1
    assert not loop.pool.tables.any()


@pytest.mark.parametrize("policy", ["none", "fixed:1", "fixed:7", "threshold:0.5", SometimesNothing()], ids=str)
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kv_cache_tokens", [None, 240], ids=["roomy", "preempting"])
@pytest.mark.parametrize("depth", [0, 1], ids=["one-by-one", "overlapped"])
def test_counts(policy: Any, sampling: dict[str, Any], kv_cache_tokens: int | None, depth: int) -> None:
    stop = Detokenizer(reference("dspark_rnn")[5][7])
    engine = make_engine(
        policy=policy, detokenizer=stop, max_context=100, kv_cache_tokens=kv_cache_tokens, pipeline_depth=depth
    )
    done = list(engine.generate(requests(**sampling)))
    for completion in done:
        counts = completion.counts
        assert counts.emitted == len(completion.token_ids) - 1
        assert counts.drafted >= counts.verified >= counts.observed >= counts.accepted >= 0
        histogram = np.array(counts.acceptance_histogram)
        assert histogram.sum() == counts.rounds
        assert histogram @ np.arange(len(histogram)) == counts.accepted
        # Each round adds a token of the target's own, unless an accepted stop token ended it.
        assert counts.accepted + counts.rounds - counts.emitted in (0, int(completion.finish_reason == "stop"))
    stats = engine.stats
    for name in ("rounds", "drafted", "verified", "observed", "accepted", "emitted"):
        assert getattr(stats.spec, name) == sum(getattr(completion.counts, name) for completion in done), name
    assert stats.rounds <= stats.spec.rounds
    if policy == "none":
        assert (stats.spec.drafted, stats.spec.verified, stats.spec.accepted) == (0, 0, 0)


def test_counts_do_not_depend_on_the_overlap() -> None:
    engines = [make_engine(concurrency=5, pipeline_depth=depth) for depth in (0, 1, 2)]
    counts = [{c.index: c.counts for c in engine.generate(requests(temperature=1.0))} for engine in engines]
    assert counts[0] == counts[1] == counts[2]


def test_counts_of_a_request_do_not_depend_on_its_company() -> None:
    requests = [
        Request(i, [206, 149, 213 - i], SamplingParams(max_tokens=limit, ignore_eos=True))
        for i, limit in enumerate((2, 9, 3, 12, 5, 8))
    ]
    alone = {c.index: c.counts for c in make_engine("dspark_rnn", concurrency=1).generate(requests)}
    together = {c.index: c.counts for c in make_engine("dspark_rnn", concurrency=6).generate(requests)}
    assert together == alone


def test_something_that_is_no_request_is_refused_and_not_taken_for_the_end() -> None:
    engine = make_engine("dspark_rnn")
    with pytest.raises(EngineError, match="NoneType"):
        list(engine.generate([Request(0, [5]), None, Request(1, [5])]))
