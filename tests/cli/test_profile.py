"""The command: what it writes, says and refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fixture_engine import FIXTURES
from profile_samples import make_profile

from dspark.calibration import CalibrationError
from dspark.cli.errors import explain
from dspark.cli.main import main
from dspark.engine.models.aliases import shaped_drafter
from dspark.profiles import ProfileError, load_profile, profile_to_dict

TINY = [
    *("--target", str(FIXTURES / "dspark_rnn" / "target")),
    *("--drafter", str(FIXTURES / "dspark_rnn" / "draft")),
    *("--device", "cpu", "--concurrency", "2", "--context-tokens", "16,32", "--repeats", "2"),
]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder, and a measurement that took place elsewhere."""
    import dspark.engine
    import dspark.engine.models.resolve
    import dspark.engine.preflight
    import dspark.engine.profiling.job

    monkeypatch.chdir(tmp_path)
    asked = []

    def profile_engine(engine, settings, progress):
        asked.append((engine, settings))
        progress.step("Measuring, repeat 1 of 3", 4, 10)
        answer = profile_engine.answer()
        conditions = answer.conditions
        named = replace(
            conditions,
            target=replace(conditions.target, name=settings.target_name),
            drafter=replace(conditions.drafter, name=settings.drafter_name or shaped_drafter(settings.target_name)),
        )
        return replace(answer, conditions=named)

    profile_engine.answer = make_profile
    profile_engine.asked = asked
    monkeypatch.setattr(dspark.engine, "Engine", lambda config, progress: config, raising=False)
    monkeypatch.setattr(dspark.engine.models.resolve, "resolve_target", lambda spec, progress: Path("folder"))
    monkeypatch.setattr(
        dspark.engine.models.resolve,
        "resolve_drafter",
        lambda spec, progress: None if spec == "none" else Path("drafters", spec),
    )
    monkeypatch.setattr(dspark.engine.preflight, "check_models", lambda config, target, drafter: None)
    monkeypatch.setattr(dspark.engine.profiling.job, "profile_engine", profile_engine)
    return profile_engine


def test_a_tiny_pair_from_end_to_end(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["profile", *TINY, "--json"]) == 0
    captured = capsys.readouterr()
    profile = load_profile(Path("dspark-out/profile.json"))
    document = json.loads(captured.out)
    assert document["batch_tokens"] == profile.curve.target.buckets.tolist() == [1, 2, 4, 8, 12, 16]
    assert document["step_time_s"] == profile.curve.target.time_s.tolist()
    assert document["reference_context_tokens"] == 16
    assert document["validation"]["points"] == profile.validation.num_points > 0
    assert Path("dspark-out/profile.png").read_bytes().startswith(b"\x89PNG")
    assert "Measuring, repeat 2 of 2" in captured.err
    assert "steps/s" in captured.err
    assert "\x1b" not in captured.err
    assert profile.conditions.target.name == TINY[1]
    assert sorted(p.name for p in Path("dspark-out").iterdir()) == ["profile.json", "profile.png"]


def test_flags_reach_what_they_name(workplace):
    arguments = [
        "--context-tokens",
        "128,64",
        "--max-batch-tokens",
        "9",
        "--repeats",
        "4",
        "--concurrency",
        "3",
        "--seed",
        "5",
        "--target",
        "t",
    ]
    assert main(["profile", *arguments]) == 0
    ((config, settings),) = workplace.asked
    assert (config.target, config.drafter, config.concurrency, config.seed) == ("folder", "none", 3, 5)
    assert (settings.context_tokens, settings.max_batch_tokens, settings.repeats) == ((128, 64), 9, 4)
    assert (settings.seed, settings.target_name) == (5, "t")


def test_defaults_and_configuration_file(workplace):
    Path("c.toml").write_text('[profile]\ncontext-tokens = "99"\nrepeats = 2\n')
    assert main(["profile", "--config", "c.toml", "--repeats", "3"]) == 0
    assert main(["profile"]) == 0
    (_, filed), (config, plain) = workplace.asked
    assert (filed.context_tokens, filed.repeats) == ((99,), 3)
    assert (plain.context_tokens, plain.repeats, plain.max_batch_tokens) == ((256, 1024, 4096), None, None)
    assert config.drafter == "drafters/smollm2-135m-dspark"
    assert plain.drafter_name == "smollm2-135m-dspark"


