import asyncio
from dataclasses import replace

import pytest

from dspark.engine.cluster.ledger import MOST_ATTEMPTS, Facts, Ledger
from dspark.engine.errors import CheckpointError, EngineError

FACTS = Facts({"target": "t"}, 3, frozenset({0}), 100, (), {}, 1)


def test_a_block_is_waited_for_and_is_empty_once_it_is_decoded():
    async def run():
        ledger = Ledger(1)
        waiting = asyncio.ensure_future(ledger.block(0))
        await asyncio.sleep(0)
        assert not waiting.done()
        await ledger.put(0, b"rows")
        assert await waiting == b"rows"
        # Whoever reads the blocks anew, since its process was lost, finds them under the same numbers.
        assert await ledger.block(0) == b"rows"
        await ledger.finished(0, [7])
        assert await ledger.block(0) == b""
        await ledger.close()
        assert await ledger.block(1) is None

    asyncio.run(run())


def test_the_last_attempt_is_row_by_row_and_each_row_has_one():
    async def run():
        ledger = Ledger(1)
        assert [await ledger.begin(4) for _ in range(MOST_ATTEMPTS)] == [False, False, True]
        assert await ledger.may_try_alone(7)
        assert not await ledger.may_try_alone(7)
        assert await ledger.may_try_alone(8)
        # Its answer was lost with a worker that another row ended.
        await ledger.came_through(8)
        assert await ledger.may_try_alone(8)
        await ledger.finished(4, [7, 8])
        assert await ledger.may_try_alone(7)
        assert not await ledger.begin(4)

    asyncio.run(run())


def failure_of(*steps):
    async def run():
        ledger = Ledger(2)
        for name, *arguments in steps:
            await getattr(ledger, name)(*arguments)
        return (await ledger.state()).failure

    return asyncio.run(run())


def test_workers_that_keep_dying_while_they_load_end_the_run():
    assert failure_of(*[("loading",)] * 8) is None
    assert "die while they load" in str(failure_of(*[("loading",)] * 9))
    assert failure_of(*[("loading",), ("loaded", FACTS)] * 20) is None


def test_workers_that_would_not_decode_alike_end_the_run():
    other = replace(FACTS, process_id=2)
    assert failure_of(("loaded", FACTS), ("loaded", other)) is None
    error = failure_of(("loaded", FACTS), ("loaded", replace(other, fingerprint={"target": "u"})))
    assert isinstance(error, EngineError) and error.remedy


def test_the_first_reason_is_kept():
    first = CheckpointError("no weights")
    assert failure_of(("failed", first), ("failed", EngineError("later"))) is first


@pytest.mark.parametrize("count", [1, 3])
def test_state_names_every_worker_that_was_loaded(count):
    async def run():
        ledger = Ledger(count)
        for i in range(count):
            await ledger.loaded(replace(FACTS, process_id=i))
        return [facts.process_id for facts in (await ledger.state()).workers]

    assert asyncio.run(run()) == list(range(count))
