"""Drafter folders of the speculators format in every form, with random heads on a fixture's backbone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from draft_pair import FIXTURES, copy_drafter
from safetensors.torch import load_file

SOURCE = FIXTURES / "spec_dspark_d2t"
VOCAB, HIDDEN, RANK, GAMMA = 256, 64, 16, 6
SOME = torch.arange(0, VOCAB, 3)
SHUFFLED = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(0))[:90]
VARIANTS: dict[str, dict[str, Any]] = {
    "anchor-gated-window": {"head": "gated", "ids": SOME, "window": 5},
    "anchor-rnn-window-not-causal": {"head": "rnn", "ids": SOME, "window": 5, "causal": False},
    "anchor-vanilla-window-past-the-context": {"ids": SOME, "window": 4096},
    "masks-vanilla": {"anchor": False, "ids": SOME},
    "masks-gated-window": {"anchor": False, "head": "gated", "ids": SOME, "window": 3},
    "masks-rnn": {"anchor": False, "head": "rnn", "confidence": "hidden"},
    "masks-rnn-window-not-causal": {"anchor": False, "head": "rnn", "window": 1, "causal": False, "confidence": None},
    "dspark-without-heads": {"head": None, "confidence": None},
    "dflash": {"type": "dflash", "head": None, "confidence": None, "ids": SOME},
    "dflash-window": {"type": "dflash", "head": None, "confidence": None, "window": 5},
    "dflash-from-the-anchor": {"type": "dflash", "head": None, "confidence": None, "anchor": True},
    "whole-vocabulary-of-the-target": {"own_vocabulary": False},
    "unordered-vocabulary": {"head": "rnn", "ids": SHUFFLED},
    "unordered-whole-vocabulary": {"ids": torch.arange(VOCAB).flip(0)},
    "embedding-output-as-a-feature": {"aux": (0, 2, 6)},
}


def write_drafter(
    folder: Path,
    *,
    type: str = "dspark",
    head: str | None = "vanilla",
    anchor: bool | None = None,
    ids: torch.Tensor | None = None,
    window: int | None = None,
    causal: bool = True,
    confidence: str | None = "with_markov",
    own_vocabulary: bool = True,
    aux: tuple[int, ...] = (1, 3, 5),
) -> Path:
    """The fixture's backbone with heads, block, window and vocabulary of another kind. Drafts GAMMA tokens a block."""
    generator = torch.Generator().manual_seed(4)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    rows = VOCAB if ids is None else len(ids)
    samples_anchor = type == "dspark" if anchor is None else anchor
    tensors = {"lm_head.weight": normal(rows, HIDDEN)}
    drop = [name for name in load_file(SOURCE / "draft" / "model.safetensors") if "_head." in name and "lm" not in name]
    if ids is None:
        drop += ["d2t", "t2d"]
    else:
        tensors["d2t"] = ids - torch.arange(rows)
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    if not own_vocabulary:
        del tensors["lm_head.weight"]
        drop += ["lm_head.weight", "embed_tokens.weight"]
    if head is not None:
        tensors["markov_head.markov_w1.weight"] = normal(VOCAB, RANK)
        tensors["markov_head.markov_w2.weight"] = normal(rows, RANK)
    if head == "gated":
        tensors |= {"markov_head.gate_proj.weight": normal(RANK, HIDDEN + RANK)}
        tensors |= {"markov_head.gate_proj.bias": normal(RANK)}
    if head == "rnn":
        tensors |= {"markov_head.joint_proj.weight": normal(3 * RANK, 2 * RANK + HIDDEN)}
        tensors |= {"markov_head.joint_proj.bias": normal(3 * RANK)}
    if confidence is not None:
        tensors["confidence_head.proj.weight"] = normal(1, HIDDEN + (RANK if confidence == "with_markov" else 0))
        tensors["confidence_head.proj.bias"] = normal(1)
    layer = json.loads((SOURCE / "draft" / "config.json").read_text())["transformer_layer_config"]
    kinds = ["full_attention", "full_attention" if window is None else "sliding_attention"]
    layer |= {"layer_types": kinds, "sliding_window": window, "use_sliding_window": window is not None}
    config = {
        "speculators_model_type": type,
        "sample_from_anchor": anchor,
        "block_size": GAMMA + (0 if samples_anchor else 1),
        "draft_vocab_size": rows,
        "sliding_window_non_causal": not causal,
        "aux_hidden_state_layer_ids": list(aux),
        "markov_rank": RANK if head else 0,
        "markov_head_type": head,
        "enable_confidence_head": confidence is not None,
        "confidence_head_with_markov": confidence == "with_markov",
        "transformer_layer_config": layer,
    }
    if type == "dflash":
        config |= dict.fromkeys(("markov_rank", "markov_head_type", "enable_confidence_head"))
        config["confidence_head_with_markov"] = None
    drop = [name for name in drop if name not in tensors]
    return copy_drafter(SOURCE / "draft", folder, config=config, tensors=tensors, drop=drop)
