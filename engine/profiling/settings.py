"""What a profile is asked to measure."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.engine.errors import UsageError

DEFAULT_CONTEXTS = (256, 1024, 4096)
FEWEST_REPEATS, MOST_REPEATS = 5, 20
REPEATS_BUDGET_S = 60.0


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """What is measured, and how often.

    `None` means "choose": as many tokens as the engine's concurrency allows; as many repeats as fit into a minute, from
    5 to 20.
    """

    context_tokens: tuple[int, ...] = DEFAULT_CONTEXTS  # the first is the reference
    max_batch_tokens: int | None = None
    repeats: int | None = None
    seed: int = 0
    target_name: str | None = None
    drafter_name: str | None = None

    def __post_init__(self) -> None:
        if not self.context_tokens or min(self.context_tokens) < 1:
            raise UsageError("context lengths must be whole numbers of at least 1", "Write, say, 256,1024,4096.")
        for name in ("max_batch_tokens", "repeats"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}", "Give a whole number of at least 1.")

        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}", "Give a whole number of at least 0.")

    def repeats_for(self, repeat_s: float) -> int:
        """How often to repeat what took `repeat_s` to run once."""
        fitting = int(REPEATS_BUDGET_S / max(repeat_s, 1e-9))
        return self.repeats or min(max(fitting, FEWEST_REPEATS), MOST_REPEATS)
