"""What the n-gram drafter is; looking up begins with a run. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.engine.errors import UsageError
from dspark.engine.value_kinds import is_whole


@dataclass(frozen=True, slots=True)
class NgramDrafter:
    """Drafts what followed the last place where a text read as it reads now.

    It knows every vocabulary and any context. `longest_match` bounds how many tokens of the text's end are looked up,
    and with that how many hit rates there are to learn.

    Raises:
        UsageError: a size is no whole number of at least 1.
    """

    block_size: int = 7  # tokens of a block (G)
    longest_match: int = 8

    def __post_init__(self) -> None:
        for name in ("block_size", "longest_match"):
            value = getattr(self, name)
            if not is_whole(value) or value < 1:
                raise UsageError(f"{name} of the n-gram drafter is {value!r}", "Give a whole number of at least 1.")

    @property
    def fingerprint(self) -> str:
        """What two runs share that draft alike."""
        return f"ngram-{self.longest_match}-{self.block_size}"
