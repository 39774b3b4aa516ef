"""Decode a file: rows in, one result row each out, resumable at any instant."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from dspark.engine.errors import EngineError, UsageError
from dspark.engine.jobs import strict_json
from dspark.engine.jobs.dialogue import Dialogues, Record, TextCodec
from dspark.engine.jobs.input_file import InputFile
from dspark.engine.jobs.manifest import manifest
from dspark.engine.jobs.results import ResultFile
from dspark.engine.jobs.rows import read_rows
from dspark.engine.jobs.summary import DecodeSummary
from dspark.engine.requests import Completion, Request, SamplingParams


class DecodeEngine(Protocol):
    """What a job needs of an engine."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Token ids that end a text."""

    def generate(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completions in the order in which they finish; pulls requests as it has room for them."""

    def fingerprint(self) -> Mapping[str, Any]:
        """What decides the text besides the requests."""


class JobProgress(Protocol):
    """Is told how far a job is."""

    def begin(self, summary: DecodeSummary) -> None:
        """Decoding starts; rows of an earlier run are already in `summary`."""

    def row_done(self, summary: DecodeSummary) -> None:
        """One more row is on disk."""


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """One file to decode: where from, where to, and how where a row does not say.

    Raises:
        UsageError: two of the files are the same one, or the output is in the way of something.
    """

    input: InputFile
    output: Path
    metrics: Path
    sampling: SamplingParams
    all_turns: bool = False
    token_ids: bool = False
    resume: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        for name, path in (("--output", self.output), ("--metrics", self.metrics)):
            if self.input.path is not None and _same_file(self.input.path, path):
                raise UsageError(f"{name} is the input file {path}", f"Give {name} another name.")
        if _same_file(self.output, self.metrics):
            raise UsageError(f"--output and --metrics are one file: {self.output}", "Give them different names.")

    def header(self, engine: DecodeEngine) -> dict[str, Any]:
        """What a partial result depends on."""
        return {
            "engine": dict(engine.fingerprint()),
            "sampling": asdict(self.sampling),
            "input": {"rows": self.input.num_rows, "sha256": self.input.sha256},
            "all_turns": self.all_turns,
            "token_ids": self.token_ids,
        }


def decode_file(
    engine: DecodeEngine, tokenizer: TextCodec | None, job: DecodeJob, progress: JobProgress
) -> DecodeSummary:
    """Decode every row of `job.input` into `job.output`, in input order, and write `job.metrics`.

    What is done stays in `<output>.partial` whenever this ends early.

    Raises:
        UsageError: the output is taken, or a partial result belongs to another run.
        OSError: a file could not be written.
    """
    header = job.header(engine)
    results = ResultFile(
        job.output, header=header, num_rows=job.input.num_rows, resume=job.resume, overwrite=job.overwrite
    )
    with closing(results):
        summary = DecodeSummary(job.input.num_rows)
        for record in results.records():
            summary.add(record, resumed=True)
        progress.begin(summary)
        rows = read_rows(job.input.lines(), all_turns=job.all_turns)
        missing = (row for row in rows if not results.is_done(row.index))
        dialogues = Dialogues(
            missing, tokenizer, sampling=job.sampling, stop_ids=engine.stop_ids, keep_token_ids=job.token_ids
        )
        started_s = time.perf_counter()

        def row_done(index: int, record: Record) -> None:
            results.append(index, record)
            summary.add(record, resumed=False)
            summary.decode_s = time.perf_counter() - started_s
            progress.row_done(summary)

        dialogues.run(engine.generate, row_done)
        if results.num_done != job.input.num_rows:
            raise EngineError(f"{job.input.num_rows - results.num_done} rows came back without a result")
        results.publish(strict_json.dumps(record["row"]) for record in results.records())
        write_document(job.metrics, {**summary.to_dict(), "run": header, "manifest": manifest()})
        # Only now: killed before this line, a resumed run finds everything and repeats the last steps.
        results.discard_partial()
    return summary


def finished_summary(job: DecodeJob) -> DecodeSummary:
    """The summary that a finished run left, for a resumption that finds nothing left to do.

    Raises:
        UsageError: the finished output does not have the input's rows.
    """
    with job.output.open("rb") as file:
        num_rows = sum(1 for _ in file)
    if num_rows != job.input.num_rows:
        raise UsageError(
            f"{job.output} is finished and has {num_rows} rows, the input has {job.input.num_rows}",
            "Give --overwrite to decode again, or another --output.",
        )
    summary = DecodeSummary(num_rows)
    with job.output.open("rb") as file:
        for line in file:
            row = strict_json.loads(line.decode("utf-8"))
            turns = len(row.get("turns", [])) or (row["finish_reason"] != "error")
            emitted = row["usage"]["completion_tokens"] - turns
            # Observed positions are not in the output; the accepted ones are those of them known for certain.
            summary.add({"row": row, "observed": row["spec"]["accepted"], "emitted": emitted}, resumed=True)
    return summary


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file at once: whoever reads `path` sees all of it or the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(strict_json.dumps(document, indent=2) + b"\n")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _same_file(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
