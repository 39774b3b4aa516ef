"""A job that is killed at random instants, again and again, ends with the file of a run that nothing disturbed."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys

import killed_job
import pytest

KILLS = 500


def test_no_row_is_lost_or_doubled_by_500_kills(tmp_path):
    command = [sys.executable, killed_job.__file__, str(tmp_path), str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["kills"] >= KILLS
    # The kills were of every kind and met the job at work, not only before its first row or after its last.
    assert seen["interrupts"] > KILLS / 10 and seen["in_progress"] > KILLS / 20


@pytest.mark.parametrize("limit", [*range(200, 50_000, 3300), 10**6])
def test_a_disk_that_is_full_at_any_byte_is_gone_on_from(tmp_path, limit):
    killed_job.decode(tmp_path / "undisturbed")
    expected = (tmp_path / "undisturbed" / "out.jsonl").read_bytes()
    folder = tmp_path / "full"

    def on_full_disk():
        # A write past the limit fails, after as much as fits was written, as it does on a disk that fills up.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        killed_job.decode(folder)

    folder.mkdir()
    (folder / "in.jsonl").write_bytes((tmp_path / "undisturbed" / "in.jsonl").read_bytes())
    status = os.WEXITSTATUS(os.waitpid(killed_job.forked(on_full_disk), 0)[1])
    assert status == (0 if limit == 10**6 else errno.EFBIG)
    assert (folder / "out.jsonl").exists() == (limit == 10**6)
    if status:
        killed_job.decode(folder)
    assert (folder / "out.jsonl").read_bytes() == expected
    assert sorted(path.name for path in folder.iterdir()) == ["in.jsonl", "metrics.json", "out.jsonl"]
