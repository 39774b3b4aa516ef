"""Whether this session interprets Triton kernels on the CPU or compiles them: import it before anything else.

Triton decides while it is imported (transformers imports it too), so a session does one or the other:
`TRITON_INTERPRET` if it is set, else the interpreter exactly where torch finds no GPU.
"""

from __future__ import annotations

import os
import sys

import torch

os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")


def interprets() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)


def compiles_only() -> bool:
    """Whether kernels are compiled and not run (`-p compile_only`), so that tensors may lie anywhere."""
    return "compile_only" in sys.modules


def mend_interpreter() -> None:
    """Makes up for what the interpreter gets wrong.

    It keeps bfloat16 as its bits: its dot multiplies the bits, and its cast to bfloat16 cuts bits off. Triton 3.6's
    takes a loop bound for an integer in a way that NumPy 2.4 refuses.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    if getattr(builder, "mended", False):
        return
    cast = builder.cast_impl

    def widen(handle: interpreter.TensorHandle) -> np.ndarray:
        if handle.dtype.scalar == tl.bfloat16:
            return (handle.data.astype(np.uint32) << 16).view(np.float32)
        return handle.data

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):  # type: ignore[no-untyped-def]
        product = np.matmul(widen(a), widen(b), dtype=d.data.dtype)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    def cast_impl(self, src, dst_type):  # type: ignore[no-untyped-def]
        source, target = src.dtype.scalar, dst_type.scalar
        if (source, target) == (tl.float32, tl.bfloat16):
            rounded = torch.from_numpy(np.ascontiguousarray(src.data)).bfloat16().view(torch.uint16).numpy()
            return interpreter.TensorHandle(rounded.reshape(np.shape(src.data)), target)
        if (source, target) == (tl.bfloat16, tl.float32):
            return interpreter.TensorHandle(widen(src), target)
        return cast(self, src, dst_type)

    patch_tensor = interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor, scope):  # type: ignore[no-untyped-def]
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_lang_tensor
    builder.create_dot = create_dot
    builder.cast_impl = cast_impl
    builder.mended = True
