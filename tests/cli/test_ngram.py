"""Every command for a target that nobody trained a drafter for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pytest
from byte_tokenizer import save_byte_tokenizer
from fixture_engine import FIXTURES, prompts, reference

from dspark.calibration import load_calibration, read_traces
from dspark.cli.main import main
from dspark.engine import Completion, Engine, Request
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


def token_ids(rows: str) -> list[list[int]]:
    return [json.loads(row)["token_ids"] for row in rows.splitlines()]


def answers() -> list[list[int]]:
    return token_ids(Path("dspark-out/decode.jsonl").read_text())


def run() -> dict:
    return json.loads(Path("dspark-out/decode.metrics.json").read_text())["run"]["engine"]


def test_profile_calibrate_decode_and_report(here: Path) -> None:
    asked = ["--concurrency", "2", "--context-tokens", "16,32", "--repeats", "2", "--quiet"]
    assert main(["profile", *PAIR, *asked]) == 0
    profile = load_profile(Path("dspark-out/profile.json"))
    assert profile.conditions.drafter is not None
    assert (profile.conditions.drafter.name, profile.conditions.drafter.fingerprint) == ("ngram", "ngram-8-7")
    curve = profile.curve
    assert (curve.block_width, curve.tokens_per_request) == (7, 8) and curve.draft is not None
    assert curve.draft_time_s(1) > 0

    assert main(["calibrate", *PAIR, "-i", "in.jsonl", "--max-tokens", "40", "--quiet"]) == 0
    traces = read_traces([Path("dspark-out/traces.parquet")])
    assert traces.gamma == load_calibration(Path("dspark-out/calibration.json")).gamma == 7
    assert traces.provenance.drafter == "ngram" and set(traces.drafted.tolist()) == {0, 7}

    assert main([*DECODE, "--concurrency", "2", "--traces", "decode.parquet"]) == 0
    assert answers() == reference("dspark_rnn")[:6]
    assert (run()["policy"], run()["drafter"]) == ("async", "ngram-8-7")
    assert main(["report", "--quiet"]) == 0
    assert Path("dspark-out/report/index.html").is_file()


def test_a_report_on_a_decode_alone_names_commands_of_the_same_pair(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*DECODE, "--workdir", "wn"]) == 0
    assert main(["report", "--workdir", "wn", "--json"]) == 0
    pair = "--target target --drafter ngram --workdir wn"
    undecided = json.loads(capsys.readouterr().out)["runs"][0]["undecided"]
    assert undecided.endswith(f"Run `dspark profile {pair}` and `dspark calibrate {pair}`.")


@pytest.mark.parametrize(
    ("policy", "whole_rows"),
    [
        (["--policy", "fixed:7"], True),
        (["--policy", "threshold:0.3", "--no-adapt"], True),
        (["--policy", "threshold:0.3"], False),
    ],
    ids=["fixed", "not-learning", "learning"],
)
@pytest.mark.parametrize("sampling", [[], ["--temperature", "1", "--acceptance", "coupled"]], ids=["greedy", "coupled"])
def test_a_run_that_goes_on_ends_with_the_same_text(
    here: Path, monkeypatch: pytest.MonkeyPatch, policy: list[str], sampling: list[str], whole_rows: bool
) -> None:
    decode = [*DECODE, *policy, *sampling, "--concurrency", "2"]
    assert main([*decode, "-o", "whole.jsonl"]) == 0
    generate = Engine.generate

    def interrupted(self: Engine, asked: Iterable[Request]) -> Iterator[Completion]:
        yield from islice(generate(self, asked), 3)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "generate", interrupted)
        assert main([*decode, "-o", "halved.jsonl"]) == 130
    assert main([*decode, "-o", "halved.jsonl", "--resume"]) == 0
    whole, halved = (Path(name).read_text() for name in ("whole.jsonl", "halved.jsonl"))
    if whole_rows:
        assert halved == whole
    # What was learned before the interruption decides how much is verified, and nothing of what is said.
    assert token_ids(halved) == token_ids(whole)


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
