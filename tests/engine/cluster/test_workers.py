import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from dspark.engine.cluster.workers import Share, Workers, share_of
from dspark.engine.errors import UsageError

SHARES = {
    "every GPU": ((None, "auto"), {"gpus": 8, "cpus": 128, "machines": 1}, Share(8, 1, 1.0)),
    "some GPUs": ((2, None), {"gpus": 8, "cpus": 128, "machines": 1}, Share(2, 1, 1.0)),
    "few processors beside GPUs": ((4, None), {"gpus": 4, "cpus": 2, "machines": 1}, Share(4, 1, 0.5)),
    "processors": ((2, None), {"gpus": 0, "cpus": 9, "machines": 1}, Share(2, 0, 4.0)),
    "more workers than processors": ((4, None), {"gpus": 0, "cpus": 2, "machines": 1}, Share(4, 0, 0.5)),
    "every machine": ((None, "auto"), {"gpus": 0, "cpus": 48, "machines": 3}, Share(3, 0, 16.0)),
    "a cluster that may grow": ((6, "auto"), {"gpus": 4, "cpus": 64, "machines": 2}, Share(6, 1, 1.0)),
}


@pytest.mark.parametrize(("asked", "there", "share"), SHARES.values(), ids=SHARES)
def test_a_cluster_is_divided(asked, there, share):
    assert share_of(Workers(*asked), device="auto", **there) == share


def test_processors_alone_where_a_cpu_is_asked_for():
    assert share_of(Workers(2), device="cpu", gpus=8, cpus=8, machines=1) == Share(2, 0, 4.0)


@pytest.mark.parametrize(
    ("workers", "device", "gpus", "message"),
    [(Workers(2), "cuda", 0, "device is 'cuda'"), (Workers(3), "auto", 2, "num_workers is 3, and each takes a GPU")],
    ids=["no GPU", "too few GPUs"],
)
def test_what_is_not_there_is_refused(workers, device, gpus, message):
    with pytest.raises(UsageError, match=message) as refused:
        share_of(workers, device=device, gpus=gpus, cpus=8, machines=1)
    assert refused.value.remedy


def test_no_workers_are_no_workers_and_zero_of_them_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert Workers.asked(None, None) is None
    with pytest.raises(UsageError, match="Ray, which is not installed"):
        Workers.asked(None, "auto")
    installed = ModuleType("ray")
    installed.__spec__ = ModuleSpec("ray", None)
    monkeypatch.setitem(sys.modules, "ray", installed)
    assert Workers.asked(None, "auto") == Workers(None, "auto")
    with pytest.raises(UsageError, match="num_workers is 0"):
        Workers(0)
