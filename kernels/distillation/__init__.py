"""How far draft distributions are from the target's, and what moves them there."""

from .rows import DistilledRows

__all__ = ["DistilledRows"]
