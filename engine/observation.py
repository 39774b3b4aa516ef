"""What is told of every decode round to somebody who records them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dspark.engine.proposals import DraftOutput
    from dspark.engine.slots import SlotTable


@dataclass(frozen=True, slots=True)
class ObservedRound:
    """One round of R requests: blocks of up to n drafted tokens, and what became of them. Arrays are the observer's.

    Position k is observed if those before it were accepted, it was verified, and no stop or limit came first.
    """

    request: np.ndarray  # [R] int64, `Request.index`
    text_position: np.ndarray  # [R] int64, of the anchor
    drafted: np.ndarray  # [R] int64; 0: the request had no use for a draft
    verified: np.ndarray  # [R] int64
    observed: np.ndarray  # [R] int64
    accepted: np.ndarray  # [R] int64
    confidence_logits: np.ndarray  # [R, n] fp32
    temperature: np.ndarray  # [R] fp32
    top_k: np.ndarray  # [R] int64
    top_p: np.ndarray  # [R] fp32
    # [R, n] fp32 each, NaN where not known: what else tells how likely the tokens are to pass, where it is at hand.
    signals: Mapping[str, np.ndarray]


RoundObserver = Callable[[ObservedRound], None]


def observed_round(
    slots: SlotTable,
    rows: np.ndarray,
    draft: DraftOutput | None,
    *,
    drafted: np.ndarray,
    verified: np.ndarray,
    observed: np.ndarray,
    accepted: np.ndarray,
    emitted: np.ndarray,
    signals: Mapping[str, np.ndarray],
) -> ObservedRound:
    """The round that slots `rows` [R] have just been through, before any of them leaves.

    drafted, verified, observed, accepted [R]; emitted [R], the tokens that each text has grown by.
    """
    confidence = np.zeros((len(rows), 0), dtype=np.float32)
    if draft is not None:
        confidence = draft.confidence_logits.float().cpu().numpy().copy()
    return ObservedRound(
        request=slots.request_index[rows],
        text_position=slots.context_len[rows] - emitted,
        drafted=drafted,
        verified=verified,
        observed=observed,
        accepted=accepted,
        confidence_logits=confidence,
        temperature=slots.temperature[rows],
        top_k=slots.top_k[rows],
        top_p=slots.top_p[rows],
        signals=signals,
    )
