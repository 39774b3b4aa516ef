"""What happened in every decode round: how sure the drafter was of each position, and how many were accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dspark.calibration.columns import UNKNOWN, checked_column, fp32
from dspark.calibration.errors import CalibrationError

# Other numbers of the same positions, to hold the confidence head against.
SIGNALS = ("draft_max_probability", "draft_margin", "oracle_acceptance")

# A probability that is summed in fp32 can leave [0, 1] by this much.
_ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class Provenance:
    """Who drafted and who verified. None: not recorded."""

    target: str | None = None
    drafter: str | None = None
    acceptance: str | None = None
    target_fingerprint: str | None = None
    drafter_fingerprint: str | None = None
    draft_top_k: int | None = None  # likeliest tokens that sampled drafts were drawn from; 0: all


NOT_RECORDED = Provenance()


@dataclass(frozen=True, slots=True)
class Categories:
    """A column of few different texts: codes [N] into names."""

    codes: NDArray[np.int32]
    names: tuple[str, ...]

    @classmethod
    def of(cls, values: Sequence[str] | str, rows: int) -> Categories:
        """From one text a row, or one text for all rows."""
        if isinstance(values, str):
            return cls(np.zeros(rows, dtype=np.int32), (values,))
        names, codes = np.unique(np.asarray(values, dtype=np.str_), return_inverse=True)
        return cls(codes.astype(np.int32).reshape(-1), tuple(str(name) for name in names))

    def select(self, rows: Any) -> Categories:
        """The rows that a mask, slice or index array picks."""
        return Categories(self.codes[rows], self.names)


@dataclass(frozen=True, slots=True)
class Traces:
    """N rounds of blocks of G drafted tokens; make them with :func:`make_traces`, which checks them.

    Position k (from 1) is observed if positions before it were accepted, it was verified, and no stop or limit came
    first; `accepted` of the `observed` positions passed, so at most one observed position, the last, was rejected.
    """

    request: NDArray[np.int64]  # [N]
    round: NDArray[np.int64]  # [N], counts from 0 within a request
    text_position: NDArray[np.int64]  # [N], of the anchor
    drafted: NDArray[np.int16]  # [N]
    verified: NDArray[np.int16]  # [N]
    observed: NDArray[np.int16]  # [N]
    accepted: NDArray[np.int16]  # [N]
    confidence_logits: NDArray[np.float32]  # [N, G], NaN where nothing was drafted
    temperature: NDArray[np.float32]  # [N]
    top_k: NDArray[np.int32]  # [N]
    top_p: NDArray[np.float32]  # [N]
    policy: Categories  # [N]
    dataset: Categories  # [N]
    signals: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)  # [N, G] each
    provenance: Provenance = NOT_RECORDED
    requests_known: bool = True  # False: `request` numbers runs of rows, for want of anything better

    def __len__(self) -> int:
        return len(self.request)

    @property
    def gamma(self) -> int:
        """Draft positions, G."""
        return int(self.confidence_logits.shape[1])

    def select(self, rows: Any) -> Traces:
        """The rounds that a mask, slice or index array picks."""
        picked: dict[str, Any] = {}
        for column in fields(self):
            value = getattr(self, column.name)
            if isinstance(value, Categories):
                picked[column.name] = value.select(rows)
            elif isinstance(value, np.ndarray):
                picked[column.name] = value[rows]
        signals = {name: values[rows] for name, values in self.signals.items()}
        return replace(self, signals=signals, **picked)

    def observed_at(self, position: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Position from 1 -> (observed [N], accepted [N]): what conditional confidence c_k predicts."""
        return self.observed >= position, self.accepted >= position

    def survival_known_at(self, position: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Position k from 1 -> (known [N], survived [N]): whether the first k tokens all passed, as a_k predicts.

        A rejection before k settles it, but counts only where k was verified: keeping the failures among blocks that
        were cut short, and not their successes, would make survival look worse than it is.
        """
        rejected_before = self.accepted < np.minimum(self.observed, position)
        known = (self.verified >= position) & ((self.observed >= position) | rejected_before)
        return known, self.accepted >= position


def make_traces(
    *,
    request: ArrayLike,
    accepted: ArrayLike,
    confidence_logits: ArrayLike,
    round: ArrayLike | None = None,
    text_position: ArrayLike = UNKNOWN,
    drafted: ArrayLike | None = None,
    verified: ArrayLike | None = None,
    observed: ArrayLike | None = None,
    temperature: ArrayLike = np.nan,
    top_k: ArrayLike = UNKNOWN,
    top_p: ArrayLike = np.nan,
    policy: Sequence[str] | str = "",
    dataset: Sequence[str] | str = "",
    signals: Mapping[str, ArrayLike] | None = None,
    provenance: Provenance = NOT_RECORDED,
    requests_known: bool = True,
    source: str = "The traces",
) -> Traces:
    """Columns [N] and confidence_logits [N, G] -> checked traces.

    Left out: every block was drafted and verified in full, positions are observed up to the first rejection, and the
    rounds of a request are in order. `source` begins the sentence of an error.

    Raises:
        CalibrationError: the columns contradict each other, a logit is NaN or infinite, or a setting or a signal is
            outside what it may be.
    """
    logits = fp32(confidence_logits)
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise CalibrationError(
            f"{source}: confidence logits have shape {logits.shape}, not [rounds, draft length]",
            "Give one column of logits a draft position.",
        )
    rows, gamma = logits.shape
    if gamma > np.iinfo(np.int16).max:
        raise CalibrationError(f"{source}: {gamma} draft positions are no draft block", "Is the matrix transposed?")

    def checked(name: str, values: ArrayLike) -> NDArray[Any]:
        return checked_column(name, values, rows=rows, source=source)

    request_ids = checked("request", request)
    drafts = checked("drafted", gamma if drafted is None else drafted)
    verifies = checked("verified", drafts if verified is None else verified)
    accepts = checked("accepted", accepted)
    # In int64, as one accepted position more may be too many for a count.
    first_rejections = np.minimum(verifies, accepts.astype(np.int64) + 1)
    observes = checked("observed", first_rejections if observed is None else observed)
    _check_counts(gamma, drafts, verifies, observes, accepts, source)
    logits[np.arange(gamma) >= drafts[:, None]] = np.nan
    _check_logits(logits, drafts, source)
    traces = Traces(
        request=request_ids,
        round=checked("round", count_within(request_ids) if round is None else round),
        text_position=checked("text_position", text_position),
        drafted=drafts,
        verified=verifies,
        observed=observes,
        accepted=accepts,
        confidence_logits=logits,
        temperature=checked("temperature", temperature),
        top_k=checked("top_k", top_k),
        top_p=checked("top_p", top_p),
        policy=Categories.of(policy, rows),
        dataset=Categories.of(dataset, rows),
        signals=_checked_signals(signals or {}, logits.shape, drafts, source),
        provenance=provenance,
        requests_known=requests_known,
    )
    _check_duplicates(traces, source)
    return traces


def count_within(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """groups [N] -> how many rows before this one have the same value [N]."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1)) if ordered.size else np.empty(0, dtype=np.intp)
    lengths = np.diff(np.append(starts, ordered.size))
    counts = np.empty(groups.size, dtype=np.int64)
    counts[order] = np.arange(groups.size) - np.repeat(starts, lengths)
    return counts


def _check_counts(
    gamma: int,
    drafted: NDArray[np.int16],
    verified: NDArray[np.int16],
    observed: NDArray[np.int16],
    accepted: NDArray[np.int16],
    source: str,
) -> None:
    checks = (
        (accepted < 0, "accepted is negative"),
        (accepted > verified, "more positions were accepted than verified"),
        (accepted > observed, "more positions were accepted than observed"),
        (accepted < observed - 1, "observed goes on past a rejected position"),
        (observed > verified, "more positions were observed than verified"),
        (verified > drafted, "more positions were verified than drafted"),
        (drafted > gamma, f"more positions were drafted than the {gamma} that have logits"),
    )
    for wrong, sentence in checks:
        if wrong.any():
            where = f"in {int(wrong.sum())} of {wrong.size} rounds (first: row {int(wrong.argmax())})"
            raise CalibrationError(
                f"{source}: {sentence}, {where}",
                "0 <= accepted <= observed <= verified <= drafted, and observed ends at the first rejection.",
            )


def _check_logits(logits: NDArray[np.float32], drafted: NDArray[np.int16], source: str) -> None:
    wrong = ~np.isfinite(logits) & (np.arange(logits.shape[1]) < drafted[:, None])
    if not wrong.any():
        return
    row, position = np.unravel_index(int(wrong.argmax()), wrong.shape)
    raise CalibrationError(
        f"{source}: {int(wrong.sum())} confidence logits of drafted positions are NaN or infinite "
        f"(first: row {row}, position {position + 1}, {logits[row, position]})",
        "Record finite fp32 logits, not probabilities that were rounded to 0 or 1.",
    )


def _check_duplicates(traces: Traces, source: str) -> None:
    order = np.lexsort((traces.round, traces.request))
    same = (np.diff(traces.request[order]) == 0) & (np.diff(traces.round[order]) == 0)
    if same.any():
        row = order[1:][same][0]
        raise CalibrationError(
            f"{source}: {int(same.sum())} rounds appear more than once "
            f"(request {traces.request[row]}, round {traces.round[row]})",
            "Give every round once; two runs of the same requests belong in two files.",
        )


def _checked_signals(
    signals: Mapping[str, ArrayLike], shape: tuple[int, ...], drafted: NDArray[np.int16], source: str
) -> dict[str, NDArray[np.float32]]:
    checked = {name: fp32(values) for name, values in signals.items()}
    for name, values in checked.items():
        if name not in SIGNALS or values.shape != shape:
            raise CalibrationError(
                f"{source}: signal `{name}` of shape {values.shape} is not known or does not fit logits {shape}",
                f"Known signals: {', '.join(SIGNALS)}, one value a logit.",
            )
        wrong = ((values < -_ROUNDING) | (values > 1 + _ROUNDING)) & (np.arange(shape[1]) < drafted[:, None])
        if wrong.any():
            row, position = np.unravel_index(int(wrong.argmax()), wrong.shape)
            raise CalibrationError(
                f"{source}: signal `{name}` is {values[row, position]:g} in row {row} at position {position + 1}",
                "Record probabilities, from 0 to 1; leave empty what is not known.",
            )
    return checked
