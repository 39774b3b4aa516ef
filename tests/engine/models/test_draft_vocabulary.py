"""Reduced vocabularies that must not load, each with its sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from draft_pair import FIXTURES, copy_drafter
from refusals import assert_reads_well
from safetensors.torch import load_file

from dspark.engine.errors import CheckpointError
from dspark.engine.models.drafter import Drafter
from dspark.engine.models.target import Target

SOURCE = FIXTURES / "spec_dspark_d2t"
CPU = torch.device("cpu")
OFFSETS = load_file(SOURCE / "draft" / "model.safetensors")["d2t"]


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(SOURCE / "target", device=CPU, dtype="float32")


def changed(index: int, offset: int) -> torch.Tensor:
    return OFFSETS.index_fill(0, torch.tensor([index]), offset)


@pytest.mark.parametrize(
    ("config", "tensors", "drop", "sentence"),
    [
        ({}, {}, ["d2t"], "has no tensor d2t"),
        ({}, {}, ["lm_head.weight"], "has no tensor lm_head.weight"),
        ({}, {"d2t": torch.zeros(149, dtype=torch.int64)}, [], r"d2t has shape \[149\].*implies \[150\]"),
        ({}, {"d2t": torch.zeros(150)}, [], "d2t is stored as F32"),
        ({}, {"d2t": changed(149, 200)}, ["t2d"], "d2t leads to token 0 to 349, outside the vocabulary of 256"),
        ({}, {"d2t": changed(0, -1)}, ["t2d"], "d2t leads to token -1 to"),
        ({}, {"d2t": changed(3, int(OFFSETS[4]) + 1)}, ["t2d"], "same token from several rows"),
        ({}, {"t2d": torch.ones(256, dtype=torch.bool)}, [], "d2t and t2d disagree"),
        ({}, {"t2d": torch.ones(150, dtype=torch.bool)}, [], r"t2d has shape \[150\]"),
        ({"draft_vocab_size": 140}, {}, [], r"has shape \[150\S*.*implies \[140"),
        ({"draft_vocab_size": None}, {}, [], r"has shape \[150, 64\].*implies \[256, 64\]"),
        ({}, {"lm_head.weight": torch.zeros(256, 64)}, [], r"lm_head.weight has shape \[256, 64\].*\[150, 64\]"),
        ({}, {"markov_head.markov_w1.weight": torch.zeros(150, 16)}, [], r"markov_w1.weight has shape \[150, 16\]"),
        ({}, {"midlayer.weight": torch.zeros(3)}, [], "no use for: midlayer.weight$"),
    ],
    ids=[
        "no-offsets",
        "no-head",
        "offsets-shape",
        "offsets-of-floats",
        "past-the-vocabulary",
        "before-the-vocabulary",
        "twice",
        "marks-differ",
        "marks-shape",
        "other-size",
        "no-size",
        "whole-head",
        "reduced-w1",
        "left-over",
    ],
)
def test_refuses(
    tmp_path: Path,
    target: Target,
    config: dict[str, object],
    tensors: dict[str, torch.Tensor],
    drop: list[str],
    sentence: str,
) -> None:
    folder = copy_drafter(SOURCE / "draft", tmp_path, config=config, tensors=tensors, drop=drop)
    with pytest.raises(CheckpointError, match=sentence) as failure:
        Drafter.load(folder, target=target, device=CPU, dtype="float32")
    assert_reads_well(failure.value)


def test_what_only_training_needs_may_be_there(tmp_path: Path, target: Target) -> None:
    extra = {"verifier_lm_head.weight": torch.zeros(150, 64), "verifier_norm.weight": torch.zeros(64)}
    folder = copy_drafter(SOURCE / "draft", tmp_path, tensors=extra, drop=["t2d", "embed_tokens.weight"])
    drafter = Drafter.load(folder, target=target, device=CPU, dtype="float32")
    assert drafter.embed is target.embed
    assert drafter.vocabulary is not None and len(drafter.vocabulary.ids) == 150


def test_a_zlab_drafter_brings_no_vocabulary(tmp_path: Path) -> None:
    source = FIXTURES / "zlab_dflash"
    target = Target.load(source / "target", device=CPU, dtype="float32")
    drafter = Drafter.load(source / "draft", target=target, device=CPU, dtype="float32")
    assert drafter.embed is target.embed and drafter.head is target.head
    folder = copy_drafter(source / "draft", tmp_path, tensors={"lm_head.weight": torch.zeros(256, 64)})
    with pytest.raises(CheckpointError, match=r"no use for: lm_head\.weight$"):
        Drafter.load(folder, target=target, device=CPU, dtype="float32")
