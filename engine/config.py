"""What an engine is asked to be, in one frozen record."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING

from dspark.engine.errors import UsageError
from dspark.engine.models.aliases import DEFAULT_TARGET
from dspark.engine.wording import shortened

if TYPE_CHECKING:
    from dspark.calibration import Calibration
    from dspark.profiles import Profile

ACCEPTANCE_MODES = ("rejection", "coupled")
DEVICES = ("auto", "cpu", "cuda")
LOAD_FORMATS = ("auto", "dummy")
DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Configuration of an :class:`~dspark.engine.engine.Engine`.

    `None` means "choose": the built-in drafter with the built-in target and none with any other; policy `async` with a
    drafter and a profile, `fixed:γ` with a drafter alone and `none` without; concurrency 16 on a CPU and 256 on a GPU;
    a KV pool of 1 GiB on a CPU and of what `gpu_memory_utilization` leaves on a GPU; prefill in chunks of 1024 tokens
    on a CPU and 8192 on a GPU. `max_context` counts prompt and completion tokens of one request, `kv_cache_tokens`
    those of all, `page_size` those of one cache page.

    `load_format` "dummy" gives random weights: `target` is then a folder with a config.json or a shape that comes with
    the package, and the drafter's shape is derived from it. `graphs` off runs rounds eagerly on a GPU too.
    `pipeline_depth` rounds stay in flight while the host prepares the next: 1 where rounds are graphs, else 0; the
    drafter `ngram` allows 0 alone.

    `draft_top_k` tokens of the draft distribution, its likeliest, are what sampled rows draft from; by default all are,
    as they are where the drafter knows no more.

    `profile` and `calibration` are what `dspark profile` and `dspark calibrate` wrote, or the paths of it. `adapt` off
    plans by the profile alone, whatever this run's own rounds take.

    Raises:
        UsageError: a value is of the wrong type or outside what it may be.
    """

    target: str = DEFAULT_TARGET
    drafter: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    policy: str | None = None
    acceptance: str = "rejection"
    draft_top_k: int | None = None
    concurrency: int | None = None
    seed: int = 0
    max_context: int | None = None
    page_size: int = 16
    kv_cache_tokens: int | None = None
    gpu_memory_utilization: float = 0.9
    prefill_chunk_tokens: int | None = None
    load_format: str = "auto"
    graphs: bool = True
    pipeline_depth: int | None = None
    profile: Profile | str | None = None
    calibration: Calibration | str | None = None
    adapt: bool = True

    def __post_init__(self) -> None:
        for name in ("target", "drafter"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "drafter" and value is None):
                raise _refused(name, value, "Give a folder, a hub id or an alias, as text.")
        for name, allowed in (
            ("device", DEVICES),
            ("dtype", DTYPES),
            ("acceptance", ACCEPTANCE_MODES),
            ("load_format", LOAD_FORMATS),
        ):
            if getattr(self, name) not in allowed:
                raise _refused(name, getattr(self, name), f"Choose one of: {', '.join(allowed)}.")
        if self.policy is not None and not isinstance(self.policy, str):
            raise _refused("policy", self.policy, "Give its spelling, or hand a policy object to Engine(policy=...).")
        for name in (
            "draft_top_k",
            "concurrency",
            "max_context",
            "page_size",
            "kv_cache_tokens",
            "prefill_chunk_tokens",
        ):
            count = getattr(self, name)
            if count is None and name != "page_size":
                continue
            if not _is_whole(count) or count < 1:
                raise _refused(name, count, "Give a whole number of at least 1.")
        if self.pipeline_depth is not None and (not _is_whole(self.pipeline_depth) or self.pipeline_depth < 0):
            raise _refused("pipeline_depth", self.pipeline_depth, "Give a whole number of at least 0.")
        if not _is_whole(self.seed):
            raise _refused("seed", self.seed, "Give a whole number.")
        share = self.gpu_memory_utilization
        if not isinstance(share, Real) or isinstance(share, bool) or not 0 < share <= 1:
            raise _refused("gpu_memory_utilization", share, "Give a share in (0, 1].")
        for name in ("graphs", "adapt"):
            if not isinstance(getattr(self, name), bool):
                raise _refused(name, getattr(self, name), "Give True or False.")


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _refused(name: str, value: object, remedy: str) -> UsageError:
    shown = repr(shortened(value)) if isinstance(value, str) else shortened(repr(value))
    return UsageError(f"{name} is {shown}", remedy)
