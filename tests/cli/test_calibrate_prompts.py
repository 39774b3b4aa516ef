"""`calibrate` that decodes prompts: what is decoded and kept, and what is said on the way."""

from __future__ import annotations

import json
import shutil
import signal
from importlib import resources
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from byte_tokenizer import save_byte_tokenizer
from fake_engine import CharCodec
from fixture_engine import FIXTURES
from standard_json import strict
from traced_engine import TracedEngine

from dspark.calibration import (
    load_calibration,
    read_traces,
)
from dspark.cli.main import main
from dspark.engine.jobs.input_file import open_input
from dspark.engine.jobs.rows import read_rows


@pytest.fixture
def pair(here):
    """A real tiny pair with a tokenizer, and rows for it."""
    target = here / "target"
    shutil.copytree(FIXTURES / "dspark_rnn" / "target", target)
    save_byte_tokenizer(target)
    rows = [{"prompt": f"prompt {i}", "dataset": "odd" if i % 2 else "even"} for i in range(12)]
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["--target", str(target), "--drafter", str(FIXTURES / "dspark_rnn" / "draft"), "--device", "cpu"]


@pytest.mark.parametrize(("flags", "drafted_from"), [([], 0), (["--draft-top-k", "4"], 4)], ids=["all", "four"])
def test_prompts_of_a_tiny_pair_from_end_to_end(pair, capsys, flags, drafted_from):
    arguments = ["-i", "in.jsonl", "--max-tokens", "40", "--ignore-eos", "--temperature", "1", "--json", *flags]
    assert main(["calibrate", *pair, *arguments]) == 0
    captured = capsys.readouterr()
    traces = read_traces([Path("dspark-out/traces.parquet")])
    made = load_calibration(Path("dspark-out/calibration.json"))
    assert traces.gamma == made.gamma == 7
    assert set(traces.dataset.names) == {"even", "odd"}
    assert traces.policy.names == ("fixed:7",)
    assert np.unique(traces.request).tolist() == list(range(12))
    # Nothing but the limit of 40 tokens cuts a block short.
    room = 39 - (
        traces.text_position - np.array([traces.text_position[traces.request == r][0] for r in traces.request])
    )
    np.testing.assert_array_equal(traces.verified, np.minimum(7, room - 1))
    assert made.sampling[0].temperature == 1.0
    assert made.provenance.target == pair[1]
    assert made.provenance.draft_top_k == drafted_from
    assert strict(captured.out)["traces"] == ["dspark-out/traces.parquet"]
    assert f"drafter {pair[3]}" in captured.err
    # The same rounds, read again, give the same calibration.
    assert main(["calibrate", "--traces", "dspark-out/traces.parquet", "--workdir", "again", "--quiet"]) == 0
    assert load_calibration(Path("again/calibration.json")) == made


@pytest.fixture
def fake(here, monkeypatch):
    """An engine that needs no model; tests may replace `fake.engine`."""
    import dspark.engine
    import dspark.engine.jobs.tokenizer
    import dspark.engine.models.resolve
    import dspark.engine.preflight

    def make(config, *, detokenizer):
        make.configs.append(config)
        return make.engine

    make.engine, make.configs = TracedEngine(), []
    monkeypatch.setattr(dspark.engine, "Engine", make, raising=False)
    monkeypatch.setattr(dspark.engine.preflight, "check_models", lambda *args: None)
    monkeypatch.setattr(dspark.engine.jobs.tokenizer.Tokenizer, "load", lambda folder: CharCodec())
    monkeypatch.setattr(dspark.engine.models.resolve, "resolve_target", lambda spec, progress: Path(spec))
    return make


def test_no_arguments_decode_the_prompts_that_come_along(fake):
    assert main(["calibrate"]) == 0
    assert len({request.index for request in fake.engine.asked}) == 160
    assert all(request.sampling.temperature == 0 for request in fake.engine.asked)
    traces = read_traces([Path("dspark-out/traces.parquet")])
    assert sorted(traces.dataset.names) == ["chat", "code", "instructions", "maths", "summaries"]
    (config,) = fake.configs
    # All that the built-in drafter drafts.
    assert config.policy == "fixed:7"


