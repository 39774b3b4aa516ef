"""Profile an engine: every point in shuffled order, several times, and the curve that fits them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dspark.engine.errors import EngineError, UsageError
from dspark.engine.jobs.manifest import manifest
from dspark.engine.profiling.conditions import engine_conditions
from dspark.engine.profiling.curve import fit_curve, fitted
from dspark.engine.profiling.device import device_state
from dspark.engine.profiling.eager_timer import EagerTimer
from dspark.engine.profiling.graph_timer import GraphTimer
from dspark.engine.profiling.plan import Planner, Point
from dspark.engine.profiling.settings import ProfileSettings
from dspark.engine.profiling.timer import Sample, StepTimer
from dspark.profiles import (
    DRAFT,
    DRAFT_KINDS,
    DRAFT_SAMPLED,
    KINDS,
    ONE_TOKEN_KINDS,
    SAMPLED_KINDS,
    TARGET,
    Measurement,
    PredictionError,
    Profile,
    StepCurve,
    prediction_error,
)
from dspark.profiles.trust import STEADY, unsteadiness

if TYPE_CHECKING:
    from dspark.engine.engine import Engine

MOST_WARM_UPS = 10


class ProfileProgress(Protocol):
    """Is told how far measuring is."""

    def step(self, name: str, done: int = 0, total: int = 0) -> None:
        """A step begins or goes on; `total` 0 = unknown."""

    def measured(self, point: Point, samples_s: Sequence[float]) -> None:
        """One more sample of `point` was taken; all of them so far."""


def profile_engine(
    engine: Engine, settings: ProfileSettings, progress: ProfileProgress, *, timer: StepTimer | None = None
) -> Profile:
    """Measure every part of a round on `engine`, whose caches are overwritten, and fit the step curve.

    Raises:
        UsageError: more tokens are asked for than the engine can pack.
        EngineError: another bucket ran than was asked for.
    """
    max_tokens = _max_batch_tokens(engine, settings.max_batch_tokens)
    progress.step("Preparing requests to measure with")
    timer = timer or _timer(engine, max_tokens, settings.seed)
    draft_kinds = _draft_kinds(engine)
    rng = np.random.default_rng(settings.seed)
    planner = Planner(
        timer,
        concurrency=engine.concurrency,
        tokens_per_request=1 + engine.gamma,
        block_width=_block_width(engine),
        contexts=settings.context_tokens,
        draft_kinds=draft_kinds,
    )
    plan = planner.plan(rng)
    run = _Run(timer, plan.points, progress, gamma=engine.gamma)
    states = [device_state(engine.device)]
    steady = run.warm_up(rng)
    repeats = settings.repeats_for(run.once_s)
    minutes, seconds = divmod(round(repeats * run.once_s), 60)
    duration = f"{minutes}:{seconds:02} minutes" if minutes else f"{seconds} s"
    progress.step(f"{len(plan.points)} points, {repeats} times each: about {duration}")
    for repeat in range(repeats):
        run.repeat(rng, f"Measuring, repeat {repeat + 1} of {repeats}")
        states.append(device_state(engine.device))
    measurements = run.measurements()
    curve = fit_curve(
        measurements,
        context_tokens=plan.context_tokens[0],
        gamma=engine.gamma,
        block_width=_block_width(engine),
        short_context=timer.short_context,
    )
    spread = _typical_spread(measurements)
    return Profile(
        curve=curve,
        conditions=engine_conditions(
            engine, runner=timer.runner, target_name=settings.target_name, drafter_name=settings.drafter_name
        ),
        measurements=tuple(measurements),
        fit={
            kind: _error(curve, fitted(measurements, kind))
            for kind in KINDS
            if kind not in DRAFT_KINDS or kind in draft_kinds
        },
        validation=_error(curve, [m for m in measurements if m.held_out]),
        notes=(*plan.notes, *_unsteady(steady, spread), *_throttled(states)),
        manifest={
            **manifest(engine.device.type),
            "dtype": engine.dtype,
            "repeats": repeats,
            "seed": settings.seed,
            "spread": spread,
            "warm_ups": run.warm_ups,
            "steady_after_warm_up": steady,
            "clock": "wall" if measurements[0].device_s is None else "device events",
            "memory_bytes": engine.memory_report(),
            "device_states": [state for state in states if state],
        },
    )


def _timer(engine: Engine, max_batch_tokens: int, seed: int) -> StepTimer:
    """What decoding with this engine would run."""
    if engine.graphs is None:
        return EagerTimer(engine, max_batch_tokens=max_batch_tokens, seed=seed)
    return GraphTimer(engine, engine.graphs, max_batch_tokens=max_batch_tokens, seed=seed)


class _Run:
    """Samples of each point, in the order taken."""

    def __init__(self, timer: StepTimer, points: Sequence[Point], progress: ProfileProgress, *, gamma: int) -> None:
        self._timer = timer
        self._gamma = gamma
        self._points = points
        self._progress = progress
        self._samples: dict[Point, list[Sample]] = defaultdict(list)
        self.warm_ups = 0
        self.once_s = 0.0  # that running every point once took

    def warm_up(self, rng: np.random.Generator) -> bool:
        """Run every point once, since each size compiles and allocates; then one until it is steady: whether it is."""
        start_s = time.perf_counter()
        for done, i in enumerate(rng.permutation(len(self._points))):
            self._progress.step("Warming up", done, len(self._points))
            self._measure(self._points[i])
        self.once_s = time.perf_counter() - start_s
        largest = max((p for p in self._points if p.kind == TARGET), key=lambda p: (p.num_tokens, -p.kv_tokens))
        before_s = _seconds(self._measure(largest))
        for _ in range(MOST_WARM_UPS):
            self.warm_ups += 1
            now_s = _seconds(self._measure(largest))
            if abs(now_s - before_s) < STEADY * before_s:
                return True
            before_s = now_s
        return False

    def repeat(self, rng: np.random.Generator, name: str) -> None:
        """One more sample of every point, in an order of its own: a drift falls on all of them alike."""
        for done, i in enumerate(rng.permutation(len(self._points))):
            self._progress.step(name, done, len(self._points))
            point = self._points[i]
            samples = self._samples[point]
            samples.append(self._measure(point))
            self._progress.measured(point, [_seconds(sample) for sample in samples])

    def measurements(self) -> list[Measurement]:
        """What was sampled, in the order of the plan."""
        return [_measurement(point, self._samples[point]) for point in self._points]

    def _measure(self, point: Point) -> Sample:
        timer, context, sampled = self._timer, point.context_tokens, point.kind in SAMPLED_KINDS
        if point.kind in DRAFT_KINDS:
            sample = timer.measure_draft(
                point.num_requests,
                context_tokens=context,
                steps=1 if point.kind in ONE_TOKEN_KINDS else self._gamma,
                sampled=sampled,
            )
        elif point.kind == TARGET:
            sample = timer.measure_target(point.num_tokens, num_requests=point.num_requests, context_tokens=context)
        else:
            sample = timer.measure_verification(
                point.num_tokens, num_requests=point.num_requests, context_tokens=context, sampled=sampled
            )
        if sample.bucket != point.bucket:
            raise EngineError(
                f"bucket {sample.bucket} ran where {point.bucket} was asked for ({point.kind})",
                "This is a fault of dspark: please report it.",
            )
        return sample


def _seconds(sample: Sample) -> float:
    return sample.wall_s if sample.device_s is None else sample.device_s


def _measurement(point: Point, samples: Sequence[Sample]) -> Measurement:
    device_s = [sample.device_s for sample in samples if sample.device_s is not None]
    return Measurement(
        kind=point.kind,
        bucket=point.bucket,
        num_tokens=point.num_tokens,
        num_requests=point.num_requests,
        context_tokens=point.context_tokens,
        kv_tokens=point.kv_tokens,
        held_out=point.held_out,
        wall_s=tuple(sample.wall_s for sample in samples),
        device_s=tuple(device_s) if device_s else None,
    )


def _block_width(engine: Engine) -> int:
    """Slots of a draft block; one that is looked up has those of its tokens, though no cache rows."""
    return engine.graph_sizes.block_width or engine.gamma


def _draft_kinds(engine: Engine) -> tuple[str, ...]:
    """Blocks that differ in what they cost: one that is looked up costs the same however many tokens are asked for."""
    if engine.gamma == 0 or engine.drafter is None:
        return (DRAFT,) if engine.gamma else ()
    return DRAFT_KINDS if engine.gamma > 1 else (DRAFT, DRAFT_SAMPLED)


def _error(curve: StepCurve, points: Sequence[Measurement]) -> PredictionError:
    return prediction_error([curve.predict(point) for point in points], points)


def _max_batch_tokens(engine: Engine, asked: int | None) -> int:
    most = engine.concurrency * (1 + engine.gamma)
    if asked is not None and asked > most:
        raise UsageError(
            f"a batch of {asked} tokens is beyond {engine.concurrency} requests of {1 + engine.gamma} tokens: {most}",
            f"Give at most {most}, or raise --concurrency.",
        )
    return asked or most


def _typical_spread(measurements: Sequence[Measurement]) -> float:
    """Width of the p20-p80 band as a share of the median, of a typical point."""
    quantiles = (np.quantile(m.samples_s, (0.2, 0.5, 0.8)) for m in measurements)
    return float(np.median([(high - low) / middle for low, middle, high in quantiles]))


def _unsteady(steady: bool, spread: float) -> list[str]:
    seen = unsteadiness(steady=steady, spread=spread)
    return [f"The times are unsteady, {seen}: something else may be running, or the clocks change."] if seen else []


def _throttled(states: Sequence[dict[str, Any]]) -> list[str]:
    """A note if the GPU held its clocks back, for other reasons than being idle (bit 0)."""
    reasons = 0
    for state in states:
        value = state.get("throttle_reasons")
        reasons |= int(value, 16) & ~1 if isinstance(value, str) and value.startswith("0x") else 0
    return [f"The GPU held its clocks back while it was measured (reasons {reasons:#x})."] if reasons else []
