"""Interrupted runs of `decode`, and going on with them."""

import json
import shutil
from pathlib import Path

import pytest
from decode_workplace import texts, workplace
from fake_engine import FakeEngine

from dspark.cli.main import main

__all__ = ["workplace"]


def test_a_resumed_run_tells_its_own_numbers_apart_from_the_files(workplace, capsys):
    def stop(index):
        if len(workplace.made.asked) > 2:
            raise KeyboardInterrupt

    Path("in.jsonl").write_text("".join(json.dumps({"prompt": "x" * n}) + "\n" for n in (4, 3, 2)))
    workplace.made = FakeEngine(before=stop, concurrency=1)
    assert main(["decode", "-i", "in.jsonl"]) == 130
    capsys.readouterr()
    workplace.made = FakeEngine()
    assert main(["decode", "-i", "in.jsonl", "--resume", "--json"]) == 0
    captured = capsys.readouterr()
    totals = json.loads(captured.out)
    assert (totals["rows"], totals["resumed_rows"], totals["completion_tokens"]) == (3, 2, 5 + 4 + 3)
    this_run = totals["this_run"]
    assert (this_run["rows"], this_run["completion_tokens"]) == (1, 3)
    assert this_run["tokens_per_s"] == pytest.approx(3 / this_run["decode_s"])
    ours, files = captured.err.partition("decode, this run")[2].split("decode, whole file")
    assert "tok/s" in ours and "3 from 2 prompt tokens" in ours
    assert "tok/s" not in files and "12 from 9 prompt tokens" in files


def test_interrupted_says_how_to_go_on_and_does(workplace, capsys):
    def interrupt(index):
        raise KeyboardInterrupt

    workplace.made = FakeEngine(before=interrupt)
    assert main(["decode", "-i", "in.jsonl"]) == 130
    assert "the same command with --resume goes on" in capsys.readouterr().err
    assert main(["decode", "-i", "in.jsonl", "--overwrite"]) == 130
    assert "with --resume in place of --overwrite goes on" in capsys.readouterr().err
    workplace.made = FakeEngine()
    assert main(["decode", "-i", "in.jsonl"]) == 2
    assert main(["decode", "-i", "in.jsonl", "--resume"]) == 0
    assert texts() == ["ONE", "TWO"]


def test_resuming_a_finished_run_compares_it_and_answers_as_the_run_did(workplace, capsys):
    with open("in.jsonl", "a") as file:
        file.write("nonsense\n")
    assert main(["decode", "-i", "in.jsonl", "--json"]) == 3
    first = capsys.readouterr()
    workplace.made = None
    assert main(["decode", "-i", "in.jsonl", "--json", "--resume"]) == 3
    again = capsys.readouterr()
    assert "nothing is left to resume" in again.err
    assert json.loads(again.out) == json.loads(first.out)
    for flags, name in (
        (["--temperature", "0.5"], "differs in --temperature (0.0 then, 0.5 now)"),
        (["--seed", "1"], "differs in --seed (0 then, 1 now)"),
        (["--policy", "none"], "--policy ("),
        (["--drafter", "none"], '--drafter (smollm2-135m-dspark "'),
        (["--drafter", "none"], '" then, "none" now)'),
        (["--acceptance", "coupled"], "--acceptance ("),
        (["--token-ids"], "differs in --token-ids (false then, true now)"),
        (["--metrics", "elsewhere.json"], "elsewhere.json does not say by what run"),
        (["--overwrite"], "exclude each other"),
    ):
        assert main(["decode", "-i", "in.jsonl", "--resume", *flags]) == 2
        assert name in capsys.readouterr().err


def test_a_second_run_on_an_unfinished_output_is_told_both_ways(workplace, capsys):
    def stop(index):
        raise KeyboardInterrupt

    workplace.made.before = stop
    assert main(["decode", "-i", "in.jsonl"]) == 130
    workplace.made.before = id
    capsys.readouterr()
    assert main(["decode", "-i", "in.jsonl"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "dspark: dspark-out/decode.jsonl.partial holds an unfinished run",
        "  Give --resume to go on with it or --overwrite to start again.",
    ]
    assert main(["decode", "-i", "in.jsonl", "--resume"]) == 0


def test_an_interrupt_after_the_work_directory_was_removed_promises_no_rows(workplace, capsys):
    def stop(index):
        shutil.rmtree("dspark-out")
        raise KeyboardInterrupt

    workplace.made.before = stop
    assert main(["decode", "-i", "in.jsonl"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "  No row is on disk: run it again."


def test_metrics_stand_beside_a_named_output(workplace, capsys):
    assert main(["decode", "-i", "in.jsonl", "-o", "there/a.b.jsonl"]) == 0
    assert main(["decode", "-i", "in.jsonl", "-o", "there/a.b", "--top-k", "5"]) == 0
    assert json.loads(Path("there/a.b.metrics.json").read_text())["run"]["sampling"]["top_k"] == 0
    assert json.loads(Path("there/a.b-metrics.json").read_text())["run"]["sampling"]["top_k"] == 5
    assert not Path("dspark-out").exists()
    # Each finished run is compared with its own metrics.
    assert main(["decode", "-i", "in.jsonl", "-o", "there/a.b.jsonl", "--resume"]) == 0
    assert main(["decode", "-i", "in.jsonl", "-o", "there/a.b", "--resume"]) == 2
    assert "differs in --top-k (5 then, 0 now)" in capsys.readouterr().err
