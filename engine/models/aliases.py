"""Names that are no folder, and which drafter goes with a target when none is named. Imports nothing."""

from __future__ import annotations

DEFAULT_TARGET = "smollm2-135m"
DEFAULT_DRAFTER = "smollm2-135m-dspark"
NO_DRAFTER = "none"
NGRAM_DRAFTER = "ngram"  # looks drafts up in the text, and has no weights


def shaped_drafter(target: str) -> str:
    """What a drafter of random weights is called that has its shape from `target`."""
    return f"a drafter shaped for {target}"


def drafter_for(target: str, drafter: str | None) -> str:
    """What `drafter` names; None is the built-in drafter with the built-in target and no drafter with any other."""
    if drafter is not None:
        return drafter
    return DEFAULT_DRAFTER if target == DEFAULT_TARGET else NO_DRAFTER
