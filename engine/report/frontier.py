"""Recorded blocks replayed through the scheduler against the measured step curve, from few to many requests at once.

All policies see the same draws. Repeats rest on different requests, as far as there are enough, so that the spread of
repeats says how far the numbers can be trusted, the choice of recorded requests included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dspark.calibration import Traces
from dspark.engine.progress import Progress, silent
from dspark.engine.report.rounds import drafts_are_certain, full_blocks, replayable
from dspark.engine.scheduler.replay import ReplayBlocks, ReplayResult, replay
from dspark.profiles import Profile, StepCurve

ASYNC, ORACLE = "async", "oracle"
MOST_CONCURRENT = 512

# In each repeat about this many blocks are drawn, in at least so many rounds and at most so many.
REPEATS = 4
_BLOCKS, _FEWEST_ROUNDS, _MOST_ROUNDS = 4096, 64, 512
# With fewer requests a repeat, all of them serve in every repeat.
_FEWEST_REQUESTS = 4


@dataclass(frozen=True, slots=True, eq=False)
class ReplaySetting:
    """What every cell of the replay shares."""

    curve: StepCurve
    context_tokens: int  # of every request
    sampled: bool  # verification as at temperature 1
    seed: int
    certain: bool = False  # drafts are functions of the text, which a plan may look at


@dataclass(frozen=True, slots=True)
class FrontierLine:
    """One policy over all concurrencies (C of them): means over the repeats."""

    policy: str
    concurrency: tuple[int, ...]  # [C]
    tokens_per_s: tuple[float, ...]  # [C]
    tokens_per_s_per_user: tuple[float, ...]  # [C]
    verified_per_request: tuple[float, ...]  # [C], drafted tokens a round
    drafting_share: tuple[float, ...]  # [C], share of rounds that drafted
    repeats_tokens_per_s: tuple[tuple[float, ...], ...]  # [C, repeats]

    @property
    def label(self) -> str:
        """What figures and tables call the policy."""
        return "oracle confidence (bound)" if self.policy == ORACLE else self.policy


@dataclass(frozen=True, slots=True)
class Frontier:
    """What the replay says, and what it rests on."""

    lines: tuple[FrontierLine, ...]
    requests: int
    blocks: int
    setting: ReplaySetting
    concurrency_limit: int  # of the profile

    def line(self, policy: str) -> FrontierLine:
        """The line of one policy."""
        return next(line for line in self.lines if line.policy == policy)

    @property
    def concurrency(self) -> tuple[int, ...]:
        """Requests at once, of every point of each line."""
        return self.lines[0].concurrency


def policies_for(gamma: int) -> tuple[str, ...]:
    """What is compared, the bound last."""
    lengths = sorted({1, min(3, gamma), gamma})
    return ("none", *(f"fixed:{k}" for k in lengths), "threshold:0.5", "causal", ASYNC, ORACLE)


def concurrency_steps(curve: StepCurve) -> tuple[int, ...]:
    """1, 2, 4 … up to 512 or to what the profile covers with every block verified in full."""
    limit = min(MOST_CONCURRENT, profiled_requests(curve))
    steps = [2**i for i in range(limit.bit_length()) if 2**i <= limit]
    return tuple(sorted({*steps, limit})) if limit else ()


def profiled_requests(curve: StepCurve) -> int:
    """Most requests whose full blocks the curve can time."""
    return min(curve.max_batch_tokens // curve.tokens_per_request, curve.max_requests)


def policy_frontier(
    traces: Traces,
    profile: Profile,
    temperatures: NDArray[np.float64],
    *,
    seed: int,
    progress: Progress = silent,
) -> Frontier | None:
    """Replay every policy; None without a full block, or if the profile does not cover one request's."""
    steps = concurrency_steps(profile.curve)
    if not len(full_blocks(traces)) or not steps:
        return None
    full = replayable(traces)
    setting = ReplaySetting(
        curve=profile.curve,
        context_tokens=_context_tokens(full, profile.curve),
        sampled=bool(np.any(full.temperature > 0)),
        seed=seed,
        certain=drafts_are_certain(traces),
    )
    parts = replay_parts(full, full.confidence_logits, temperatures, seed=seed)
    names = policies_for(traces.gamma)
    lines = []
    for i, policy in enumerate(names):
        cells = []
        for j, concurrency in enumerate(steps):
            progress("Replaying policies", i * len(steps) + j, len(names) * len(steps))
            cells.append(replayed(parts, policy, concurrency, setting))
        lines.append(_line(policy, steps, cells))
    return Frontier(
        lines=tuple(lines),
        requests=int(np.unique(full.request).size),
        blocks=len(full),
        setting=setting,
        concurrency_limit=profiled_requests(profile.curve),
    )


def replay_parts(
    full: Traces, confidence_logits: NDArray[np.floating], temperatures: NDArray[np.float64], *, seed: int
) -> list[ReplayBlocks]:
    """The blocks of each repeat, with confidence_logits [N, G] in place of the recorded ones."""
    return [
        ReplayBlocks.of(
            request=full.request[rows],
            accepted=full.accepted[rows],
            confidence_logits=confidence_logits[rows],
            temperatures=temperatures,
        )
        for rows in _parts(full.request, seed)
    ]


def replayed(
    parts: Sequence[ReplayBlocks], policy: str, concurrency: int, setting: ReplaySetting
) -> list[ReplayResult]:
    """The repeats of one policy at one concurrency."""
    rounds = int(np.clip(_BLOCKS // concurrency, _FEWEST_ROUNDS, _MOST_ROUNDS))
    return [
        replay(
            blocks,
            setting.curve,
            policy=policy,
            concurrency=concurrency,
            rng=np.random.default_rng([setting.seed, concurrency, repeat]),
            rounds=rounds,
            context_tokens=setting.context_tokens,
            sampled=setting.sampled,
            certain=setting.certain,
        )
        for repeat, blocks in enumerate(parts)
    ]


def are_apart(num_requests: int) -> bool:
    """Are there enough requests for every repeat to have its own?"""
    return num_requests >= REPEATS * _FEWEST_REQUESTS


def _parts(request: NDArray[np.int64], seed: int) -> list[NDArray[np.bool_]]:
    """request [N] -> the rows of each repeat [N]: random, equal shares of the requests, or all rows in every repeat."""
    requests, index = np.unique(request, return_inverse=True)
    if not are_apart(requests.size):
        return [np.ones(len(request), dtype=bool)] * REPEATS
    share = np.random.default_rng(seed).permutation(requests.size) % REPEATS
    return [share[index] == repeat for repeat in range(REPEATS)]


def _context_tokens(full: Traces, curve: StepCurve) -> int:
    """Mean recorded position in the text, or the profile's reference."""
    known = full.text_position[full.text_position >= 0]
    return int(known.mean()) if known.size else curve.reference_context_tokens


def _line(policy: str, steps: tuple[int, ...], cells: list[list[ReplayResult]]) -> FrontierLine:
    def means(name: str) -> tuple[float, ...]:
        return tuple(float(np.mean([getattr(result, name) for result in cell])) for cell in cells)

    return FrontierLine(
        policy=policy,
        concurrency=steps,
        tokens_per_s=means("tokens_per_s"),
        tokens_per_s_per_user=means("tokens_per_s_per_user"),
        verified_per_request=means("verified_per_request"),
        drafting_share=means("drafting_share"),
        repeats_tokens_per_s=tuple(tuple(float(r.tokens_per_s) for r in cell) for cell in cells),
    )
