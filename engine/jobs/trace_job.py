"""Decode rows for their rounds alone: what calibration is fitted on."""

from __future__ import annotations

from dspark.engine.jobs.decode_job import DecodeEngine, JobProgress
from dspark.engine.jobs.dialogue import Dialogues, Record, TextCodec
from dspark.engine.jobs.input_file import InputFile
from dspark.engine.jobs.meter import Meter
from dspark.engine.jobs.row_traces import RowTraces
from dspark.engine.jobs.rows import read_rows
from dspark.engine.jobs.summary import DecodeSummary
from dspark.engine.requests import SamplingParams


def record_rows(
    engine: DecodeEngine,
    tokenizer: TextCodec | None,
    input: InputFile,
    sampling: SamplingParams,
    *,
    traces: RowTraces,
    progress: JobProgress,
) -> DecodeSummary:
    """Decode every row; `traces`, of this engine, has its rounds at any time, whatever ends this.

    sampling: what holds where a row does not say.

    Raises:
        EngineError: decoding failed, or the input was rewritten meanwhile.
    """
    summary = DecodeSummary(input.num_rows, input.unused_fields.to_dict())
    meter = Meter(engine, summary)
    progress.begin(meter)
    rows = traces.watched(read_rows(input.lines(), all_turns=False))
    dialogues = Dialogues(rows, tokenizer, sampling=sampling, stop_ids=engine.stop_ids, keep_token_ids=False)

    def row_done(index: int, record: Record) -> None:
        summary.add(record, resumed=False)
        summary.decode_s = meter.elapsed_s
        progress.row_done(meter)

    with traces.recording():
        dialogues.run(meter.generate, row_done)
    input.check_unchanged()
    return summary
