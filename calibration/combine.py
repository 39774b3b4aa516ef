"""Traces of several files as one, and one as a fit and a hold-out half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dspark.calibration.errors import CalibrationError
from dspark.calibration.traces import Categories, Provenance, Traces


def concatenate(parts: Sequence[Traces], *, names: Sequence[str]) -> Traces:
    """Traces of several runs as one; `names` (of the files) are for the sentence of an error.

    Rounds of different parts are never the same round, even with equal request numbers: two runs of one input keep
    their numbers, so that a request lies in the fit or in the hold-out, never in both. Row runs that only stand in for
    requests are numbered on.

    Raises:
        CalibrationError: nothing given, draft lengths or pairs differ, or a round was given twice.
    """
    if not parts:
        raise CalibrationError("no traces were given", "Name at least one trace file.")
    first = parts[0]
    for part, name in zip(parts, names, strict=True):
        if part.gamma != first.gamma:
            raise CalibrationError(
                f"{names[0]} has {first.gamma} draft positions and {name} has {part.gamma}",
                "Calibrate one draft length at a time.",
            )
    if len(parts) == 1:
        return first
    requests_known = all(part.requests_known for part in parts)
    requests: list[NDArray[np.int64]] = []
    offset = 0
    for part in parts:
        requests.append(part.request if requests_known else part.request - part.request.min(initial=0) + offset)
        offset = int(requests[-1].max(initial=offset - 1)) + 1
    _check_repeats(parts, names)
    arrays = {
        column.name: np.concatenate([getattr(part, column.name) for part in parts])
        for column in fields(Traces)
        if isinstance(getattr(first, column.name), np.ndarray)
    }
    arrays["request"] = np.concatenate(requests)
    shared = set.intersection(*(set(part.signals) for part in parts))
    return Traces(
        **arrays,
        policy=_joined([part.policy for part in parts]),
        dataset=_joined([part.dataset for part in parts]),
        signals={name: np.concatenate([part.signals[name] for part in parts]) for name in sorted(shared)},
        provenance=_common_provenance(parts, names),
        requests_known=requests_known,
    )


def split_by_request(traces: Traces, *, holdout: float, rng: np.random.Generator) -> tuple[Traces, Traces]:
    """A random share `holdout` of the requests, at least one and never all, is kept out: (fit, held out).

    With a single request, or a holdout of 0, nothing is held out and the second part has no rounds.

    Raises:
        CalibrationError: holdout is not in [0, 1).
    """
    if not 0 <= holdout < 1:
        raise CalibrationError(f"a hold-out share of {holdout} leaves nothing to fit on", "Give a share in [0, 1).")
    requests = np.unique(traces.request)
    if holdout == 0 or requests.size < 2:
        return traces, traces.select(slice(0, 0))
    kept_out = int(np.clip(round(holdout * requests.size), 1, requests.size - 1))
    chosen = rng.choice(requests, size=kept_out, replace=False)
    held_out = np.isin(traces.request, chosen)
    return traces.select(~held_out), traces.select(held_out)


def fingerprint(traces: Traces) -> str:
    """Hash of what calibration reads of the traces (16 hex digits)."""
    digest = sha256(f"{len(traces)}x{traces.gamma}".encode())
    for array in (traces.request, traces.verified, traces.observed, traces.accepted):
        digest.update(array.tobytes())
    digest.update(_one_nan(traces).tobytes())
    return digest.hexdigest()[:16]


def _check_repeats(parts: Sequence[Traces], names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for part, name in zip(parts, names, strict=True):
        key = fingerprint(part)
        if len(part) and key in seen:
            raise CalibrationError(
                f"{name} holds the same {len(part)} rounds as {seen[key]}", "Give every trace file once."
            )
        seen[key] = name
    if not all(part.requests_known for part in parts):
        return
    rows = np.concatenate([_row_keys(part) for part in parts])
    repeated = rows.size - np.unique(rows).size
    if repeated:
        raise CalibrationError(
            f"{repeated} rounds (same request, round and logits) are in more than one of the {len(parts)} trace files",
            "Give every round once.",
        )


def _row_keys(traces: Traces) -> NDArray[np.uint64]:
    """64 bits a round, which equal rounds share and others share by a chance of 2^-64 a pair."""
    words = np.random.default_rng(0).integers(0, 2**64, size=2 + traces.gamma, dtype=np.uint64) | np.uint64(1)
    keys: NDArray[np.uint64] = traces.request.astype(np.uint64) * words[0] + traces.round.astype(np.uint64) * words[1]
    logits = _one_nan(traces)
    for k in range(traces.gamma):
        # A rotation between the columns, or the multiplications alone would keep low bits low.
        keys = (keys << np.uint64(13)) | (keys >> np.uint64(51))
        keys = (keys ^ logits[:, k].copy().view(np.uint32).astype(np.uint64)) * words[2 + k]
    return keys


def _one_nan(traces: Traces) -> NDArray[np.float32]:
    """Logits [N, G] whose NaN all have the same bits."""
    logits = np.ascontiguousarray(traces.confidence_logits)
    return np.where(np.isnan(logits), np.float32(np.nan), logits)


def _joined(columns: Sequence[Categories]) -> Categories:
    names = sorted({name for column in columns for name in column.names})
    code = {name: i for i, name in enumerate(names)}
    recoded = [np.array([code[name] for name in c.names], dtype=np.int32)[c.codes] for c in columns]
    return Categories(np.concatenate(recoded), tuple(names))


def _common_provenance(parts: Sequence[Traces], names: Sequence[str]) -> Provenance:
    """What the parts that recorded it agree on."""
    common: dict[str, Any] = {}
    for column in fields(Provenance):
        recorded = {getattr(part.provenance, column.name): name for part, name in zip(parts, names, strict=True)}
        recorded.pop(None, None)
        if len(recorded) > 1:
            (one, other), (one_name, other_name) = list(recorded)[:2], list(recorded.values())[:2]
            what = column.name.replace("_", " ")
            raise CalibrationError(
                f"the {what} of {one_name} is {one} and that of {other_name} is {other}",
                "Calibrate one target, drafter and acceptance mode at a time.",
            )
        common[column.name] = next(iter(recorded), None)
    return Provenance(**common)
