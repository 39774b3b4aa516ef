"""Decode a file: rows in, one result row each out, resumable at any instant."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dspark.engine.errors import EngineError, UsageError
from dspark.engine.jobs import strict_json
from dspark.engine.jobs.atomic_file import replaced
from dspark.engine.jobs.dialogue import Dialogues, Record, TextCodec
from dspark.engine.jobs.input_file import InputFile
from dspark.engine.jobs.manifest import manifest
from dspark.engine.jobs.meter import Meter, MeteredEngine
from dspark.engine.jobs.output_format import OutputFormat
from dspark.engine.jobs.output_places import partial_path, refuse_both
from dspark.engine.jobs.results import ResultFile
from dspark.engine.jobs.round_file import RoundFile
from dspark.engine.jobs.rows import Row, read_rows
from dspark.engine.jobs.summary import DecodeSummary
from dspark.engine.jobs.trace_file import TraceFile
from dspark.engine.requests import SamplingParams

if TYPE_CHECKING:
    from dspark.engine.jobs.row_traces import RowTraces
    from dspark.engine.observation import RoundObserver
    from dspark.engine.round_meter import RoundListener, RoundMetrics


class DecodeEngine(MeteredEngine, Protocol):
    """What a job needs of an engine."""

    observer: RoundObserver | None
    round_listener: RoundListener | None
    times_every_round: bool

    @property
    def gamma(self) -> int:
        """Drafted tokens of a block."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Token ids that end a text."""

    def fingerprint(self) -> Mapping[str, Any]:
        """What decides the text besides the requests."""


@runtime_checkable
class RemoteEngine(Protocol):
    """An engine that computes elsewhere."""

    def manifest(self) -> Mapping[str, Any]:
        """Versions and machine there."""


class JobProgress(Protocol):
    """Is told how far a job is."""

    def begin(self, meter: Meter) -> None:
        """Decoding starts; rows of an earlier run are already in the meter's summary. The meter may be kept."""

    def row_done(self, meter: Meter) -> None:
        """One more row is on disk."""


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """One file to decode: where from, where to, and how where a row does not say.

    `target` and `drafter` are the names under which the models were asked for. Partial file and metrics keep them; no
    row depends on them.

    Raises:
        UsageError: two of the files are the same one, or two flags contradict each other.
    """

    input: InputFile
    output: Path
    metrics: Path
    sampling: SamplingParams
    traces: TraceFile | None = None
    rounds: RoundFile | None = None
    output_format: OutputFormat = field(default_factory=OutputFormat)
    all_turns: bool = False
    token_ids: bool = False
    resume: bool = False
    overwrite: bool = False
    target: str | None = None
    drafter: str | None = None

    def __post_init__(self) -> None:
        refuse_both(resume=self.resume, overwrite=self.overwrite)
        partial = partial_path(self.output)
        tables = [] if self.traces is None else [("--traces", self.traces.path)]
        tables += [] if self.rounds is None else [("--rounds", self.rounds.path)]
        if self.input.path is not None:
            for name, path in (("--output", self.output), ("--metrics", self.metrics), *tables):
                if _same_file(self.input.path, path):
                    raise UsageError(f"{name} is the input file {path}", f"Give {name} another name.")
            if _same_file(self.input.path, partial):
                raise UsageError(f"--input is {partial}, where --output keeps its rows", "Rename the input file.")
        for name, given in (("--metrics", self.metrics), *tables):
            for path in (self.output, partial):
                if _same_file(given, path):
                    raise UsageError(f"{name} is {path}, which belongs to --output", f"Give {name} another name.")
        for name, path in tables:
            if _same_file(path, self.metrics):
                raise UsageError(f"{name} is {path}, which is for the metrics", f"Give {name} another name.")
        if len(tables) > 1 and _same_file(tables[0][1], tables[1][1]):
            raise UsageError(f"--traces and --rounds are both {tables[0][1]}", "Give one of them another name.")

    def header(self, engine: Mapping[str, Any]) -> dict[str, Any]:
        """What a result depends on, and what its models are called; `engine` is the fingerprint of one."""
        return {
            "engine": dict(engine),
            "names": {"target": self.target, "drafter": self.drafter},
            "sampling": asdict(self.sampling),
            "input": {"rows": self.input.num_rows, "sha256": self.input.sha256},
            "all_turns": self.all_turns,
            "token_ids": self.token_ids,
            "traces": self.traces is not None,
            "output_format": self.output_format.name,
        }


