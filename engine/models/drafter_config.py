"""config.json of a drafter checkpoint: which format it is, and what it says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.engine.errors import CheckpointError
from dspark.engine.models.model_config import ModelConfig, read_json_object

ARCHITECTURE = "Qwen3DSparkModel"
MARKOV_HEAD_TYPES = ("vanilla", "gated", "rnn")
_PICK_ANOTHER = 'Use a checkpoint in the DeepSpec layout (`architectures: ["Qwen3DSparkModel"]`).'
_FETCH_AGAIN = "Fetch the checkpoint again, or correct its config.json."


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A DeepSpec checkpoint: a Qwen3 backbone and what DSpark adds to it."""

    backbone: ModelConfig
    block_size: int  # G, drafted tokens a block
    mask_token_id: int
    target_layer_ids: tuple[int, ...]  # -1 is the embedding output
    num_target_layers: int
    markov_rank: int  # 0: no Markov head (DFlash)
    markov_head_type: str | None  # None with rank 0
    enable_confidence_head: bool
    confidence_head_with_markov: bool

    @classmethod
    def from_folder(cls, folder: Path) -> DrafterConfig:
        """Read `folder`/config.json.

        Raises:
            CheckpointError: it cannot be read, is not a drafter, or is one of a format that is not supported.
        """
        return cls.from_dict(read_json_object(Path(folder) / "config.json"))

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> DrafterConfig:
        """Check a config.json that was read already."""
        _require_deepspec(raw)
        markov_rank = _whole_number(raw, "markov_rank", at_least=0)
        markov_head_type = raw.get("markov_head_type") or "vanilla" if markov_rank else None
        if markov_head_type is not None and markov_head_type not in MARKOV_HEAD_TYPES:
            raise CheckpointError(
                f"the drafter's Markov head type {markov_head_type!r} is not supported",
                f"Use a drafter whose `markov_head_type` is one of {', '.join(MARKOV_HEAD_TYPES)}.",
            )
        enable_confidence_head = bool(raw.get("enable_confidence_head", False))
        with_markov = enable_confidence_head and bool(raw.get("confidence_head_with_markov", False))
        if with_markov and not markov_rank:
            raise CheckpointError(
                "the drafter's config.json gives its confidence head a Markov part, but `markov_rank` is 0",
                _FETCH_AGAIN,
            )
        backbone = _backbone(raw)
        mask_token_id = _whole_number(raw, "mask_token_id", at_least=0)
        if mask_token_id >= backbone.vocab_size:
            raise CheckpointError(
                f"the drafter's `mask_token_id` is {mask_token_id}, outside its vocabulary of {backbone.vocab_size}",
                _FETCH_AGAIN,
            )
        return cls(
            backbone=backbone,
            block_size=_whole_number(raw, "block_size", at_least=1),
            mask_token_id=mask_token_id,
            target_layer_ids=_layer_ids(raw),
            num_target_layers=_whole_number(raw, "num_target_layers", at_least=1),
            markov_rank=markov_rank,
            markov_head_type=markov_head_type,
            enable_confidence_head=enable_confidence_head,
            confidence_head_with_markov=with_markov,
        )

    def check_target(self, target: ModelConfig) -> None:
        """Raise CheckpointError unless this drafter was made for a target of this shape."""
        remedy = "Use the drafter that was trained for this target, or the target that this drafter names."
        for what, mine, theirs in (
            ("a vocabulary of {}", self.backbone.vocab_size, target.vocab_size),
            ("hidden size {}", self.backbone.hidden_size, target.hidden_size),
            ("{} target layers", self.num_target_layers, target.num_layers),
        ):
            if mine != theirs:
                raise CheckpointError(f"the drafter expects {what.format(mine)}, but the target has {theirs}", remedy)
        unknown = [layer for layer in self.target_layer_ids if not -1 <= layer < target.num_layers]
        if unknown:
            raise CheckpointError(
                f"the drafter reads target layer {unknown[0]}, but the target's layers are 0 to {target.num_layers - 1}"
                " (and -1, the embedding output)",
                remedy,
            )


def _require_deepspec(raw: dict[str, Any]) -> None:
    if "speculators_model_type" in raw:
        raise CheckpointError(
            f"the drafter is in the speculators format (`speculators_model_type`: {raw['speculators_model_type']!r}), "
            "which is not supported",
            _PICK_ANOTHER,
        )
    if "dflash_config" in raw:
        raise CheckpointError(
            "the drafter is in the z-lab DFlash format (`dflash_config`), which is not supported", _PICK_ANOTHER
        )
    if ARCHITECTURE not in (raw.get("architectures") or []):
        raise CheckpointError(
            f'this is not a drafter: looked in config.json for `architectures: ["{ARCHITECTURE}"]` (DeepSpec), '
            "`speculators_model_type` (speculators) and `dflash_config` (z-lab DFlash), and found "
            f"`architectures: {json.dumps(raw.get('architectures'))}`",
            _PICK_ANOTHER,
        )


def _backbone(raw: dict[str, Any]) -> ModelConfig:
    # The authors' code applies no window in this format, whatever `layer_types` says, neither in training nor after it.
    windows = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")
    plain = {key: value for key, value in raw.items() if key not in windows}
    try:
        return ModelConfig.from_dict(plain | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"})
    except CheckpointError as error:
        raise CheckpointError(f"the drafter cannot be used: {error}", error.remedy) from None


def _whole_number(raw: dict[str, Any], name: str, *, at_least: int) -> int:
    value = raw.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        found = f"is {json.dumps(value)}" if name in raw else "is missing"
        raise CheckpointError(
            f"`{name}` in the drafter's config.json {found}; it must be a whole number of at least {at_least}",
            _FETCH_AGAIN,
        )
    return value


def _layer_ids(raw: dict[str, Any]) -> tuple[int, ...]:
    ids = raw.get("target_layer_ids")
    if not isinstance(ids, list) or not ids or any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise CheckpointError(
            f"`target_layer_ids` in the drafter's config.json is {json.dumps(ids)}, not a list of layer numbers",
            _FETCH_AGAIN,
        )
    return tuple(ids)
