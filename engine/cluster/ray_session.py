"""Ray, started for one run or joined: quiet, and gone when the run is."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

from dspark.engine.cluster.workers import INSTALL_RAY, check_ray
from dspark.engine.errors import EngineError, UsageError
from dspark.engine.wording import first_line

# What a user sets goes before these.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no report to Ray's makers
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a thread that ends late must not start Ray anew
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class RaySession:
    """A connection of this process to Ray.

    Args:
        address: of a running cluster; None starts Ray on this machine, for as long as the session lasts.

    Raises:
        UsageError: Ray is not installed, or nothing answers at the address.
    """

    def __init__(self, address: str | None) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        check_ray()
        try:
            import ray
            import ray.data
        except ModuleNotFoundError as error:
            raise UsageError(f"ray cannot be loaded: {error}", INSTALL_RAY) from None
        # Before anything is started: what it says of itself is nothing to act on, and what fails is raised.
        for name in ("ray", "ray.data"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._ray = ray
        self._owned = not ray.is_initialized()
        if self._owned:
            _connect(ray, address)
        _configure(ray)
        resources = ray.cluster_resources()
        self.gpus = int(resources.get("GPU", 0))
        self.cpus = int(resources.get("CPU", 1))
        self.machines = sum(bool(node["Alive"]) for node in ray.nodes())

    def actor(self, kind: type, *arguments: Any) -> Any:
        """An actor on the driver's machine, which costs no processor."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=False)
        return self._ray.remote(num_cpus=0, scheduling_strategy=here)(kind).remote(*arguments)

    def close(self) -> None:
        """Leave the cluster, which ends what this process had running there; one that was started ends too."""
        if self._owned:
            self._ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    try:
        with _muted(), _own_signals():
            ray.init(
                # Not None, which takes RAY_ADDRESS or a cluster that happens to run here.
                address=address or "local",
                log_to_driver=False,
                configure_logging=False,
                **({} if address else {"include_dashboard": False}),
            )
    except (ConnectionError, ValueError, RuntimeError) as error:
        if address is None:
            raise EngineError(f"ray does not start: {first_line(error)}", "See its logs in /tmp/ray.") from error
        raise UsageError(
            f"no Ray cluster answers at {address}: {first_line(error)}",
            "Start one with `ray start --head`, or leave --ray out.",
        ) from error


@contextlib.contextmanager
def _muted() -> Iterator[None]:
    """Descriptor 2 is nowhere meanwhile: Ray's own code writes there past Python, and what fails is raised anyway."""
    stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray would end this process at a termination, without what the command does then."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _configure(ray: Any) -> None:
    """Quiet, quick to hand on, and no load on the workers."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # Else every call in flight walks through all memory of its worker once a second.
    context.memory_usage_poll_interval_s = None
    # A block is handed on when it is there, not when enough of them are.
    context.target_max_block_size = 1
    # Ray prints what happens to workers on stdout, where a program reads our document.
    ray._private.worker._worker_logs_enabled = False
