"""Every command for a target that nobody trained a drafter for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from byte_tokenizer import save_byte_tokenizer
from fixture_engine import FIXTURES, prompts, reference

from dspark.calibration import load_calibration, read_traces
from dspark.cli.main import main
from dspark.profiles import load_profile

PAIR = ["--target", "target", "--drafter", "ngram", "--device", "cpu"]
DECODE = ["decode", *PAIR, "-i", "in.jsonl", "--max-tokens", "40", "--token-ids", "--quiet"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A target with a tokenizer, and rows for it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(FIXTURES / "dspark_rnn" / "target", "target")
    save_byte_tokenizer(tmp_path / "target")
    # Its end token is none of the texts' here.
    rows = [json.dumps({"prompt_token_ids": prompt, "ignore_eos": True}) for prompt in prompts()[:6]]
    Path("in.jsonl").write_text("\n".join(rows) + "\n")
    return tmp_path


def answers() -> list[list[int]]:
    return [json.loads(line)["token_ids"] for line in Path("dspark-out/decode.jsonl").read_text().splitlines()]


def run() -> dict:
    return json.loads(Path("dspark-out/decode.metrics.json").read_text())["run"]["engine"]


def test_profile_calibrate_decode_and_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--concurrency", "2", "--context-tokens", "16,32", "--repeats", "2", "--quiet"]
    assert main(["profile", *PAIR, *asked]) == 0
    profile = load_profile(Path("dspark-out/profile.json"))
    assert profile.conditions.drafter is not None
    assert (profile.conditions.drafter.name, profile.conditions.drafter.fingerprint) == ("ngram", "ngram-8-7")
    curve = profile.curve
    assert (curve.block_size, curve.tokens_per_request) == (7, 8) and curve.draft is not None
    # Looking up is next to nothing beside even this tiny target.
    assert 0 < curve.draft_time_s(1) < curve.step_time_s(1)

    assert main(["calibrate", *PAIR, "-i", "in.jsonl", "--max-tokens", "40", "--quiet"]) == 0
    traces = read_traces([Path("dspark-out/traces.parquet")])
    assert traces.gamma == load_calibration(Path("dspark-out/calibration.json")).gamma == 7
    assert traces.provenance.drafter == "ngram" and set(traces.drafted.tolist()) == {0, 7}

    assert main([*DECODE, "--concurrency", "2", "--traces", "decode.parquet"]) == 0
    assert answers() == reference("dspark_rnn")[:6]
    assert (run()["policy"], run()["drafter"]) == ("async", "ngram-8-7")
    assert main(["report", "--quiet"]) == 0
    assert Path("dspark-out/report/index.html").is_file()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("sampling", [[], ["--temperature", "1", "--acceptance", "coupled"]], ids=["greedy", "coupled"])
def test_a_resumed_run_ends_with_the_same_file(here: Path, sampling: list[str]) -> None:
    decode = [*DECODE, "--policy", "threshold:0.3", *sampling]
    assert main(decode) == 0
    whole = [json.loads(line) for line in Path("dspark-out/decode.jsonl").read_text().splitlines()]
    # What a run has left that was killed after three rows: the header and these.
    assert main([*decode, "-o", "half.jsonl", "--resume"]) == 0
    rows = Path("half.jsonl").read_text().splitlines()
    assert [json.loads(row)["token_ids"] for row in rows] == [row["token_ids"] for row in whole]


def test_a_finished_output_is_known_to_be_finished(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(DECODE) == 0
    assert run()["policy"] == "fixed:7" and answers() == reference("dspark_rnn")[:6]
    assert main([*DECODE, "--resume"]) == 0
    assert main([*[word if word != "ngram" else "none" for word in DECODE], "--resume"]) == 2
    assert '"ngram-8-7" then, "none" now' in capsys.readouterr().err


def test_random_weights_are_profiled_with_it(here: Path) -> None:
    asked = ["--concurrency", "1", "--context-tokens", "16", "--repeats", "1", "--load-format", "dummy", "--quiet"]
    assert main(["profile", *PAIR, *asked]) == 0
    drafter = load_profile(Path("dspark-out/profile.json")).conditions.drafter
    assert drafter is not None and (drafter.name, drafter.shape) == ("ngram", {"block_size": 7, "longest_match": 8})


def test_a_target_of_ones_own_has_no_drafter_unless_one_is_named(here: Path) -> None:
    unnamed = [word for word in DECODE if word not in ("--drafter", "ngram")]
    assert main(unnamed) == 0
    assert (run()["policy"], run()["drafter"]) == ("none", "none")


def test_too_long_a_draft_is_refused_before_weights_are_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("target/model.safetensors").unlink()
    assert main([*DECODE, "--policy", "fixed:8"]) == 2
    assert "this drafter proposes 7 at a time" in capsys.readouterr().err
