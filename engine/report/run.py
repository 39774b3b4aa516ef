"""A work directory as a report sees it: whichever of its artefacts exist, checked against each other."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.calibration import (
    Calibration,
    Provenance,
    Traces,
    load_calibration,
    read_traces,
    sampling_settings,
)
from dspark.engine.errors import UsageError
from dspark.engine.jobs import strict_json
from dspark.engine.jobs.pair_files import NamedPair
from dspark.engine.jobs.workdir_names import CALIBRATION, DECODE_METRICS, DEFAULT_WORKDIR, PROFILE, TRACES
from dspark.engine.models.aliases import DEFAULT_TARGET, NO_DRAFTER, drafter_for
from dspark.engine.report.errors import ReportError
from dspark.engine.report.pair import Pair, check_pairs
from dspark.engine.wording import name_as_text
from dspark.profiles import Profile, load_profile

# What to run for an artefact that is not there.
MADE_BY = {
    PROFILE: "dspark profile",
    CALIBRATION: "dspark calibrate",
    TRACES: "dspark calibrate",
    DECODE_METRICS: "dspark decode --input prompts.jsonl",
}


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The artefacts of one work directory; None where there is none."""

    name: str
    folder: Path
    profile: Profile | None
    calibration: Calibration | None
    traces: Traces | None
    decode: Mapping[str, Any] | None  # the document that `decode` leaves beside its rows
    notes: tuple[str, ...]  # what does not fit together but refuses nothing

    @property
    def artefacts(self) -> tuple[str, ...]:
        """File names of those that exist."""
        held = {PROFILE: self.profile, CALIBRATION: self.calibration, TRACES: self.traces, DECODE_METRICS: self.decode}
        return tuple(name for name, artefact in held.items() if artefact is not None)

    @property
    def gamma(self) -> int | None:
        """Draft length, if any artefact tells."""
        if self.traces is not None:
            return self.traces.gamma
        if self.calibration is not None:
            return self.calibration.gamma
        return None if self.profile is None else self.profile.curve.gamma

    def command_for(self, artefact: str) -> str:
        """What to run to get `artefact` into this folder, of the pair that the others there are of."""
        target = next((pair.target for pair in self._named_pairs() if pair.target), DEFAULT_TARGET)
        default = drafter_for(target, None)
        drafters = (pair.drafter for pair in self._named_pairs())
        # What was decoded without drafting is of no other pair than what drafted.
        drafter = next((name for name in drafters if name not in (None, NO_DRAFTER)), default)
        flags = {
            "--target": None if target == DEFAULT_TARGET else target,
            "--drafter": None if drafter == default else drafter,
            "--workdir": None if self.folder == DEFAULT_WORKDIR else self.folder,
        }
        given = (f" {flag} {shlex.quote(name_as_text(name))}" for flag, name in flags.items() if name is not None)
        return MADE_BY[artefact] + "".join(given)

    def _named_pairs(self) -> Iterator[NamedPair]:
        """The pair of each artefact, by the names under which it was asked for."""
        made_with = None if self.decode is None else self.decode.get("manifest")
        if isinstance(made_with, Mapping):
            names = (made_with.get(role) for role in ("target", "drafter"))
            yield NamedPair(*(name if isinstance(name, str) else None for name in names))
        for held in (self.traces, self.calibration):
            if held is not None:
                yield NamedPair(held.provenance.target, held.provenance.drafter)
        # Random weights go by names that `calibrate` and `decode` do not know.
        if self.profile is not None and self.profile.conditions.target.fingerprint is not None:
            target, drafter = self.profile.conditions.target, self.profile.conditions.drafter
            yield NamedPair(target.name, NO_DRAFTER if drafter is None else drafter.name)


def load_runs(folders: Sequence[Path]) -> list[Run]:
    """One run a folder, named by what tells the folders apart.

    Raises:
        UsageError: a folder is missing.
        ReportError: a folder is given twice or without any artefact, or its artefacts contradict each other.
        ProfileError, CalibrationError: an artefact is damaged.
    """
    resolved = [folder.resolve() for folder in folders]
    for i, folder in enumerate(resolved):
        if folder in resolved[:i]:
            raise ReportError(f"{folders[i]} was given twice", "Name every run directory once.")
    names = [name_as_text(folder.name) for folder in resolved]
    apart = names if len(set(names)) == len(names) else [name_as_text(folder) for folder in folders]
    return [load_run(folder, name=name) for folder, name in zip(folders, apart, strict=True)]


