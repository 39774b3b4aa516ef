"""Rounds of a request as fixed-size records: what a recorder collects, a partial file keeps, and a trace is made of."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dspark.calibration import SIGNALS, make_traces
from dspark.engine.observation import ObservedRound

if TYPE_CHECKING:
    from dspark.calibration import Provenance, Traces

_COUNTS = ("text_position", "drafted", "verified", "observed", "accepted")
_SETTINGS = ("temperature", "top_k", "top_p")
_MATRICES = ("confidence_logits", *SIGNALS)


@dataclass(frozen=True, slots=True)
class RequestRounds:
    """The rounds of one request, in order."""

    request: int
    dataset: str
    rounds: np.ndarray  # [N], of `record_type`


def record_type(gamma: int) -> np.dtype[np.void]:
    """One round of one request with blocks of `gamma` drafted tokens; NaN stands for a number that is not known."""
    return np.dtype(
        [
            *((name, "<i4") for name in _COUNTS),
            ("temperature", "<f4"),
            ("top_k", "<i4"),
            ("top_p", "<f4"),
            *((name, "<f4", (gamma,)) for name in _MATRICES),
        ]
    )


class RoundRecorder:
    """An observer that keeps the rounds of every request until they are taken."""

    def __init__(self, gamma: int) -> None:
        self.type = record_type(gamma)
        self._rounds: dict[int, list[np.void]] = {}

    def __call__(self, observed: ObservedRound) -> None:
        """Take in one round of R requests."""
        records = np.empty(len(observed.request), dtype=self.type)
        for name in (*_COUNTS, *_SETTINGS):
            records[name] = getattr(observed, name)
        matrices = {"confidence_logits": observed.confidence_logits, **observed.signals}
        for name in _MATRICES:
            records[name] = np.nan
            if name in matrices:
                records[name][:, : matrices[name].shape[1]] = matrices[name]
        for request, record in zip(observed.request.tolist(), records, strict=True):
            self._rounds.setdefault(request, []).append(record)

    def requests(self) -> dict[int, np.ndarray]:
        """The rounds [N] of every request that was not taken."""
        return {request: np.array(rounds, dtype=self.type) for request, rounds in self._rounds.items()}

    def take(self, request: int) -> np.ndarray:
        """The rounds [N] of one request, in order, which are then forgotten."""
        return np.array(self._rounds.pop(request, []), dtype=self.type)


def pack(rounds: np.ndarray) -> str:
    """Records as text for a JSON line."""
    return base64.b64encode(rounds.tobytes()).decode("ascii")


def unpack(text: str, gamma: int) -> np.ndarray:
    """The reverse."""
    return np.frombuffer(base64.b64decode(text), dtype=record_type(gamma))


def observed_rounds(request: int, rounds: np.ndarray) -> Iterator[ObservedRound]:
    """Rounds [N] of one request as an observer was told them, or would have been with no other request in the batch."""
    for i in range(len(rounds)):
        one = rounds[i : i + 1]
        yield ObservedRound(
            request=np.array([request], dtype=np.int64),
            **{name: one[name] for name in (*_COUNTS, *_SETTINGS)},
            confidence_logits=one["confidence_logits"],
            signals={name: one[name] for name in SIGNALS if not np.isnan(one[name]).all()},
        )


def traces_of(requests: Iterable[RequestRounds], *, gamma: int, policy: str, provenance: Provenance) -> Traces:
    """Records as traces; a signal that no round has is left out."""
    parts = list(requests)
    empty = np.empty(0, dtype=record_type(gamma))
    records = np.concatenate([empty, *(part.rounds for part in parts)])
    lengths = [len(part.rounds) for part in parts]
    columns: dict[str, Any] = {name: records[name] for name in (*_COUNTS, *_SETTINGS)}
    return make_traces(
        **columns,
        request=np.repeat(np.array([part.request for part in parts], dtype=np.int64), lengths),
        confidence_logits=records["confidence_logits"],
        dataset=np.repeat(np.array([part.dataset for part in parts], dtype=np.str_), lengths).tolist(),
        policy=policy,
        signals={name: records[name] for name in SIGNALS if not np.isnan(records[name]).all()},
        provenance=provenance,
    )
