"""What a run trains on: the texts of a file, which of them are held out, and what the card says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dspark.engine.errors import UsageError
from dspark.engine.training.card import TextSummary
from dspark.engine.training.documents import Documents, check_enough
from dspark.engine.training.text_file import Text, file_digest, read_texts


@dataclass(frozen=True, slots=True)
class Material:
    """D texts, some to train on and some to measure on."""

    documents: Documents
    held_out: np.ndarray  # [D] bool
    summary: TextSummary


def read_material(path: Path, *, row_tokens: int, vocab_size: int) -> Material:
    """The texts of a file for a target of that vocabulary, cut to a row.

    Raises:
        UsageError: the file cannot be read, is of another target, or does not suffice.
    """
    texts = list(read_texts(path))
    documents = Documents.from_texts(texts, most_tokens=row_tokens)
    if len(documents.tokens) and documents.tokens.max() >= vocab_size:
        raise UsageError(f"{path} holds token ids that the target does not have", "Give --data a file of this target.")
    held_out = documents.held_out()
    check_enough(documents, held_out)
    return Material(documents, held_out, _summary(texts, documents, held_out, path))


def _summary(texts: Sequence[Text], documents: Documents, held_out: np.ndarray, path: Path) -> TextSummary:
    def counts(key: Callable[[Text], Any]) -> dict[str, int]:
        return dict(sorted(Counter(str(key(text)) for text in texts).items()))

    return TextSummary(
        texts=len(documents),
        held_out_texts=int(held_out.sum()),
        tokens=sum(text.num_tokens for text in texts),
        sha256=file_digest(path),
        by_temperature=counts(lambda text: text.temperature),
        by_source=counts(lambda text: text.source),
        held_out_by="text" if documents.share_prompt else "prompt",
    )
