"""The options of `train`, and what it says and refuses, around a training that takes place elsewhere."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest

from dspark.cli.main import main
from dspark.engine.training.acceptance import Acceptance
from dspark.engine.training.card import TextSummary
from dspark.engine.training.checkpoint import RunState
from dspark.engine.training.generate import TextProgress
from dspark.engine.training.job import RunInterrupted, TrainResult
from dspark.engine.training.meter import Gathered
from dspark.engine.training.settings import TrainSettings
from dspark.engine.training.trainer import Reading

ACCEPTANCE = Acceptance(40, 2.5, (0.7, 0.8), 3.1, (0.9, 0.9), 0.4, 0.1, 10, 20)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder, and a training that takes place elsewhere."""
    import dspark.engine.training.job

    monkeypatch.chdir(tmp_path)
    asked = []

    def train_drafter(job, reporter):
        asked.append(job)
        reporter.step("Training")
        return train_drafter.answer()

    train_drafter.answer = lambda: TrainResult(
        RunState(40, 8.0, 4000, ACCEPTANCE, [ACCEPTANCE], True), TextSummary(9, 2, 700, "", {}, {}), 10**6, "cpu"
    )
    train_drafter.asked = asked
    monkeypatch.setattr(dspark.engine.training.job, "train_drafter", train_drafter)
    return train_drafter


def test_interrupted_text_elsewhere_is_not_dropped_unasked(workplace, capsys):
    Path("t.jsonl.partial").write_text("{}")
    arguments = ["train", "-o", "d", "--data", "t.jsonl"]
    assert main(arguments) == 2
    assert "t.jsonl.partial holds text of an interrupted run" in capsys.readouterr().err
    assert main([*arguments, "--resume"]) == main([*arguments, "--overwrite"]) == 0


def test_flags_reach_what_they_name(workplace):
    arguments = [
        *("-o", "d", "--target", "t", "--prompts", "p", "--data", "f", "--text-minutes", "0.5", "--text-tokens", "9"),
        *("--temperatures", "1,0.5", "--max-tokens", "33", "--concurrency", "3", "--dtype", "float32"),
        *("--layers", "2", "--block-size", "5", "--markov-head", "rnn", "--markov-rank", "8"),
        *("--feature-layers", "-1,4", "--mask-token-id", "6", "--minutes", "3", "--rows", "4", "--row-tokens", "64"),
        *(
            "--anchors",
            "7",
            "--learning-rate",
            "0.1",
            "--optimizer",
            "adamw",
            "--weight-decay",
            "0",
            "--evaluate-every",
            "5",
            "--seed",
            "11",
        ),
    ]
    assert main(["train", *arguments, "--overwrite"]) == 0
    (job,) = workplace.asked
    assert (job.target, job.output, job.dtype, job.overwrite, job.resume) == ("t", Path("d"), "float32", True, False)
    shape, settings, text = job.shape, job.settings, job.text
    assert (shape.layers, shape.block_size, shape.markov_head, shape.markov_rank) == (2, 5, "rnn", 8)
    assert (shape.feature_layers, shape.mask_token_id) == ((-1, 4), 6)
    assert (settings.minutes, settings.steps, settings.rows, settings.row_tokens) == (3.0, None, 4, 64)
    assert (settings.anchors, settings.learning_rate, settings.weight_decay) == (7, 0.1, 0.0)
    assert settings.optimizer == "adamw"
    assert (settings.evaluate_every_s, settings.seed) == (5.0, 11)
    assert (text.prompts, text.data, text.minutes, text.tokens) == ("p", Path("f"), 0.5, 9)
    assert (text.temperatures, text.max_tokens, text.concurrency) == ((1.0, 0.5), 33, 3)


def test_defaults_and_configuration_file(workplace):
    Path("c.toml").write_text("[train]\nsteps = 5\nlayers = 2\n")
    assert main(["train", "-o", "d", "--config", "c.toml"]) == 0
    assert main(["train", "-o", "d"]) == 0
    filed, plain = workplace.asked
    assert (filed.settings.steps, filed.settings.minutes, filed.shape.layers) == (5, None, 2)
    assert (plain.settings, plain.text.minutes) == (TrainSettings(minutes=10.0), 2.0)


def test_an_optimizer_has_a_learning_rate_that_suits_it(workplace):
    for more in ((), ("--optimizer", "adamw"), ("--optimizer", "adamw", "--learning-rate", "0.02")):
        assert main(["train", "-o", "d", *more]) == 0
    assert [job.settings.learning_rate for job in workplace.asked] == [3e-3, 1.5e-3, 0.02]


