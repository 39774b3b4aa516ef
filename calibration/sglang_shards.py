"""SGLang's confidence traces: `torch.save({"logits": [n, G], "prefix_mask": [n, G]})`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dspark.calibration.errors import CalibrationError
from dspark.calibration.traces import Traces, make_traces

# The shards name no request. Neighbouring rows may belong to one, so they go to the fit or the hold-out together.
_ROWS_TOGETHER = 64
_FEWEST_GROUPS = 20


def read_sglang_shard(path: Path) -> Traces:
    """One `.pt` shard; every block in it was verified in full, and prefix_mask marks the accepted prefix.

    Raises:
        CalibrationError: it is no such file.
    """
    logits, prefix_mask = _load(path)
    if logits.ndim != 2 or logits.shape != prefix_mask.shape:
        raise CalibrationError(
            f"{path}: `logits` {logits.shape} and `prefix_mask` {prefix_mask.shape} are not both of one shape [n, G]",
            "Record the shard again.",
        )
    if not np.isin(prefix_mask, (0, 1)).all() or (np.diff(prefix_mask, axis=1) > 0).any():
        raise CalibrationError(
            f"{path}: a row of `prefix_mask` is not ones followed by zeros", "A prefix that was accepted has no gaps."
        )
    rows = len(logits)
    together = int(np.clip(rows // _FEWEST_GROUPS, 1, _ROWS_TOGETHER))
    return make_traces(
        request=np.arange(rows) // together,
        accepted=prefix_mask.sum(axis=1, dtype=np.int64),
        confidence_logits=logits,
        requests_known=False,
        source=str(path),
    )


def _load(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    import pickle

    import torch

    try:
        shard: Any = torch.load(path, map_location="cpu", weights_only=True)
        return shard["logits"].float().numpy(), shard["prefix_mask"].to(torch.int8).numpy()
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, TypeError, AttributeError, ValueError):
        raise CalibrationError(
            f"{path} is no SGLang trace shard: it should hold the tensors `logits` and `prefix_mask`",
            "Name shards that SGLang wrote; a file that would run code is not opened.",
        ) from None
