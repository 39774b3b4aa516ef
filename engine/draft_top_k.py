"""How many tokens of the draft distribution are drafted from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dspark.engine.errors import UsageError
from dspark.engine.ngram.drafter import NgramDrafter

if TYPE_CHECKING:
    from dspark.engine.config import EngineConfig
    from dspark.engine.proposals import DraftModel


def kept_draft_tokens(config: EngineConfig, drafter: DraftModel | NgramDrafter | None) -> int | None:
    """The tokens that q is cut to; None: to none fewer than the drafter can propose.

    Raises:
        UsageError: there is no q to cut.
    """
    check_draft_top_k(config, drafter)
    if config.draft_top_k is None or drafter is None or isinstance(drafter, NgramDrafter):
        return None
    return config.draft_top_k if config.draft_top_k < drafter.vocab_size else None


def check_draft_top_k(config: EngineConfig, drafter: object) -> None:
    """Refuse to cut a distribution that there is none of.

    Args:
        drafter: what drafts, or where its weights are; None: nothing drafts.

    Raises:
        UsageError: with the reason.
    """
    if config.draft_top_k is None:
        return
    if drafter is None:
        raise UsageError(
            f"draft_top_k is {config.draft_top_k}, and nothing is drafted",
            "Leave it out, or give a drafter and a policy that uses it.",
        )
    if isinstance(drafter, NgramDrafter):
        raise UsageError(
            f"draft_top_k is {config.draft_top_k}, and n-gram drafts are looked up, not drawn from a distribution",
            "Leave it out.",
        )
