"""Whatever comes, stays, stops and is put off: every text is the target's, cut where a plain reading cuts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from fixture_engine import Detokenizer, SometimesNothing, make_engine, prompts, reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from step_curves import make_planner

from dspark.engine import Completion, Engine, Request, SamplingParams
from dspark.engine.flights import Flight
from dspark.engine.ledger import Ledger
from dspark.engine.loop import DecodeLoop
from dspark.engine.scheduler.policies import Planned
from dspark.engine.slots import RUNNING
from dspark.kernels import SlotField

GAMMA, STOP_TOKEN = 7, reference("dspark_rnn")[5][7]
POLICIES = ["none", "fixed:1", "fixed:7", "threshold:0.5", SometimesNothing(), "causal", "async"]


@dataclass(frozen=True)
class Asked:
    """One request: which prompt, how many tokens, whether the end token counts, which token is a stop string."""

    prompt: int
    max_tokens: int
    ignore_eos: bool
    stop: int | None

    def request(self, index: int) -> Request:
        stop = () if self.stop is None else (f"<{self.stop}>",)
        sampling = SamplingParams(max_tokens=self.max_tokens, ignore_eos=self.ignore_eos, stop=stop)
        return Request(index, prompts()[self.prompt], sampling)

    def expected(self) -> tuple[list[int], str]:
        """Token by token."""
        kept: list[int] = []
        for token in reference("dspark_rnn")[self.prompt]:
            kept.append(token)
            if token == self.stop or (token == STOP_TOKEN and not self.ignore_eos):
                return kept, "stop"
            if len(kept) == self.max_tokens:
                break
        return kept, "length"


def asked() -> st.SearchStrategy[Asked]:
    common = sorted({token for text in reference("dspark_rnn") for token in text[:20]})
    return st.builds(
        Asked,
        prompt=st.integers(0, 15),
        max_tokens=st.sampled_from([1, 2, 3, 7, 20, 40]),
        ignore_eos=st.booleans(),
        stop=st.one_of(st.none(), st.sampled_from(common)),
    )


def engine_for(policy: Any, **config: Any) -> Engine:
    if policy in ("causal", "async"):
        concurrency = config["concurrency"]
        curve = ((concurrency, 3 * concurrency, 8 * concurrency), (0.010, 0.013, 0.024))
        engine = make_engine(detokenizer=Detokenizer(STOP_TOKEN), **config)
        engine.policy = Planned(causal=policy == "causal")
        engine.planner = make_planner(*curve, gamma=GAMMA, causal=policy == "causal")
        return engine
    return make_engine(policy=policy, detokenizer=Detokenizer(STOP_TOKEN), **config)


def check_counts(completion: Completion) -> None:
    counts = completion.counts
    assert counts.emitted == len(completion.token_ids) - 1
    assert counts.drafted >= counts.verified >= counts.observed >= counts.accepted >= 0
    assert sum(counts.acceptance_histogram) == counts.rounds
    assert sum(k * n for k, n in enumerate(counts.acceptance_histogram)) == counts.accepted
    # Each round adds a token of the target's own, unless an accepted token ended it.
    assert counts.accepted + counts.rounds - counts.emitted in (0, int(completion.finish_reason == "stop"))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wanted=st.lists(asked(), min_size=1, max_size=14),
    concurrency=st.integers(1, 6),
    pages=st.sampled_from([28, 34, 400]),
    depth=st.integers(0, 2),
)
def test_texts_and_accounts(
    policy: Any, wanted: list[Asked], concurrency: int, pages: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_for(policy, concurrency=concurrency, kv_cache_tokens=4 * pages, max_context=100)
    loop = DecodeLoop(engine, [one.request(i) for i, one in enumerate(wanted)], depth=depth)
    own = Ledger.take_in

    def checked(ledger: Ledger, flight: Flight, runner: Any) -> Any:
        landed = own(ledger, flight, runner)
        # With nothing in flight the host's books and the device's state are one.
        slots = loop.slots
        rows = slots.of_status(RUNNING)
        rows = rows[slots.in_flight[rows] == 0]
        state = runner.state[rows].numpy()
        assert (slots.most_ahead[rows] == 0).all() and not state[:, SlotField.FINISHED].any()
        assert (state[:, SlotField.START] == slots.context_len[rows]).all()
        assert (state[:, SlotField.ANCHOR] == slots.tokens[rows, slots.context_len[rows]]).all()
        assert (state[:, SlotField.TOKENS_LEFT] == slots.limit[rows] - slots.emitted[rows]).all()
        return landed

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "take_in", checked)
        done = {completion.index: completion for completion in loop.run()}
    assert len(done) == len(wanted)
    for index, one in enumerate(wanted):
        assert (done[index].token_ids, done[index].finish_reason) == one.expected()
        check_counts(done[index])
    assert loop.pool.num_free == engine.num_pages - 1 and not loop.pool.tables.any()
