"""The command: what it writes for each engine, says, and refuses."""

from __future__ import annotations

import ast
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from profile_samples import make_profile

from dspark.calibration import Provenance, calibrate, make_traces, save_calibration
from dspark.cli.main import main
from dspark.profiles import ModelShape, save_profile

GAMMA = 7
WHO = Provenance("tiny", "tiny-drafter", "rejection", "0123", "4567")


def make_calibration(*, gamma: int = GAMMA, who: Provenance = WHO, temperature: float = 0.0):
    rng = np.random.default_rng(0)
    logits = rng.normal(1.0, 1.5, size=(4000, gamma))
    passed = rng.random(logits.shape) < 1 / (1 + np.exp(-logits))
    traces = make_traces(
        request=np.arange(4000) // 20,
        accepted=np.cumprod(passed, axis=1).sum(axis=1),
        confidence_logits=1.5 * logits,
        provenance=who,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
    )
    return calibrate(traces, "nll")


@pytest.fixture(scope="module")
def calibration():
    return make_calibration()


@pytest.fixture
def workplace(tmp_path, monkeypatch, calibration):
    """A folder with the artefacts of a profile and a calibration."""
    monkeypatch.chdir(tmp_path)
    save_profile(make_profile(), Path("dspark-out/profile.json"))
    save_calibration(calibration, Path("dspark-out/calibration.json"))
    return tmp_path


def written(name):
    return json.loads(Path("dspark-out/export", name).read_text())


def test_sglang(workplace, calibration, capsys):
    assert main(["export", "--to", "sglang"]) == 0
    assert written("sglang.sts.json")["temperatures"] == list(calibration.temperatures)
    assert written("sglang.sps.json")["max_batch_tokens"] == 32
    err = capsys.readouterr().err
    assert "SGLANG_RAGGED_VERIFY_MODE=compact" in err
    assert "--speculative-dspark-sps-table-path dspark-out/export/sglang.sps.json" in err
    assert "--speculative-dspark-confidence-sts-path dspark-out/export/sglang.sts.json" in err
    assert "whole round (target, draft, verification at temperature 0), behind 256 tokens of context" in err


def test_files_that_were_there_are_said_to_be_replaced(workplace, capsys):
    assert main(["export", "--to", "sglang"]) == 0
    assert "replaced" not in capsys.readouterr().err
    Path("dspark-out/export/sglang.sts.json").unlink()
    assert main(["export", "--to", "sglang"]) == 0
    rows = [line.split() for line in capsys.readouterr().err.splitlines() if line.startswith("│")]
    assert [(row[1], row[3]) for row in rows] == [
        ("replaced", "dspark-out/export/sglang.sps.json"),
        ("file", "dspark-out/export/sglang.sts.json"),
    ]


def test_tensorrt_llm(workplace, calibration, capsys):
    assert main(["export", "--to", "tensorrt-llm", "--scope", "target"]) == 0
    assert written("tensorrt-llm.sts.json")["sts_temperatures"] == list(calibration.temperatures)
    assert written("tensorrt-llm.cost.json")["batch_sizes"] == []
    err = capsys.readouterr().err
    assert "confidence_cost_table_path: dspark-out/export/tensorrt-llm.cost.json" in err
    assert "confidence_calibration_path: dspark-out/export/tensorrt-llm.sts.json" in err
    assert "target's forward alone" in err


def test_vllm(workplace, capsys):
    assert main(["export", "--to", "vllm", "--json"]) == 0
    captured = capsys.readouterr()
    config = written("vllm.speculative.json")
    table = config["num_speculative_tokens_per_batch_size"]
    assert config["num_speculative_tokens"] == GAMMA
    assert table[0][0] == 1
    assert all(0 <= length <= GAMMA for _, _, length in table)
    document = json.loads(captured.out)
    assert document["files"] == ["dspark-out/export/vllm.speculative.json"]
    assert document["settings"] == ['--speculative-config "$(cat dspark-out/export/vllm.speculative.json)"']
    assert "--speculative-config" in captured.err


def test_deepinfer(workplace, calibration):
    assert main(["export", "--to", "deepinfer", "-o", "elsewhere", "--quiet"]) == 0
    (words,) = [shlex.split(Path("elsewhere/deepinfer.env").read_text())]
    values = {name: ast.literal_eval(value) for name, _, value in (word.partition("=") for word in words)}
    sizes = [size for size, _ in values["DEEPINFER_MTP_DECODE_PERF_CURVE"]]
    assert sizes == sorted(set(sizes))
    np.testing.assert_allclose(
        values["DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE"], calibration.temperatures, rtol=1e-5
    )


