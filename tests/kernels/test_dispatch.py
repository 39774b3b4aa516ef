"""The dispatch: CPU tensors to the reference, CUDA tensors to the Triton twin, which nothing else imports."""

import importlib
import inspect
import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

from dspark import kernels

# op -> folder
OPS = {
    "commit_round": "commit",
    "allocate_lengths": "allocation",
    "confidence_logits": "confidence",
    "distill_rows": "distillation",
    "draw_from_top": "draft_top",
    "gumbel": "random",
    "headless_confidence_logits": "confidence",
    "linear": "linear",
    "markov_step": "markov",
    "paged_attention": "attention",
    "philox_words": "random",
    "prepare_batch": "prepare",
    "rms_norm": "norm",
    "rope_and_cache": "rope_cache",
    "rope_attention": "attention",
    "sample": "sampling",
    "silu_mul": "activation",
    "uniform": "random",
    "verify": "verification",
    "write_main_cache": "main_cache",
}


class OnGpu:
    is_cuda = True


@pytest.mark.parametrize("op, folder", OPS.items())
def test_a_gpu_argument_reaches_the_twin(op: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    twin = importlib.import_module(f"dspark.kernels.{folder}.triton")
    reference = importlib.import_module(f"dspark.kernels.{folder}.reference")
    assert inspect.signature(getattr(twin, op)) == inspect.signature(getattr(reference, op))
    monkeypatch.setattr(twin, op, lambda *args, **kwargs: (args, kwargs))
    # A dispatch of its own, since an op remembers its twin.
    dispatched = kernels._dispatch(getattr(reference, op))
    first = OnGpu()
    for _ in range(2):
        assert dispatched(first, 2, three=3) == ((first, 2), {"three": 3})


def test_every_op_is_listed() -> None:
    functions = {name for name in kernels.__all__ if inspect.isfunction(getattr(kernels, name))}
    # The log-probabilities of whole rows are for tests and for the reference: no kernel writes them.
    assert functions == OPS.keys() | {"target_log_probs"}


def test_cpu_arguments_reach_the_reference() -> None:
    keys = kernels.NoiseKeys(*(torch.arange(3) for _ in range(3)), purpose=kernels.DRAFT)
    assert kernels.gumbel(keys, 5).shape == (3, 5)
    x, weight = torch.randn(4, 8), torch.randn(8)
    assert_close(kernels.rms_norm(x, weight, eps=1e-5), torch.nn.functional.rms_norm(x, (8,), weight, 1e-5))


def test_the_cpu_never_imports_triton() -> None:
    code = (
        "import sys, torch; from dspark import kernels; kernels.silu_mul(torch.ones(1, 4));"
        "assert not [m for m in sys.modules if m == 'triton' or m.startswith('dspark') and m.endswith('.triton')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.gpu
def test_gpu_arguments_reach_the_twin() -> None:
    keys = kernels.NoiseKeys(*(torch.arange(3, device="cuda") for _ in range(3)), purpose=kernels.DRAFT)
    assert kernels.uniform(keys).is_cuda
