"""Programmatic dependent launch: a kernel starts, and reads its weights, while the one before it still runs.

Every kernel launched so calls `await_inputs` once in every program that writes, before it reads or writes anything
that another kernel writes or reads. It lets the next kernel start only then, so what lies two kernels back is finished
when a kernel begins: what `prepare_batch` made may be read before the wait by all but the kernel right behind it.
"""

import torch
import triton
import triton.language as tl


def launches_early(device: torch.device) -> bool:
    """Whether kernels on this device are launched so: from Hopper on, and not in Triton's interpreter."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


def launch_options(early: bool) -> dict[str, bool]:
    """What a launch passes beside its arguments."""
    return {"launch_pdl": True} if early else {}


@triton.jit
def await_inputs(PDL: tl.constexpr):
    """Wait for the kernel before this one, then let the one behind it start."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
