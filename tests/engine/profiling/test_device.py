"""What the driver says about a GPU, by a driver that is a script."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dspark.engine.profiling.device import device_state
from dspark.engine.profiling.job import _throttled

GPU = torch.device("cuda", 0)


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Makes an nvidia-smi of a shell script, the only program there is."""
    properties = SimpleNamespace(uuid="1234-abcd")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(script):
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return make


def test_state_of_the_chosen_gpu(driver):
    driver('[ "$2" = GPU-1234-abcd ] && echo "1980, 2619, 512.33, 60, 0x0000000000000004"')
    assert device_state(GPU) == {
        "sm_clock_mhz": 1980.0,
        "memory_clock_mhz": 2619.0,
        "power_w": 512.33,
        "temperature_c": 60.0,
        "throttle_reasons": "0x0000000000000004",
    }


def test_an_older_driver_knows_other_names(driver):
    driver('case "$3" in *event_reasons*) exit 2;; *) echo "1, 2, [N/A], 4, 0x0000000000000001";; esac')
    state = device_state(GPU)
    assert state["power_w"] is None
    assert state["throttle_reasons"] == "0x0000000000000001"


@pytest.mark.parametrize("script", [None, "exit 9", "echo", "true", "echo 1, 2"], ids=str)
def test_a_driver_that_does_not_answer(driver, script):
    if script is not None:
        driver(script)
    assert set(device_state(GPU).values()) == {None}


def test_a_cpu_has_none():
    assert device_state(torch.device("cpu")) == {}


def test_held_back_clocks_are_noted_unless_the_gpu_was_idle():
    idle, capped, unknown = ({"throttle_reasons": value} for value in ("0x1", "0x5", None))
    assert _throttled([{}, idle, unknown]) == []
    assert _throttled([idle, capped]) == ["The GPU held its clocks back while it was measured (reasons 0x4)."]
