"""What a run leaves on disk: the best drafter in the DeepSpec layout, and the state from which it goes on."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import save as safetensors_bytes

from dspark.engine.errors import UsageError
from dspark.engine.jobs import strict_json
from dspark.engine.jobs.atomic_file import replaced
from dspark.engine.jobs.run_header import differences
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.tensor_files import SINGLE_FILE
from dspark.engine.training.acceptance import Acceptance
from dspark.engine.training.draft_model import TrainableDrafter
from dspark.engine.training.optimizer import DraftOptimizer
from dspark.engine.training.output_folder import CONFIG_FILE, OutputFolder
from dspark.engine.training.shape import config_document
from dspark.engine.wording import first_line

CARD_FILE = "README.md"
_FORMAT = 1
_STORED = torch.bfloat16


@dataclass(slots=True)
class RunState:
    """Where a run stands. Batches are functions of seed and step, so this is all that it depends on."""

    step: int = 0
    elapsed_s: float = 0.0
    positions: int = 0
    best: Acceptance | None = None
    history: list[Acceptance] = field(default_factory=list)
    finished: bool = False


class RunFolder(OutputFolder):
    """An output folder, and how a run's drafter and state get into it."""

    def save_drafter(self, model: TrainableDrafter, *, num_anchors: int) -> None:
        """Write the drafter's config.json and weights, bf16, without embedding and head.

        Killed at any instant, this leaves the drafter before, the new one, or a folder without config.json, which
        nobody takes for a drafter.
        """
        description = config_document(model.config, num_anchors=num_anchors, dtype=str(_STORED).removeprefix("torch."))
        weights = {name: tensor.detach().to("cpu", _STORED).contiguous() for name, tensor in model.state_dict().items()}
        config, document = self.folder / CONFIG_FILE, strict_json.dumps(description, indent=1) + b"\n"
        # The inner one gets its name first.
        with replaced(config) as config_writer, replaced(self.folder / SINGLE_FILE) as weights_writer:
            config_writer.write(document)
            weights_writer.write(safetensors_bytes(weights, metadata={"format": "pt"}))
            # A full disk must show while the drafter before is still whole.
            for writer in (config_writer, weights_writer):
                writer.flush()
            if config.exists() and config.read_bytes() != document:
                config.unlink()

    def save_card(self, text: str) -> None:
        """Write the model card."""
        with replaced(self.folder / CARD_FILE) as writer:
            writer.write(text.encode())

    def save_best(self, acceptance: Acceptance) -> None:
        """Write what was measured of the drafter that is in the folder now."""
        with replaced(self.best_path) as writer:
            writer.write(strict_json.dumps(acceptance.to_dict(), indent=1) + b"\n")

    def save_state(
        self, state: RunState, model: TrainableDrafter, optimizer: DraftOptimizer, *, identity: Mapping[str, Any]
    ) -> None:
        """Replace the state of the run."""
        content = {
            "format": _FORMAT,
            # As JSON, like everything that runs are compared by.
            "identity": strict_json.dumps(dict(identity)).decode(),
            "step": state.step,
            "elapsed_s": state.elapsed_s,
            "positions": state.positions,
            "best": None if state.best is None else state.best.to_dict(),
            "history": [acceptance.to_dict() for acceptance in state.history],
            "finished": state.finished,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        buffer = io.BytesIO()
        torch.save(content, buffer)
        with replaced(self.state_path) as writer:
            writer.write(buffer.getbuffer())

    def load_state(
        self, model: TrainableDrafter, optimizer: DraftOptimizer, *, identity: Mapping[str, Any]
    ) -> RunState | None:
        """Take up the run of this folder; None if it has not come to training yet.

        Raises:
            UsageError: the state cannot be read, or is of another run.
        """
        if not self.state_path.exists():
            return None
        device = next(model.parameters()).device
        try:
            content = torch.load(self.state_path, map_location=device, weights_only=True)
        except Exception as error:  # the library raises nearly anything for a broken file
            raise UsageError(
                f"{self.state_path} cannot be read: {first_line(error)}", "Start again with --overwrite."
            ) from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise UsageError(f"{self.state_path} is no state of `dspark train`", "Start again with --overwrite.")
        different = differences(strict_json.loads(content["identity"]), identity)
        if different:
            raise UsageError(
                f"{self.folder} holds a run that differs in {'; '.join(different)}",
                "Resume with the settings of that run, or start again with --overwrite.",
            )
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        best = content["best"]
        return RunState(
            step=content["step"],
            elapsed_s=content["elapsed_s"],
            positions=content["positions"],
            best=None if best is None else Acceptance.from_dict(best),
            history=[Acceptance.from_dict(entry) for entry in content["history"]],
            finished=content["finished"],
        )


def num_parameters(model: TrainableDrafter) -> int:
    """Trained numbers."""
    return sum(parameter.numel() for parameter in model.parameters())


def describe(config: DrafterConfig) -> str:
    """A drafter's shape in a line."""
    markov = "no Markov head"
    if config.markov_head_type is not None:
        markov = f"Markov head {config.markov_head_type} of rank {config.markov_rank}"
    layers = config.backbone.num_layers
    plural = "layer" if layers == 1 else "layers"
    return f"{layers} {plural}, hidden {config.backbone.hidden_size}, block of {config.block_size}, {markov}"
