"""Drafting from the likeliest tokens alone: what it changes of an engine, and where there is nothing to cut."""

from __future__ import annotations

from typing import Any

import pytest
from fixture_engine import VOCAB, make_engine, requests, texts
from graph_engine import make_pair_engine
from refusals import assert_reads_well

from dspark.engine.errors import UsageError
from dspark.engine.profiling.eager_timer import EagerTimer
from dspark.engine.profiling.graph_timer import GraphTimer

SAMPLED = {"temperature": 0.9}
# What the reduced draft vocabulary of the fixture holds.
KNOWN = {"dspark_rnn": VOCAB, "spec_dspark_d2t": 150}


@pytest.mark.parametrize("name", KNOWN)
def test_as_many_as_the_drafter_knows_are_all(name: str) -> None:
    engines = [make_engine(name, draft_top_k=top_k) for top_k in (None, KNOWN[name], 10**9, KNOWN[name] - 1)]
    assert [engine.draft_top_k for engine in engines] == [None, None, None, KNOWN[name] - 1]
    plain, *others = (texts(engine.generate(requests(**SAMPLED))) for engine in engines[:3])
    assert others == [plain, plain]


def test_fewer_tokens_draft_other_texts() -> None:
    one, few, every = (make_engine(draft_top_k=top_k) for top_k in (1, 3, None))
    found = [texts(engine.generate(requests(**SAMPLED))) for engine in (one, few, every)]
    assert found[0] != found[1] != found[2]
    assert all(engine.stats.spec.accepted for engine in (one, few, every))


def test_it_is_part_of_what_decides_the_text_where_it_is_set() -> None:
    assert make_engine(draft_top_k=3).fingerprint() == make_engine().fingerprint() | {"draft_top_k": 3}


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_its_rounds_can_be_profiled(graphs: bool) -> None:
    engine = make_pair_engine("dspark_rnn", "cpu", graphs=graphs, concurrency=4, draft_top_k=5)
    options = {"max_batch_tokens": 32, "seed": 0}
    timer = EagerTimer(engine, **options) if engine.graphs is None else GraphTimer(engine, engine.graphs, **options)
    for sampled in (False, True):
        assert timer.measure_verification(16, num_requests=4, context_tokens=20, sampled=sampled).bucket == 4
    assert timer.measure_draft(4, context_tokens=20, steps=7, sampled=True).bucket == 4


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"drafter": "ngram"}, "n-gram drafts are looked up"),
        ({"policy": "none"}, "nothing is drafted"),
        ({"drafter": "none", "policy": "none"}, "nothing is drafted"),
    ],
    ids=["ngram", "no-policy", "no-drafter"],
)
def test_no_distribution_to_cut(config: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=f"draft_top_k is 3, and {why}") as refused:
        make_engine(draft_top_k=3, **config)
    assert_reads_well(refused.value)
