"""What can go wrong, as a sentence with a remedy."""

from __future__ import annotations


class DsparkError(Exception):
    """A failure that the user can act on: `str(error)` says what happened, `remedy` what to do."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class UsageError(DsparkError):
    """The command or its options do not make sense (exit code 2)."""


class ArtefactError(DsparkError):
    """A profile or a calibration is of something else than what is about to run, or than the other of the two."""


class CheckpointError(DsparkError):
    """A model folder, hub id or checkpoint file cannot be used.

    `others` are further reasons that the same reading found, each of which would be enough.
    """

    others: tuple[CheckpointError, ...] = ()

    @property
    def reasons(self) -> tuple[CheckpointError, ...]:
        """This one and the others."""
        return (self, *self.others)


class UnknownModelError(CheckpointError, UsageError):
    """What a model option names is no model at all."""


class RequestError(DsparkError):
    """One input row cannot be decoded; the others can."""


class EngineError(DsparkError):
    """Decoding itself failed."""
