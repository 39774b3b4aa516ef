"""How much a self-test decodes."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.engine.errors import UsageError

# Texts begin with this much of a prompt, and samples with this much.
PROMPT_TOKENS = 16
CONTEXT_TOKENS = 4
# Tokens of each sample: the first comes from the prefill, the others from rounds.
SAMPLE_TOKENS = 5


@dataclass(frozen=True, slots=True)
class SelftestSettings:
    """Sizes of the checks.

    Greedy and ending texts: `texts` prompts of `text_tokens` new tokens. Sampled tokens: `samples` draws behind each of
    `contexts` contexts (None: 80 on a CPU, where a minute is short, and 256 on a GPU). More of them see smaller faults.

    Raises:
        UsageError: a value is outside what it may be.
    """

    texts: int = 8
    text_tokens: int = 48
    contexts: int = 8
    samples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("texts", 1), ("text_tokens", 8), ("contexts", 1), ("samples", 32)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} is {value}", f"Give a whole number of at least {least}.")

    @property
    def most_context(self) -> int:
        """Tokens of the longest request."""
        return max(PROMPT_TOKENS + self.text_tokens, CONTEXT_TOKENS + SAMPLE_TOKENS)
