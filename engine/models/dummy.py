"""Targets and drafters of any supported shape with random weights, to time shapes with no checkpoint at hand."""

from __future__ import annotations

import importlib.resources
import json
from dataclasses import replace
from pathlib import Path

import torch

from dspark.engine.errors import UnknownModelError
from dspark.engine.models.aliases import NO_DRAFTER
from dspark.engine.models.drafter import Drafter
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.layers import WeightFormat
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.models.target import Target
from dspark.engine.models.weights import RandomWeights

_FEATURE_LAYERS = 5
# Of the released drafters for Qwen3 and of the built-in one: (layers, Markov rank).
_DRAFTERS = {"qwen3": (5, 256), "smollm2": (3, 64)}
_BLOCK_SIZE = 7


def named_shapes() -> list[str]:
    """Shapes that come with the package."""
    folder = importlib.resources.files("dspark.engine.models").joinpath("shapes")
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


def dummy_target(spec: str, *, device: torch.device, dtype: str) -> Target:
    """`spec`: one of `named_shapes()`, or a folder with a config.json.

    Raises:
        CheckpointError: it is neither (an UnknownModelError), or the model is not supported.
    """
    return Target.from_config(_config_of(spec), device=device, dtype=dtype)


def dummy_drafter(spec: str | None, *, target: Target, device: torch.device, dtype: str) -> Drafter | None:
    """A drafter for `target`: of the folder `spec`'s shape if it is one, else of a shape derived from the target's."""
    if spec == NO_DRAFTER:
        return None
    if spec is not None and (Path(spec).expanduser() / "config.json").is_file():
        config = DrafterConfig.from_folder(Path(spec).expanduser())
        config.check_target(target.config)
    else:
        config = derived_drafter_config(target.config)
    # Released drafters repeat the target's embedding and head, which are then shared. A reduced head is their own.
    absent = {"embed_tokens.weight", "t2d"}
    if config.head_vocab_size == config.backbone.vocab_size:
        absent |= {"lm_head.weight", "d2t"}
    weights = RandomWeights(1, device, absent=frozenset(absent))
    return Drafter(config, weights, WeightFormat.of(dtype, device), target=target)


def derived_drafter_config(target: ModelConfig) -> DrafterConfig:
    """The shape that a released drafter for such a target has."""
    layers, rank = _DRAFTERS["qwen3" if target.qk_norm else "smollm2"]
    # Evenly from the second layer to the third from the end, as far as there are so many.
    last = max(target.num_layers - 3, 0)
    first = min(1, last)
    count = min(_FEATURE_LAYERS, last - first + 1)
    features = [first + round(i * (last - first) / max(count - 1, 1)) for i in range(count)]
    return DrafterConfig(
        backbone=replace(
            target,
            architecture="Qwen3ForCausalLM",
            num_layers=layers,
            qkv_bias=False,
            output_bias=False,
            mlp_bias=False,
            qk_norm=True,
            tie_word_embeddings=False,
        ),
        block_size=_BLOCK_SIZE,
        mask_token_id=target.vocab_size - 1,
        target_layer_ids=tuple(features),
        num_target_layers=target.num_layers,
        markov_rank=rank,
        markov_head_type="vanilla",
        enable_confidence_head=True,
        confidence_head_with_markov=True,
    )


def _config_of(spec: str) -> ModelConfig:
    names = named_shapes()
    if spec in names:
        text = importlib.resources.files("dspark.engine.models").joinpath("shapes", f"{spec}.json").read_text("utf-8")
        return ModelConfig.from_dict(json.loads(text))
    folder = Path(spec).expanduser()
    if folder.is_dir():
        return ModelConfig.from_folder(folder)
    raise UnknownModelError(
        f"`{spec}` is no shape that random weights can be made for",
        f"Give a folder with a config.json, or one of: {', '.join(names)}.",
    )
