"""Turns a call that launches kernels over static memory into one that replays them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from dspark.engine.errors import EngineError
from dspark.engine.wording import first_line

Replay = Callable[[], None]


class GraphCapture:
    """Captures graphs whose temporary memory comes from one pool.

    Sharing is safe because nothing in the pool outlives a replay: what others read lies in static memory. Graphs are
    best captured from the largest down, so that the smaller ones fit into what the larger have freed.

    On a CPU, which has no graphs, a replay runs the call again: the same code, for tests.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.num_captured = 0
        if device.type == "cuda":
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream(device)

    @torch.inference_mode()
    def capture(self, call: Replay, *, name: str) -> Replay:
        """`call` must not wait for the device, and must be harmless to run: it runs once before the capture.

        Raises:
            EngineError: the device refused.
        """
        self.num_captured += 1
        if self._device.type != "cuda":
            # As on a GPU, so that a call which is not harmless shows.
            call()
            return call
        graph = torch.cuda.CUDAGraph()
        try:
            # Compiles kernels, and allocates what has to outlive the graph.
            call()
            main = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(main)
            with torch.cuda.stream(self._stream), _no_collection():
                # Only what this thread does is of interest: a progress bar's thread may do as it likes.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    call()
                finally:
                    graph.capture_end()
            main.wait_stream(self._stream)
        except RuntimeError as error:  # torch.OutOfMemoryError and torch.AcceleratorError are such
            raise EngineError(
                f"the CUDA graph of {name} could not be captured: {first_line(error)}",
                "If memory ran out, lower gpu_memory_utilization or the concurrency; else run with graphs off.",
            ) from error
        return graph.replay


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keeps the garbage collector from freeing another engine's graphs in mid-capture, which would spoil it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
