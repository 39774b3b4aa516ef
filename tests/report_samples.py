"""Made-up runs whose truth is known, as artefacts in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from profile_samples import GAMMA, make_profile

from dspark.calibration import Provenance, Traces, calibrate, make_traces, save_calibration, write_traces
from dspark.engine.report.picture import Picture
from dspark.profiles import save_profile

# Of the pair that `make_profile` is of.
PAIR = Provenance("tiny", "tiny-drafter", "rejection", "0123", "4567")


def make_rounds(rounds: int = 400, gamma: int = GAMMA, *, seed: int = 0, **columns: Any) -> Traces:
    """Ten rounds a request; logits are the true ones, of drafts that are accepted by them."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.5, 1.5, size=(rounds, gamma)).astype(np.float32)
    passed = rng.random(logits.shape) < 1 / (1 + np.exp(-logits))
    values: dict[str, Any] = {
        "request": np.arange(rounds) // 10,
        "accepted": np.cumprod(passed, axis=1).sum(axis=1),
        "confidence_logits": logits,
        "provenance": PAIR,
    }
    return make_traces(**(values | columns))


def make_run(folder: Path, *, rounds: int = 400, seed: int = 0, slower: float = 1.0) -> Path:
    """All artefacts but those of `decode`."""
    folder.mkdir(parents=True, exist_ok=True)
    dataset = np.array(["code", "maths"])[np.arange(rounds) // 10 % 2]
    traces = make_rounds(rounds, seed=seed, dataset=dataset, policy=f"fixed:{GAMMA}", temperature=0.0)
    write_traces(traces, folder / "traces.parquet")
    save_calibration(calibrate(traces, seed=seed), folder / "calibration.json")
    save_profile(make_profile(slower=slower), folder / "profile.json")
    return folder


def blank(draw: Any, size: tuple[float, float]) -> Picture:
    """In place of `render`, where what is drawn is not what is tested."""
    return Picture("<svg/>", b"\x89PNG")


def decode_metrics(**engine: str) -> dict[str, Any]:
    """What the figures read of a `decode.metrics.json`: 3, 2 and 1 rounds accepted 0, 1 and 2 tokens."""
    spec = {"acceptance_histogram": [3, 2, 1], "rounds": 6, "verified": 12, "accepted": 4, "emitted": 10}
    fingerprints = {"target": "0123", "drafter": "4567", "policy": "fixed:2"}
    return {"spec": spec, "run": {"engine": fingerprints | engine}, "manifest": {"torch": "2.13.0"}}
