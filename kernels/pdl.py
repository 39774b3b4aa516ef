"""Programmatic dependent launch: a kernel starts, and reads its weights, while the one before it still runs.

Every kernel launched so calls `await_inputs` once in every program that writes, before it reads or writes anything
that another kernel writes or reads. It lets the next kernel start only then, so what lies two kernels back is finished
when a kernel begins: what `prepare_batch` made may be read before the wait by all but the kernel right behind it.
"""

import torch
import triton
import triton.language as tl

# Off in Triton's interpreter and on devices before Hopper, which know no such launch.
ENABLED = True


def launches_early(device: torch.device) -> bool:
    """Whether kernels on this device are to be launched so."""
    return ENABLED and device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


def launch_options(early: bool) -> dict[str, bool]:
    """What a launch passes beside its arguments."""
    return {"launch_pdl": True} if early else {}


@triton.jit
def await_inputs(PDL: tl.constexpr):
    """Wait for the kernel before this one, then let the one behind it start."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def prefetch(pointers):
    """Bring the 128-byte lines of `pointers` [n] into the second-level cache. Compiled kernels only."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )
