"""What scheduling costs on the host: medians over the batch of 512 requests with seven drafted tokens each.

python tests/benchmarks/scheduling.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from dspark.engine.scheduler.allocation import allocate
from dspark.engine.scheduler.capacity import best_budget, gain_curve
from dspark.engine.scheduler.survival import hazards

REQUESTS, GAMMA, REPEATS = 512, 7, 2000


def median_us(function: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e6 * float(np.median(times))


def main() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(1.5, 2, (REQUESTS, GAMMA)).astype(np.float32)
    temperatures = np.ones(GAMMA)
    caps = np.full(REQUESTS, GAMMA)
    hazard = hazards(logits, temperatures)
    # Shelves of 64 tokens.
    round_s = 1e-3 + 4e-5 * (np.arange(REQUESTS * GAMMA + 1) // 64)

    def capacity() -> int:
        return best_budget(gain_curve(hazard, caps), round_s, num_requests=REQUESTS)

    def capacity_and_allocation() -> None:
        allocate(hazard, caps, budget=capacity())

    for name, function in (
        ("survival", lambda: hazards(logits, temperatures)),
        ("capacity", capacity),
        ("capacity and allocation", capacity_and_allocation),
    ):
        print(f"{name:24} {median_us(function):6.1f} µs")


if __name__ == "__main__":
    main()
