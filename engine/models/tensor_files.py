"""Which tensors a checkpoint folder holds, from headers alone: no weight is read, and torch is not imported."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from dspark.engine.errors import CheckpointError
from dspark.engine.models.model_config import read_json_object
from dspark.engine.wording import first_line

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
DOWNLOAD_AGAIN = "Download the checkpoint again; a copy may have been interrupted."
SAME_CHECKPOINT = "Take config.json and weights from the same checkpoint."
FLOATS = "float32, bfloat16 or float16"
WHOLE_NUMBERS = "which it is a tensor of whole numbers"
# What either may be stored as, as safetensors spells it. Narrower floats need scales, which nobody reads here.
FLOAT_DTYPES = ("F16", "BF16", "F32", "F64")
WHOLE_DTYPES = ("BOOL", "I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")
_MOST_NAMES = 3
_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2}
_BYTES |= {"I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8}


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What a safetensors file says of a tensor before its bytes."""

    dtype: str  # as safetensors spells it: F32, BF16, I64, BOOL, ...
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Numbers that the tensor holds."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes."""
        return self.elements * _BYTES.get(self.dtype, 1)


def read_headers(folder: Path) -> dict[str, TensorHeader]:
    """Dtype and shape of every tensor in a folder.

    Raises:
        CheckpointError: there are no safetensors files, or they cannot be read.
    """
    files = file_of_each_tensor(folder)
    headers: dict[str, TensorHeader] = {}
    for path in sorted(set(files.values())):
        try:
            with safe_open(path, framework="np") as file:
                stored = set(file.keys())
                for name in sorted(name for name, place in files.items() if place == path and name in stored):
                    piece = file.get_slice(name)
                    headers[name] = TensorHeader(str(piece.get_dtype()), tuple(piece.get_shape()))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {first_line(error)}", DOWNLOAD_AGAIN) from error
    return headers


def missing_tensor(folder: Path | str, name: str) -> CheckpointError:
    """The refusal of a checkpoint without tensor `name`."""
    return CheckpointError(f"{folder} has no tensor {name}, which its config.json asks for", DOWNLOAD_AGAIN)


def wrong_shape(name: str, found: Iterable[int], expected: Iterable[int]) -> CheckpointError:
    """The refusal of a tensor that is not of the shape that its config.json asks for."""
    return CheckpointError(
        f"tensor {name} has shape {list(found)}, but config.json implies {list(expected)}", SAME_CHECKPOINT
    )


def wrong_dtype(name: str, dtype: str, wanted: str) -> CheckpointError:
    """The refusal of a tensor in a number format that is not read; `wanted`: those that are."""
    return CheckpointError(f"tensor {name} is stored as {dtype}", f"Use a checkpoint in {wanted}.")


def left_over(folder: Path | str, names: Iterable[str]) -> CheckpointError | None:
    """The refusal of tensors that nobody has a use for, without which it would be another model; None if all have."""
    # Derived from config.json; old checkpoints store them nevertheless.
    unread = sorted(name for name in names if not name.endswith("rotary_emb.inv_freq"))
    if not unread:
        return None
    shown = ", ".join(unread[:_MOST_NAMES])
    more = f" and {len(unread) - _MOST_NAMES} more" if len(unread) > _MOST_NAMES else ""
    return CheckpointError(
        f"{folder} holds tensors that its config.json has no use for: {shown}{more}", SAME_CHECKPOINT
    )


def file_of_each_tensor(folder: Path) -> dict[str, Path]:
    """Tensor names of a folder, single or sharded, and the file that each is in.

    Raises:
        CheckpointError: there are no such files, or they cannot be read.
    """
    if (folder / INDEX_FILE).is_file():
        files = indexed_files(folder)
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
        with safe_open(path, framework="np") as file:
            return dict.fromkeys(file.keys(), path)
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {first_line(error)}", DOWNLOAD_AGAIN) from error


def indexed_files(folder: Path) -> dict[str, str]:
    """Tensor names and file names of a sharded checkpoint, by its index; none if there is no index.

    Raises:
        CheckpointError: the index cannot be read.
    """
    if not (folder / INDEX_FILE).is_file():
        return {}
    files = read_json_object(folder / INDEX_FILE).get("weight_map")
    if not isinstance(files, dict):
        raise CheckpointError(f"{folder / INDEX_FILE} has no weight_map", DOWNLOAD_AGAIN)
    if not all(isinstance(file, str) and file.endswith(".safetensors") and len(file) < 256 for file in files.values()):
        raise CheckpointError(
            f"the weight_map of {folder / INDEX_FILE} does not name a safetensors file for each tensor", DOWNLOAD_AGAIN
        )
    return files
