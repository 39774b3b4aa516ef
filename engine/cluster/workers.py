"""How many workers decode, and where."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from dspark.engine.errors import UsageError

INSTALL_RAY = "Run `pip install 'dspark[ray]'`."


@dataclass(frozen=True, slots=True)
class Workers:
    """Data-parallel workers over Ray, each with the whole pair of models.

    `num_workers` None: one a GPU of the cluster, or one a machine where it has none. `address` None: Ray is started on
    this machine for the run; else a running cluster's address, or `auto` for the one this machine belongs to.

    Raises:
        UsageError: there is no such number of workers.
    """

    num_workers: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if self.num_workers is not None and self.num_workers < 1:
            raise UsageError(f"num_workers is {self.num_workers}", "Give a whole number of at least 1.")

    @classmethod
    def asked(cls, num_workers: int | None, address: str | None) -> Workers | None:
        """None where neither is given: this process decodes by itself.

        Raises:
            UsageError: there is no such number of workers, or Ray is not installed.
        """
        if num_workers is None and address is None:
            return None
        workers = cls(num_workers, address)
        check_ray()
        return workers


def check_ray() -> None:
    """Look for Ray without loading it, which takes seconds.

    Raises:
        UsageError: it is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise UsageError("several workers need Ray, which is not installed", INSTALL_RAY)


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker gets of a cluster: GPUs and processors as Ray counts them."""

    num_workers: int
    gpus: int
    cpus: float


def share_of(workers: Workers, *, device: str, gpus: int, cpus: int, machines: int) -> Share:
    """Divide a cluster of `gpus`, `cpus` and `machines`. `device` as in `EngineConfig`.

    Raises:
        UsageError: it has no GPU and one is asked for, or fewer of them than workers on a machine that gets no more.
    """
    if device == "cuda" and not gpus:
        raise UsageError(
            "device is 'cuda', and Ray finds no GPU", "Choose --device cpu, or give --ray another cluster."
        )
    on_gpus = device != "cpu" and gpus > 0
    count = workers.num_workers or (gpus if on_gpus else machines)
    # Another cluster may grow when it is asked to.
    if on_gpus and count > gpus and workers.address is None:
        raise UsageError(
            f"num_workers is {count}, and each takes a GPU, of which there are {gpus} here",
            f"Give at most {gpus}, or choose --device cpu.",
        )
    cpus_each = max(cpus, 1) / count
    if on_gpus:
        return Share(count, gpus=1, cpus=min(cpus_each, 1.0))
    return Share(count, gpus=0, cpus=float(int(cpus_each)) if cpus_each >= 1 else cpus_each)
