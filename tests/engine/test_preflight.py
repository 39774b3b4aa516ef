"""What the configuration files rule out is refused without loading weights, and without torch."""

import shutil
import subprocess
import sys

import pytest
import torch
from fixture_engine import FIXTURES
from refusals import assert_reads_well

from dspark.engine.config import EngineConfig
from dspark.engine.errors import CheckpointError, UsageError
from dspark.engine.ngram.drafter import NgramDrafter
from dspark.engine.preflight import check_device, check_models

PAIR = FIXTURES / "dspark_rnn"


@pytest.fixture
def weightless(tmp_path):
    """The fixture pair's configuration files alone."""
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
        shutil.copy(PAIR / name / "config.json", tmp_path / name)
    return tmp_path


def test_a_draft_length_past_the_block_is_refused(weightless):
    check_models(EngineConfig(policy="fixed:7"), weightless / "target", weightless / "draft")
    with pytest.raises(UsageError, match="asks for 8 draft tokens, but this drafter proposes 7") as refused:
        check_models(EngineConfig(policy="fixed:8"), weightless / "target", weightless / "draft")
    assert_reads_well(refused.value)


@pytest.mark.parametrize(
    ("drafter", "why"),
    [(None, "nothing is drafted"), (NgramDrafter(), "n-gram drafts are looked up")],
    ids=["no-drafter", "ngram"],
)
def test_a_cut_of_no_distribution_is_refused(weightless, drafter, why):
    with pytest.raises(UsageError, match=f"draft_top_k is 4, and {why}") as refused:
        check_models(EngineConfig(draft_top_k=4), weightless / "target", drafter)
    assert_reads_well(refused.value)


def test_a_drafter_of_another_target_is_refused(weightless):
    config = (weightless / "target" / "config.json").read_text()
    (weightless / "target" / "config.json").write_text(config.replace('"vocab_size": 256', '"vocab_size": 300'))
    with pytest.raises(CheckpointError, match="expects a vocabulary of 256, but the target has 300"):
        check_models(EngineConfig(), weightless / "target", weightless / "draft")


def test_an_architecture_that_is_not_supported_is_refused(weightless):
    config = (weightless / "target" / "config.json").read_text()
    (weightless / "target" / "config.json").write_text(config.replace("ForCausalLM", "ForSomethingElse"))
    with pytest.raises(CheckpointError, match="ForSomethingElse"):
        check_models(EngineConfig(), weightless / "target", None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    check_device(EngineConfig(device="auto", dtype="int8"))
    with pytest.raises(UsageError, match=r"^device 'cuda' cannot be used") as refused:
        check_device(EngineConfig(device="cuda"))
    assert_reads_well(refused.value)


def test_a_format_that_the_device_does_not_run_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UsageError, match="int8 runs on the CPU only"):
        check_device(EngineConfig(dtype="int8"))


def test_models_are_checked_without_torch():
    code = (
        "import sys; from pathlib import Path; from dspark.engine.config import EngineConfig;"
        "from dspark.engine.preflight import check_models;"
        f"check_models(EngineConfig(), Path({str(PAIR / 'target')!r}), Path({str(PAIR / 'draft')!r}));"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
