"""--num-workers and --ray of the commands: what they need, and a run over Ray from its start to its end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fixture_engine import FIXTURES

from dspark.cli.main import main

ROWS, MIN_DONE = 400, 5
PAIR = FIXTURES / "dspark_rnn"
MODELS = ["--target", str(PAIR / "target"), "--drafter", str(PAIR / "draft"), "--device", "cpu"]
COMMAND = ["decode", "-i", "in.jsonl", *MODELS, "--concurrency", "3", "--max-tokens", "24", "--quiet"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    with open("in.jsonl", "w") as file:
        for length in rng.integers(1, 12, ROWS):
            file.write(json.dumps({"prompt_token_ids": rng.integers(3, 255, length).tolist()}) + "\n")
    return tmp_path


@pytest.fixture
def without_ray(monkeypatch):
    for name in ("ray", "ray.data"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("flags", [["--num-workers", "2"], ["--ray", "auto"]], ids=["local", "cluster"])
@pytest.mark.parametrize(
    "command",
    [
        COMMAND,
        ["calibrate", "-i", "in.jsonl", *MODELS],
        ["train", "-o", "out", "--target", str(PAIR / "target"), "--device", "cpu", "--steps", "1"],
    ],
    ids=lambda command: command[0],
)
def test_without_ray_a_sentence_names_what_to_install_before_anything_is_loaded(
    here, capsys, without_ray, command, flags
):
    assert main([*(word for word in command if word != "--quiet"), *flags]) == 2
    err = capsys.readouterr().err
    assert err == "dspark: several workers need Ray, which is not installed\n  Run `pip install 'dspark[ray]'`.\n"


def test_missing_ray_is_told_with_the_other_mistakes(here, capsys, without_ray):
    assert main([*COMMAND, "--num-workers", "2", "--top-p", "3"]) == 2
    err = capsys.readouterr().err
    assert "which is not installed" in err and "--top-p is 3.0" in err


def test_no_workers_are_refused_with_the_other_mistakes(here, capsys):
    assert main([*COMMAND, "--num-workers", "0", "--top-p", "3"]) == 2
    err = capsys.readouterr().err
    assert "--num-workers is 0" in err and "--top-p is 3.0" in err


def test_a_cluster_that_does_not_answer_is_a_sentence(here, capsys):
    pytest.importorskip("ray")
    assert main([*COMMAND, "--ray", "nowhere"]) == 2
    assert "dspark: no Ray cluster answers at nowhere: " in capsys.readouterr().err


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 2), (signal.SIGTERM, 1)], ids=["SIGINT", "SIGTERM"])
def test_stopped_with_workers_and_gone_on_with_alone(here, number, workers):
    pytest.importorskip("ray", reason="needs Ray: pip install 'dspark[ray]'")
    assert main([*COMMAND, "-o", "whole.jsonl"]) == 0
    code = "import sys; from dspark.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *COMMAND, "-o", "out.jsonl", "--num-workers", str(workers), "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    partial = Path("out.jsonl.partial")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        deadline = time.monotonic() + 240
        while process.poll() is None and time.monotonic() < deadline:
            if partial.exists() and partial.read_bytes().count(b"\n") > MIN_DONE:
                break
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    # Ray says much of its own; nothing of it may come between a program and our document.
    assert json.loads(out)["exit_code"] == 130
    assert b"Traceback" not in err and err.startswith(b"dspark: interrupted\n")
    done = partial.read_bytes().count(b"\n") - 1
    assert MIN_DONE <= done < ROWS
    assert main([*COMMAND, "-o", "out.jsonl", "--resume"]) == 0
    assert Path("out.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    assert json.loads(Path("out.metrics.json").read_text())["resumed_rows"] == done