def test_random_weights_need_no_checkpoint(workplace):
    assert main(["profile", "--load-format", "dummy", "--target", "qwen3-4b"]) == 0
    assert main(["profile", "--load-format", "dummy", "--target", "qwen3-4b", "--drafter", "none", "--overwrite"]) == 0
    (config, settings), (without, _) = workplace.asked
    assert (config.target, config.drafter, config.load_format) == ("qwen3-4b", None, "dummy")
    assert settings.drafter_name is None
    assert without.drafter == "none"


def test_measuring_again_replaces_and_quiet_is_quiet(workplace, capsys):
    assert main(["profile", "--workdir", "w", "--quiet"]) == 0
    first = load_profile(Path("w/profile.json"))
    workplace.answer = lambda: make_profile(seed=3)
    assert main(["profile", "--workdir", "w", "--quiet"]) == 0
    assert profile_to_dict(load_profile(Path("w/profile.json"))) != profile_to_dict(first)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_profile_of_other_models_is_not_replaced_unasked(workplace, capsys):
    other = ["profile", "--target", "llama", "--drafter", "ngram"]
    assert main(["profile", "--quiet"]) == 0
    before = Path("dspark-out/profile.json").read_bytes()
    measured = len(workplace.asked)
    assert main(other) == 2
    told = capsys.readouterr().err
    assert (
        "dspark-out/profile.json is of smollm2-135m with smollm2-135m-dspark, and would be replaced by one of llama "
        "with ngram"
    ) in told
    assert "another --workdir, or --overwrite" in told
    assert len(workplace.asked) == measured and Path("dspark-out/profile.json").read_bytes() == before
    assert main([*other, "--overwrite", "--quiet"]) == 0
    assert load_profile(Path("dspark-out/profile.json")).conditions.target.name == "llama"
    assert main([*other, "--quiet"]) == 0


def test_a_profile_that_cannot_be_read_is_anybodys(workplace, capsys):
    Path("dspark-out").mkdir()
    Path("dspark-out/profile.json").write_text("{}")
    assert main(["profile"]) == 2
    assert "cannot be read to see which models it is of" in capsys.readouterr().err
    assert main(["profile", "--overwrite", "--quiet"]) == 0


def test_a_profile_of_random_weights_replaces_its_like(workplace):
    dummy = ["profile", "--load-format", "dummy", "--quiet"]
    assert main(dummy) == main(dummy) == 0
    assert main(["profile", "--quiet"]) == 2


def test_an_interrupt_keeps_the_profile_before(workplace, capsys):
    def interrupt():
        raise KeyboardInterrupt

    workplace.answer, answer = interrupt, workplace.answer
    assert main(["profile"]) == 130
    err = capsys.readouterr().err
    assert "interrupted (Measuring, repeat 1 of 3)" in err
    assert "dspark-out/profile.json was not written" in err
    workplace.answer = answer
    assert main(["profile"]) == 0
    before = Path("dspark-out/profile.json").read_bytes()
    workplace.answer = interrupt
    assert main(["profile"]) == 130
    assert "is still the one before" in capsys.readouterr().err
    assert Path("dspark-out/profile.json").read_bytes() == before


def test_notes_and_poor_predictions_are_said(workplace, capsys):
    def poor():
        profile = make_profile()
        return replace(profile, validation=replace(profile.fit["target"], num_points=5, median=0.3, p90=0.5))

    workplace.answer = poor
    assert main(["profile"]) == 0
    err = capsys.readouterr().err
    assert "a note" in err
    assert "30.0% median, 50.0% p90 over 5 points" in err
    assert "The curve predicts new points poorly (error 30.0% median, 50.0% p90). Measure again on a quiet" in err


