"""The command: what it writes, says and refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from profile_samples import make_profile
from report_samples import PAIR, blank, decode_metrics, make_rounds, make_run

from dspark.calibration import write_traces
from dspark.cli.main import main
from dspark.engine.report import frontier, job
from dspark.profiles import save_profile


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """An empty folder to be in, and few replayed blocks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(frontier, "_BLOCKS", 64)
    monkeypatch.setattr(frontier, "_FEWEST_ROUNDS", 16)


@pytest.fixture
def blank_pictures(monkeypatch):
    monkeypatch.setattr(job, "render", blank)


def test_no_arguments_report_on_the_work_directory(capsys):
    make_run(Path("dspark-out"), rounds=100)
    Path("dspark-out/decode.metrics.json").write_text(json.dumps(decode_metrics()))
    assert main(["report", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["command"] == "report"
    assert (document["page"], document["summary"]) == ("dspark-out/report/index.html", "dspark-out/report/summary.json")
    saved = json.loads(Path(document["summary"]).read_text())
    assert {name: document[name] for name in saved} == saved
    assert set(saved["files"]) == {path.name for path in Path("dspark-out/report").iterdir()}
    assert len(saved["files"]) == 2 + 2 * 9
    assert "Scheduled verification" in captured.err
    assert "\x1b" not in captured.err


def test_folders_are_compared_and_the_report_goes_where_it_is_told(capsys, blank_pictures):
    for name in ("one", "two"):
        make_run(Path(name), rounds=100)
    assert main(["report", "one", "two", "--output", "both", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
    summary = json.loads(Path("both/summary.json").read_text())
    assert [run["run"] for run in summary["runs"]] == ["one", "two"]
    assert summary["compared"]
    assert not Path("dspark-out").exists()


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["w"], "w/report"),
        (["w", "--workdir", "else"], "else/report"),
        (["w", "--output", "there"], "there"),
        (["w", "other"], "dspark-out/report"),
        (["w", "other", "--workdir", "else"], "else/report"),
    ],
    ids=" ".join,
)
def test_the_report_of_one_named_folder_goes_into_it_unless_told_otherwise(arguments, place, capsys, blank_pictures):
    for name in ("w", "other"):
        make_run(Path(name), rounds=100)
    before = Path("dspark-out/report/index.html")
    before.parent.mkdir(parents=True)
    before.write_text("of another pair")
    assert main(["report", *arguments, "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["page"] == f"{place}/index.html"
    assert Path(place, "index.html").is_file()
    assert (before.read_text() == "of another pair") == (place != "dspark-out/report")


def test_what_is_missing_is_said_with_the_command_that_makes_it(capsys, blank_pictures):
    Path("w").mkdir()
    save_profile(make_profile(), Path("w/profile.json"))
    assert main(["report", "--workdir", "w"]) == 0
    told = capsys.readouterr().err
    lines = " ".join(told.replace("│", " ").replace("missing", " ").split())
    assert (
        "acceptance, acceptance_lengths, threshold_sweep, confidence_audit, drift, policy_frontier, "
        "verification_budget: There is no traces.parquet. "
        "Run `dspark calibrate --target tiny --drafter tiny-drafter --workdir w`."
    ) in lines
    assert Path("w/report/step_curve.png").exists()


def test_without_profile_and_traces_the_verdict_is_that_it_cannot_tell(capsys, blank_pictures):
    Path("w").mkdir()
    Path("w/decode.metrics.json").write_text(json.dumps(decode_metrics()))
    assert main(["report", "--workdir", "w"]) == 0
    told = (
        "Whether scheduled verification pays cannot be told yet: there is no profile.json and no traces.parquet. "
        "Run `dspark profile --workdir w` and `dspark calibrate --workdir w`."
    )
    assert f"verdict {told}" in " ".join(capsys.readouterr().err.replace("│", " ").split())
    run = json.loads(Path("w/report/summary.json").read_text())["runs"][0]
    assert (run["verdict"], run["undecided"]) == (None, told)


def test_a_seed_makes_the_numbers_and_a_configuration_file_can_set_it(blank_pictures):
    make_run(Path("w"), rounds=100)
    Path("c.toml").write_text('workdir = "w"\n[report]\nseed = 5\n')
    assert main(["report", "--config", "c.toml", "--quiet"]) == 0
    first = Path("w/report/summary.json").read_bytes()
    assert json.loads(first)["manifest"]["seed"] == 5
    assert main(["report", "--workdir", "w", "--seed", "5", "--quiet"]) == 0
    assert Path("w/report/summary.json").read_bytes() == first
    assert main(["report", "--workdir", "w", "--seed", "6", "--quiet"]) == 0
    assert Path("w/report/summary.json").read_bytes() != first


def nothing():
    pass


def no_artefacts():
    Path("dspark-out").mkdir()


def other_pair():
    make_run(Path("dspark-out"), rounds=50)
    from dataclasses import replace

    traces = make_rounds(50, provenance=replace(PAIR, target="big", target_fingerprint="9999"))
    write_traces(traces, Path("dspark-out/traces.parquet"))


def damaged_profile():
    Path("dspark-out").mkdir()
    Path("dspark-out/profile.json").write_text("{")


def damaged_traces():
    Path("dspark-out").mkdir()
    Path("dspark-out/traces.parquet").write_text("PAR1")


def damaged_metrics():
    Path("dspark-out").mkdir()
    Path("dspark-out/decode.metrics.json").write_text('{"spec": NaN}')


@pytest.mark.parametrize(
    "prepare",
    [nothing, no_artefacts, other_pair, damaged_profile, damaged_traces, damaged_metrics],
    ids=lambda f: f.__name__,
)
def test_what_cannot_be_reported_is_one_sentence_and_leaves_nothing(prepare, capsys):
    prepare()
    assert main(["report", "--json", "--quiet"]) == 1
    captured = capsys.readouterr()
    told = captured.err.splitlines()
    assert len(told) == 2 and told[0].startswith("dspark: ") and told[1].startswith("  ")
    assert "Traceback" not in captured.err
    assert json.loads(captured.out)["exit_code"] == 1
    assert not Path("dspark-out/report").exists()


@pytest.mark.parametrize("arguments", [["rn/nope"], ["--workdir", "rn/nope"]], ids=["named", "work directory"])
def test_a_folder_that_does_not_exist_is_a_usage_error(arguments, capsys):
    assert main(["report", *arguments]) == 2
    assert capsys.readouterr().err.endswith("dspark: rn/nope does not exist\n  Check the path.\n")


def test_an_output_that_is_no_folder_is_refused_before_anything_is_computed(capsys, monkeypatch):
    make_run(Path("dspark-out"), rounds=50)
    Path("taken").write_text("")
    monkeypatch.setattr(job, "make_report", None)
    assert main(["report", "--output", "taken"]) == 2
    assert "cannot create taken" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--seed", "-1"], ["--nonsense"]], ids=" ".join)
def test_usage_errors(arguments):
    assert main(["report", *arguments]) == 2


def test_an_interrupt_leaves_the_report_before(capsys, monkeypatch):
    make_run(Path("dspark-out"), rounds=50)
    Path("dspark-out/report").mkdir()
    Path("dspark-out/report/index.html").write_text("before")

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "make_report", interrupted)
    assert main(["report"]) == 130
    assert "still the one before" in capsys.readouterr().err
    assert Path("dspark-out/report/index.html").read_text() == "before"


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom dspark.cli.main import main\nassert main(['report', '--help']) == 0\n"
        "sys.exit(bool({'torch', 'numpy', 'matplotlib', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "profile.json" in done.stdout
