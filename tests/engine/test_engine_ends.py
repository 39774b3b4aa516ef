"""Where a text ends, and requests that never begin."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_engine import (
    FIXTURES,
    MAX_TOKENS,
    PROMPT_LENGTHS,
    VOCAB,
    Detokenizer,
    SometimesNothing,
    make_engine,
    prompts,
    reference,
    requests,
)

from dspark.engine import Request, SamplingParams
from dspark.engine.errors import UsageError
from dspark.engine.scheduler.policies import ScheduleView

DEPTHS = pytest.mark.parametrize("depth", [0, 1], ids=["one-by-one", "overlapped"])


@DEPTHS
def test_mixed_max_tokens(depth: int) -> None:
    engine = make_engine(concurrency=5, pipeline_depth=depth)
    wanted = [1, 2, 3, 40, 1, 9, 8, 7, 2, 30, 1, 16, 17, 4, 5, 40]
    asked = [Request(i, prompt, SamplingParams(max_tokens=wanted[i])) for i, prompt in enumerate(prompts())]
    found = {completion.index: completion for completion in engine.generate(asked)}
    for index, max_tokens in enumerate(wanted):
        assert found[index].token_ids == reference("dspark_rnn")[index][:max_tokens]
        assert found[index].finish_reason == "length"
    assert all(found[i].counts.rounds == 0 for i, n in enumerate(wanted) if n == 1)


@DEPTHS
@pytest.mark.parametrize("policy", ["none", "fixed:7", "threshold:0.1"])
def test_context_limit(policy: str, depth: int) -> None:
    limit = 24
    engine = make_engine(policy=policy, max_context=limit, pipeline_depth=depth)
    seen: list[int] = []
    forward = engine.target.forward

    def watched(batch: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(int(batch.positions.max()))
        return forward(batch, *args, **kwargs)

    engine.target.forward = watched
    asked = [request for request in requests(max_tokens=1000) if len(request.prompt_token_ids) < limit]
    for completion in engine.generate(asked):
        room = limit - PROMPT_LENGTHS[completion.index]
        assert len(completion.token_ids) == room
        assert completion.token_ids == reference("dspark_rnn")[completion.index][:room]
        assert completion.finish_reason == "length"
    # The last token of a full context is never run.
    assert max(seen) == limit - 2


class WantsTooMuch(SometimesNothing):
    """Sometimes more than was drafted and than there are tokens left, sometimes less than nothing."""

    def lengths(self, view: ScheduleView) -> np.ndarray:
        return 3 * super().lengths(view) - 4


def test_a_policy_is_held_to_the_caps() -> None:
    engine = make_engine(policy=WantsTooMuch(), max_context=60)
    for completion in engine.generate(requests(max_tokens=13)):
        expected = reference("dspark_rnn")[completion.index]
        assert completion.token_ids == expected[: min(13, 60 - PROMPT_LENGTHS[completion.index])]


@DEPTHS
@pytest.mark.parametrize("place", [0, 1, 2, 5, 11, 39])
@pytest.mark.parametrize("policy", ["none", "fixed:7"])
def test_stop_token(policy: str, place: int, depth: int) -> None:
    stop = reference("dspark_rnn")[5][place]
    engine = make_engine(policy=policy, detokenizer=Detokenizer(stop), pipeline_depth=depth)
    for completion in engine.generate(requests()):
        text = reference("dspark_rnn")[completion.index]
        ends = stop in text
        assert completion.token_ids == (text[: text.index(stop) + 1] if ends else text)
        assert completion.finish_reason == ("stop" if ends else "length")
        assert completion.text is None
    # A finished request has no tokens in the batches behind it, though the host does not know yet.
    assert engine.stats.wasted_tokens == 0


@DEPTHS
def test_ignore_eos(depth: int) -> None:
    stop = reference("dspark_rnn")[5][3]
    engine = make_engine(detokenizer=Detokenizer(stop), pipeline_depth=depth)
    mixed = [
        Request(r.index, r.prompt_token_ids, SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=r.index % 2 == 1))
        for r in requests()
    ]
    for completion, request in ((c, mixed[c.index]) for c in engine.generate(mixed)):
        text = reference("dspark_rnn")[completion.index]
        ends = stop in text and not request.sampling.ignore_eos
        assert completion.token_ids == (text[: text.index(stop) + 1] if ends else text)


def test_stop_ids_of_generation_config(tmp_path: Path) -> None:
    text = reference("dspark_rnn")[5]
    shutil.copytree(FIXTURES / "dspark_rnn" / "target", tmp_path / "target")
    (tmp_path / "target" / "generation_config.json").write_text(json.dumps({"eos_token_id": [text[9], text[4]]}))
    engine = make_engine(target=str(tmp_path / "target"))
    [completion] = engine.generate([requests()[5]])
    assert completion.token_ids == text[: min(text.index(text[9]), text.index(text[4])) + 1]


@DEPTHS
@pytest.mark.parametrize("policy", ["none", "fixed:7", "threshold:0.5"])
@pytest.mark.parametrize("place", [0, 4, 9, 20])
@pytest.mark.parametrize("width", [1, 5])
def test_stop_string(policy: str, place: int, width: int, depth: int) -> None:
    detokenizer = Detokenizer()
    whole = reference("dspark_rnn")[5]
    # It begins and ends inside tokens, and across rounds wherever a round ends in between.
    stop = detokenizer.decode(whole[place : place + width])[1:-1]
    engine = make_engine(policy=policy, detokenizer=detokenizer, pipeline_depth=depth)
    for completion in engine.generate(requests(stop=(stop, "never"))):
        expected = reference("dspark_rnn")[completion.index]
        text = detokenizer.decode(expected)
        if stop not in text:
            assert (completion.token_ids, completion.finish_reason) == (expected, "length")
            continue
        kept = next(n for n in range(len(expected) + 1) if stop in detokenizer.decode(expected[:n]))
        assert completion.token_ids == expected[:kept]
        assert completion.text == text[: text.index(stop)]
        assert completion.finish_reason == "stop"
    # The device knows nothing of stop strings: rounds in flight have worked in vain.
    assert (engine.stats.wasted_tokens > 0) == (depth > 0)


# Requests that cannot run


def test_stop_string_of_one_request_alone() -> None:
    whole = reference("dspark_rnn")[5]
    engine = make_engine(concurrency=1, detokenizer=Detokenizer())
    prompt = prompts()[5]
    # The same text in the same slot: stopped, ended by its limit while still watched, and never watched.
    stop = SamplingParams(max_tokens=MAX_TOKENS, stop=(f"<{whole[9]}>",))
    asked = [stop, SamplingParams(max_tokens=2, stop=stop.stop), SamplingParams(max_tokens=MAX_TOKENS)]
    done = list(engine.generate([Request(i, prompt, sampling) for i, sampling in enumerate(asked)]))
    assert [c.token_ids for c in done] == [whole[: whole.index(whole[9]) + 1], whole[:2], whole]
    assert [c.finish_reason for c in done] == ["stop", "length", "length"]
    assert done[1].text is None and done[2].text is None


def test_stop_string_that_ends_like_an_unfinished_character() -> None:
    whole = reference("dspark_rnn")[5]

    class Replaces(Detokenizer):
        def decode(self, token_ids: Sequence[int]) -> str:
            return super().decode(token_ids).replace(f"<{whole[9]}>", "\ufffd")

    place = whole.index(whole[9])
    engine = make_engine(detokenizer=Replaces())
    stop = f"<{whole[place - 1]}>\ufffd"
    # Nothing behind it shows that the character is whole, so only the end of the request does.
    sampling = SamplingParams(max_tokens=place + 1, stop=(stop,))
    [completion] = engine.generate([Request(0, prompts()[5], sampling)])
    assert completion.token_ids == whole[: place + 1] and completion.finish_reason == "stop"
    assert completion.text == Replaces().decode(whole[: place - 1])


def test_bad_requests_stop_nothing() -> None:
    engine = make_engine(max_context=64)
    good = requests()[4]
    bad = {
        100: ([], "empty"),
        101: ([5] * 64, "context limit"),
        102: ([1, VOCAB], "outside"),
        103: ([-1], "outside"),
        104: ([2**70], "outside"),
    }
    asked = [good, *(Request(index, prompt) for index, (prompt, _) in bad.items()), Request(106, good.prompt_token_ids)]
    asked.append(Request(105, [5], SamplingParams(stop=("x",))))
    bad[105] = ([5], "tokenizer")
    found = {completion.index: completion for completion in engine.generate(asked)}
    assert set(found) == {good.index, 106, *bad}
    for index, (_, reason) in bad.items():
        assert found[index].finish_reason == "error"
        assert reason in (found[index].error or "")
        assert found[index].token_ids == []
    assert found[good.index].token_ids == reference("dspark_rnn")[4]
    assert found[106].token_ids[:MAX_TOKENS] == reference("dspark_rnn")[4]


def test_longest_prompt_gets_one_token() -> None:
    engine = make_engine(max_context=55 + 1)
    [completion] = engine.generate([requests()[8]])
    assert completion.token_ids == reference("dspark_rnn")[8][:1]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_context": 10_000}, "can see"),
        ({"kv_cache_tokens": 64}, "cannot hold one request"),
        ({"policy": "fixed:8"}, "7 at a time"),
        ({"drafter": "none", "policy": "fixed:1"}, "needs a drafter"),
    ],
    ids=["context", "kv-cache", "policy", "no-drafter"],
)
def test_contradictory_configurations(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        make_engine(**config)
    assert raised.value.remedy
