"""Lengths on the device: those of the scheduler's rule over hazards that numpy computes, digit by digit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fixed_point import device_hazards

from dspark.engine.scheduler.allocation import allocate
from dspark.kernels.allocation import reference


def case(num_rows: int, gamma: int, *, seed: int) -> dict[str, torch.Tensor]:
    """Logits of which some are repeated for ties and a few are wild, and caps of which some are 0 or past the block."""
    rng = np.random.default_rng(seed)
    # A strided view, as of a larger pool.
    logits = rng.normal(1, 3, (num_rows, gamma + 3)).astype(np.float32)[:, :gamma]
    logits[rng.random(logits.shape) < 0.3] = 2.0
    wild = rng.random(logits.shape) < 0.02
    logits[wild] = rng.choice(np.float32([np.nan, np.inf, -np.inf, 1e9, -70, 40, 0]), int(wild.sum()))
    return {
        "confidence_logits": torch.from_numpy(logits),
        "caps": torch.from_numpy(rng.integers(-1, gamma + 2, num_rows)),
        "temperatures": torch.from_numpy(rng.uniform(0.3, 3, gamma).astype(np.float32)),
    }


def in_numpy(inputs: dict[str, torch.Tensor], budget: int) -> list[int]:
    logits, caps, temperatures = (values.numpy() for values in inputs.values())
    return allocate(device_hazards(logits, temperatures), caps, budget=budget).tolist()


def lengths(function, inputs: dict[str, torch.Tensor], budget: int, device: torch.device) -> list[int]:  # type: ignore[no-untyped-def]
    on_device = {name: values.to(device) for name, values in inputs.items()}
    num_rows = len(inputs["caps"])
    out = torch.full((num_rows,), -7, dtype=torch.int64, device=device)
    logits, caps = (on_device.pop(name) for name in ("confidence_logits", "caps"))
    function(logits, caps, **on_device, budget=torch.tensor([budget], device=device), out=out)
    return out.tolist()


def budgets(num_rows: int, gamma: int) -> list[int]:
    return sorted({0, 1, num_rows, num_rows * gamma // 3, num_rows * gamma + 5})


@pytest.mark.parametrize("num_rows", [1, 7, 63, 100, 512, 1024])
@pytest.mark.parametrize("gamma", [1, 5, 7, 16])
def test_reference_is_the_numpy_form(num_rows: int, gamma: int) -> None:
    inputs = case(num_rows, gamma, seed=num_rows + gamma)
    for budget in budgets(num_rows, gamma):
        actual = lengths(reference.allocate_lengths, inputs, budget, torch.device("cpu"))
        assert actual == in_numpy(inputs, budget), budget


@pytest.mark.parametrize(
    ("num_rows", "gamma"), [(1, 7), (1, 1), (7, 16), (7, 3), (63, 7), (63, 16), (100, 5), (512, 7)]
)
def test_kernel_is_the_numpy_form(device: torch.device, num_rows: int, gamma: int) -> None:
    from dspark.kernels.allocation.triton import allocate_lengths

    inputs = case(num_rows, gamma, seed=num_rows * gamma)
    # Interpreted programs are slow, and there is one a request.
    for budget in budgets(num_rows, gamma) if num_rows < 63 else [num_rows * gamma // 3]:
        assert lengths(allocate_lengths, inputs, budget, device) == in_numpy(inputs, budget), budget


def test_kernel_on_the_largest_batch(device: torch.device, gpu_only: None) -> None:
    from dspark.kernels.allocation.triton import allocate_lengths

    inputs = case(1024, 16, seed=0)
    for budget in budgets(1024, 16):
        assert lengths(allocate_lengths, inputs, budget, device) == in_numpy(inputs, budget), budget


def test_kernel_ranks_by_the_very_hazards_of_the_numpy_form(device: torch.device) -> None:
    # Two requests whose logits are neighbouring fp32 numbers: rounding anywhere else would swap them or tie them.
    from dspark.kernels.allocation.triton import allocate_lengths

    first = np.linspace(-30, 30, 33, dtype=np.float32)
    for logit in first:
        pair = np.float32([[logit], [np.nextafter(logit, np.float32(99))]])
        inputs = {
            "confidence_logits": torch.from_numpy(pair),
            "caps": torch.tensor([1, 1]),
            "temperatures": torch.tensor([0.7]),
        }
        assert lengths(allocate_lengths, inputs, 1, device) == in_numpy(inputs, 1), logit


def test_no_requests(device: torch.device) -> None:
    from dspark.kernels.allocation.triton import allocate_lengths

    inputs = {
        "confidence_logits": torch.zeros(0, 7),
        "caps": torch.zeros(0, dtype=torch.int64),
        "temperatures": torch.ones(7),
    }
    assert lengths(allocate_lengths, inputs, 4, device) == []
