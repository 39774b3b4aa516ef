"""config.json of a drafter checkpoint, of whichever format: what it says, and which target it was made for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.engine.models.drafter_formats import DraftFormat, DraftWindow, read_fields
from dspark.engine.models.model_config import ModelConfig, read_json_object
from dspark.engine.models.refusals import Refusals


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A Qwen3 backbone and what DFlash and DSpark add to it; `DraftFormat` lists the formats."""

    backbone: ModelConfig
    block_size: int  # G, drafted tokens a block
    mask_token_id: int
    target_layer_ids: tuple[int, ...]  # -1 is the embedding output
    num_target_layers: int | None  # None: the checkpoint does not say
    markov_rank: int  # 0: no Markov head (DFlash)
    markov_head_type: str | None  # None with rank 0
    enable_confidence_head: bool
    confidence_head_with_markov: bool
    format: DraftFormat = DraftFormat.DEEPSPEC
    # The anchor's own slot drafts the first token; else each mask slot drafts the token at its own position.
    samples_anchor: bool = True
    draft_vocab_size: int | None = None  # Vd; None: the target's own vocabulary
    window: DraftWindow | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> DrafterConfig:
        """Read `folder`/config.json.

        Raises:
            CheckpointError: it cannot be read, is not a drafter, or is one of a kind that is not supported.
        """
        return cls.from_dict(read_json_object(Path(folder) / "config.json"))

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> DrafterConfig:
        """Check a config.json that was read already."""
        refusals = Refusals()
        config = cls.read(raw, refusals)
        refusals.raise_first()
        assert config is not None, "a config without a refusal is one that can be read"
        return config

    @classmethod
    def read(cls, raw: dict[str, Any], refusals: Refusals) -> DrafterConfig | None:
        """As `from_dict`, but refusals are gathered. None if they leave open which tensors there have to be."""
        fields = read_fields(raw, refusals)
        return None if fields is None else cls(**fields)

    @property
    def block_width(self) -> int:
        """Slots of a block: the anchor and its masks."""
        return self.block_size + (0 if self.samples_anchor else 1)

    @property
    def head_vocab_size(self) -> int:
        """Rows of the head and of W2: token ids that can be drafted (Vd)."""
        return self.draft_vocab_size or self.backbone.vocab_size

    def check_target(self, target: ModelConfig) -> None:
        """Raise CheckpointError unless this drafter was made for a target of this shape."""
        remedy = "Use the drafter that was trained for this target, or the target that this drafter names."
        refusals = Refusals()
        for what, mine, theirs in (
            ("a vocabulary of {}", self.backbone.vocab_size, target.vocab_size),
            ("hidden size {}", self.backbone.hidden_size, target.hidden_size),
            ("{} target layers", self.num_target_layers, target.num_layers),
        ):
            if mine is not None and mine != theirs:
                refusals.add(f"the drafter expects {what.format(mine)}, but the target has {theirs}", remedy)
        for layer in self.target_layer_ids:
            if not -1 <= layer < target.num_layers:
                refusals.add(
                    f"the drafter reads target layer {layer}, but the target's layers are 0 to {target.num_layers - 1}"
                    " (and -1, the embedding output)",
                    remedy,
                )
        refusals.raise_first()
