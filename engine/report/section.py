"""Everything that one run has to show, and what it lacks for the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dspark.engine.jobs.workdir_names import CALIBRATION, PROFILE, TRACES
from dspark.engine.progress import Progress
from dspark.engine.report.acceptance import decoded_lengths, traced_lengths
from dspark.engine.report.curve_panels import frontier_panels, step_curve_panel
from dspark.engine.report.frontier import Frontier, policy_frontier
from dspark.engine.report.panel import MissingPanel, Panel
from dspark.engine.report.reliability_panel import TITLE as RELIABILITY
from dspark.engine.report.reliability_panel import calibrated_panel, uncalibrated_panel
from dspark.engine.report.rounds import full_blocks, sample_for
from dspark.engine.report.run import Run
from dspark.engine.report.trace_panels import (
    acceptance_panel,
    audit_panel,
    drift_panel,
    lengths_panel,
    sweep_panel,
)
from dspark.engine.report.verdict import Verdict, judge

# Figures that rest on traces, in the order of the page.
_TRACED = {
    "acceptance": "Conditional acceptance by position",
    "acceptance_lengths": "Acceptance lengths",
    "threshold_sweep": "Threshold sweep",
    "confidence_audit": "Confidence audit",
    "drift": "Drift within the trace",
}
_REPLAYED = {"policy_frontier": "Policy frontier", "verification_budget": "Verification budget"}
_NO_FULL_BLOCKS = "No recorded round verified its whole block and told how far it would have been accepted."
_RECORD_FULL = "Record traces with every block verified in full: `{command}` does."


@dataclass(frozen=True, slots=True)
class Section:
    """One run on the page."""

    run: Run
    panels: tuple[Panel, ...]
    missing: tuple[MissingPanel, ...]
    frontier: Frontier | None
    verdict: Verdict | None

    @property
    def undecided(self) -> str:
        """Why there is no verdict, where there is none: what keeps it from being given is what keeps from a replay."""
        lacking = next(panel for panel in self.missing if panel.name in _REPLAYED)
        reason = f"{lacking.reason[0].lower()}{lacking.reason[1:]}"
        return f"Whether scheduled verification pays cannot be told yet: {reason} {lacking.remedy}"


def make_section(run: Run, *, seed: int, progress: Progress) -> Section:
    """Compute all numbers of `run`; nothing is drawn yet."""
    panels: list[Panel] = []
    missing: list[MissingPanel] = []
    progress("Reading rounds", 0, 0)
    _about_rounds(run, panels, missing, seed)
    frontier, verdict = None, None
    if run.profile is None:
        missing.append(_lacks(run, "step_curve", "Step curve", PROFILE))
    else:
        panels.append(step_curve_panel(run.profile))
        if run.traces is not None and len(run.traces):
            frontier, verdict = _replay(run, panels, missing, seed, progress)
    if frontier is None and not any(m.name in _REPLAYED for m in missing):
        for name, title in _REPLAYED.items():
            missing.append(_lacks(run, name, title, *(a for a in (PROFILE, TRACES) if a not in _usable(run))))
    return Section(run, tuple(panels), tuple(missing), frontier, verdict)


def _about_rounds(run: Run, panels: list[Panel], missing: list[MissingPanel], seed: int) -> None:
    """Figures of traces and calibration, in the order of the page."""
    rng = np.random.default_rng(seed)
    traces = run.traces if run.traces is not None and len(run.traces) else None
    if run.calibration is not None:
        panels.append(calibrated_panel(run.calibration))
    elif traces is not None:
        panels.append(uncalibrated_panel(traces, rng=rng))
    else:
        missing.append(_lacks(run, "reliability", RELIABILITY, CALIBRATION))
    decoded = [] if run.decode is None else [decoded_lengths(run.decode)]
    if traces is None:
        if decoded:
            panels.append(lengths_panel(decoded))
        for name, title in _TRACED.items():
            if name != "acceptance_lengths" or not decoded:
                missing.append(_lacks(run, name, title, TRACES))
        return
    temperatures = _temperatures(run)
    sample = sample_for(traces, run.calibration)
    panels.append(acceptance_panel(traces))
    panels.append(lengths_panel([traced_lengths(traces), *decoded]))
    sweep = sweep_panel(sample, temperatures)
    if sweep is None:
        missing.append(_no_full_blocks(run, "threshold_sweep", _TRACED["threshold_sweep"]))
    else:
        panels.append(sweep)
    panels.append(audit_panel(sample, run.calibration, rng=rng))
    found = drift_panel(traces, temperatures, rng=rng)
    if isinstance(found, Panel):
        panels.append(found)
    else:
        missing.append(found)


def _replay(
    run: Run, panels: list[Panel], missing: list[MissingPanel], seed: int, progress: Progress
) -> tuple[Frontier | None, Verdict | None]:
    assert run.profile is not None and run.traces is not None
    sample = sample_for(run.traces, run.calibration)
    temperatures = _temperatures(run)
    if not len(full_blocks(sample.traces)):
        missing += [_no_full_blocks(run, name, title) for name, title in _REPLAYED.items()]
        return None, None
    frontier = policy_frontier(sample.traces, run.profile, temperatures, seed=seed, progress=progress)
    if frontier is None:
        reason = f"{PROFILE} does not cover a single block of {run.traces.gamma} drafted tokens."
        remedy = f"Run `{run.command_for(PROFILE)}` with a drafter and a larger --concurrency."
        missing += [MissingPanel(name, title, reason, remedy) for name, title in _REPLAYED.items()]
        return None, None
    verdict = judge(frontier, sample.traces, run.profile, temperatures)
    panels += frontier_panels(frontier, verdict, sample, calibrated=run.calibration is not None)
    return frontier, verdict


def _temperatures(run: Run) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    if run.calibration is None:
        return np.ones(run.gamma or 0)
    return np.array(run.calibration.temperatures)


def _usable(run: Run) -> set[str]:
    empty = {TRACES} if run.traces is not None and not len(run.traces) else set()
    return set(run.artefacts) - empty


def _lacks(run: Run, name: str, title: str, *artefacts: str) -> MissingPanel:
    empty = [a for a in artefacts if a in run.artefacts]
    absent = [a for a in artefacts if a not in run.artefacts]
    reasons = [f"There is no {' and no '.join(absent)}."] if absent else []
    reasons += [f"{a} holds no rounds." for a in empty]
    commands = dict.fromkeys(run.command_for(a) for a in artefacts)
    return MissingPanel(name, title, " ".join(reasons), f"Run {' and '.join(f'`{c}`' for c in commands)}.")


def _no_full_blocks(run: Run, name: str, title: str) -> MissingPanel:
    return MissingPanel(name, title, _NO_FULL_BLOCKS, _RECORD_FULL.format(command=run.command_for(TRACES)))
