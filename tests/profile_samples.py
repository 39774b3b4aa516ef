"""Made-up measurements whose truth is known, and a profile of them."""

from __future__ import annotations

import numpy as np

from dspark.profiles import (
    DRAFT,
    TARGET,
    VERIFY_GREEDY,
    VERIFY_SAMPLED,
    Conditions,
    Measurement,
    ModelShape,
    Profile,
    StepCurve,
    fit_staircase,
    prediction_error,
)

BUCKETS = (1, 2, 4, 8, 16, 32)
# Two of them are slower than the next larger one: real curves are not monotone.
AT_ZERO_S = (0.010, 0.0101, 0.016, 0.012, 0.020, 0.035)
PER_KV_TOKEN_S = (1e-7, 1e-7, 2e-7, 2e-7, 2e-7, 4e-7)
GAMMA, CONTEXT = 7, 256


def visible(num_requests: int, context: int, num_tokens: int) -> int:
    return num_requests * context + num_tokens


def reference_load(bucket: int) -> int:
    return visible(-(-bucket // (1 + GAMMA)), CONTEXT, bucket)


def target_measurements(noise: float, *, repeats: int = 9, seed: int = 0) -> list[Measurement]:
    """Samples of the truth above; one in ten is disturbed to twice its time."""
    rng = np.random.default_rng(seed)
    points = []
    for bucket, at_zero, slope in zip(BUCKETS, AT_ZERO_S, PER_KV_TOKEN_S, strict=True):
        for requests in sorted({-(-bucket // (1 + GAMMA)), bucket}):
            for context in (CONTEXT, 1024, 4096):
                kv_tokens = visible(requests, context, bucket)
                truth = at_zero + slope * kv_tokens
                samples = truth * (1 + noise * rng.standard_normal(repeats))
                samples *= np.where(noise * rng.random(repeats) > 0.9 * noise, 2, 1)
                points.append(measurement(TARGET, bucket, bucket, requests, context, kv_tokens, samples.tolist()))
    return points


def measurement(
    kind: str, bucket: int, tokens: int, requests: int, context: int, kv_tokens: int, samples: list[float]
) -> Measurement:
    return Measurement(kind, bucket, tokens, requests, context, kv_tokens, False, tuple(samples))


def make_conditions(**changes: object) -> Conditions:
    values: dict[str, object] = {
        "target": ModelShape("tiny", "0123", {"hidden_size": 64, "num_layers": 6}),
        "drafter": ModelShape("tiny-drafter", "4567", {"block_size": GAMMA}),
        "dtype": "float32",
        "device": "cpu",
        "device_name": "a CPU",
        "threads": 2,
        "runner": "eager",
        "page_size": 16,
        "concurrency": 32,
        "draft_steps": GAMMA,
        "torch": "2.13.0",
    }
    return Conditions(**(values | changes))  # type: ignore[arg-type]


def make_profile(noise: float = 0.01, *, seed: int = 0, slower: float = 1.0, **conditions: object) -> Profile:
    targets = [
        measurement(
            m.kind,
            m.bucket,
            m.num_tokens,
            m.num_requests,
            m.context_tokens,
            m.kv_tokens,
            [slower * s for s in m.wall_s],
        )
        for m in target_measurements(noise, seed=seed)
    ]
    drafts, greedy, sampled = [], [], []
    for requests in (1, 2, 4):
        kv_tokens = requests * (CONTEXT + GAMMA)
        drafts.append(measurement(DRAFT, requests, 7 * requests, requests, CONTEXT, kv_tokens, [0.004, 0.005, 0.006]))
        for tokens in (requests, 8 * requests):
            for kind, into, time_s in ((VERIFY_GREEDY, greedy, 1e-4), (VERIFY_SAMPLED, sampled, 1e-3)):
                into.append(measurement(kind, requests, tokens, requests, CONTEXT, kv_tokens, [time_s * (1 + tokens)]))
    curve = StepCurve(
        target=fit_staircase(targets, unit="tokens", load_unit="visible KV tokens", reference_load=reference_load),
        draft=fit_staircase(
            drafts,
            unit="requests",
            load_unit="visible KV tokens",
            reference_load=lambda requests: requests * (CONTEXT + GAMMA),
        ),
        verify_greedy=fit_staircase(
            greedy, unit="requests", load_unit="packed tokens", reference_load=lambda requests: 8 * requests
        ),
        verify_sampled=fit_staircase(
            sampled, unit="requests", load_unit="packed tokens", reference_load=lambda requests: 8 * requests
        ),
        tokens_per_request=1 + GAMMA,
        block_width=GAMMA,
        reference_context_tokens=CONTEXT,
    )
    return Profile(
        curve=curve,
        conditions=make_conditions(**conditions),
        measurements=(*targets, *drafts, *greedy, *sampled),
        fit={TARGET: prediction_error([curve.predict(point) for point in targets], targets)},
        validation=prediction_error([], []),
        notes=("a note",),
        manifest={"torch": "2.13.0", "spread": 0.01},
    )
