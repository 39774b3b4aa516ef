import importlib.resources
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fake_engine import CharCodec, FakeEngine

from dspark.cli.main import main


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with an input, and an engine that needs no model."""
    import dspark.engine
    import dspark.engine.jobs.tokenizer
    import dspark.engine.models.resolve
    from dspark.engine.jobs.finished import known_settings

    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    engines = []

    def engine(config, *, detokenizer):
        engines.append(config)
        drafter = None if config.drafter == "none" else Path(config.drafter)
        engine.made.settings = known_settings(config, Path(config.target), drafter)
        return engine.made

    engine.made = FakeEngine()
    engine.configs = engines
    monkeypatch.setattr(dspark.engine, "Engine", engine, raising=False)
    monkeypatch.setattr(dspark.engine.jobs.tokenizer.Tokenizer, "load", lambda folder: CharCodec())
    (tmp_path / "model").mkdir()
    shapes = importlib.resources.files("dspark.engine.models") / "shapes"
    (tmp_path / "model" / "config.json").write_text((shapes / "smollm2-135m.json").read_text())

    def resolve(spec, *, progress):
        engine.resolved.append(spec)
        return tmp_path / "model"

    engine.resolved = []
    engine.folder = tmp_path
    monkeypatch.setattr(dspark.engine.models.resolve, "resolve_target", resolve)
    return engine


def texts(path="dspark-out/decode.jsonl"):
    return [json.loads(line)["text"] for line in Path(path).read_text().splitlines()]


def test_answers_metrics_and_table(workplace, capsys):
    assert main(["decode", "-i", "in.jsonl"]) == 0
    assert texts() == ["ONE", "TWO"]
    assert json.loads(Path("dspark-out/decode.metrics.json").read_text())["rows"] == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "mean acceptance length" in captured.err
    assert "dspark-out/decode.jsonl" in captured.err
    assert "\x1b" not in captured.err


def test_json_is_one_document_and_quiet_is_quiet(workplace, capsys):
    assert main(["decode", "-i", "in.jsonl", "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["completion_tokens"] == 8
    assert captured.err == ""
    assert main(["decode", "-i", "in.jsonl", "--json", "--quiet"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["exit_code"] == 2
    assert captured.err.startswith("dspark: dspark-out/decode.jsonl exists\n")


def test_error_rows_exit_with_3_and_the_first_are_listed_by_line(workplace, capsys):
    with open("in.jsonl", "a") as file:
        file.write("nonsense\n" + '{"prompt": "a", "top_p": 7}\n' * 6)
    assert main(["decode", "-i", "in.jsonl"]) == 3
    told = capsys.readouterr().err.splitlines()
    start = told.index("dspark: 7 of 9 rows could not be decoded, see `error` in dspark-out/decode.jsonl")
    assert told[start + 1].startswith("  line 3: not JSON")
    assert told[start + 2] == "  line 4: top_p is 7. Give a number above 0 and up to 1 (1 = off)."
    assert [line[:9] for line in told[start + 3 : start + 6]] == ["  line 5:", "  line 6:", "  line 7:"]
    assert told[start + 6 :] == ["  and 2 more: `error` of their rows says why"]


def test_error_rows_are_told_in_one_line_when_quiet(workplace, capsys):
    with open("in.jsonl", "a") as file:
        file.write("nonsense\n")
    assert main(["decode", "-i", "in.jsonl", "--quiet"]) == 3
    told = capsys.readouterr().err
    assert told == "dspark: 1 of 3 rows could not be decoded, see `error` in dspark-out/decode.jsonl\n"


def test_the_first_answers_are_shown_to_a_person_alone(workplace, capsys):
    rows = [
        {"prompt": ""},
        {"prompt": "red\x1b[2J\n blue", "custom_id": "colours"},
        {"prompt": "x" * 900},
        {"prompt": "c"},
    ]
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["decode", "-i", "in.jsonl", "--max-tokens", "900"]) == 3
    told = capsys.readouterr().err
    assert "\ncolours: RED [2J BLUE\nrow 2: " + "X" * 197 + "...\n" in told
    assert "\nrow 3" not in told
    for flag in ("--json", "--quiet"):
        assert main(["decode", "-i", "in.jsonl", "--max-tokens", "900", "--overwrite", flag]) == 3
        assert "colours" not in capsys.readouterr().err


def test_fields_that_are_not_used_are_told_at_the_start_and_at_the_end(workplace, capsys):
    Path("in.jsonl").write_text('{"prompt": "one", "max_token": 1, "category": "a"}\n{"prompt": "two"}\n')
    assert main(["decode", "-i", "in.jsonl", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("in.jsonl has fields that are not used, in 1 row: `max_token` (1 row, did you mean")
    assert "max_token, category, in 1 of the input's rows" in captured.err
    assert json.loads(captured.out)["unused_fields"] == {"rows": 1, "rows_by_name": {"max_token": 1, "category": 1}}
    assert texts() == ["ONE", "TWO"]


def test_an_empty_input_is_warned_of_and_gives_an_empty_output(workplace, capsys):
    Path("in.jsonl").write_text("\n")
    assert main(["decode", "-i", "in.jsonl"]) == 0
    assert capsys.readouterr().err.startswith("in.jsonl holds no rows, so dspark-out/decode.jsonl will hold none.\n")
    assert Path("dspark-out/decode.jsonl").read_bytes() == b""


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


def test_two_things_that_are_wrong_are_both_told(workplace, capsys):
    Path("dspark-out").mkdir()
    Path("dspark-out/decode.jsonl").touch()
    arguments = ["-i", "nowhere", "--top-p", "3", "--device", "tpu", "--policy", "lucky"]
    assert main(["decode", *arguments]) == 2
    what, remedy = capsys.readouterr().err.splitlines()
    for part in (
        "--device is 'tpu'",
        "--top-p is 3",
        "--policy 'lucky' is unknown",
        "decode.jsonl exists",
        "cannot read nowhere",
    ):
        assert part in what
    for part in ("Choose one of: auto, cpu, cuda.", "Give --overwrite", "Check the path given to --input."):
        assert part in remedy


def test_standard_input_is_not_waited_for_when_something_else_is_wrong(workplace, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["decode", "-i", "-", "--top-p", "3"]) == 2
    assert capsys.readouterr().err.startswith("dspark: --top-p is 3.0\n")


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
        (["--temperature", "0.5"], "sampling.temperature (0.0 then, 0.5 now)"),
        (["--seed", "1"], "engine.seed"),
        (["--policy", "none"], "engine.policy"),
        (["--drafter", "none"], "engine.drafter"),
        (["--acceptance", "coupled"], "engine.acceptance"),
        (["--token-ids"], "token_ids"),
        (["--metrics", "elsewhere.json"], "elsewhere.json does not say by what run"),
        (["--overwrite"], "exclude each other"),
    ):
        assert main(["decode", "-i", "in.jsonl", "--resume", *flags]) == 2
        assert name in capsys.readouterr().err


USAGE = {
    "no input": ([], "dspark decode --input prompts.jsonl"),
    "missing input": (["-i", "nowhere"], "cannot read nowhere"),
    "unknown flag": (["--foo"], "--foo"),
    "number": (["-i", "in.jsonl", "--max-tokens", "many"], "--max-tokens"),
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


def test_config_file_gives_defaults_and_flags_win(workplace):
    anywhere = 'max_tokens = 2\ntemperature = 1\nstop = ["a", "b"]\nseed = 4\n'
    Path("c.toml").write_text(anywhere + "[decode]\nmax-tokens = 1\ntoken-ids = true\n")
    assert main(["decode", "-i", "in.jsonl", "--config", "c.toml", "--seed", "5"]) == 0
    sampling = workplace.made.asked[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.stop) == (1, 1.0, ("a", "b"))
    assert workplace.configs[0].seed == 5
    assert "token_ids" in Path("dspark-out/decode.jsonl").read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("max-token = 1", "Did you mean `max-tokens`?"),
        ("[decode]\nfoo = 1", "[decode] in c.toml has an unknown key `foo`"),
        ("config = 'x'", "unknown key `config`"),
        ("resume = 'yes'", "Write true or false"),
        ("max-tokens = 1.5", "--max-tokens"),
        ("max-tokens = true", "Write a string or a number"),
        ("seed = [1]", "Write a string or a number"),
        ("seed = ", "is not TOML"),
        ('workdir = "a\\u0000b"', "holds a NUL character"),
        ("max-tokens = 1\nmax_tokens = 2", "c.toml has both `max-tokens` and `max_tokens`"),
        ("[decode]\ntop_k = 1\ntop-k = 1", "[decode] in c.toml has both `top-k` and `top_k`"),
        ("seed = " + "[" * 100_000, "c.toml is nested too deep"),
    ],
    ids=[
        "top level",
        "table",
        "itself",
        "flag",
        "fraction",
        "boolean",
        "list",
        "syntax",
        "NUL",
        "two spellings",
        "two in a table",
        "nested",
    ],
)
def test_config_mistakes_are_refused(workplace, capsys, content, message):
    Path("c.toml").write_text(content)
    assert main(["decode", "-i", "in.jsonl", "--config", "c.toml"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        ("max-tokens = 'many'", [], "--max-tokens.* \\(`max-tokens` is set in c.toml\\)$"),
        ("max_tokens = 0", [], "--max-tokens is 0 \\(`max-tokens` is set in c.toml\\)$"),
        ("[decode]\npolicy = 'best'", [], "--policy 'best' is unknown \\(`policy` is set in c.toml\\)$"),
        ("resume = true\noverwrite = true", [], "exclude each other \\(`overwrite` and `resume` are set in c.toml\\)$"),
        ("overwrite = true", ["--resume"], "exclude each other \\(`overwrite` is set in c.toml\\)$"),
        ("metrics = 'in.jsonl'", [], "--metrics is the input file in.jsonl \\(`metrics` is set in c.toml\\)$"),
        ("max-tokens = 5", ["--max-tokens", "0"], "--max-tokens is 0$"),
        ("seed = 5", ["--max-tokens", "0"], "--max-tokens is 0$"),
    ],
    ids=["kind", "range", "table", "two", "one of two", "late", "flag over file", "flag beside file"],
)
def test_a_wrong_value_names_the_file_that_it_comes_from(workplace, capsys, content, flags, message):
    Path("c.toml").write_text(content)
    assert main(["decode", "-i", "in.jsonl", "--config", "c.toml", *flags]) == 2
    assert re.search(message, capsys.readouterr().err.splitlines()[0])


def test_the_file_of_a_wrong_input_is_named(workplace, capsys):
    Path("c.toml").write_text("input = 'none.jsonl'")
    assert main(["decode", "--config", "c.toml"]) == 2
    assert "cannot read none.jsonl: No such file or directory (`input` is set in c.toml)" in capsys.readouterr().err


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
    assert "sampling.top_k (5 then, 0 now)" in capsys.readouterr().err


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


def test_default_drafter_belongs_to_the_default_target(workplace):
    assert main(["decode", "-i", "in.jsonl"]) == 0
    assert main(["decode", "-i", "in.jsonl", "--overwrite", "--target", "somewhere"]) == 0
    assert main(["decode", "-i", "in.jsonl", "--overwrite", "--drafter", "none"]) == 0
    drafters = [Path(config.drafter).name for config in workplace.configs]
    assert drafters == ["builtin_drafter", "none", "none"]


def test_a_fetched_drafter_shows_its_progress(workplace, capsys, monkeypatch):
    import dspark.engine.models.resolve

    def resolve(spec, *, progress):
        progress(f"Fetching {spec}", 1, 2)
        return None if spec == "none" else dspark.engine.models.resolve.builtin_drafter()

    monkeypatch.setattr(dspark.engine.models.resolve, "resolve_drafter", resolve)
    assert main(["decode", "-i", "in.jsonl", "--drafter", "org/name"]) == 0
    assert "Fetching org/name\n" in capsys.readouterr().err
    assert main(["decode", "-i", "in.jsonl", "--drafter", "org/name", "--policy", "none", "--overwrite"]) == 0
    assert "Fetching none\n" in capsys.readouterr().err


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


def test_a_full_disk_is_one_sentence(workplace, capsys):
    def full(index):
        raise OSError(28, "No space left on device")

    workplace.made = FakeEngine(before=full)
    assert main(["decode", "-i", "in.jsonl"]) == 1
    err = capsys.readouterr().err
    assert "no space is left" in err
    assert "--resume" in err
    assert "Traceback" not in err


def test_a_fault_of_ours_shows_where(workplace, capsys):
    def broken(index):
        raise ZeroDivisionError("oops")

    workplace.made = FakeEngine(before=broken)
    assert main(["decode", "-i", "in.jsonl"]) == 1
    assert "Traceback" in capsys.readouterr().err


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
