"""Which device and which number format a configuration means here."""

from __future__ import annotations

import torch

from dspark.engine.errors import UsageError


def choose_device(name: str) -> torch.device:
    """`auto` is a GPU if there is one.

    Raises:
        UsageError: a GPU is asked for where there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "device 'cuda' cannot be used: PyTorch finds no CUDA device here",
            "Leave --device out, or give --device cpu.",
        )
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> str:
    """`auto` is bfloat16 on a GPU and float32 elsewhere."""
    if name != "auto":
        return name
    return "bfloat16" if device.type == "cuda" else "float32"
