"""Rows are streamed: what a job holds of each is a few numbers, not its text."""

import json
import subprocess
import sys
from pathlib import Path

import long_job
import pytest

ROWS = 100_000
# Eight bytes each for the line's mark, the result's place, and the columns whose quantiles the summary gives. Arrays
# grow by an eighth.
BYTES_A_ROW = 8 * 8 * 9 / 8
# Lists and buffers of the interpreter that come and go.
SLACK = 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads its memory from /proc")
def test_memory_is_flat_over_100000_rows(tmp_path):
    command = [sys.executable, long_job.__file__, str(tmp_path), str(ROWS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["rows"] == ROWS
    # The output held in memory would be far more than this.
    assert seen["grown"] < ROWS * BYTES_A_ROW + SLACK < seen["output"] / 3, seen
