"""What an engine is asked to be, in one frozen record."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dspark.engine.errors import UsageError
from dspark.engine.models.aliases import DEFAULT_TARGET

ACCEPTANCE_MODES = ("rejection", "coupled")
DEVICES = ("auto", "cpu", "cuda")
LOAD_FORMATS = ("auto", "dummy")
DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Configuration of an :class:`~dspark.engine.engine.Engine`.

    `None` means "choose": the built-in drafter with the built-in target and none with any other; policy `fixed:γ` with
    a drafter and `none` without; concurrency 16 on a CPU and 256 on a GPU; a KV pool of 1 GiB on a CPU and of what
    `gpu_memory_utilization` leaves on a GPU; prefill in chunks of 1024 tokens on a CPU and 8192 on a GPU.
    `max_context` counts prompt and completion tokens of one request, `kv_cache_tokens` those of all, `page_size` those
    of one cache page.

    `load_format` "dummy" gives random weights: `target` is then a folder with a config.json or a shape that comes with
    the package, and the drafter's shape is derived from it. `graphs` off runs rounds eagerly on a GPU too.

    Raises:
        UsageError: a value is outside what it may be.
    """

    target: str = DEFAULT_TARGET
    drafter: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    policy: str | None = None
    acceptance: str = "rejection"
    concurrency: int | None = None
    seed: int = 0
    max_context: int | None = None
    page_size: int = 16
    kv_cache_tokens: int | None = None
    gpu_memory_utilization: float = 0.9
    prefill_chunk_tokens: int | None = None
    load_format: str = "auto"
    graphs: bool = True

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("device", self.device, DEVICES),
            ("dtype", self.dtype, DTYPES),
            ("acceptance", self.acceptance, ACCEPTANCE_MODES),
            ("load_format", self.load_format, LOAD_FORMATS),
        ):
            if value not in allowed:
                raise UsageError(f"{name} is {value!r}", f"Choose one of: {', '.join(allowed)}.")
        for name in ("concurrency", "max_context", "page_size", "kv_cache_tokens", "prefill_chunk_tokens"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise UsageError(f"{name} is {count}", "Give a whole number of at least 1.")
        if not (math.isfinite(self.gpu_memory_utilization) and 0 < self.gpu_memory_utilization <= 1):
            raise UsageError(f"gpu_memory_utilization is {self.gpu_memory_utilization}", "Give a share in (0, 1].")
