"""Why a report cannot be made."""

from __future__ import annotations

from dspark.engine.errors import DsparkError


class ReportError(DsparkError):
    """Artefacts that say nothing, or that contradict each other."""
