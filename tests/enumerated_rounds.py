"""Every course that a few speculative rounds over two tokens can take, with its exact probability."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

TOKENS = (0, 1)
GAMMA = 2

# (confidence logits [R, G] of every block before, the newest last; those of this block) -> lengths [R]
Schedule = Callable[[tuple[bytes, ...], np.ndarray], tuple[int, ...]]


@dataclass(frozen=True)
class ToyChain:
    """Tables [previous token, next token] of target and drafter; confidence [position, previous, drafted token]."""

    target: np.ndarray
    draft: np.ndarray
    confidence: np.ndarray

    @classmethod
    def with_true_confidence(cls, target: np.ndarray, draft: np.ndarray) -> ToyChain:
        """Confidence is the probability of acceptance given the token before."""
        passes = np.minimum(target, draft).sum(axis=1)
        return cls(target, draft, np.broadcast_to(passes[None, :, None], (GAMMA, 2, 2)))

    def blocks(self, anchor: int) -> list[tuple[tuple[int, ...], float, np.ndarray]]:
        """Drafted tokens, their probability and their confidence logits [G]."""
        result = []
        for block in itertools.product(TOKENS, repeat=GAMMA):
            previous, probability, confidence = anchor, 1.0, []
            for k, token in enumerate(block):
                probability *= self.draft[previous, token]
                confidence.append(self.confidence[k, previous, token])
                previous = token
            c = np.array(confidence)
            with np.errstate(divide="ignore"):
                result.append((block, probability, np.log(c) - np.log1p(-c)))
        return result

    def outcomes(self, anchor: int, block: tuple[int, ...], length: int) -> list[tuple[tuple[int, ...], float]]:
        """Emitted tokens and their probability when the first `length` tokens of a block are verified."""
        result, reach, previous = [], 1.0, anchor
        for k in range(length):
            p, q, token = self.target[previous], self.draft[previous], block[k]
            accept = min(1.0, p[token] / q[token])
            residual = np.maximum(p - q, 0)
            if accept < 1:
                result += [((*block[:k], t), reach * (1 - accept) * residual[t] / residual.sum()) for t in TOKENS]
            reach, previous = reach * accept, token
        return result + [((*block[:length], t), reach * self.target[previous, t]) for t in TOKENS]

    def text_probabilities(self, anchor: int, length: int) -> np.ndarray:
        """What the target alone writes: [2] * length."""
        result = np.empty((2,) * length)
        for text in itertools.product(TOKENS, repeat=length):
            result[text] = np.prod([self.target[a, b] for a, b in itertools.pairwise((anchor, *text))])
        return result


def emitted(chain: ToyChain, schedule: Schedule, *, requests: int, tokens: int) -> np.ndarray:
    """Joint distribution of each request's first `tokens` tokens, after as many rounds: [2] * (requests * tokens)."""
    start = (tuple(((), 0) for _ in range(requests)), ())
    states: dict = {start: 1.0}  # ((text, anchor) of each request, all logits so far) -> probability
    for _ in range(tokens):
        following: dict = defaultdict(float)
        for (texts, past), weight in states.items():
            for drawn in itertools.product(*(chain.blocks(anchor) for _, anchor in texts)):
                probability = weight * float(np.prod([d[1] for d in drawn]))
                if probability == 0:
                    continue
                logits = np.array([d[2] for d in drawn], dtype=np.float32)
                lengths = schedule(past, logits)
                ends = (chain.outcomes(a, d[0], n) for (_, a), d, n in zip(texts, drawn, lengths, strict=True))
                for end in itertools.product(*ends):
                    after = tuple(
                        ((*text, *new)[:tokens], new[-1]) for (text, _), (new, _) in zip(texts, end, strict=True)
                    )
                    key = (after, (*past, logits.tobytes()))
                    following[key] += probability * float(np.prod([e[1] for e in end]))
        states = following
    result = np.zeros((2,) * (requests * tokens))
    for (texts, _), weight in states.items():
        result[tuple(t for text, _ in texts for t in text)] += weight
    return result
