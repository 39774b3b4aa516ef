"""Kernels of the engine, one folder an operation, and the one place that chooses between their two forms.

Each op runs `reference.py` on CPU tensors and `triton.py`, of the same signature, on a GPU's.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from dspark.kernels.activation import reference as _activation
from dspark.kernels.allocation import reference as _allocation
from dspark.kernels.attention import AttentionLayout
from dspark.kernels.attention import reference as _attention
from dspark.kernels.commit import NO_STOP, ResultField, SlotField
from dspark.kernels.commit import reference as _commit
from dspark.kernels.confidence import reference as _confidence
from dspark.kernels.distillation import DistilledRows
from dspark.kernels.distillation import reference as _distillation
from dspark.kernels.draft_top import TopQ
from dspark.kernels.draft_top import reference as _draft_top
from dspark.kernels.linear import reference as _linear
from dspark.kernels.main_cache import reference as _main_cache
from dspark.kernels.markov import reference as _markov
from dspark.kernels.norm import reference as _norm
from dspark.kernels.prepare import BatchInputs, RoundField
from dspark.kernels.prepare import reference as _prepare
from dspark.kernels.random import ACCEPT, DRAFT, SAMPLE, NoiseKeys
from dspark.kernels.random import reference as _random
from dspark.kernels.rope_cache import reference as _rope_cache
from dspark.kernels.sampling import SamplingRows, target_log_probs
from dspark.kernels.sampling import reference as _sampling
from dspark.kernels.verification import Verdict
from dspark.kernels.verification import reference as _verification


class _Placed(Protocol):
    """A tensor, or what is made of tensors of one device."""

    @property
    def is_cuda(self) -> bool: ...


_First = TypeVar("_First", bound=_Placed)
_Rest = ParamSpec("_Rest")
_Result = TypeVar("_Result")


def _dispatch(
    reference: Callable[Concatenate[_First, _Rest], _Result],
) -> Callable[Concatenate[_First, _Rest], _Result]:
    """The op of a reference: the first argument's device decides."""
    # Triton exists on Linux only, so its form is imported by the first call that needs it.
    twin: Callable[Concatenate[_First, _Rest], _Result] | None = None

    @functools.wraps(reference)
    def op(first: _First, /, *args: _Rest.args, **kwargs: _Rest.kwargs) -> _Result:
        nonlocal twin
        if not first.is_cuda:
            return reference(first, *args, **kwargs)
        if twin is None:
            module = importlib.import_module(reference.__module__.removesuffix("reference") + "triton")
            twin = getattr(module, reference.__name__)
        return twin(first, *args, **kwargs)

    return op


commit_round = _dispatch(_commit.commit_round)
allocate_lengths = _dispatch(_allocation.allocate_lengths)
confidence_logits = _dispatch(_confidence.confidence_logits)
distill_rows = _dispatch(_distillation.distill_rows)
draw_from_top = _dispatch(_draft_top.draw_from_top)
gumbel = _dispatch(_random.gumbel)
headless_confidence_logits = _dispatch(_confidence.headless_confidence_logits)
linear = _dispatch(_linear.linear)
markov_step = _dispatch(_markov.markov_step)
paged_attention = _dispatch(_attention.paged_attention)
philox_words = _dispatch(_random.philox_words)
prepare_batch = _dispatch(_prepare.prepare_batch)
rms_norm = _dispatch(_norm.rms_norm)
rope_attention = _dispatch(_attention.rope_attention)
rope_and_cache = _dispatch(_rope_cache.rope_and_cache)
sample = _dispatch(_sampling.sample)
silu_mul = _dispatch(_activation.silu_mul)
uniform = _dispatch(_random.uniform)
verify = _dispatch(_verification.verify)
write_main_cache = _dispatch(_main_cache.write_main_cache)

__all__ = [
    "ACCEPT",
    "DRAFT",
    "NO_STOP",
    "SAMPLE",
    "AttentionLayout",
    "BatchInputs",
    "DistilledRows",
    "NoiseKeys",
    "ResultField",
    "RoundField",
    "SamplingRows",
    "SlotField",
    "TopQ",
    "Verdict",
    "allocate_lengths",
    "commit_round",
    "confidence_logits",
    "distill_rows",
    "draw_from_top",
    "gumbel",
    "headless_confidence_logits",
    "linear",
    "markov_step",
    "paged_attention",
    "philox_words",
    "prepare_batch",
    "rms_norm",
    "rope_and_cache",
    "rope_attention",
    "sample",
    "silu_mul",
    "target_log_probs",
    "uniform",
    "verify",
    "write_main_cache",
]