@pytest.mark.parametrize(
    ("load_s", "shown"), [(6.26651e-5, "62,700"), (1.2e-8, "12"), (3.14159e-9, "3.14"), (4e-14, "0")], ids=str
)
def test_the_cost_of_a_kv_token_has_three_digits(workplace, capsys, load_s, shown):
    def costly():
        profile = make_profile()
        stairs = replace(profile.curve.target, load_s=np.full(6, load_s), reference_load=np.zeros(6, dtype=np.int64))
        return replace(profile, curve=replace(profile.curve, target=stairs))

    workplace.answer = costly
    assert main(["profile"]) == 0
    err = capsys.readouterr().err
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in err.splitlines() if line.startswith("│")]
    assert {row[3] for row in rows[:6]} == {shown}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--context-tokens", "many"], "--context-tokens is 'many', not whole numbers"),
        (["--context-tokens", "256,,5"], "--context-tokens is '256,,5'"),
        (["--context-tokens", "0"], "--context-tokens is '0'"),
        (["--context-tokens", "1_0"], "--context-tokens is '1_0'"),
        (["--repeats", "0"], "--repeats is 0"),
        (["--device", "tpu"], "--device is 'tpu'"),
        (["--max-batch-tokens", "-1"], "--max-batch-tokens is -1"),
        (["--concurrency", "0"], "--concurrency is 0"),
        (["--seed", "-1"], "--seed is -1"),
        (["--workdir", "-"], "--workdir is `-`"),
        (["--load-format", "lazy"], "--load-format is 'lazy'"),
    ],
    ids=" ".join,
)
def test_usage(workplace, capsys, arguments, message):
    assert main(["profile", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not workplace.asked


def test_all_that_is_wrong_is_told_at_once(workplace, capsys):
    Path("w").mkdir()
    Path("w/profile.json").write_text("{")
    arguments = ["--device", "tpu", "--context-tokens", "many", "--repeats", "0", "--workdir", "w"]
    assert main(["profile", *arguments]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "dspark: --device is 'tpu'",
        "  Choose one of: auto, cpu, cuda.",
        "dspark: --context-tokens is 'many', not whole numbers of at least 1",
        "  Write, say, --context-tokens 256,1024.",
        "dspark: --repeats is 0",
        "  Give a whole number of at least 1.",
        "dspark: w/profile.json would be replaced, and cannot be read to see which models it is of",
        "  Give another --workdir, or --overwrite to replace it.",
    ]
    assert not workplace.asked


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused_before_loading(workplace, capsys):
    assert main(["profile", "--device", "cuda"]) == 2
    assert "dspark: --device 'cuda' cannot be used" in capsys.readouterr().err
    assert not workplace.asked


def test_a_work_directory_that_cannot_be_is_told_before_measuring(workplace, capsys):
    Path("taken").touch()
    assert main(["profile", "--workdir", "taken"]) == 2
    assert "cannot create taken: File exists\n  Give another --workdir." in capsys.readouterr().err
    assert not workplace.asked


@pytest.mark.parametrize("kind", [ProfileError, CalibrationError])
def test_errors_of_the_array_packages_have_a_row(kind):
    explained = explain(kind("It is so.", "Do this."), resumable=False)
    assert (explained.message, explained.remedy, explained.exit_code, explained.trace) == (
        "It is so.",
        "Do this.",
        1,
        "",
    )
    assert explain(ValueError("no"), resumable=False).trace


def test_the_live_table_fills_as_buckets_are_measured():
    from io import StringIO

    from rich.console import Console

    from dspark.cli.profile_progress import LiveProfileReporter
    from dspark.engine.profiling.plan import Point

    console = Console(file=StringIO(), force_terminal=True, width=100, height=40)
    with LiveProfileReporter(console) as reporter:
        reporter.step("Warming up", 1, 2)
        console.print(reporter._render())
        reporter.measured(Point("target", 8, 8, 8, 256, 2056), [0.5])
        reporter.measured(Point("target", 8, 8, 1, 256, 264), [0.010, 0.012])
        reporter.measured(Point("target", 8, 8, 4, 256, 1032), [0.7])
        reporter.measured(Point("target", 8, 5, 1, 256, 261, held_out=True), [0.9])
        reporter.measured(Point("verify_greedy", 1, 8, 1, 256, 264), [0.001])
        reporter.step("Measuring, repeat 2 of 3", 1, 2)
        console.print(reporter._render())
    shown = console.file.getvalue()
    assert "Measuring, repeat 2 of 3" in shown
    assert "11.00" in shown
    assert "10.00-12.00" in shown
    assert "500.00" not in shown
    assert "verification, greedy" in shown
