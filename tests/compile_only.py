"""A pytest plugin that compiles each Triton kernel for Hopper in place of running it; it takes no GPU.

    python -m pytest -p compile_only -m "not gpu" tests/kernels

The interpreter takes what the compiler refuses (types that differ between branches, shapes that are no constants). A
test of the kernels passes here if all that it launches compiles; what it computes is not looked at.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

# Before anything imports triton.
os.environ["TRITON_INTERPRET"] = "0"

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_source
from triton.runtime.jit import JITFunction

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.bool: "*i1",
}
_compiled: set[str] = set()


class DoesNotCompile(BaseException):
    """No Exception, so that no test takes it for one that it expects."""


def compile_launch(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **keywords: Any) -> None:
    """In place of `JITFunction.run`: compiles what these arguments would be specialised to."""
    values = dict(zip(kernel.arg_names, args, strict=False))
    values |= {parameter.name: parameter.default for parameter in kernel.params if parameter.name not in values}
    values |= {name: value for name, value in keywords.items() if name in kernel.arg_names}
    options = {name: value for name, value in keywords.items() if name not in kernel.arg_names}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}

    def spelled(path: tuple[int, ...], value: Any, *, constant: bool, specialised: bool) -> Any:
        if isinstance(value, tuple) and not constant:
            return tuple(
                spelled((*path, i), item, constant=False, specialised=specialised) for i, item in enumerate(value)
            )
        if isinstance(value, torch.Tensor) and not constant:
            attributes[path] = [["tt.divisibility", 16]]
            return POINTERS[value.dtype]
        if constant or value is None or (specialised and value is not True and value == 1):
            constants[path] = value
            return "constexpr"
        if isinstance(value, bool):
            return "i1"
        if isinstance(value, float):
            return "fp32"
        if specialised and value % 16 == 0:
            attributes[path] = [["tt.divisibility", 16]]
        return "i32" if -(2**31) <= value < 2**31 else "i64"

    signature = {
        parameter.name: spelled(
            (i,),
            values[parameter.name],
            constant=parameter.is_constexpr,
            specialised=not parameter.do_not_specialize,
        )
        for i, parameter in enumerate(kernel.params)
    }
    key = repr((kernel.__module__, kernel.__name__, signature, constants, attributes, options))
    if key in _compiled:
        return
    _compiled.add(key)
    try:
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
        compile_source(source, target=HOPPER, options=options)
    except Exception as error:
        raise DoesNotCompile(f"{kernel.__name__}: {error}") from error


JITFunction.run = compile_launch


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, None]:
    """What a test says of memory that nothing was written to means nothing."""
    outcome = yield
    if isinstance(outcome.excinfo and outcome.excinfo[1], Exception):
        outcome.force_result(True)
