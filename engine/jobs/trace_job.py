"""Decode rows for their rounds alone: what calibration is fitted on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dspark.calibration import Provenance, Traces
from dspark.engine.jobs.decode_job import DecodeEngine, JobProgress
from dspark.engine.jobs.dialogue import Dialogues, Record, TextCodec
from dspark.engine.jobs.input_file import InputFile
from dspark.engine.jobs.round_records import RequestRounds, RoundRecorder, traces_of
from dspark.engine.jobs.rows import Row, read_rows
from dspark.engine.jobs.summary import DecodeSummary
from dspark.engine.observation import RoundObserver
from dspark.engine.requests import SamplingParams


class ObservableEngine(DecodeEngine, Protocol):
    """What recording needs of an engine."""

    observer: RoundObserver | None

    @property
    def gamma(self) -> int:
        """Drafted tokens of a block."""


@dataclass(frozen=True, slots=True)
class ModelNames:
    """The pair as the user named it."""

    target: str
    drafter: str

    def provenance(self, engine: Mapping[str, Any]) -> Provenance:
        """Who drafts and verifies; `engine` is the fingerprint of one."""
        return Provenance(
            target=self.target,
            drafter=self.drafter,
            acceptance=engine["acceptance"],
            target_fingerprint=engine["target"],
            drafter_fingerprint=engine["drafter"],
        )


class TraceJob:
    """Records the rounds of every row of an input; `traces` are there at any time, whatever ended the run.

    Args:
        names: for the traces.
        sampling: what holds where a row does not say.
        dataset: of rows that name none.
    """

    def __init__(
        self, engine: ObservableEngine, input: InputFile, *, names: ModelNames, sampling: SamplingParams, dataset: str
    ) -> None:
        self.errors: list[str] = []  # of rows that could not be decoded
        self._engine = engine
        self._input = input
        self._names = names
        self._sampling = sampling
        self._dataset = dataset
        self._datasets: dict[int, str] = {}
        self._recorder = RoundRecorder(engine.gamma)

    def run(self, tokenizer: TextCodec | None, progress: JobProgress) -> DecodeSummary:
        """Decode every row.

        Raises:
            EngineError: decoding failed, or the input was rewritten meanwhile.
        """
        summary = DecodeSummary(self._input.num_rows)
        progress.begin(summary)
        dialogues = Dialogues(
            self._rows(), tokenizer, sampling=self._sampling, stop_ids=self._engine.stop_ids, keep_token_ids=False
        )

        def row_done(index: int, record: Record) -> None:
            if record["row"]["error"] is not None:
                self.errors.append(record["row"]["error"])
            summary.add(record, resumed=False)
            progress.row_done(summary)

        self._engine.observer = self._recorder
        try:
            dialogues.run(self._engine.generate, row_done)
        finally:
            self._engine.observer = None
        self._input.check_unchanged()
        return summary

    def traces(self) -> Traces:
        """All rounds so far, those of unfinished requests included."""
        fingerprint = self._engine.fingerprint()
        recorded = self._recorder.requests()
        requests = [RequestRounds(index, self._datasets[index], recorded[index]) for index in sorted(recorded)]
        return traces_of(
            requests,
            gamma=self._engine.gamma,
            policy=fingerprint["policy"],
            provenance=self._names.provenance(fingerprint),
        )

    def _rows(self) -> Iterator[Row]:
        for row in read_rows(self._input.lines(), all_turns=False):
            self._datasets[row.index] = row.dataset or self._dataset
            yield row
