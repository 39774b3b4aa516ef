"""Greedy text: every token is the target's first choice, and speculation gives the text of plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from dspark.engine.requests import Request, SamplingParams
from dspark.engine.selftest.noise import near_tie_gap
from dspark.engine.selftest.phases import Counted, uncounted
from dspark.engine.selftest.report import Check

if TYPE_CHECKING:
    from dspark.engine.engine import Engine
    from dspark.engine.selftest.plain import PlainForward

NAME = "greedy text"


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a text leaves that of plain decoding, and how far apart the target's logits of the two tokens are."""

    text: int
    token: int
    gap: float


def greedy_texts(
    engine: Engine, prompts: Sequence[list[int]], num_tokens: int, *, counted: Counted = uncounted
) -> list[list[int]]:
    """The engine's greedy text of `num_tokens` behind each prompt, past end tokens."""
    sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    requests = [Request(index, prompt, sampling) for index, prompt in enumerate(prompts)]
    done = sorted(counted(engine.generate(requests), len(requests)), key=lambda completion: completion.index)
    return [completion.token_ids for completion in done]


def deficits(plain: PlainForward, prompt: Sequence[int], text: Sequence[int]) -> np.ndarray:
    """By how much each token's logit is below the target's largest, [n]; all 0 in a greedy text."""
    logits = plain.logits([*prompt, *text])[len(prompt) - 1 : -1]  # [n, V]
    return logits.max(axis=1) - logits[np.arange(len(text)), list(text)]


def check_greedy(
    plain: PlainForward,
    prompts: Sequence[list[int]],
    texts: Sequence[list[int]],
    *,
    policy: str,
    noise: float,
    reference: Sequence[list[int]] | None = None,
    counted: Counted = uncounted,
) -> Check:
    """Judge greedy `texts` by the target's plain forward, and against the texts of plain decoding.

    A text may part from `reference` where two logits are a near-tie: no further apart than the batch's shape can move
    them, of which `noise` is a sample. Anything further is a wrong token.
    """
    lengths = [len(text) for text in texts]
    if reference is not None and lengths != [len(text) for text in reference]:
        finding = f"texts of {lengths} tokens, and of {[len(text) for text in reference]} by plain decoding"
        return Check(NAME, policy, False, finding, {"texts": len(texts)})
    allowed = near_tie_gap(noise)
    partings, wrong = [], []
    for number, (prompt, text) in enumerate(counted(zip(prompts, texts, strict=True), len(texts))):
        below = deficits(plain, prompt, text)
        if below.max() > allowed:
            token = int(np.argmax(below > allowed))
            wrong.append(Parting(number, token, float(below[token])))
        elif reference is not None and text != reference[number]:
            partings.append(_parting(plain, number, prompt, text, reference[number]))
    same = len(texts) - len(wrong) - len(partings)
    numbers = {
        "texts": len(texts),
        "same": same,
        "near_ties": [asdict(parting) for parting in partings],
        "wrong": [asdict(parting) for parting in wrong],
        "near_tie_gap": allowed,
    }
    return Check(NAME, policy, not wrong, _finding(len(texts), partings, wrong, noise, reference is None), numbers)


def _parting(
    plain: PlainForward, number: int, prompt: Sequence[int], text: Sequence[int], reference: Sequence[int]
) -> Parting:
    token = next(i for i, (mine, other) in enumerate(zip(text, reference, strict=True)) if mine != other)
    logits = next(iter(plain.logits_behind([[*prompt, *text[:token]]])))
    return Parting(number, token, abs(float(logits[text[token]]) - float(logits[reference[token]])))


def _finding(count: int, partings: list[Parting], wrong: list[Parting], noise: float, is_plain: bool) -> str:
    apart = f"the batch's shape alone moves the target's logits by up to {noise:.2g} against each other"
    if wrong:
        first = wrong[0]
        return (
            f"{len(wrong)} of {count} texts hold a token that the target would not choose: token {first.token} of "
            f"text {first.text} is {first.gap:.2g} below the best logit, and {apart}"
        )
    if is_plain:
        return f"every token of {count} texts is the target's first choice"
    if partings:
        gaps = ", ".join(f"text {p.text} at token {p.token} (top-2 gap {p.gap:.2g})" for p in partings)
        return (
            f"{count - len(partings)} of {count} texts are those of plain decoding, the others part at near-ties: "
            f"{gaps}; {apart}"
        )
    return f"{count} of {count} texts are those of plain decoding"
