"""A job of many short rows with a fake engine, in an interpreter of its own that tells how its memory grows."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from pathlib import Path

from dspark.engine.jobs.decode_job import DecodeJob, decode_file
from dspark.engine.jobs.input_file import open_input
from dspark.engine.requests import SamplingParams

sys.path.insert(0, str(Path(__file__).parent))
from fake_engine import CharCodec, NoProgress, QuickEngine


def resident_bytes() -> int:
    """Memory of this process that is in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class MemoryMeter(NoProgress):
    """Notes the memory when `settled` rows are done, and its peak over every thousandth row from there on."""

    def __init__(self, settled: int) -> None:
        self.settled = settled
        self.rows = 0
        self.at_settled = self.peak = 0

    def row_done(self, meter: object) -> None:
        self.rows += 1
        if self.rows == self.settled:
            self.at_settled = resident_bytes()
        if self.rows >= self.settled and self.rows % 1000 == 0:
            self.peak = max(self.peak, resident_bytes())


def run(folder: Path, num_rows: int) -> dict[str, int]:
    """Decode that many rows; bytes grown since a tenth of them was done, and bytes of the output."""
    source = folder / "in.jsonl"
    with source.open("w") as file:
        for i in range(num_rows):
            file.write(json.dumps({"prompt": f"prompt {i % 977}"}) + "\n")
    engine = QuickEngine()
    engine.asked = deque(maxlen=1)  # the fake's own notes are no part of a job
    meter = MemoryMeter(num_rows // 10)
    job = DecodeJob(
        open_input(str(source)), folder / "out.jsonl", folder / "metrics.json", SamplingParams(max_tokens=8)
    )
    decode_file(engine, CharCodec(), job, meter)
    # The sorted file is written at the end, from the partial one.
    grown = max(meter.peak, resident_bytes()) - meter.at_settled
    return {"rows": meter.rows, "grown": grown, "output": job.output.stat().st_size}


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), int(sys.argv[2]))))
