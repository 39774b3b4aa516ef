"""What can go wrong with a profile, as a sentence with a remedy."""

from __future__ import annotations


class ProfileError(ValueError):
    """A profile that cannot be used: `str(error)` says why, `remedy` what to do."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy
