"""The decode engine. Attributes load on first use, so that array code below it imports without torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspark.engine.config import EngineConfig as EngineConfig
    from dspark.engine.engine import Engine as Engine
    from dspark.engine.requests import Completion as Completion
    from dspark.engine.requests import Request as Request
    from dspark.engine.requests import SamplingParams as SamplingParams

_MODULES = {
    "Engine": "engine",
    "EngineConfig": "config",
    "Completion": "requests",
    "Request": "requests",
    "SamplingParams": "requests",
}

__all__ = ["Completion", "Engine", "EngineConfig", "Request", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