def decode_file(
    engine: DecodeEngine, tokenizer: TextCodec | None, job: DecodeJob, progress: JobProgress
) -> DecodeSummary:
    """Decode every row of `job.input` into `job.output`, in input order, and write `job.metrics`.

    What is done stays in `<output>.partial` whenever this ends early. A row's rounds are part of its line there, so
    that `job.traces` holds them once, however often the run was killed and resumed. `job.rounds` and the times in the
    metrics are of this run alone.

    Raises:
        UsageError: the output is taken, or a partial result belongs to another run.
        OSError: a file could not be written.
    """
    header = job.header(engine.fingerprint())
    results = ResultFile(
        job.output, header=header, num_rows=job.input.num_rows, resume=job.resume, overwrite=job.overwrite
    )
    with closing(results):
        summary = DecodeSummary(
            job.input.num_rows,
            job.input.unused_fields.to_dict(),
            policy=header["engine"].get("policy"),
            sees_rounds=not isinstance(engine, RemoteEngine),
        )
        for record in results.records():
            summary.add(record, resumed=True)
        rows = read_rows(job.input.lines(), all_turns=job.all_turns)
        missing: Iterator[Row] = (row for row in rows if not results.is_done(row.index))
        traces = None if job.traces is None else _row_traces(engine, job.traces, job.input)
        if traces is not None:
            missing = traces.watched(missing)
        dialogues = Dialogues(
            missing, tokenizer, sampling=job.sampling, stop_ids=engine.stop_ids, keep_token_ids=job.token_ids
        )
        meter = Meter(engine, summary)
        progress.begin(meter)

        def row_done(index: int, record: Record) -> None:
            if traces is not None:
                record = traces.with_rounds(record)
            results.append(index, record)
            summary.add(record, resumed=False)
            summary.decode_s = meter.elapsed_s
            progress.row_done(meter)

        # The table of rounds is finished last: whatever becomes of it, the rows are written.
        with _listening(engine, summary, job.rounds):
            with nullcontext() if traces is None else traces.recording():
                dialogues.run(meter.generate, row_done)
            job.input.check_unchanged()
            if results.num_done != job.input.num_rows:
                raise EngineError(
                    f"{job.input.num_rows - results.num_done} rows came back without a result",
                    "This is a fault of dspark: please report it; --resume decodes the missing rows.",
                )
            results.publish(strict_json.dumps(job.output_format.line(record)) for record in results.records())
            if traces is not None:
                traces.write(results.records())
            document = {**summary.to_dict(), "run": header, "manifest": {**header["names"], **_manifest(engine)}}
            _write_document(job.metrics, document)
        # Only now: killed before this line, a resumed run finds everything and repeats the last steps.
        results.discard_partial()
    return summary


def _manifest(engine: DecodeEngine) -> Mapping[str, Any]:
    if isinstance(engine, RemoteEngine):
        return engine.manifest()
    return manifest(str(engine.fingerprint().get("device")))


@contextmanager
def _listening(engine: DecodeEngine, summary: DecodeSummary, file: RoundFile | None) -> Iterator[None]:
    """Add up the rounds that the engine runs meanwhile, and write them to `file`."""
    takers: list[RoundListener] = [summary.engine_rounds.add]
    with ExitStack() as open_file:
        if file is not None:
            takers.append(open_file.enter_context(file.writing()))

        def told(round: RoundMetrics) -> None:
            for take in takers:
                take(round)

        engine.round_listener, engine.times_every_round = told, file is not None
        try:
            yield
        finally:
            engine.round_listener, engine.times_every_round = None, False


def _row_traces(engine: DecodeEngine, file: TraceFile, input: InputFile) -> RowTraces:
    # Loads numpy and more, which a run without traces does without until the models are loaded.
    from dspark.engine.jobs.row_traces import RowTraces

    return RowTraces(engine, file, dataset=input.dataset)


def _write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file at once: whoever reads `path` sees all of it or the one before."""
    with replaced(path) as writer:
        writer.write(strict_json.dumps(document, indent=2) + b"\n")


def _same_file(one: Path, other: Path) -> bool:
    # Two names that do not exist yet may be one file, and two names of a file may be no links of each other.
    return os.path.realpath(one) == os.path.realpath(other) or (
        one.exists() and other.exists() and os.path.samefile(one, other)
    )
