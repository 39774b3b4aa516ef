"""What a self-test found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    """One property of one policy. `finding` is a sentence without its full stop, `numbers` what it rests on."""

    name: str
    policy: str
    passed: bool
    finding: str
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SelftestReport:
    """All checks, in the order in which they ran.

    logit_noise: how far the target's logits move against each other when a text is computed in batches of other shapes.
    notes: sentences about what was not checked, or not exactly.
    """

    checks: tuple[Check, ...]
    logit_noise: float
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Did every check pass?"""
        return all(check.passed for check in self.checks)

    @property
    def verdict(self) -> str:
        """One sentence for a person."""
        failed = [check for check in self.checks if not check.passed]
        if not failed:
            return f"Speculation leaves the text as it is: all {len(self.checks)} checks passed."
        names = ", ".join(f"{check.name} with {check.policy}" for check in failed)
        return f"Speculation changes the text: {len(failed)} of {len(self.checks)} checks failed ({names})."

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for strict JSON."""
        return {
            "passed": self.passed,
            "verdict": self.verdict,
            "logit_noise": self.logit_noise,
            "checks": [asdict(check) for check in self.checks],
            "notes": list(self.notes),
        }
