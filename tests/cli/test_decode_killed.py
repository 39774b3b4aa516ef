"""A real process, stopped while it decodes: what it had done is kept, and going on gives the same files."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fixture_engine import FIXTURES

from dspark.calibration import read_traces, traces_to_frame
from dspark.cli.main import main

ROWS, MIN_DONE = 240, 5
PAIR = FIXTURES / "dspark_rnn"
COMMAND = [
    *("decode", "-i", "in.jsonl", "--target", str(PAIR / "target"), "--drafter", str(PAIR / "draft")),
    *("--device", "cpu", "--dtype", "float32", "--concurrency", "3", "--max-tokens", "40", "--quiet"),
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """The input and the output of a run that nothing stopped."""
    folder = tmp_path_factory.mktemp("killed")
    rng = np.random.default_rng(3)
    with (folder / "in.jsonl").open("w") as file:
        for length in rng.integers(1, 12, ROWS):
            file.write(json.dumps({"prompt_token_ids": rng.integers(3, 255, length).tolist()}) + "\n")
    before = os.getcwd()
    os.chdir(folder)
    try:
        assert main([*COMMAND, "-o", "whole.jsonl", "--traces", "whole.parquet"]) == 0
        yield folder
    finally:
        os.chdir(before)


@pytest.mark.parametrize(
    ("number", "exit_code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)],
    ids=["interrupted", "terminated", "killed"],
)
def test_stopped_and_resumed(workplace, number, exit_code):
    output = workplace / f"{number.name}.jsonl"
    partial, traces = Path(f"{output}.partial"), output.with_suffix(".parquet")
    code = "import sys; from dspark.cli.main import main; sys.exit(main())"
    arguments = [sys.executable, "-c", code, *COMMAND, "-o", str(output), "--traces", str(traces)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(arguments, cwd=workplace, stderr=subprocess.PIPE, env=environment) as process:
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if partial.exists() and partial.read_bytes().count(b"\n") > MIN_DONE:
                break
            time.sleep(0.01)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == exit_code, err
    assert not output.exists() and not traces.exists()
    done = partial.read_bytes().count(b"\n") - 1
    assert MIN_DONE <= done < ROWS
    if number != signal.SIGKILL:
        assert b"--resume" in err and b"Traceback" not in err
    assert main([*COMMAND, "-o", str(output), "--traces", str(traces), "--resume"]) == 0
    assert output.read_bytes() == (workplace / "whole.jsonl").read_bytes()
    assert not partial.exists()
    assert json.loads(output.with_suffix(".metrics.json").read_text())["resumed_rows"] == done
    check_traces(traces, workplace / "whole.parquet")


def check_traces(resumed, whole):
    """Every round once, and what was counted exactly so; logits depend on who else is in the batch, to a rounding."""
    resumed, whole = (traces_to_frame(read_traces([path])) for path in (resumed, whole))
    exact = [name for name in whole if whole[name].dtype != np.float32]
    pd.testing.assert_frame_equal(resumed[exact], whole[exact])
    pd.testing.assert_frame_equal(resumed, whole, rtol=0, atol=1e-4)