def test_the_prompts_are_rows_and_all_different():
    file = resources.files("dspark.calibration").joinpath("prompts.jsonl")
    rows = list(read_rows(open_input(str(file)).lines(), all_turns=False))
    assert [row.error for row in rows if row.error] == []
    assert len({row.messages[0]["content"] for row in rows}) == len(rows) == 160
    counts = pd.Series([row.dataset for row in rows]).value_counts()
    assert counts.tolist() == [32] * 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["interrupted", "terminated"])
def test_an_interrupt_keeps_the_rounds_and_says_how_to_use_them(fake, capsys, number):
    def interrupt(index):
        if index == 9:
            signal.raise_signal(number)

    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    fake.engine = TracedEngine(before=interrupt, concurrency=1)
    assert main(["calibrate"]) == 130
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    err = capsys.readouterr().err
    command = "dspark calibrate --traces dspark-out/traces.partial.parquet"
    assert f"`{command}` calibrates on them" in err
    assert not Path("dspark-out/traces.parquet").exists()
    assert np.unique(read_traces([Path("dspark-out/traces.partial.parquet")]).request).tolist() == list(range(9))
    assert main(command.split()[1:]) == 0


def test_files_of_other_models_are_refused_before_a_model_is_loaded(fake, capsys):
    assert main(["calibrate", "--quiet"]) == 0
    files = [Path("dspark-out", name) for name in ("calibration.json", "traces.parquet")]
    before = [file.read_bytes() for file in files]
    assert main(["calibrate", "--drafter", "ngram"]) == 2
    told = capsys.readouterr().err
    for file in files:
        assert f"{file} is of smollm2-135m with smollm2-135m-dspark, and would be replaced by one of " in told
    assert "another --workdir, or --overwrite" in told
    assert len(fake.configs) == 1 and [file.read_bytes() for file in files] == before
    assert main(["calibrate", "--quiet"]) == 0
    assert main(["calibrate", "--drafter", "ngram", "--overwrite", "--quiet"]) == 0
    assert load_calibration(files[0]).provenance.drafter == "ngram"


def test_a_work_directory_that_is_removed_meanwhile_costs_nothing(fake):
    def remove(index):
        if index == 9:
            shutil.rmtree("dspark-out")

    fake.engine = TracedEngine(before=remove, concurrency=1)
    assert main(["calibrate"]) == 0
    assert {path.name for path in Path("dspark-out").iterdir()} == {"calibration.json", "traces.parquet"}
    assert len(np.unique(read_traces([Path("dspark-out/traces.parquet")]).request)) == 160


def test_an_interrupt_before_the_first_round_keeps_nothing(fake, capsys):
    def interrupt(index):
        raise KeyboardInterrupt

    fake.engine = TracedEngine(before=interrupt)
    assert main(["calibrate"]) == 130
    assert "No round was recorded yet" in capsys.readouterr().err
    assert list(Path("dspark-out").iterdir()) == []


def test_a_failure_keeps_the_rounds_too(fake, capsys):
    def fail(index):
        if index == 9:
            raise MemoryError

    fake.engine = TracedEngine(before=fail, concurrency=1)
    assert main(["calibrate"]) == 1
    err = capsys.readouterr().err
    assert "out of memory" in err
    assert "traces.partial.parquet` calibrates on them" in err


def test_rows_that_cannot_be_decoded_are_told_and_the_others_calibrated(fake, capsys):
    Path("in.jsonl").write_text('{"prompt": "a longer one"}\nnonsense\n{"prompt": "another"}\n')
    assert main(["calibrate", "-i", "in.jsonl", "--json"]) == 3
    captured = capsys.readouterr()
    assert "1 of 3 rows could not be decoded" in captured.err
    assert "line 2: not JSON" in captured.err
    assert strict(captured.out)["error_rows"] == 1
    assert read_traces([Path("dspark-out/traces.parquet")]).dataset.names == ("in",)


def test_rows_that_give_no_round_at_all(fake, capsys):
    Path("in.jsonl").write_text("nonsense\n")
    assert main(["calibrate", "-i", "in.jsonl"]) == 2
    err = capsys.readouterr().err
    assert "the rows gave no round to calibrate on\n  The first error: line 1: not JSON" in err
    Path("in.jsonl").write_text("")
    assert main(["calibrate", "-i", "in.jsonl"]) == 2
    assert "the rows gave no round" in capsys.readouterr().err
