"""The rounds of a job's rows, as the engine tells them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dspark.calibration import Provenance, Traces, write_traces
from dspark.engine.errors import EngineError
from dspark.engine.jobs.round_records import RequestRounds, RoundRecorder, pack, traces_of, unpack
from dspark.engine.jobs.rows import Row
from dspark.engine.jobs.trace_file import TraceFile

if TYPE_CHECKING:
    from dspark.engine.jobs.decode_job import DecodeEngine
    from dspark.engine.jobs.dialogue import Record

_KEY = "trace"


class RowTraces:
    """Records rounds row by row.

    Args:
        dataset: of rows that name none.
    """

    def __init__(self, engine: DecodeEngine, file: TraceFile, *, dataset: str) -> None:
        self._engine = engine
        self._file = file
        self._dataset = dataset
        self._datasets: dict[int, str] = {}
        self._recorder = RoundRecorder(engine.gamma)

    def watched(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows as they are asked, whose data sets are remembered."""
        for row in rows:
            self._datasets[row.index] = row.dataset or self._dataset
            yield row

    @contextmanager
    def recording(self) -> Iterator[None]:
        """What the engine decodes meanwhile is recorded."""
        self._engine.observer = self._recorder
        try:
            yield
        finally:
            self._engine.observer = None

    def with_rounds(self, record: Record) -> Record:
        """The record of a row that is done, and its rounds with it."""
        index = record["row"]["index"]
        rounds = pack(self._recorder.take(index))
        return {**record, _KEY: {"dataset": self._datasets.pop(index), "rounds": rounds}}

    def collected(self) -> Traces:
        """All rounds that are in no record yet, those of unfinished rows included."""
        recorded = self._recorder.requests()
        return self._traces(RequestRounds(row, self._datasets[row], recorded[row]) for row in sorted(recorded))

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write the rounds that come with records.

        Raises:
            EngineError: a record has rounds that nobody packed.
            CalibrationError: rounds contradict each other, or the trace file cannot be written.
        """
        write_traces(self._traces(self._unpacked(record) for record in records), self._file.path)

    def _unpacked(self, record: Mapping[str, Any]) -> RequestRounds:
        index, trace = record["index"], record[_KEY]
        try:
            return RequestRounds(index, trace["dataset"], unpack(trace["rounds"], self._engine.gamma))
        except ValueError:
            raise EngineError(
                f"row {index} of the partial result has rounds that cannot be read",
                "Something else changed the file: give --overwrite to start again.",
            ) from None

    def _traces(self, requests: Iterable[RequestRounds]) -> Traces:
        engine = self._engine.fingerprint()
        return traces_of(
            requests,
            gamma=self._engine.gamma,
            policy=engine["policy"],
            provenance=Provenance(
                target=self._file.target,
                drafter=self._file.drafter,
                acceptance=engine["acceptance"],
                target_fingerprint=engine["target"],
                drafter_fingerprint=engine["drafter"],
                draft_top_k=engine.get("draft_top_k", 0),
            ),
        )
