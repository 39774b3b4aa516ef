"""Which recorded rounds a number may rest on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dspark.calibration import Calibration, Traces, fingerprint, split_by_request
from dspark.engine.models.aliases import NGRAM_DRAFTER


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Rounds, and the words for which ones they are."""

    traces: Traces
    description: str
    held_out: bool  # kept from the fit of the temperatures


def is_full_block(traces: Traces) -> NDArray[np.bool_]:
    """[N]: does the round tell how far the whole block would have been accepted?

    Every position was verified, and either one was rejected or all passed. A round that a stop or a limit ended inside
    its block does not tell, nor does one that a policy cut short.
    """
    settled = (traces.observed > traces.accepted) | (traces.accepted == traces.gamma)
    return (traces.verified == traces.gamma) & settled


def full_blocks(traces: Traces) -> Traces:
    """The rounds that tell."""
    return traces.select(is_full_block(traces))


def drafts_are_certain(traces: Traces) -> bool:
    """Were the drafts functions of the text, some of which offer none?"""
    return traces.provenance.drafter == NGRAM_DRAFTER


def replayable(traces: Traces) -> Traces:
    """The rounds that tell, and those for which the drafter had nothing: what they yield is known too.

    The last round of a request has no draft if it lacks one token alone, whatever the drafter has; it is left out.
    """
    whole = is_full_block(traces)
    if drafts_are_certain(traces) and len(traces):
        requests, index = np.unique(traces.request, return_inverse=True)
        last = np.zeros(requests.size, dtype=np.int64)
        np.maximum.at(last, index, traces.round)
        whole |= (traces.drafted == 0) & (traces.round < last[index])
    return traces.select(whole)


def sample_for(traces: Traces, calibration: Calibration | None) -> Sample:
    """The rounds to judge temperatures on: those that calibration held out, if it was fitted on these very traces.

    The split is drawn again from the seed in the calibration; if it does not come out as recorded, all rounds serve.
    """
    everything = Sample(traces, "the only round" if len(traces) == 1 else f"all {len(traces):,} rounds", False)
    if calibration is None or not len(traces) or fingerprint(traces) != calibration.trace_fingerprint:
        return everything
    rng = np.random.default_rng(calibration.seed)
    part = split_by_request(traces, holdout=calibration.holdout, rng=rng)[1]
    recorded = calibration.held_out
    if not len(part) or (len(part), np.unique(part.request).size) != (recorded.rounds, recorded.requests):
        return everything
    return Sample(part, f"the {len(part):,} rounds that calibration held out", True)
