"""What `decode` refuses before it loads a model, and what it takes values for."""

import os
import sys
from pathlib import Path

import pytest
import torch
from decode_workplace import workplace

from dspark.cli.main import main

__all__ = ["workplace"]


def test_two_things_that_are_wrong_are_both_told(workplace, capsys):
    Path("dspark-out").mkdir()
    Path("dspark-out/decode.jsonl").touch()
    arguments = ["-i", "nowhere", "--top-p", "3", "--max-tokens", "0", "--device", "tpu", "--dtype", "int3"]
    assert main(["decode", *arguments, "--policy", "lucky"]) == 2
    told = capsys.readouterr().err.splitlines()
    expected = [
        ("--device is 'tpu'", "Choose one of: auto, cpu, cuda."),
        ("--dtype is 'int3'", "Choose one of: auto, float32"),
        ("--top-p is 3.0", "Give a number above 0 and up to 1"),
        ("--max-tokens is 0", "Give a whole number from 1"),
        ("--policy 'lucky' is unknown", "Use none, fixed:K"),
        ("dspark-out/decode.jsonl exists", "Give --overwrite"),
        ("cannot read nowhere", "Check the path given to --input."),
    ]
    assert len(told) == 2 * len(expected)
    for what, remedy, (problem, way_out) in zip(told[::2], told[1::2], expected, strict=True):
        assert what.startswith(f"dspark: {problem}") and remedy.startswith(f"  {way_out}")