def load_run(folder: Path, *, name: str) -> Run:
    """Read what there is in `folder`.

    Raises:
        UsageError: it is no folder, and not the usual one, which is only made by a first command.
        ReportError: it holds no artefact, or artefacts of different pairs.
        ProfileError, CalibrationError: an artefact is damaged.
    """
    if not folder.is_dir():
        if folder != DEFAULT_WORKDIR:
            raise UsageError(f"{folder} {'is no folder' if folder.exists() else 'does not exist'}", "Check the path.")
        raise ReportError(f"{folder} is no folder", "Run `dspark profile` and `dspark calibrate` first.")
    # A link that leads nowhere is an artefact that cannot be read, and not one that was never made.
    present = {file: (folder / file) for file in MADE_BY if os.path.lexists(folder / file)}
    if not present:
        raise ReportError(
            f"{folder} holds nothing to report on: no {', no '.join(MADE_BY)}",
            "Run `dspark profile` and `dspark calibrate` first.",
        )
    profile = load_profile(present[PROFILE]) if PROFILE in present else None
    calibration = load_calibration(present[CALIBRATION]) if CALIBRATION in present else None
    traces = read_traces([present[TRACES]]) if TRACES in present else None
    decode = _read_metrics(present[DECODE_METRICS]) if DECODE_METRICS in present else None
    pairs = [
        None if profile is None else _profiled_pair(profile),
        None if calibration is None else _traced_pair(CALIBRATION, calibration.provenance, calibration.gamma),
        None if traces is None else _traced_pair(TRACES, traces.provenance, traces.gamma),
        None if decode is None else _decoded_pair(decode),
    ]
    notes = check_pairs([pair for pair in pairs if pair is not None], folder)
    if calibration is not None and traces is not None:
        notes += _other_sampling(calibration, traces)
    return Run(name, folder, profile, calibration, traces, decode, tuple(notes))


def _other_sampling(calibration: Calibration, traces: Traces) -> list[str]:
    return [
        f"{TRACES} holds rounds sampled with {used}, and {CALIBRATION} was fitted on none such."
        for used in sampling_settings(traces)
        if not any(fitted.same_as(used) for fitted in calibration.sampling)
    ]


def _profiled_pair(profile: Profile) -> Pair:
    target, drafter = profile.conditions.target, profile.conditions.drafter
    # A drafter of random weights beside a target of random weights has a shape, and no name that traces could bear.
    shaped = drafter is not None and drafter.fingerprint is None and target.fingerprint is None
    return Pair(
        source=PROFILE,
        target=(target.name, target.fingerprint),
        drafter=(None if shaped else drafter.name, drafter.fingerprint) if drafter is not None else ("none", None),
        gamma=profile.curve.gamma,
        acceptance=None,
    )


def _traced_pair(source: str, provenance: Provenance, gamma: int) -> Pair:
    return Pair(
        source=source,
        target=(provenance.target, provenance.target_fingerprint),
        drafter=(provenance.drafter, provenance.drafter_fingerprint),
        gamma=gamma,
        acceptance=provenance.acceptance,
    )


def _decoded_pair(decode: Mapping[str, Any]) -> Pair:
    # Earlier files have no names, so fingerprints are compared. A run without drafting names no drafter and is no other
    # pair for that.
    engine = decode["run"]["engine"]
    drafter = engine.get("drafter")
    return Pair(
        source=DECODE_METRICS,
        target=(None, engine.get("target")),
        drafter=(None, None if drafter == "none" else drafter),
        gamma=None,
        acceptance=None,
    )


def _read_metrics(path: Path) -> Mapping[str, Any]:
    """The document, with what the figures read of it checked.

    Raises:
        ReportError: it is no such document.
    """
    again = ReportError(f"{path} is not what `dspark decode` writes", "Decode again, or move the file away.")
    try:
        document = strict_json.loads(path.read_text(encoding="utf-8"))
        spec, engine = document["spec"], document["run"]["engine"]
        histogram = spec["acceptance_histogram"]
        whole = [*histogram, spec["rounds"], spec["emitted"], spec["verified"], spec["accepted"]]
        sound = isinstance(engine, dict) and all(type(count) is int and count >= 0 for count in whole)
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror or error}", "Check the file.") from None
    except (ValueError, KeyError, TypeError):
        raise again from None
    if not sound:
        raise again
    return document
