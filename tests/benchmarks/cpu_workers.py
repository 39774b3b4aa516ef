"""Throughput of two Ray workers of one core each against two plain processes pinned to one core each.

    python tests/benchmarks/cpu_workers.py [--rows 64] [--max-tokens 96] [--repeats 3]

Both decode the same prompts with the built-in pair, greedy; the plain processes take every other row each. Loading is
left out of the speeds and told apart: rows are counted from the start of decoding (`decode_s`) to its end, of the plain
pair to the later end. Needs an otherwise idle machine; the load before each run is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CODE = "import sys; from dspark.cli.main import main; sys.exit(main())"
WORDS = ("a", "river", "runs", "past", "the", "mill", "where", "two", "old", "friends", "count", "boats")


def write_rows(folder: Path, rows: int) -> list[Path]:
    """One file of all prompts, and two of every other one."""
    lines = [json.dumps({"prompt": " ".join(WORDS[i % 7 : i % 7 + 6]) + f" {i}"}) + "\n" for i in range(rows)]
    parts = {"all": lines, "even": lines[::2], "odd": lines[1::2]}
    for name, part in parts.items():
        (folder / f"{name}.jsonl").write_text("".join(part))
    return [folder / f"{name}.jsonl" for name in parts]


def start(source: Path, core: int | None, *, max_tokens: int, flags: list[str]) -> subprocess.Popen[bytes]:
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    command = [
        *(*pinned, sys.executable, "-c", CODE, "decode", "-i", str(source), "-o", str(source.with_suffix(".out"))),
        *("--overwrite", "--device", "cpu", "--max-tokens", str(max_tokens), "--json", "--quiet", *flags),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})


def measured(processes: list[subprocess.Popen[bytes]]) -> tuple[float, float]:
    """Tokens a second of all together, and seconds beside decoding."""
    started = time.perf_counter()
    documents = [json.loads(process.communicate()[0])["this_run"] for process in processes]
    wall_s = time.perf_counter() - started
    decode_s = max(document["decode_s"] for document in documents)
    return sum(document["completion_tokens"] for document in documents) / decode_s, wall_s - decode_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    ratios, start_up = [], {"plain": [], "ray": []}
    with tempfile.TemporaryDirectory() as name:
        everything, even, odd = write_rows(Path(name), arguments.rows)
        for repeat in range(arguments.repeats):
            print(f"repeat {repeat + 1}, load {os.getloadavg()[0]:.2f}", flush=True)
            limit = arguments.max_tokens
            plain = measured([start(p, core, max_tokens=limit, flags=[]) for core, p in enumerate((even, odd))])
            ray = measured([start(everything, None, max_tokens=limit, flags=["--num-workers", "2"])])
            rows = [everything.with_suffix(".out"), *(p.with_suffix(".out") for p in (even, odd))]
            texts = [[json.loads(line)["text"] for line in path.read_text().splitlines()] for path in rows]
            assert texts[0][::2] == texts[1] and texts[0][1::2] == texts[2], "the texts differ"
            ratios.append(ray[0] / plain[0])
            for kind, seconds in (("plain", plain[1]), ("ray", ray[1])):
                start_up[kind].append(seconds)
            print(f"  plain {plain[0]:.1f} tok/s, ray {ray[0]:.1f} tok/s, ratio {ratios[-1]:.3f}", flush=True)
    print(f"ratio {statistics.median(ratios):.3f} (lowest {min(ratios):.3f}, highest {max(ratios):.3f})")
    for kind, seconds in start_up.items():
        print(f"start-up and end, {kind}: {statistics.median(seconds):.1f} s")


if __name__ == "__main__":
    main()
