"""Jobs with a fake engine in processes of their own, for tests that kill them.

Run as a script it kills one at random instants and goes on with it, again and again, from an interpreter that has
loaded no heavy library: a fork of it costs a millisecond, so there can be hundreds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dspark.engine.jobs.decode_job import DecodeJob, decode_file
from dspark.engine.jobs.input_file import open_input
from dspark.engine.jobs.output_places import is_finished, partial_path
from dspark.engine.requests import SamplingParams

sys.path.insert(0, str(Path(__file__).parent))
from fake_engine import CharCodec, NoProgress, QuickEngine

ROWS = 200
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def decode(folder: Path) -> None:
    """Begin or go on with the job of a folder."""
    folder.mkdir(exist_ok=True)
    source = folder / "in.jsonl"
    if not source.exists():
        rng = random.Random(4)
        rows = [{"prompt": "x\u2028é" * rng.randrange(1, 9)} if i % 9 else {"prompt": i} for i in range(ROWS)]
        named = [json.dumps(row | ({"custom_id": f"é{i}"} if i % 2 else {})) for i, row in enumerate(rows)]
        # A kill in here must not leave half an input behind.
        unfinished = folder / "in.unfinished"
        unfinished.write_text("\n".join(named) + "\n")
        unfinished.rename(source)
    output = folder / "out.jsonl"
    resume = partial_path(output).exists()
    job = DecodeJob(open_input(str(source)), output, folder / "metrics.json", SamplingParams(), resume=resume)
    decode_file(QuickEngine(), CharCodec(), job, NoProgress())


def forked(work: Callable[[], object]) -> int:
    """Start `work` in a fork, which ends with 0, or 130 if interrupted, or an OSError's number; its process id."""
    # An interrupt before the fork is ready for it would go through the caller's own code there.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            work()
            status = 0
        except KeyboardInterrupt:
            status = 130
        except OSError as error:
            status = error.errno or 1
        finally:
            os._exit(status)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    return child


def done_rows(partial: Path) -> list[int]:
    """Indices on the whole lines of a partial file."""
    if not partial.exists():
        return []
    return [json.loads(line)["index"] for line in partial.read_bytes().split(b"\n")[1:-1]]


def kill_often(folder: Path, kills: int) -> dict[str, int]:
    """Kill until that many kills have met a running job; what was seen."""
    rng = random.Random(20)
    decode(folder / "undisturbed")
    expected = (folder / "undisturbed" / "out.jsonl").read_bytes()
    started = time.perf_counter()
    os.waitpid(forked(lambda: decode(folder / "timed")), 0)
    whole_s = time.perf_counter() - started
    seen = {"kills": 0, "interrupts": 0, "jobs": 0, "in_progress": 0}
    while seen["kills"] < kills:
        job = folder / str(seen["jobs"])
        seen["jobs"] += 1
        output, done = job / "out.jsonl", []
        while not is_finished(output):
            child = forked(lambda job=job: decode(job))
            time.sleep(rng.random() * whole_s)
            with suppress(ProcessLookupError):
                os.kill(child, rng.choice(SIGNALS))
            status = os.waitpid(child, 0)[1]
            killed = os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 130
            assert killed or status == 0, f"ended with {status}"
            seen["kills"] += killed
            seen["interrupts"] += os.WIFEXITED(status) and killed
            if not is_finished(output):
                now = done_rows(partial_path(output))
                assert now[: len(done)] == done, "what was done is done no more"
                assert len(set(now)) == len(now), "a row was decoded twice"
                seen["in_progress"] += 0 < len(now) < ROWS
                done = now
        assert output.read_bytes() == expected, "the file differs from an undisturbed run's"
    return seen


if __name__ == "__main__":
    print(json.dumps(kill_often(Path(sys.argv[1]), int(sys.argv[2]))))
