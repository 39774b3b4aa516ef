"""Runs the Triton kernels' tests in Triton's interpreter where there is no GPU, and compiled under `-m gpu`."""

import pytest
import torch
from triton_mode import compiles_only, interprets, mend_interpreter


@pytest.fixture(params=[pytest.param("cpu", id="interpreter"), pytest.param("cuda", id="cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device whose tensors the kernel under test takes: cpu in the interpreter, cuda when compiled."""
    pytest.importorskip("triton")
    if request.param == "cpu" and not compiles_only():
        if not interprets():
            pytest.skip("kernels are compiled in this session; TRITON_INTERPRET=1 interprets them")
        mend_interpreter()
    elif request.param == "cuda" and interprets():
        pytest.skip("kernels are interpreted in this session; a GPU and TRITON_INTERPRET=0 compile them")
    return torch.device(request.param)


@pytest.fixture
def gpu_only(device: torch.device) -> None:
    """Skips a case that is too large for the interpreter."""
    if device.type == "cpu":
        pytest.skip("too large for the interpreter")


@pytest.fixture(autouse=True)
def poisoned_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a wrapper allocates without filling starts as NaN (or the lowest integer), not as something plausible."""
    if "device" not in request.fixturenames:
        return
    empty = torch.empty

    def poisoned(*args, **kwargs):  # type: ignore[no-untyped-def]
        tensor = empty(*args, **kwargs)
        if tensor.dtype.is_floating_point:
            return tensor.fill_(float("nan"))
        return tensor if tensor.dtype == torch.bool else tensor.fill_(torch.iinfo(tensor.dtype).min)

    monkeypatch.setattr(torch, "empty", poisoned)
