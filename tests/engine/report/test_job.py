"""The report as a whole: numbers, files, several runs, hostile rounds."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from profile_samples import GAMMA, make_profile
from report_samples import blank, decode_metrics, make_rounds, make_run

from dspark.calibration import calibrate, read_traces, save_calibration, write_traces
from dspark.engine.jobs import strict_json
from dspark.engine.report import job
from dspark.engine.report.job import make_report, save_report
from dspark.engine.report.run import load_runs
from dspark.profiles import load_profile, save_profile


@pytest.fixture
def blank_pictures(monkeypatch):
    monkeypatch.setattr(job, "render", blank)


def report_of(*folders):
    return make_report(load_runs(folders), seed=0)


def numbers(value):
    if isinstance(value, dict):
        return [n for entry in value.values() for n in numbers(entry)]
    if isinstance(value, list):
        return [n for entry in value for n in numbers(entry)]
    return [value] if isinstance(value, float) else []


def test_folders_of_any_name_are_shown_escaped_in_page_figures_and_numbers(tmp_path):
    name, shown = "r\udcff\n\x01\u202eb", r"r\xff\n\x01\u202eb"
    for folder in (tmp_path / name, tmp_path / f"{name}2"):
        folder.mkdir()
        write_traces(make_rounds(20), folder / "traces.parquet")
    save_report(report_of(tmp_path / name, tmp_path / f"{name}2"), tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    summary = strict_json.loads((tmp_path / "report" / "summary.json").read_text(encoding="utf-8"))
    assert [run["run"] for run in summary["runs"]] == [shown, f"{shown}2"]
    assert shown in page and "\x01" not in page and "\u202e" not in page
    for figure in (tmp_path / "report").glob("*.svg"):
        ElementTree.parse(figure)


def test_the_summary_holds_the_numbers_of_every_figure(tmp_path, blank_pictures):
    folder = make_run(tmp_path / "run")
    traces, curve = read_traces([folder / "traces.parquet"]), load_profile(folder / "profile.json").curve
    report = report_of(folder)
    save_report(report, tmp_path / "report")
    summary = strict_json.loads((tmp_path / "report" / "summary.json").read_text())
    figures = summary["runs"][0]["figures"]
    # Every one of them against counting the traces, or reading the profile, once more.
    accepted = traces.accepted.tolist()
    everything = figures["acceptance"]["datasets"][0]["positions"]
    assert [(p["successes"], p["trials"]) for p in everything] == [
        (sum(a > k for a in accepted), sum(a >= k for a in accepted)) for k in range(GAMMA)
    ]
    lengths = figures["acceptance_lengths"]["lengths"][0]
    assert lengths["counts"] == [accepted.count(k) for k in range(GAMMA + 1)]
    reliability = figures["reliability"]["positions"][0]["before"]["reliability"]
    assert sum(reliability["count"]) == figures["reliability"]["positions"][0]["rounds"]
    step = figures["step_curve"]["curve"]["target"]
    assert step["time_s"] == curve.target.time_s.tolist()
    frontier = figures["policy_frontier"]
    plain = next(line for line in frontier["policies"] if line["policy"] == "none")
    context = frontier["context_tokens"]
    for i, requests in enumerate(frontier["concurrency"]):
        time_s = curve.round_time_s(
            requests,
            num_requests=requests,
            kv_tokens=requests * (context + 1),
            longest_context=context + 8,
            drafts=False,
        )
        assert plain["tokens_per_s"][i] == pytest.approx(requests / float(time_s))
    assert figures["verification_budget"]["verified_per_request"]["fixed:3"] == [3, 3, 3]
    halves = figures["drift"]["halves"]
    assert halves[0]["rounds"] + halves[1]["rounds"] == len(traces)
    sweep = figures["threshold_sweep"]["sweeps"][0]
    assert sweep["verified"][0] == GAMMA
    assert sweep["accepted"][0] == pytest.approx(np.mean(accepted), abs=0.5)
    assert figures["confidence_audit"]["signals"][0]["name"] == "head"
    assert all(math.isfinite(n) for n in numbers(summary))


def test_a_profile_that_is_not_to_be_trusted_is_said_on_the_page_and_in_the_summary(tmp_path, blank_pictures):
    folder = make_run(tmp_path / "run", rounds=100)
    save_profile(replace(make_profile(), manifest={"spread": 0.65}), folder / "profile.json")
    report = report_of(folder)
    run = report.summary["runs"][0]
    told = "These times are not to be trusted: repeats differ by 65% (p20-p80)."
    assert run["verdict"]["sentences"][0].startswith(told)
    assert run["verdict"]["doubts"]["unsteady"] == "repeats differ by 65% (p20-p80)"
    assert told in run["figures"]["step_curve"]["sentence"]
    for name in ("policy_frontier", "verification_budget"):
        assert run["figures"][name]["sentence"].startswith("If these times hold, ")
    assert report.page.index(told) < report.page.index("scheduled verification")


def test_times_that_are_not_to_be_trusted_are_compared_with_a_condition(tmp_path, blank_pictures):
    folders = [make_run(tmp_path / name, rounds=100) for name in ("one", "two")]
    save_profile(replace(make_profile(), manifest={"spread": 0.65}), folders[1] / "profile.json")
    compared = report_of(*folders).summary["compared"]
    conditional = [name for name, figure in compared.items() if figure["sentence"].startswith("If these times hold, ")]
    assert conditional == ["compared_step_curves", "compared_frontiers"]


@pytest.mark.parametrize(("temperature", "told"), [(0.0, False), (1.0, True)], ids=["greedy", "sampled"])
def test_the_true_acceptance_is_no_news_of_greedy_rounds(tmp_path, blank_pictures, temperature, told):
    folder = tmp_path / "run"
    folder.mkdir()
    chance = np.random.default_rng(0).random((200, GAMMA)).astype(np.float32)
    traces = make_rounds(200, temperature=temperature, signals={"oracle_acceptance": chance})
    write_traces(traces, folder / "traces.parquet")
    sentence = report_of(folder).summary["runs"][0]["figures"]["confidence_audit"]["sentence"]
    assert ("the true acceptance probability would reach" in sentence) == told


@pytest.mark.parametrize(
    ("rounds", "told"),
    [
        (77, "Uncalibrated, and too few rounds to tell how well: 77 at a position, and it takes 100."),
        (400, "perfect calibration would show, of which 400 rounds show little."),
        (2500, "perfect calibration would show."),
    ],
    ids=["too few", "few", "enough"],
)
def test_few_rounds_are_no_proof_of_calibration(tmp_path, blank_pictures, rounds, told):
    folder = tmp_path / "run"
    folder.mkdir()
    write_traces(make_rounds(rounds, gamma=1), folder / "traces.parquet")
    sentence = report_of(folder).summary["runs"][0]["figures"]["reliability"]["sentence"]
    assert sentence.endswith(told)


def test_acceptance_is_told_of_the_rounds_in_the_table(tmp_path, blank_pictures):
    folder = tmp_path / "run"
    folder.mkdir()
    # The first round of every request ends before its first draft is judged.
    observed = np.where(np.arange(200) % 10 == 0, 0, GAMMA)
    traces = make_rounds(200, accepted=np.zeros(200, dtype=int), observed=np.minimum(observed, 1))
    write_traces(traces, folder / "traces.parquet")
    acceptance = report_of(folder).summary["runs"][0]["figures"]["acceptance"]
    assert acceptance["datasets"][0]["positions"][0]["trials"] == 180
    assert acceptance["sentence"].startswith("Position 1 is accepted in 0% of 180 rounds")


def test_the_same_artefacts_and_seed_give_the_same_report(tmp_path, blank_pictures):
    folder = make_run(tmp_path / "run", rounds=100)
    one, other = report_of(folder), report_of(folder)
    assert (one.page, one.summary) == (other.page, other.summary)


def test_files_of_an_earlier_report_go_and_those_of_others_stay(tmp_path, whole_report):
    target = tmp_path / "report"
    save_report(whole_report, target)
    (target / "notes.png").write_bytes(b"mine")
    assert {path.name for path in target.iterdir()} == {*whole_report.summary["files"], "notes.png"}
    only = tmp_path / "run"
    only.mkdir()
    save_profile(make_profile(), only / "profile.json")
    later = report_of(only)
    save_report(later, target)
    assert sorted(path.name for path in target.iterdir()) == [
        "index.html",
        "notes.png",
        "step_curve.png",
        "step_curve.svg",
        "summary.json",
    ]


@pytest.mark.parametrize(
    "listed",
    [
        "nonsense",
        '{"format": "dspark-report", "files": ["../outside.png", 3]}',
        '{"format": "other", "files": ["a.png"]}',
    ],
    ids=["no JSON", "outside", "another format"],
)
def test_a_list_of_files_that_is_not_ours_removes_nothing(tmp_path, whole_report, listed):
    target = tmp_path / "report"
    target.mkdir()
    for name in ("a.png", "../outside.png"):
        (target / name).write_bytes(b"mine")
    (target / "summary.json").write_text(listed)
    save_report(whole_report, target)
    assert (target / "a.png").exists() and (tmp_path / "outside.png").exists()


# The pair of the samples, as a command takes it.
TINY = "--target tiny --drafter tiny-drafter"


def test_what_is_missing_is_named_with_what_makes_it(tmp_path, blank_pictures):
    save_profile(make_profile(), tmp_path / "profile.json")
    (run,) = report_of(tmp_path).summary["runs"]
    assert list(run["figures"]) == ["step_curve"]
    missing = {entry["name"]: entry for entry in run["missing"]}
    assert set(missing) == {
        "reliability",
        "acceptance",
        "acceptance_lengths",
        "threshold_sweep",
        "confidence_audit",
        "drift",
        "policy_frontier",
        "verification_budget",
    }
    assert missing["drift"]["reason"] == "There is no traces.parquet."
    assert missing["drift"]["remedy"] == f"Run `dspark calibrate {TINY} --workdir {tmp_path}`."
    assert run["verdict"] is None


def test_metrics_of_a_decode_alone_show_its_lengths(tmp_path, blank_pictures):
    (tmp_path / "decode.metrics.json").write_text(json.dumps(decode_metrics()))
    (run,) = report_of(tmp_path).summary["runs"]
    assert run["figures"]["acceptance_lengths"]["lengths"][0]["counts"] == [3, 2, 1]


NO_VERDICT = {
    "decode alone": (False, None, "there is no profile.json and no traces.parquet", ["profile", "calibrate"]),
    "profile alone": (True, None, "there is no traces.parquet", [f"calibrate {TINY}"]),
    "traces alone": (False, 100, "there is no profile.json", [f"profile {TINY}"]),
    "empty traces": (True, 0, "traces.parquet holds no rounds", [f"calibrate {TINY}"]),
}


@pytest.mark.parametrize(("profile", "rounds", "reason", "commands"), NO_VERDICT.values(), ids=NO_VERDICT)
def test_where_a_verdict_would_stand_the_page_says_what_it_lacks(
    tmp_path, blank_pictures, profile, rounds, reason, commands
):
    (tmp_path / "decode.metrics.json").write_text(json.dumps(decode_metrics()))
    if profile:
        save_profile(make_profile(), tmp_path / "profile.json")
    if rounds is not None:
        write_traces(make_rounds(rounds), tmp_path / "traces.parquet")
    report = report_of(tmp_path)
    (run,) = report.summary["runs"]
    remedy = " and ".join(f"`dspark {command} --workdir {tmp_path}`" for command in commands)
    told = f"Whether scheduled verification pays cannot be told yet: {reason}. Run {remedy}."
    assert (run["verdict"], run["undecided"]) == (None, told)
    (box,) = re.findall(r'<div class="verdict">(.*?)</div>', report.page, re.DOTALL)
    assert re.sub("</?code>", "`", box).strip() == f"<p>{told}</p>"


def test_two_runs_are_compared(tmp_path):
    folders = [make_run(tmp_path / name, rounds=200, seed=i, slower=1 + i) for i, name in enumerate(("Fast", "slow"))]
    report = report_of(*folders)
    compared = report.summary["compared"]
    assert list(compared) == ["compared_acceptance", "compared_step_curves", "compared_frontiers"]
    fast, slow = np.array(compared["compared_step_curves"]["step_time_s"]).T
    np.testing.assert_allclose(slow / fast, 2, rtol=0.05)
    names = [figure.id for figure in report.figures]
    assert len(set(names)) == len(names) == 3 + 2 * 9
    assert "fast-drift" in names and "slow-drift" in names
    save_report(report, tmp_path / "report")
    assert (tmp_path / "report" / "slow-policy_frontier.png").exists()


HOSTILE = {
    "no rounds": (make_rounds(0), False),
    "one round": (make_rounds(1), False),
    "one request": (make_rounds(60, request=np.zeros(60)), True),
    "all accepted": (make_rounds(200, accepted=np.full(200, GAMMA)), True),
    "none accepted": (make_rounds(200, accepted=np.zeros(200)), True),
    "cut short": (make_rounds(200, accepted=np.zeros(200), verified=np.full(200, 2)), True),
    "nothing observed": (make_rounds(50, accepted=np.zeros(50), observed=np.zeros(50)), False),
    "logits that saturate": (make_rounds(200, confidence_logits=np.full((200, GAMMA), 1e30)), True),
    "logits that vanish": (make_rounds(200, confidence_logits=np.full((200, GAMMA), -1e30)), True),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", list(HOSTILE))
def test_hostile_rounds_give_a_report_with_finite_numbers(tmp_path, name):
    traces, calibrated = HOSTILE[name]
    write_traces(traces, tmp_path / "traces.parquet")
    save_profile(make_profile(), tmp_path / "profile.json")
    if calibrated:
        save_calibration(calibrate(traces), tmp_path / "calibration.json")
    report = report_of(tmp_path)
    strict_json.dumps(report.summary)
    (run,) = report.summary["runs"]
    shown, missing = set(run["figures"]), {entry["name"] for entry in run["missing"]}
    assert len(shown) + len(missing) == 9 and not shown & missing
    assert all(figure["sentence"].endswith(".") for figure in run["figures"].values())
    assert not re.search(r"\b(nan|inf)\b", report.page)


def test_empty_traces_are_told_from_missing_ones(tmp_path):
    write_traces(make_rounds(0), tmp_path / "traces.parquet")
    (run,) = report_of(tmp_path).summary["runs"]
    assert {entry["reason"] for entry in run["missing"] if entry["name"] == "drift"} == {
        "traces.parquet holds no rounds."
    }


def test_importing_and_making_a_report_loads_no_torch(tmp_path):
    import subprocess
    import sys

    folder = make_run(tmp_path / "run", rounds=40)
    code = (
        "import sys; from pathlib import Path; from dspark.engine.report import frontier;"
        "from dspark.engine.report.job import make_report; from dspark.engine.report.run import load_runs;"
        "frontier._BLOCKS = frontier._FEWEST_ROUNDS = 16; make_report(load_runs([Path(sys.argv[1])]), seed=0);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(folder)], cwd=Path(__file__).parent).returncode == 0


def test_the_manifest_says_what_made_the_numbers(tmp_path, blank_pictures):
    folder = make_run(tmp_path / "run")
    (folder / "decode.metrics.json").write_text(json.dumps(decode_metrics()))
    report = make_report(load_runs([folder]), seed=7)
    about = report.summary["manifest"]
    assert about["seed"] == 7
    (run,) = about["runs"]
    assert run["profile"] == {
        "device": "a CPU",
        "dtype": "float32",
        "runner": "eager",
        "torch": "2.13.0",
        "spread": 0.01,
    }
    assert (run["calibration"]["rounds fitted on"], run["calibration"]["rounds held out"]) == (280, 120)
    assert run["traces"] == {"rounds": 400, "acceptance": "rejection"}
    assert run["decode"] == {"torch": "2.13.0"}
    assert "device a CPU, dtype float32" in report.page


@pytest.mark.parametrize("made", [None, [], "text", {"torch": None}], ids=str)
def test_a_decode_without_a_manifest_is_reported_all_the_same(tmp_path, blank_pictures, made):
    (tmp_path / "decode.metrics.json").write_text(json.dumps(decode_metrics() | {"manifest": made}))
    assert report_of(tmp_path).summary["manifest"]["runs"][0]["decode"] == {}
