"""The command: what it writes, says and refuses."""

from __future__ import annotations

import json
import signal
from io import StringIO
from pathlib import Path

import pytest
import torch
from tiny_training import chat_target

from dspark.cli.main import main
from dspark.engine.training.acceptance import Acceptance
from dspark.engine.training.card import TextSummary
from dspark.engine.training.checkpoint import RunState
from dspark.engine.training.generate import TextProgress
from dspark.engine.training.job import RunInterrupted, TrainResult
from dspark.engine.training.meter import Gathered
from dspark.engine.training.settings import DrafterShape, TextSettings, TrainJob, TrainSettings
from dspark.engine.training.trainer import Reading

ACCEPTANCE = Acceptance(40, 2.5, (0.7, 0.8), 3.1, (0.9, 0.9), 0.4, 0.1, 10, 20)
SMALL = ["--layers", "1", "--markov-rank", "8", "--rows", "2", "--row-tokens", "128", "--anchors", "6"]


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


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return str(chat_target(tmp_path_factory.mktemp("model") / "target"))


def test_a_drafter_from_end_to_end_and_decoding_with_it(target, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text('{"prompt": "one two"}\n{"turns": ["three"]}\n{"wrong": 1}\n')
    text = ["--prompts", "prompts.jsonl", "--text-tokens", "3000", "--max-tokens", "40"]
    arguments = ["train", "-o", "drafter", "--target", target, "--device", "cpu", "--steps", "4", *text, *SMALL]
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (document["command"], document["steps"], document["output"]) == ("train", 4, "drafter")
    assert document["best"]["sampled_length"] >= 1
    assert document["text_tokens"] >= 3000
    assert "1 rows of prompts.jsonl cannot be used" in captured.err
    assert "held out, step 4" in captured.err
    assert "\x1b" not in captured.err
    assert sorted(path.name for path in Path("drafter").iterdir()) == [
        "README.md", "config.json", "model.safetensors", "training",
    ]  # fmt: skip
    sources = {json.loads(line)["source"] for line in Path("drafter/training/text.jsonl").read_text().splitlines()}
    assert "prompt" in sources and sources & {"question", "opening"}

    assert main(["decode", "-i", "prompts.jsonl", "--target", target, "--drafter", "drafter", "--device", "cpu"]) == 3
    assert main([*arguments, "--resume", "--quiet"]) == 0
    # A finished run is not trained again, and a folder that holds one is not written over unasked.
    assert main(arguments) == 2
    assert "drafter holds a drafter or an interrupted run (config.json)" in capsys.readouterr().err


def test_text_is_used_again_and_another_text_is_not_resumed(target, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "--target", target, "--device", "cpu", "--steps", "2", "--data", "t.jsonl", *SMALL]
    assert main([*arguments, "-o", "one", "--text-tokens", "2000", "--max-tokens", "40"]) == 0
    written = Path("t.jsonl").read_bytes()
    assert main([*arguments, "-o", "two"]) == 0
    assert Path("t.jsonl").read_bytes() == written
    assert Path("one/model.safetensors").read_bytes() == Path("two/model.safetensors").read_bytes()
    Path("t.jsonl").write_bytes(b"\n".join(written.splitlines()[1:]) + b"\n")
    capsys.readouterr()
    assert main([*arguments, "-o", "two", "--resume"]) == 2
    assert "two holds a run that differs in text" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_here_is_refused_before_earlier_work_is_dropped(target, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("d/training").mkdir(parents=True)
    for path in ("t.jsonl", "d/training/state.pt"):
        Path(path).write_bytes(b"earlier")
    arguments = ["train", "-o", "d", "--target", target, "--device", "cuda", "--data", "t.jsonl", "--overwrite"]
    assert main(arguments) == 2
    message = "dspark: --device 'cuda' cannot be used: PyTorch finds no CUDA device here"
    assert capsys.readouterr().err.splitlines()[-2:] == [message, "  Leave --device out, or give --device cpu."]
    assert Path("d/training/state.pt").read_bytes() == b"earlier"


def test_starting_anew_writes_new_text_and_keeps_the_drafter_until_there_is_another(
    target, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "-o", "d", "--target", target, "--device", "cpu", "--steps", "2", "--text-tokens", "2000"]
    arguments += ["--max-tokens", "40", *SMALL]
    assert main(arguments) == 0
    text, drafter = Path("d/training/text.jsonl").read_bytes(), Path("d/model.safetensors").read_bytes()
    import dspark.engine.training.job as job

    write = job.write_texts

    def broken(*args, **kwargs):
        write(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "write_texts", broken)
    capsys.readouterr()
    assert main([*arguments, "--overwrite", "--seed", "1"]) == 130
    err = capsys.readouterr().err
    assert "d holds an earlier run: its text and state are dropped now, its drafter when this run has measured" in err
    assert "This run has saved no drafter yet, and the one in d is of before it; the same command with --resume" in err
    assert "best" not in err
    assert Path("d/training/text.jsonl").read_bytes() != text
    assert Path("d/model.safetensors").read_bytes() == drafter
    assert not Path("d/training/state.pt").exists()


REFUSED_EARLY = {
    "row longer than the context": (["--row-tokens", "{longer}"], "--row-tokens is {longer}, beyond the target's"),
    "feature layer": (["--feature-layers", "0,99"], "--feature-layers names layer 99"),
    "mask token": (["--mask-token-id", "100000"], "--mask-token-id is 100000"),
    "prompts": (
        ["--prompts", "none.jsonl"],
        "cannot read none.jsonl: No such file or directory\n  Check the path given to --p",
    ),
}


@pytest.mark.parametrize(("flags", "message"), REFUSED_EARLY.values(), ids=REFUSED_EARLY)
def test_what_the_target_rules_out_is_refused_before_text_is_read_or_dropped(
    target, tmp_path, monkeypatch, capsys, flags, message
):
    monkeypatch.chdir(tmp_path)
    limit = json.loads((Path(target) / "config.json").read_text())["max_position_embeddings"]
    Path("d/training").mkdir(parents=True)
    for name in ("text.jsonl", "state.pt"):
        Path("d/training", name).write_bytes(b"earlier")
    numbers = {"longer": 16 * (limit // 16 + 1)}
    arguments = ["train", "-o", "d", "--target", target, "--device", "cpu", "--steps", "1", "--overwrite"]
    assert main([*arguments, *(flag.format(**numbers) for flag in flags)]) == 2
    assert message.format(**numbers) in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in Path("d/training").iterdir()} == {
        "text.jsonl": b"earlier",
        "state.pt": b"earlier",
    }


def test_a_row_as_long_as_the_context_is_taken(target, tmp_path, monkeypatch):
    from dspark.engine.training.job import _check_fit

    monkeypatch.chdir(tmp_path)
    limit = json.loads((Path(target) / "config.json").read_text())["max_position_embeddings"]
    settings = TrainSettings(steps=1, row_tokens=16 * (limit // 16))
    _check_fit(TrainJob(target, Path("d"), DrafterShape(), settings, TextSettings()), Path(target))


def test_a_second_run_on_one_folder_is_refused(target, tmp_path, monkeypatch, capsys):
    import dspark.engine.training.job as job

    monkeypatch.chdir(tmp_path)
    arguments = ["train", "-o", "d", "--target", target, "--device", "cpu", "--steps", "1", "--text-tokens", "2000"]
    arguments += ["--max-tokens", "40", *SMALL]
    write, codes = job.write_texts, []

    def meanwhile(*args, **kwargs):
        codes.extend(main([*arguments, *flags]) for flags in ([], ["--resume"], ["--overwrite"]))
        return write(*args, **kwargs)

    monkeypatch.setattr(job, "write_texts", meanwhile)
    assert main(arguments) == 0
    assert codes == [2, 2, 2]
    assert capsys.readouterr().err.count("dspark: another process is writing d\n  Wait until it is done, or give") == 3


def test_text_behind_one_prompt_is_held_out_by_text(target, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = [{"prompt_token_ids": [1, 9], "token_ids": [5, 6, 7, index]} for index in range(3, 60)]
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in text))
    arguments = ["train", "--target", target, "--device", "cpu", "--steps", "1", "--data", "t.jsonl", *SMALL]
    assert main([*arguments, "-o", "d"]) == 0
    assert "All texts stand behind one prompt, so texts and not prompts are held out." in capsys.readouterr().err
    assert "of them held out by text" in Path("d/README.md").read_text()
    Path("t.jsonl").write_text(json.dumps(text[0]) + "\n" + json.dumps(text[0]) + "\n")
    assert main([*arguments, "-o", "e"]) == 2
    assert "all 2 texts are the same one, so none can be held out" in capsys.readouterr().err


def test_interrupted_text_elsewhere_is_not_dropped_unasked(workplace, capsys):
    Path("t.jsonl.partial").write_text("{}")
    arguments = ["train", "-o", "d", "--data", "t.jsonl"]
    assert main(arguments) == 2
    assert "t.jsonl.partial holds text of an interrupted run" in capsys.readouterr().err
    assert main([*arguments, "--resume"]) == main([*arguments, "--overwrite"]) == 0


def test_interrupted_while_training_and_resumed(target, tmp_path, monkeypatch, capsys):
    import dspark.engine.training.trainer as trainer

    monkeypatch.chdir(tmp_path)
    arguments = ["train", "-o", "d", "--target", target, "--device", "cpu", "--steps", "3", "--text-tokens", "2000"]
    arguments += ["--max-tokens", "40", *SMALL]
    take = trainer.Trainer._take_step

    def interrupted(self, host, rate):
        take(self, host, rate)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(trainer.Trainer, "_take_step", interrupted)
    assert main(arguments) == 130
    err = capsys.readouterr().err
    assert "dspark: interrupted (Training)" in err
    assert "The best drafter so far is in d; the same command with --resume goes on." in err
    monkeypatch.setattr(trainer.Trainer, "_take_step", take)
    assert main([*arguments, "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 3


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
            "muon",
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
    assert settings.optimizer == "muon"
    assert (settings.evaluate_every_s, settings.seed) == (5.0, 11)
    assert (text.prompts, text.data, text.minutes, text.tokens) == ("p", Path("f"), 0.5, 9)
    assert (text.temperatures, text.max_tokens, text.concurrency) == ((1.0, 0.5), 33, 3)


def test_defaults_and_configuration_file(workplace):
    Path("c.toml").write_text("[train]\nsteps = 5\nlayers = 2\n")
    assert main(["train", "-o", "d", "--config", "c.toml"]) == 0
    assert main(["train", "-o", "d"]) == 0
    filed, plain = workplace.asked
    assert (filed.settings.steps, filed.settings.minutes, filed.shape.layers) == (5, None, 2)
    assert (plain.settings.steps, plain.settings.minutes, plain.text.minutes) == (None, 10.0, 2.0)


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
        (["-o", "taken"], "cannot create taken: File exists"),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else "",
)
def test_usage(workplace, capsys, arguments, message):
    Path("taken").touch()
    assert main(["train", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not workplace.asked


def test_the_live_display_shows_loss_acceptance_and_time_left():
    from rich.console import Console

    from dspark.cli.train_progress import LiveTrainReporter

    console = Console(file=StringIO(), force_terminal=True, highlight=False, width=160, height=40)
    with LiveTrainReporter(console) as reporter:
        reporter.step("Writing text")
        reporter.wrote(TextProgress(10, 2000, 4.0, 0.1))
        console.print(reporter._render())
        reporter.step("Training")
        reporter.trained(Reading(7, 0.25, 90.0, 1e-3, Gathered(0.5, 1.0, (0.8125, 0.75), 1234.0)))
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
    reporter = TrainReporter(lines.append, clock=lambda: now[0])
    reporter.step("Training")
    for second in range(31):
        now[0] = float(second)
        reporter.trained(Reading(second, 0.1, None, 1e-3, Gathered(0.5, 1.0, (0.5,), 0.0)))
    assert lines[0] == "Training"
    assert [line.split(":")[0] for line in lines[1:]] == ["step 0", "step 15", "step 30"]