def test_a_calibration_for_sampling_times_sampled_verification(workplace, capsys):
    assert main(["export", "--to", "sglang", "--quiet"]) == 0
    greedy = written("sglang.sps.json")["sample_steps_per_sec"]
    save_calibration(make_calibration(temperature=1.0), Path("dspark-out/calibration.json"))
    assert main(["export", "--to", "sglang"]) == 0
    sampled = written("sglang.sps.json")["sample_steps_per_sec"]
    assert max(sampled) < max(greedy)
    assert "at temperature 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "files", "sentence"),
    [
        ("profile.json", ["sglang.sts.json"], "There is no profile. Run `dspark profile`"),
        ("calibration.json", ["sglang.sps.json"], "There is no calibration. Run `dspark calibrate`"),
    ],
    ids=["no profile", "no calibration"],
)
def test_what_can_be_exported_is(workplace, capsys, missing, files, sentence):
    Path("dspark-out", missing).unlink()
    assert main(["export", "--to", "sglang"]) == 0
    assert sorted(path.name for path in Path("dspark-out/export").iterdir()) == files
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("artefact", ["profile.json", "calibration.json"])
def test_an_artefact_that_is_a_link_to_nowhere_is_refused_and_not_left_out(workplace, capsys, artefact):
    path = Path("dspark-out", artefact)
    path.unlink()
    path.symlink_to("nowhere")
    assert main(["export", "--to", "sglang"]) == 1
    assert f"{path} cannot be read: No such file" in capsys.readouterr().err
    assert not Path("dspark-out/export").exists()


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "vllm", "deepinfer"])
def test_nothing_to_export_says_what_to_run(tmp_path, monkeypatch, capsys, engine):
    monkeypatch.chdir(tmp_path)
    assert main(["export", "--to", engine]) == 2
    err = capsys.readouterr().err
    assert f"there is nothing to export for {engine}" in err
    assert "Run `dspark profile`" in err
    assert "Run `dspark calibrate`" in err
    assert not Path("dspark-out/export").exists()


def test_vllm_needs_both(workplace, capsys):
    Path("dspark-out/calibration.json").unlink()
    assert main(["export", "--to", "vllm"]) == 2
    assert "There is no calibration. Run `dspark calibrate`" in capsys.readouterr().err


def other_length():
    save_calibration(make_calibration(gamma=3), Path("dspark-out/calibration.json"))


def other_target():
    save_profile(make_profile(target=ModelShape("big", "9999", {})), Path("dspark-out/profile.json"))


def other_drafter():
    save_profile(make_profile(drafter=ModelShape("big", "9999", {})), Path("dspark-out/profile.json"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (other_length, "the profile is for blocks of 7 drafted tokens and the calibration for 3"),
        (other_target, "the profile and the calibration are of different targets"),
        (other_drafter, "the profile and the calibration are of different drafters"),
    ],
    ids=["draft length", "target", "drafter"],
)
def test_artefacts_of_two_pairs_are_refused(workplace, capsys, change, sentence):
    change()
    assert main(["export", "--to", "sglang"]) == 1
    assert sentence in capsys.readouterr().err


def test_random_weights_cannot_be_compared_and_that_is_said(workplace, capsys):
    save_profile(make_profile(target=ModelShape("shape", None, {})), Path("dspark-out/profile.json"))
    assert main(["export", "--to", "sglang"]) == 0
    assert "are of one target cannot be told" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([], 2, "export needs --to\n  Choose one of: sglang, tensorrt-llm, vllm, deepinfer."),
        (["--to", "llama.cpp"], 2, "--to is 'llama.cpp'"),
        (["--to", "sglang", "--scope", "draft"], 2, "--scope is 'draft'"),
        (
            ["--to", "sglang", "--profile", "none.json"],
            1,
            "none.json is neither a file nor one of the shipped",
        ),
        (["--to", "sglang", "--calibration", "dspark-out/profile.json"], 1, "is no calibration"),
        (["--to", "sglang", "--output", "dspark-out/profile.json"], 2, "cannot create dspark-out/profile.json"),
    ],
    ids=["no engine", "unknown engine", "unknown scope", "no such profile", "no calibration", "no folder"],
)
def test_usage(workplace, capsys, arguments, code, sentence):
    assert main(["export", *arguments]) == code
    assert sentence in capsys.readouterr().err
