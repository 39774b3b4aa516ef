"""Engines without models for workers, whose processes import them by name."""

from __future__ import annotations

import os
from types import SimpleNamespace

from traced_engine import TracedEngine

from dspark.engine.errors import CheckpointError

FATAL = 5


class WorkerEngine(TracedEngine):
    """A traced fake engine with what a worker tells of its own."""

    device = SimpleNamespace(type="cpu")
    max_context = 100


def load_mortal(config, threads):
    """Ends its process whenever it is to decode row FATAL."""
    return WorkerEngine(before=lambda index: os._exit(1) if index == FATAL else None)


def load_nothing(config, threads):
    raise CheckpointError("there is no model", "Bring one.")
