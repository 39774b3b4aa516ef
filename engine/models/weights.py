"""Tensors of a checkpoint folder, read one by one and checked."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dspark.engine.errors import CheckpointError
from dspark.engine.models.tensor_files import (
    DOWNLOAD_AGAIN,
    FLOAT_DTYPES,
    FLOATS,
    WHOLE_DTYPES,
    WHOLE_NUMBERS,
    file_of_each_tensor,
    left_over,
    missing_tensor,
    wrong_dtype,
    wrong_shape,
)
from dspark.engine.wording import first_line


class Checkpoint:
    """The safetensors files of a folder, single or sharded; remembers which tensors nobody has read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = file_of_each_tensor(folder)
        self._unread = set(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor on the CPU in its stored dtype, as a view of the file that lives as long as the tensor does."""
        tensor = self._get(name, shape, FLOAT_DTYPES, FLOATS)
        # A sum shows every NaN and infinity at a fraction of the price; only one that overflows needs the closer look.
        if not tensor.sum().isfinite() and not tensor.isfinite().all():
            raise CheckpointError(f"tensor {name} holds values that are not finite (NaN or infinity)", DOWNLOAD_AGAIN)
        self._unread.discard(name)
        return tensor

    def read_ids(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of whole numbers or truth values, as int64."""
        tensor = self._get(name, shape, WHOLE_DTYPES, WHOLE_NUMBERS)
        self._unread.discard(name)
        return tensor.long()

    def refuse_unread(self, *, unused: frozenset[str] = frozenset()) -> None:
        """Raise CheckpointError for tensors that nobody has read: without them it would be another model.

        unused: names that only training has a use for.
        """
        refusal = left_over(self.folder, self._unread - unused)
        if refusal is not None:
            raise refusal

    def _get(self, name: str, shape: tuple[int, ...], dtypes: Container[str], wanted: str) -> Tensor:
        path = self._files.get(name)
        if path is None:
            raise missing_tensor(self.folder, name)
        # One mapping a tensor: the pages that were read leave memory with it instead of adding up to the whole file.
        try:
            with safe_open(path, framework="pt") as file:
                stored = file.get_slice(name)
                found, dtype = tuple(stored.get_shape()), str(stored.get_dtype())
                if found != shape:
                    raise wrong_shape(name, found, shape)
                if dtype not in dtypes:
                    raise wrong_dtype(name, dtype, wanted)
                tensor: Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {first_line(error)}", DOWNLOAD_AGAIN) from error
        return tensor


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

    def read_ids(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Zeros: offsets by which every id stays what it is."""
        return torch.zeros(shape, dtype=torch.int64, device=self._device)