def test_json_and_table(workplace, capsys):
    assert main(["train", "-o", "d", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["best"]["greedy_length"] == 3.1
    assert "500 block positions a second" in captured.err
    assert "2.50 tokens a round" in captured.err
    assert main(["train", "-o", "d", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize(
    ("interrupt", "remedy"),
    [
        (
            RunInterrupted("No drafter was saved yet"),
            "No drafter was saved yet; the same command with --resume in place of --overwrite goes on.",
        ),
        # Whatever --overwrite is to replace is still there.
        (KeyboardInterrupt(), "Nothing was changed: run it again."),
    ],
    ids=["under way", "before it began"],
)
def test_an_interrupt_says_what_there_is(workplace, capsys, interrupt, remedy):
    def stop():
        raise interrupt

    workplace.answer = stop
    assert main(["train", "-o", "d", "--overwrite"]) == 130
    assert capsys.readouterr().err.splitlines()[-1].strip() == remedy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "train needs --output, a folder for the drafter"),
        (["-o", "d", "--steps", "3", "--minutes", "1"], "--steps stands beside --minutes"),
        (["-o", "d", "--temperatures", "hot"], "--temperatures is 'hot', not numbers"),
        (["-o", "d", "--temperatures", "1,-1"], "--temperatures must be numbers from 0 to 100"),
        (["-o", "d", "--feature-layers", "a"], "--feature-layers is 'a', not whole numbers"),
        (["-o", "d", "--markov-head", "deep"], "--markov-head is 'deep'"),
        (["-o", "d", "--optimizer", "sgd"], "--optimizer is 'sgd'"),
        (["-o", "d", "--row-tokens", "100"], "--row-tokens is 100"),
        (["-o", "d", "--learning-rate", "nan"], "--learning-rate is nan"),
        (["-o", "d", "--evaluate-every", "0"], "--evaluate-every is 0"),
        (["-o", "d", "--text-tokens", "0"], "--text-tokens is 0"),
        (["-o", "d", "--max-tokens", "1"], "--max-tokens is 1"),
        (["-o", "d", "--seed", "-1"], "--seed is -1"),
        (["-o", "d", "--dtype", "int8"], "--dtype int8 cannot be trained in"),
        (["-o", "d", "--resume", "--overwrite"], "--resume and --overwrite exclude each other"),
        (["-o", "d", "--license", "my own: see below"], "--license is 'my own: see below'"),
        (["-o", "d", "--prompts", "p", "--data", "text.jsonl"], "no prompt of --prompts p would be answered"),
        (["-o", "taken"], "cannot create taken: File exists"),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else "",
)
def test_usage(workplace, capsys, arguments, message):
    Path("taken").touch()
    Path("text.jsonl").touch()
    assert main(["train", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not workplace.asked


def test_all_that_is_wrong_is_told_at_once(workplace, capsys):
    arguments = ["--resume", "--overwrite", "--feature-layers", "a", "--layers", "0", "--optimizer", "sgd"]
    arguments += ["--temperatures", "hot", "--max-tokens", "1", "--dtype", "int8"]
    assert main(["train", "-o", "d", *arguments]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[::2] == [
        "dspark: --resume and --overwrite exclude each other",
        "dspark: --feature-layers is 'a', not whole numbers",
        "dspark: --layers is 0",
        "dspark: --optimizer is 'sgd'",
        "dspark: --temperatures is 'hot', not numbers",
        "dspark: --max-tokens is 1",
        "dspark: --dtype int8 cannot be trained in",
    ]
    assert [told[at] for at in (1, 3, 7)] == [
        "  Keep one of them.",
        "  Write, say, --feature-layers 1,8,15.",
        "  Choose one of: adamw, muon.",
    ]
    assert not workplace.asked and not Path("d").exists()


def test_texts_under_way_when_time_is_up_have_no_countdown():
    from dspark.cli.train_progress import writing_line

    assert writing_line(TextProgress(10, 2000, 4.0, 0.5)) == "10 texts, 2,000 tokens, 500 tok/s, 0:04 left"
    told = writing_line(TextProgress(10, 2000, 4.0, 1.02))
    assert told == "10 texts, 2,000 tokens, 500 tok/s, finishing the texts under way"


def test_the_live_display_shows_loss_acceptance_and_time_left():
    from rich.console import Console

    from dspark.cli.train_progress import LiveTrainReporter

    console = Console(file=StringIO(), force_terminal=True, highlight=False, width=160, height=40)
    with LiveTrainReporter(console) as reporter:
        reporter.step("Writing text")
        reporter.wrote(TextProgress(10, 2000, 4.0, 0.1))
        console.print(reporter._render())
        reporter.step("Training")
        reporter.trained(Reading(7, 0.25, 90.0, 1e-3, Gathered(0.5, 1.0, (0.8125, 0.75), 1234.0, 0.1)))
        console.print(reporter._render())
        reporter.evaluated(ACCEPTANCE, is_best=False)
    shown = console.file.getvalue()
    assert "10 texts, 2,000 tokens, 500 tok/s, 0:36 left" in shown
    assert "step 7: loss 0.5000" in shown
    assert "1:30 left" in shown
    assert "0.812" in shown
    assert "2.500 tokens a round at temperature 1, 3.100 tokens a round at temperature 0; not better" in shown


def test_without_a_terminal_lines_come_now_and_then(capsys):
    from dspark.cli.train_progress import TrainReporter

    lines, now = [], [0.0]
    with TrainReporter(lines.append, clock=lambda: now[0]) as reporter:
        reporter.step("Training")
        for second in range(31):
            now[0] = float(second)
            reporter.trained(Reading(second, 0.1, None, 1e-3, Gathered(0.5, 1.0, (0.5,), 0.0, 0.1)))
    assert lines[0] == "Training"
    assert [line.split(":")[0] for line in lines[1:]] == ["step 0", "step 15", "step 30"]
