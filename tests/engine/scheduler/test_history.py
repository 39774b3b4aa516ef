"""Survival history against a model that remembers everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dspark.engine.scheduler.history import SurvivalHistory
from dspark.engine.scheduler.survival import HAZARD_LIMIT

SLOTS, GAMMA = 4, 3
_STEP = st.sampled_from([0, 5, 900_000, HAZARD_LIMIT])


class Remembered:
    """One request: every generation scheduled, as it stands."""

    def __init__(self) -> None:
        self.generations: list[dict] = []  # drafted, processed, confidence: -log c of each position drafted

    def open_generations(self) -> int:
        return sum(not g["processed"] for g in self.generations)

    def before(self) -> list[int]:
        """Hazards of the block that may be read; none of a request without one."""
        older = [g for g in self.generations[:-1] if g["processed"]]
        # An empty newest generation holds no block that must not be read, and adds nothing.
        seen = [g for g in older if g["drafted"]]
        total, hazards = 0, []
        for step in seen[-1]["confidence"] if seen else []:
            total = min(total + step, HAZARD_LIMIT)
            hazards.append(total)
        return hazards


class Machine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.history = SurvivalHistory(SLOTS, GAMMA)
        self.model = [Remembered() for _ in range(SLOTS)]

    def _with(self, open_generations: int) -> np.ndarray:
        return np.array([s for s in range(SLOTS) if self.model[s].open_generations() == open_generations], dtype=int)

    @rule(slot=st.integers(0, SLOTS - 1))
    def a_request_comes_or_loses_its_cache(self, slot: int) -> None:
        self.history.reset(np.array([slot]))
        self.model[slot] = Remembered()

    @rule(drafted=st.booleans(), chosen=st.sets(st.integers(0, SLOTS - 1)))
    def schedule(self, drafted: bool, chosen: set[int]) -> None:
        slots = np.array([s for s in self._with(0) if s in chosen], dtype=int)
        self.history.schedule(slots, drafted=drafted)
        for slot in slots:
            self.model[slot].generations.append({"drafted": drafted, "processed": False, "confidence": []})

    @rule(data=st.data())
    def process(self, data: st.DataObject) -> None:
        for drafted in (True, False):
            slots = [s for s in self._with(1) if self.model[s].generations[-1]["drafted"] == drafted]
            steps = data.draw(st.integers(1, GAMMA))
            rows = [data.draw(st.lists(_STEP, min_size=steps, max_size=steps)) for _ in slots] if drafted else None
            hazards = None
            if rows is not None:
                hazards = np.minimum(np.cumsum(np.array(rows, dtype=int).reshape(-1, steps), axis=1), HAZARD_LIMIT)
                hazards = hazards.astype(np.int32)
            self.history.process(np.array(slots, dtype=int), hazards)
            for i, slot in enumerate(slots):
                self.model[slot].generations[-1]["processed"] = True
                if hazards is not None:
                    self.model[slot].generations[-1]["confidence"] = np.diff(hazards[i], prepend=0).tolist()

    @precondition(lambda self: self._with(1).size)
    @rule()
    def scheduling_twice_is_refused(self) -> None:
        with pytest.raises(RuntimeError, match="cannot schedule slot"):
            self.history.schedule(np.arange(SLOTS), drafted=True)

    @precondition(lambda self: self._with(0).size)
    @rule()
    def processing_what_was_not_scheduled_is_refused(self) -> None:
        with pytest.raises(RuntimeError, match="cannot process slot"):
            self.history.process(self._with(0), None)

    @invariant()
    def counters_differ_by_at_most_one(self) -> None:
        ahead = self.history.scheduled - self.history.processed
        assert ((ahead == 0) | (ahead == 1)).all()

    @invariant()
    def the_view_is_older_than_what_is_scheduled(self) -> None:
        slots = np.array([s for s in range(SLOTS) if self.model[s].generations], dtype=int)
        if not slots.size:
            return
        view = self.history.before(slots)
        seen = [self.model[slot].before() for slot in slots]
        width = max(map(len, seen)) or GAMMA
        for row, known, hazards in zip(view.hazards, view.known, seen, strict=True):
            expected = hazards + [HAZARD_LIMIT] * (width - len(hazards)) if hazards else [0] * width
            assert (row.tolist(), bool(known)) == (expected, bool(hazards))


TestHistory = Machine.TestCase
TestHistory.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_both_loops_see_the_block_before() -> None:
    first, second = (np.array([[n, n, n]], dtype=np.int32) for n in (1, 2))
    slot = np.array([0])
    for confidence_comes_first in (True, False):
        history = SurvivalHistory(1, 3)
        history.schedule(slot, drafted=True)
        assert not history.before(slot).known[0] and history.before(slot).hazards.tolist() == [[0, 0, 0]]
        history.process(slot, first)
        history.schedule(slot, drafted=True)
        if confidence_comes_first:
            history.process(slot, second)
        assert history.before(slot).hazards.tolist() == first.tolist()


def test_after_a_pause_the_last_survival_known_is_seen() -> None:
    history, slot = SurvivalHistory(1, 2), np.array([0])
    last = np.array([[3, 8]], dtype=np.int32)
    history.schedule(slot, drafted=True)
    history.process(slot, last)
    for _ in range(3):
        history.schedule(slot, drafted=False)
        history.process(slot, None)
    history.schedule(slot, drafted=True)
    view = history.before(slot)
    assert view.hazards.tolist() == last.tolist() and view.known[0]
    assert history.scheduled[0] == history.processed[0] + 1 == 5


def test_a_shorter_block_tells_of_its_own_tokens_alone() -> None:
    history, slot = SurvivalHistory(1, 4), np.array([0])
    for hazards in ([[3, 8, 9, 11]], [[5]], [[6, 7]]):
        history.schedule(slot, drafted=True)
        history.process(slot, np.array(hazards, dtype=np.int32))
        history.schedule(slot, drafted=False)
        assert history.before(slot).hazards.tolist() == hazards
        history.process(slot, None)


def test_a_block_of_the_wrong_kind_is_refused() -> None:
    history, slot = SurvivalHistory(1, 2), np.array([0])
    history.schedule(slot, drafted=False)
    with pytest.raises(RuntimeError, match="empty generation"):
        history.process(slot, np.zeros((1, 2), dtype=np.int32))
