"""A profile in the work directory plans the rounds of `decode`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fixture_engine import FIXTURES, reference

from dspark.calibration import Provenance, calibrate, make_traces, save_calibration
from dspark.cli.decode_result import about_misfit
from dspark.cli.main import main

PAIR = [
    *("--target", str(FIXTURES / "dspark_rnn" / "target")),
    *("--drafter", str(FIXTURES / "dspark_rnn" / "draft")),
    *("--device", "cpu", "--concurrency", "2"),
]
DECODE = ["decode", *PAIR, "-i", "in.jsonl", "--max-tokens", "40", "--token-ids", "--overwrite"]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory) -> Path:
    """A work directory with a profile of the pair."""
    workdir = tmp_path_factory.mktemp("profiled")
    asked = ["--context-tokens", "16,32", "--repeats", "2", "--workdir", str(workdir), "--quiet"]
    assert main(["profile", *PAIR, *asked]) == 0
    return workdir


@pytest.fixture
def workplace(profiled, tmp_path, monkeypatch) -> Path:
    from fixture_engine import prompts

    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"prompt_token_ids": prompt}) for prompt in prompts()[:6]]
    Path("in.jsonl").write_text("\n".join(rows) + "\n")
    shutil.copytree(profiled, "dspark-out")
    return tmp_path


def answers() -> list[list[int]]:
    return [json.loads(line)["token_ids"] for line in Path("dspark-out/decode.jsonl").read_text().splitlines()]


def policy() -> str:
    return json.loads(Path("dspark-out/decode.metrics.json").read_text())["run"]["engine"]["policy"]


@pytest.mark.parametrize("artefact", ["profile.json", "calibration.json"])
def test_an_artefact_that_is_a_link_to_nowhere_is_refused_and_not_done_without(workplace, capsys, artefact):
    path = Path("dspark-out", artefact)
    path.unlink(missing_ok=True)
    path.symlink_to("nowhere")
    assert main(DECODE) == 1
    assert f"{path} cannot be read: No such file" in capsys.readouterr().err
    assert not Path("dspark-out/decode.jsonl").exists()


def test_async_is_the_default_where_there_is_a_profile(workplace, capsys):
    assert main(DECODE) == 0
    assert policy() == "async" and answers() == reference("dspark_rnn")[:6]
    assert "plans rounds by dspark-out/profile.json" in capsys.readouterr().err
    # And its output is known to be finished.
    assert main([argument for argument in DECODE if argument != "--overwrite"] + ["--resume"]) == 0


@pytest.mark.parametrize("flags", [["--policy", "causal"], ["--policy", "async", "--no-adapt"]], ids=str)
def test_planned_policies_by_name(workplace, flags):
    assert main([*DECODE, *flags]) == 0
    assert policy() == flags[1] and answers() == reference("dspark_rnn")[:6]


def test_other_policies_leave_the_profile_alone(workplace, capsys):
    Path("dspark-out/profile.json").write_text("no JSON")
    assert main([*DECODE, "--policy", "fixed:3"]) == 0
    assert policy() == "fixed:3" and "profile.json" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["causal", "async"])
def test_no_profile_to_plan_by(workplace, capsys, name):
    Path("dspark-out/profile.json").unlink()
    assert main([*DECODE, "--policy", name]) == 2
    said = capsys.readouterr().err
    assert "no dspark-out/profile.json" in said and "dspark profile" in said


def test_a_profile_of_something_else_is_refused(workplace, capsys):
    document = json.loads(Path("dspark-out/profile.json").read_text())
    document["conditions"]["dtype"] = "bfloat16"
    Path("dspark-out/profile.json").write_text(json.dumps(document))
    assert main(DECODE) == 1
    said = capsys.readouterr().err
    assert "bfloat16" in said and "dspark profile" in said


def test_by_default_no_more_requests_run_than_were_profiled(workplace, capsys):
    at = DECODE.index("--concurrency")
    assert main(DECODE[:at] + DECODE[at + 2 :]) == 0
    assert "2 requests are decoded at once, as many as the profile knows of, not 16." in capsys.readouterr().err


def test_more_requests_than_were_profiled(workplace, capsys):
    assert main([*DECODE, "--concurrency", "64"]) == 1
    said = capsys.readouterr().err
    assert "knows batches of up to 2 requests, and 64 are to run at once" in said
    assert "--policy fixed:K" in said and "--concurrency 64 --workdir NEW`" in said and "Loading" not in said


def calibration_of_the_pair() -> None:
    traces = make_traces(
        request=np.arange(640) // 8,
        accepted=np.arange(640) % 8,
        confidence_logits=np.ones((640, 7)),
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        provenance=Provenance(PAIR[1], PAIR[3], "rejection", None, None),
    )
    save_calibration(calibrate(traces), Path("dspark-out/calibration.json"))


@pytest.fixture
def smaller_drafter(workplace) -> str:
    """The description of a drafter of another shape; there are no weights to load."""
    folder = workplace / "smaller"
    folder.mkdir()
    config = json.loads((FIXTURES / "dspark_rnn" / "draft" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"markov_rank": 8, "block_size": 4}))
    return str(folder)


def test_all_that_is_of_another_drafter_is_refused_at_once_before_anything_loads(workplace, smaller_drafter, capsys):
    calibration_of_the_pair()
    assert main([*DECODE, "--drafter", smaller_drafter, "--concurrency", "64"]) == 1
    said = capsys.readouterr().err
    for reason in (
        f"a drafter of another shape: block_size 7 in {PAIR[3]}, 4 in {smaller_drafter}",
        "up to 2 requests, and 64 are",
        f"the calibration is for another drafter: {PAIR[3]}, not {smaller_drafter}",
        "the calibration is for draft length 7, and the drafter drafts 4",
        "--workdir NEW",
        "--policy fixed:K",
        f"dspark profile --target {PAIR[1]} --drafter {smaller_drafter} --device cpu --concurrency 64 --workdir NEW`",
        f"dspark calibrate --target {PAIR[1]} --drafter {smaller_drafter} --device cpu --workdir NEW`",
    ):
        assert reason in said
    assert "Loading" not in said and "plans rounds by" not in said


def test_a_drafter_of_another_kind_is_refused_before_anything_loads(workplace, capsys):
    calibration_of_the_pair()
    assert main([*DECODE, "--drafter", "ngram"]) == 1
    said = capsys.readouterr().err
    assert f"the profile is for a drafter of another kind: {PAIR[3]}, not ngram" in said
    assert f"the calibration is for another drafter: {PAIR[3]}, not ngram" in said
    assert "Loading" not in said and "plans rounds by" not in said
    assert main([*DECODE, "--drafter", "ngram", "--policy", "fixed:3"]) == 0


def test_every_round_is_a_row_of_the_table(workplace, capsys):
    assert main([*DECODE, "--rounds", "rounds.parquet", "--json"]) == 0
    captured = capsys.readouterr()
    totals, rounds = json.loads(captured.out), pd.read_parquet("rounds.parquet")
    this_run = totals["this_run"]
    assert totals["rounds"] == "rounds.parquet"
    assert rounds["emitted_tokens"].sum() == this_run["spec"]["emitted"] == sum(map(len, answers())) - 6
    # Nothing runs ahead on a CPU, so all that was packed is anchors and verified drafts of running requests.
    assert (rounds["batch_tokens"] - rounds["requests"]).sum() == this_run["spec"]["verified"]
    assert rounds["requests"].sum() == this_run["spec"]["rounds"] and not rounds["wasted_tokens"].any()
    # A round of other requests than its plan was made for has nothing to be held against.
    planned = rounds["expected_tokens"].notna()
    assert planned.mean() > 0.5 and rounds["expected_tokens"].ge(rounds["requests"])[planned].all()
    # The first round is not measured: it does for the first time what later ones do again.
    assert rounds["measured_round_s"].isna().tolist() == [True] + [False] * (len(rounds) - 1)
    measured = rounds[1:]
    assert measured["measured_step_s"].between(0, measured["measured_round_s"]).all()
    compared = measured[planned[1:]]
    assert compared["predicted_step_s"].between(0, compared["predicted_round_s"]).all()
    found = this_run["engine_rounds"]
    assert found["rounds"] == len(rounds)
    assert found["plan"]["measured_tokens_per_s"] == pytest.approx(
        compared["emitted_tokens"].sum() / compared["measured_round_s"].sum()
    )
    assert found["plan"]["predicted_tokens_per_s"] == pytest.approx(
        compared["expected_tokens"].sum() / compared["predicted_round_s"].sum()
    )
    by_bucket = rounds.groupby("bucket")
    assert [entry["bucket"] for entry in found["by_bucket"]] == sorted(by_bucket.groups)
    assert [entry["rounds"] for entry in found["by_bucket"]] == by_bucket.size().tolist()
    told = " ".join(captured.err.replace("│", " ").split())
    assert "async (by dspark-out/profile.json)" in told
    assert f"{found['plan']['predicted_tokens_per_s']:,.1f} tok/s predicted" in told


def test_a_profile_of_a_machine_in_another_state_is_told(workplace, capsys):
    path = Path("dspark-out/profile.json")
    document = json.loads(path.read_text())
    for stairs in ("target", "draft", "verify_greedy", "verify_sampled"):
        for name in ("time_s", "p20_s", "p80_s"):
            document["curve"][stairs][name] = [1000 * time_s for time_s in document["curve"][stairs][name]]
    path.write_text(json.dumps(document))
    assert main(DECODE) == 0
    assert "The profile does not fit this machine's present state" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("measured", "told"), [(45.0, False), (34.0, False), (33.0, True), (14.7, True), (57.0, True)], ids=str
)
def test_speeds_fit_a_profile_within_a_quarter(measured, told):
    plan = {"predicted_tokens_per_s": 45.0, "measured_tokens_per_s": measured}
    assert (about_misfit(plan) is not None) == told
    assert about_misfit(None) is None


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--policy", "fixed:3"], "fixed:3 (as asked)"),
        ([], "fixed:7 (no dspark-out/profile.json, so everything drafted is verified)"),
        (["--drafter", "none"], "none (there is no drafter)"),
    ],
    ids=["asked", "no-profile", "no-drafter"],
)
def test_the_summary_says_why_the_policy_was_used(workplace, capsys, flags, reason):
    Path("dspark-out/profile.json").unlink()
    assert main([*DECODE, *flags]) == 0
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert reason in told and "planned rounds" not in told


def test_a_table_of_rounds_has_a_place_of_its_own(workplace, capsys):
    assert main([*DECODE, "--rounds", "rounds.txt"]) == 2
    assert "--rounds rounds.txt has no ending of a table" in capsys.readouterr().err
    assert main([*DECODE, "--rounds", "a.csv", "--metrics", "a.csv"]) == 2
    assert "--rounds is a.csv, which is for the metrics" in capsys.readouterr().err
    assert main([*DECODE, "--rounds", "a.csv", "--traces", "a.csv"]) == 2
    assert "--traces and --rounds are both a.csv" in capsys.readouterr().err


@pytest.mark.parametrize(("temperature", "warns"), [(0.0, False), (0.7, True)], ids=["as calibrated", "otherwise"])
def test_sampling_that_the_calibration_was_not_made_for_is_told(workplace, capsys, temperature, warns):
    calibration_of_the_pair()
    assert main([*DECODE, "--temperature", str(temperature)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "corrects confidence by dspark-out/calibration.json" in said
    warning = "Sampling with temperature 0.7, top-k 0, top-p 1.0, but the calibration was made with temperature 0.0"
    assert (warning in said) == warns