def test_together_with_others_a_value_of_the_file_is_still_said_to_be_of_it(workplace, capsys):
    Path("c.toml").write_text("top-p = 3\n")
    assert main(["decode", "-i", "in.jsonl", "--config", "c.toml", "--device", "tpu"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[::2] == ["dspark: --device is 'tpu'", "dspark: --top-p is 3.0 (`top-p` is set in c.toml)"]


def test_standard_input_is_not_waited_for_when_something_else_is_wrong(workplace, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["decode", "-i", "-", "--top-p", "3"]) == 2
    assert capsys.readouterr().err.startswith("dspark: --top-p is 3.0\n")


USAGE = {
    "no input": ([], "dspark decode --input prompts.jsonl"),
    "missing input": (["-i", "nowhere"], "cannot read nowhere"),
    "unknown flag": (["--foo"], "--foo"),
    "no whole number": (["-i", "in.jsonl", "--max-tokens", "many"], "--max-tokens is no whole number\n  Give a whole"),
    "no number": (["-i", "in.jsonl", "--top-p", "most"], "--top-p is no number\n  Give a number."),
    "misspelt policy": (["-i", "in.jsonl", "--policy", "fixd:3"], "is unknown\n  Did you mean `fixed:3`? Use none"),
    "policy without value": (["-i", "in.jsonl", "--policy", "treshold"], "Did you mean `threshold:T`? Use none"),
    "top-p": (["-i", "in.jsonl", "--top-p", "0"], "--top-p is 0"),
    "nan": (["-i", "in.jsonl", "--temperature", "nan"], "--temperature"),
    "device": (["-i", "in.jsonl", "--device", "tpu"], "--device is 'tpu'\n  Choose one of: auto, cpu, cuda"),
    "policy": (["-i", "in.jsonl", "--policy", "lucky"], "--policy 'lucky' is unknown"),
    "no draft length": (["-i", "in.jsonl", "--policy", "fixed:abc"], "--policy 'fixed:abc' needs a whole number"),
    "nothing drafted": (["-i", "in.jsonl", "--policy", "fixed:0"], "verifies nothing"),
    "fixed without drafter": (["-i", "in.jsonl", "--policy", "fixed:3", "--drafter", "none"], "needs a drafter"),
    "threshold without drafter": (["-i", "in.jsonl", "--policy", "threshold:.5", "--target", "x"], "needs a drafter"),
    "metrics": (["-i", "in.jsonl", "--metrics", "model"], "Give --metrics the name of a file"),
    "onto partial": (["-i", "in.jsonl", "-o", "in", "--overwrite"], "in.partial is not a partial result file"),
    "traces without an ending": (["-i", "in.jsonl", "--traces", "t"], "--traces t has no ending of a trace file"),
    "traces in a file": (["-i", "in.jsonl", "--traces", "in.jsonl/t.csv"], "in.jsonl: File exists"),
    "traces of nothing": (
        ["-i", "in.jsonl", "--traces", "t.csv", "--policy", "none"],
        "--traces are of drafted tokens",
    ),
    "traces without drafter": (["-i", "in.jsonl", "--traces", "t.csv", "--target", "x"], "nothing is drafted"),
    "both": (["-i", "in.jsonl", "--resume", "--overwrite"], "exclude each other"),
    "onto input": (["-i", "in.jsonl", "-o", "in.jsonl", "--overwrite"], "is the input file"),
    "workdir": (
        ["-i", "in.jsonl", "--workdir", "in.jsonl"],
        "in.jsonl: File exists\n  Give another --workdir.",
    ),
    "long name": (["-i", "in.jsonl", "-o", "n" * 250], "given to --output is too long"),
    "longer name": (["-i", "in.jsonl", "-o", "n" * 300, "--resume"], "given to --output is too long"),
    "long metrics": (["-i", "in.jsonl", "--metrics", "n" * 250], "given to --metrics is too long"),
    "most tokens": (["-i", "in.jsonl", "--max-tokens", "3000000000"], "a whole number from 1 to 2147483647."),
    "dash": (["-i", "in.jsonl", "-o", "-"], "--output is `-`, and results go to files"),
    "dash for metrics": (["-i", "in.jsonl", "--metrics", "-"], "--metrics is `-`"),
    "dash for a folder": (["-i", "in.jsonl", "--workdir", "-"], "--workdir is `-`"),
    "long folder": (["-i", "in.jsonl", "-o", "n" * 300 + "/o"], "given to --output is too long"),
    "long folder, resumed": (["-i", "in.jsonl", "-o", "n" * 300 + "/o", "--resume"], "given to --output is too long"),
    "long work directory": (["-i", "in.jsonl", "--workdir", "n" * 300], "given to --workdir is too long"),
    "no requests at once": (["-i", "in.jsonl", "--concurrency", "0"], "--concurrency is 0"),
    "no tokens": (["-i", "in.jsonl", "--max-tokens", "0"], "--max-tokens is 0"),
    "cold": (["-i", "in.jsonl", "--temperature", "-1"], "--temperature is -1"),
    "top-k": (["-i", "in.jsonl", "--top-k", "-2"], "--top-k is -2\n  Give a whole number from 0 (off) to 2147483647."),
    "config": (["-i", "in.jsonl", "--config", "none.toml"], "cannot read none.toml"),
}


@pytest.mark.parametrize(("arguments", "message"), USAGE.values(), ids=USAGE)
def test_usage_errors_are_a_sentence(workplace, capsys, arguments, message):
    Path("in.partial").symlink_to("in.jsonl")
    assert main(["decode", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    # What happened, as a fragment, and what to do, as a sentence.
    what, *remedy = err.splitlines()
    assert what.startswith("dspark: ") and not what.endswith(".")
    assert remedy
    assert workplace.configs == workplace.resolved == []
    assert not os.path.exists("dspark-out/decode.jsonl")


def test_an_unknown_command_is_a_usage_error(capsys):
    assert main(["frobnicate"]) == 2
    assert "frobnicate" in capsys.readouterr().err


def test_a_stop_flag_without_a_tokenizer_is_told_before_loading_models(workplace, capsys, monkeypatch):
    import dspark.engine.jobs.tokenizer

    monkeypatch.setattr(dspark.engine.jobs.tokenizer.Tokenizer, "load", lambda folder: None)
    assert main(["decode", "-i", "in.jsonl", "--stop", "x"]) == 2
    assert "dspark: --stop needs a tokenizer" in capsys.readouterr().err
    assert workplace.configs == []


def test_minus_one_turns_top_k_off_as_a_flag_and_in_a_row(workplace):
    Path("in.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b", "top_k": -1}\n')
    assert main(["decode", "-i", "in.jsonl", "--top-k", "-1"]) == 0
    assert [request.sampling.top_k for request in workplace.made.asked] == [0, 0]


def test_a_draft_length_past_the_drafters_own_is_refused_before_loading(workplace, capsys):
    assert main(["decode", "-i", "in.jsonl", "--policy", "fixed:8"]) == 2
    assert "dspark: --policy 'fixed:8' asks for 8 draft tokens" in capsys.readouterr().err
    assert workplace.configs == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_fetched(workplace, capsys):
    assert main(["decode", "-i", "in.jsonl", "--device", "cuda"]) == 2
    assert "dspark: --device 'cuda' cannot be used" in capsys.readouterr().err
    assert workplace.configs == workplace.resolved == []


@pytest.mark.parametrize("flag", ["--target", "--drafter"])
def test_a_name_that_is_no_model_is_a_usage_error(workplace, capsys, monkeypatch, flag):
    monkeypatch.undo()
    assert (
        main(["decode", "-i", str(workplace.folder / "in.jsonl"), "-o", str(workplace.folder / "o"), flag, "a/b/c"])
        == 2
    )
    assert f"dspark: the {flag[2:]} `a/b/c` does not exist" in capsys.readouterr().err
