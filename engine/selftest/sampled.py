"""Sampled tokens: as frequent, token by token, as the target's distribution says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dspark.engine.requests import Request, SamplingParams
from dspark.engine.selftest.distribution import is_settled, steep_temperature, token_probabilities
from dspark.engine.selftest.goodness import Fit, pearson
from dspark.engine.selftest.phases import Counted, uncounted
from dspark.engine.selftest.report import Check
from dspark.engine.selftest.settings import SAMPLE_TOKENS

if TYPE_CHECKING:
    from dspark.engine.engine import Engine
    from dspark.engine.selftest.plain import PlainForward

NAME = "sampled tokens"
# Chance that a faultless pair fails, all tests of a policy together. With as few expected draws as are let pass, so far
# out in the tail chi-square understates it about fourfold.
_FALSE_ALARM = 2.5e-4
# A prefix that fewer samples share says too little for the forward that it costs; nor are there more of a position.
_FEWEST_SAMPLES, _MOST_PREFIXES = 10, 12
# Every second context is sampled from the whole distribution, as steep as this, so that samples share their beginnings;
# the others from a distribution cut to few tokens.
_PERPLEXITY = 2.5
_CUTS = (SamplingParams(temperature=1.0, top_k=2), SamplingParams(temperature=1.0, top_k=3, top_p=0.9))


@dataclass(frozen=True, slots=True)
class Position:
    """A token of the samples behind one context, over the prefixes that came before it often enough."""

    context: int
    token: int
    samples: int
    fit: Fit


def check_sampled(
    engine: Engine,
    plain: PlainForward,
    contexts: Sequence[list[int]],
    *,
    policy: str,
    samples: int,
    noise: float,
    counted: Counted = uncounted,
) -> Check:
    """Draw `samples` texts behind each context, and test each token of their rounds against the target's plain forward.

    A position is a token of a context. Given the tokens before it, it follows a distribution that a plain forward
    tells, so samples are tested prefix by prefix and the statistics added up. Each position is a hypothesis, and all of
    them together are one more, which sees a fault that is too small for any single one.
    """
    settings = _settings(plain, contexts)
    tokens = _draw(engine, contexts, settings, samples, counted)  # [contexts, samples, SAMPLE_TOKENS]
    positions = []
    for context, (prompt, sampling) in enumerate(counted(zip(contexts, settings, strict=True), len(contexts))):
        # The first token is the prefill's.
        for token in range(1, SAMPLE_TOKENS):
            drawn = tokens[context, :, : token + 1]
            fit, used = _fit(plain, prompt, drawn, sampling, noise=noise)
            if fit.freedom or fit.statistic:
                positions.append(Position(context, token, used, fit))
    together = sum((position.fit for position in positions), Fit())
    # Half for all together, half shared by the positions (Bonferroni).
    limit_together = _FALSE_ALARM / 2
    limit = limit_together / max(len(positions), 1)
    failed = [position for position in positions if position.fit.p_value < limit]
    worst = min(positions, key=lambda position: position.fit.p_value, default=None)
    passed = not failed and together.p_value >= limit_together
    numbers = {
        "positions": len(positions),
        "samples": sum(position.samples for position in positions),
        "failed_positions": len(failed),
        "smallest_p": None if worst is None else worst.fit.p_value,
        "p_of_all_together": together.p_value,
        "limit": limit,
        "limit_together": limit_together,
    }
    if worst is None:
        return Check(NAME, policy, False, "no position was drawn often enough to be tested", numbers)
    found = (
        f"smallest p {worst.fit.p_value:.2g}, limit {limit:.2g}; "
        f"all together {together.p_value:.2g}, limit {limit_together:.2g}"
    )
    if passed:
        finding = f"frequencies fit the target's distribution, at {len(positions)} positions ({found})"
    else:
        where = f"most clearly token {worst.token} behind context {worst.context}"
        finding = (
            f"frequencies do not fit the target's distribution at {len(failed)} of {len(positions)} positions, "
            f"{where} ({found})"
        )
    return Check(NAME, policy, passed, finding, numbers)


def _settings(plain: PlainForward, contexts: Sequence[list[int]]) -> list[SamplingParams]:
    """How to sample behind each context; whole distributions at the temperature that their likeliest text asks for."""
    texts = [list(context) for context in contexts]
    steep = np.ones((SAMPLE_TOKENS, len(contexts)))
    for token in range(SAMPLE_TOKENS):
        for context, logits in enumerate(plain.logits_behind(texts)):
            steep[token, context] = steep_temperature(logits, perplexity=_PERPLEXITY)
            texts[context].append(int(logits.argmax()))
    settings = []
    for context, temperature in enumerate(np.median(steep, axis=0)):
        cut = _CUTS[context // 2 % len(_CUTS)]
        chosen = cut if context % 2 else SamplingParams(temperature=float(temperature))
        settings.append(replace(chosen, max_tokens=SAMPLE_TOKENS, ignore_eos=True))
    return settings


def _draw(
    engine: Engine,
    contexts: Sequence[list[int]],
    settings: Sequence[SamplingParams],
    samples: int,
    counted: Counted,
) -> NDArray[np.int64]:
    """Samples behind every context, side by side in the batches, [contexts, samples, SAMPLE_TOKENS]."""
    count = len(contexts)
    requests = (Request(index, contexts[index % count], settings[index % count]) for index in range(count * samples))
    tokens = np.zeros((count, samples, SAMPLE_TOKENS), dtype=np.int64)
    for completion in counted(engine.generate(requests), count * samples):
        tokens[completion.index % count, completion.index // count] = completion.token_ids
    return tokens


def _fit(
    plain: PlainForward, prompt: list[int], drawn: NDArray[np.int64], sampling: SamplingParams, *, noise: float
) -> tuple[Fit, int]:
    """The fit of the last of `drawn` [samples, n] given those before, and how many samples it rests on."""
    prefixes, owner, counts = np.unique(drawn[:, :-1], axis=0, return_inverse=True, return_counts=True)
    owner = owner.reshape(-1)
    chosen = np.argsort(-counts, kind="stable")[:_MOST_PREFIXES]
    chosen = chosen[counts[chosen] >= _FEWEST_SAMPLES]
    texts = [[*prompt, *prefixes[prefix].tolist()] for prefix in chosen]
    fit, used = Fit(), 0
    for prefix, logits in zip(chosen, plain.logits_behind(texts), strict=True):
        if is_settled(logits, sampling, noise=noise):
            last = drawn[owner == prefix, -1]
            fit += pearson(np.bincount(last, minlength=len(logits)), token_probabilities(logits, sampling))
            used += len(last)
    return fit, used
