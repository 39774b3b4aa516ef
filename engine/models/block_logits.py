"""The logits of one draft block, and the choice of a token from those of a position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.engine.models.draft_vocabulary import DraftVocabulary
from dspark.engine.models.markov_head import MarkovHead
from dspark.engine.proposals import DraftBlock
from dspark.kernels import TopQ, draw_from_top, markov_step


@dataclass(slots=True)
class BlockLogits:
    """What the head gives, over its own rows, and q over the target's ids, which is the same without a vocabulary."""

    rows: Tensor  # [R, steps, Vd] fp32, corrected by the Markov head position by position if they are kept
    q: Tensor | None  # [R, steps, V] fp32, -inf where no row leads; None: nobody reads it
    vocabulary: DraftVocabulary | None
    kept: bool  # does anybody read the corrected logits
    top: TopQ | None = None  # [R, steps], q if it has few tokens

    @classmethod
    def of(
        cls,
        rows: Tensor,
        *,
        vocabulary: DraftVocabulary | None,
        memory: Tensor | None,
        wanted: bool,
        kept: bool,
        top: TopQ | None = None,
    ) -> BlockLogits:
        """memory [R, steps, V]: where q goes, if the caller brings it; wanted: whether anybody reads q.

        top [R, steps]: where a q of few tokens goes, in place of one over all.
        """
        if top is not None:
            return cls(rows, None, vocabulary, kept=True, top=top)
        if vocabulary is None:
            return cls(rows, rows, None, kept)
        if not wanted:
            return cls(rows, None, vocabulary, kept)
        q = vocabulary.empty_logits(*rows.shape[:2]) if memory is None else memory
        return cls(rows, q.fill_(-torch.inf), vocabulary, kept=True)

    def choose(
        self, step: int, block: DraftBlock, previous: Tensor, *, markov: MarkovHead | None, embedding: Tensor | None
    ) -> Tensor:
        """Tokens [R] of position `step`, behind `previous` [R]; embedding [R, r]: what W2 multiplies."""
        # The anchor sits at `starts`, so the first drafted token belongs to the position behind it.
        noise = None if block.noise is None else block.noise.at(step + 1)
        # What is drawn from is not these rows, but made of them.
        apart = self.vocabulary is not None or self.top is not None
        chosen = markov_step(
            self.rows[:, step],
            None if markov is None else markov.w1,
            None if markov is None else markov.w2,
            previous,
            noise=None if apart else noise,
            temperature=block.temperature,
            embedding=embedding,
            keep_logits=self.kept,
        )
        if self.top is not None:
            assert noise is not None, "greedy blocks are not drawn"
            return draw_from_top(
                self.rows[:, step],
                noise=noise,
                temperature=block.temperature,
                out=self.top[:, step],
                ids=None if self.vocabulary is None else self.vocabulary.ids,
            )
        if self.vocabulary is None:
            return chosen
        if self.q is not None:
            self.vocabulary.spread(self.rows[:, step], self.q[:, step])
        if noise is None:
            return self.vocabulary.ids[chosen]
        assert self.q is not None, "sampled rows need q over the target's ids"
        # Noise belongs to target ids: coupled acceptance compares draws of one and the same noise.
        return markov_step(
            self.q[:, step], None, None, previous, noise=noise, temperature=block.temperature, keep_logits=False
        )
