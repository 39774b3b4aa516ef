"""Standard streams that are closed, full, or of another encoding."""

import json
import os
import signal
import subprocess
import sys

import pytest
from decode_workplace import texts, workplace

from dspark.cli.main import main

__all__ = ["workplace"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
def test_json_is_utf8_and_help_is_spelt_whatever_the_locale(tmp_path, encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}

    def run(*arguments):
        code = "import sys; from dspark.cli.main import main; sys.exit(main())"
        return subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, env=environment, cwd=tmp_path
        )

    done = run("decode", "--json", "-i", "nirgendwo-ü-γ")
    assert done.returncode == 2
    assert "nirgendwo-ü-γ" in json.loads(done.stdout.decode("utf-8"))["error"]["message"]
    done = run("decode", "--help")
    assert done.returncode == 0
    assert "--policy" in done.stdout.decode(encoding)


@pytest.mark.parametrize("stdout", ["/dev/full", "closed pipe"])
@pytest.mark.parametrize("arguments", [["--version"], ["decode", "--json"]], ids=" ".join)
def test_an_output_that_takes_nothing(stdout, arguments):
    if stdout == "closed pipe":
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open(stdout, os.O_WRONLY)
    code = "import sys; from dspark.cli.main import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, *arguments], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.returncode == (2 if "--json" in arguments else 1)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.stderr.count("dspark: ") == 1
    assert "--resume" not in done.stderr


def test_help_on_a_full_disk_does_not_speak_of_resuming():
    code = "import sys; from dspark.cli.main import main; sys.exit(main(['decode', '--help']))"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "dspark: no space is left to write to\n  Free some space, then run it again.\n"


@pytest.mark.parametrize(("arguments", "exit_code"), [("--version", 0), ("decode", 2)], ids=["done", "refused"])
def test_a_termination_after_the_command_leaves_its_exit_code(tmp_path, arguments, exit_code):
    code = (
        "import os, signal, sys; from dspark.cli.main import main; code = main(); "
        "os.kill(os.getpid(), signal.SIGTERM); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, arguments], capture_output=True, cwd=tmp_path)
    assert done.returncode == exit_code


def test_a_command_run_by_another_program_leaves_its_handler():
    before = signal.getsignal(signal.SIGTERM)
    assert main(["decode", "--quiet"]) == 2
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_path_of_other_bytes_is_no_fault_where_stderr_is_closed(tmp_path):
    code = "import sys; from dspark.cli.main import main; sys.exit(main())"
    command = f'{sys.executable} -c "{code}" report "$(printf "rn-\\\\377")" 2>&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, cwd=tmp_path)
    assert done.returncode == 2


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [("--version", 0), ("decode --help", 0), ("decode --json", 2), ("decode --json -i -", 2)],
    ids=["version", "help", "error", "stdin"],
)
def test_closed_standard_streams_are_no_fault(tmp_path, closed, arguments, exit_code):
    code = "import sys; from dspark.cli.main import main; sys.exit(main())"
    command = f'{sys.executable} -c "{code}" {arguments} {closed}'
    # An empty input would be decoded, and that takes models.
    rows = '{"custom_id": "a"}\n' * 2
    done = subprocess.run(["sh", "-c", command], input=rows, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == exit_code
    assert "Traceback" not in done.stderr
    if closed == "<&-" and arguments.endswith("-i -"):
        assert "dspark: standard input is closed\n" in done.stderr


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_run_whose_stream_is_closed_still_decodes(workplace, monkeypatch, stream):
    monkeypatch.setattr(sys, stream, None)
    assert main(["decode", "-i", "in.jsonl", "--json"]) == 0
    assert texts() == ["ONE", "TWO"]
