"""Tensors of a checkpoint folder, read one by one and checked."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dspark.engine.errors import CheckpointError
from dspark.engine.models.model_config import read_json_object
from dspark.engine.wording import first_line

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
DOWNLOAD_AGAIN = "Download the checkpoint again; a copy may have been interrupted."
SAME_CHECKPOINT = "Take config.json and weights from the same checkpoint."
_MOST_NAMES = 3


class Checkpoint:
    """The safetensors files of a folder, single or sharded; remembers which tensors nobody has read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = _file_of_each_tensor(folder)
        self._unread = set(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor on the CPU in its stored dtype, as a view of the file that lives as long as the tensor does."""
        path = self._files.get(name)
        if path is None:
            raise CheckpointError(f"{self.folder} has no tensor {name}, which its config.json asks for", DOWNLOAD_AGAIN)
        # One mapping a tensor: the pages that were read leave memory with it instead of adding up to the whole file.
        try:
            with safe_open(path, framework="pt") as file:
                tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {first_line(error)}", DOWNLOAD_AGAIN) from error
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"tensor {name} has shape {list(tensor.shape)}, but config.json implies {list(shape)}", SAME_CHECKPOINT
            )
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise CheckpointError(
                f"tensor {name} is stored as {tensor.dtype}", "Use a checkpoint in float32, bfloat16 or float16."
            )
        self._unread.discard(name)
        return tensor

    def refuse_unread(self) -> None:
        """Raise CheckpointError for tensors that nobody has read: without them it would be another model."""
        # Derived from config.json; old checkpoints store them nevertheless.
        unread = sorted(name for name in self._unread if not name.endswith("rotary_emb.inv_freq"))
        if unread:
            shown = ", ".join(unread[:_MOST_NAMES])
            more = f" and {len(unread) - _MOST_NAMES} more" if len(unread) > _MOST_NAMES else ""
            raise CheckpointError(
                f"{self.folder} holds tensors that its config.json has no use for: {shown}{more}", SAME_CHECKPOINT
            )


class RandomWeights:
    """Stands in for a checkpoint: every tensor drawn from one seed, for shapes whose weights are not at hand."""

    def __init__(self, seed: int, device: torch.device | str = "cpu", *, absent: frozenset[str] = frozenset()) -> None:
        self._device = torch.device(device)
        # On the device itself: a CPU takes minutes for the numbers of a large model.
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._absent = absent

    def __contains__(self, name: str) -> bool:
        return name not in self._absent

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Norm weights 1, everything else normal with deviation 0.02."""
        if name.endswith("norm.weight"):
            return torch.ones(shape, device=self._device)
        return torch.empty(shape, device=self._device).normal_(std=0.02, generator=self._generator)


def _file_of_each_tensor(folder: Path) -> dict[str, Path]:
    if (folder / INDEX_FILE).is_file():
        files = read_json_object(folder / INDEX_FILE).get("weight_map")
        if not isinstance(files, dict):
            raise CheckpointError(f"{folder / INDEX_FILE} has no weight_map", DOWNLOAD_AGAIN)
        absent = sorted({file for file in files.values() if not (folder / file).is_file()})
        if absent:
            raise CheckpointError(f"{folder} lacks {', '.join(absent)}, which its index names", DOWNLOAD_AGAIN)
        return {name: folder / file for name, file in files.items()}
    path = folder / SINGLE_FILE
    if not path.is_file():
        raise CheckpointError(
            f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}",
            "Only safetensors weights are read; load others in transformers and `save_pretrained` them.",
        )
    try:
        with safe_open(path, framework="pt") as file:
            return dict.fromkeys(file.keys(), path)
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {first_line(error)}", DOWNLOAD_AGAIN) from error
