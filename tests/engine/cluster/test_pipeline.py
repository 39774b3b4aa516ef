"""What the driver gets of blocks that come back, without Ray."""

import queue

import pytest

from dspark.engine.cluster.ledger import State
from dspark.engine.cluster.pipeline import Pipeline
from dspark.engine.cluster.worker import Answered
from dspark.engine.errors import EngineError


class PipelineOf(Pipeline):
    """One whose workers have given these results."""

    def __init__(self, *results):
        self._results = queue.SimpleQueue()
        for result in results:
            self._results.put(result)

    def _state(self):
        return State()


def test_blocks_that_are_done_come_together():
    assert [answered.number for answered in PipelineOf(Answered(4, []), Answered(2, [])).next()] == [4, 2]


def test_what_was_decoded_comes_before_the_end_of_the_workers():
    pipeline = PipelineOf(Answered(4, []), Answered(2, []), OSError("the cluster is gone"))
    assert [answered.number for answered in pipeline.next()] == [4, 2]
    with pytest.raises(EngineError, match="the workers ended: OSError: the cluster is gone"):
        pipeline.next()
