"""The loop: resumption bit for bit, the best drafter on disk, and ends that come early."""

import os
import signal
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import assert_reads_well
from safetensors.torch import load_file
from tiny_training import SHAPE, load_target, made_up_texts, make_batches, make_step

from dspark.engine.errors import CheckpointError, EngineError, UsageError
from dspark.engine.models.resolve import resolve_drafter
from dspark.engine.training.checkpoint import RunFolder
from dspark.engine.training.documents import Documents
from dspark.engine.training.settings import TrainSettings
from dspark.engine.training.trainer import Trainer

SETTINGS = TrainSettings(steps=9, rows=2, row_tokens=64, anchors=5, evaluate_every_steps=3, save_every_s=1e9)


class Watcher:
    """Remembers what it was told, and may act on it."""

    def __init__(self, on_step=None):
        self.readings, self.measured, self.notes, self._on_step = [], [], [], on_step
        self.noted = threading.Event()

    def trained(self, reading):
        self.readings.append(reading)

    def evaluated(self, acceptance, *, is_best):
        self.measured.append((acceptance, is_best))

    def note(self, text):
        self.notes.append(text)
        self.noted.set()


def make_trainer(folder, settings=SETTINGS, *, watcher=None, identity=None, shape=SHAPE):
    documents = Documents.from_texts(made_up_texts(60), most_tokens=64)
    held_out = documents.held_out()
    training = make_batches(documents, settings, chosen=~held_out)
    measuring = make_batches(documents, settings, chosen=held_out)
    step = make_step(settings, training, measuring, shape=shape, target=load_target())
    return Trainer(
        step,
        training,
        measuring,
        RunFolder(folder),
        identity=identity or {"text": "this"},
        card=lambda state: f"at step {state.step}",
        reporter=watcher or Watcher(),
    )


def interrupt_after(trainer, steps):
    """Ctrl-C while step `steps` is under way."""
    take = trainer._take_step

    def interrupted(host, rate):
        take(host, rate)
        if trainer.state.step + 1 == steps:
            signal.raise_signal(signal.SIGINT)

    trainer._take_step = interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.run()


@pytest.mark.parametrize(("head", "optimizer"), [("vanilla", "adamw"), ("rnn", "muon")])
def test_interrupted_and_resumed_equals_undisturbed_bit_for_bit(tmp_path, head, optimizer):
    shape, settings = replace(SHAPE, markov_head=head), replace(SETTINGS, optimizer=optimizer)
    whole = make_trainer(tmp_path / "whole", settings, shape=shape)
    expected = whole.run()
    first = make_trainer(tmp_path / "cut", settings, shape=shape)
    interrupt_after(first, 2)
    assert (first.state.step, first.state.finished) == (2, False)
    second = make_trainer(tmp_path / "cut", settings, shape=shape)
    second.resume()
    interrupt_after(second, 7)
    third = make_trainer(tmp_path / "cut", settings, shape=shape)
    third.resume()
    assert third.state.step == 7
    found = third.run()
    assert found.step == expected.step == 9
    assert found.positions == expected.positions
    weights, others = whole._model.state_dict(), third._model.state_dict()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    states = zip(whole._optimizer.state_dict(), third._optimizer.state_dict(), strict=True)
    for mine, theirs in states:
        assert mine["state"].keys() == theirs["state"].keys() != set()
        for index, moment in mine["state"].items():
            assert all(torch.equal(value, theirs["state"][index][name]) for name, value in moment.items())
    # The interrupt before the first measurement has added one of its own.
    assert found.history[1:] == expected.history
    assert load_file(tmp_path / "cut" / "model.safetensors").keys() == weights.keys()


def test_the_signal_handlers_are_put_back(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    interrupt_after(make_trainer(tmp_path), 1)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_an_interrupt_is_acknowledged_before_its_step_ends(tmp_path):
    watcher, within = Watcher(), []
    trainer = make_trainer(tmp_path, watcher=watcher)
    take = trainer._take_step

    def interrupted(host, rate):
        signal.raise_signal(signal.SIGINT)
        within.append((watcher.noted.wait(timeout=30), list(watcher.notes)))
        take(host, rate)

    trainer._take_step = interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert within == [(True, ["Ending after this step; what is trained so far is kept."])]
    assert watcher.notes == within[0][1] and trainer.state.step == 1


def test_an_interrupt_leaves_a_drafter_and_a_state_however_early(tmp_path):
    trainer = make_trainer(tmp_path)
    interrupt_after(trainer, 1)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["README.md", "config.json", "model.safetensors", "training"]
    assert (tmp_path / "training" / "state.pt").exists()


def test_a_drafter_of_before_is_not_given_away_for_a_few_steps(tmp_path):
    interrupt_after(make_trainer(tmp_path), 4)
    before = drafter_files(tmp_path)
    folder = RunFolder(tmp_path)
    folder.forget_run()
    other = replace(SHAPE, layers=1)
    anew = make_trainer(tmp_path, replace(SETTINGS, seed=1), shape=other)
    interrupt_after(anew, 2)
    assert drafter_files(tmp_path) == before
    assert folder.best_so_far == f"This run has saved no drafter yet, and the one in {tmp_path} is of before it"
    resumed = make_trainer(tmp_path, replace(SETTINGS, seed=1), shape=other)
    resumed.resume()
    interrupt_after(resumed, 4)
    after = drafter_files(tmp_path)
    assert all(after[name] != before[name] for name in ("config.json", "model.safetensors"))
    assert folder.best_so_far == f"The best drafter so far is in {tmp_path}"


def test_a_drafter_of_before_outlives_a_first_measurement_that_fails(tmp_path, monkeypatch):
    from dspark.engine.training import trainer as module

    interrupt_after(make_trainer(tmp_path), 4)
    before = drafter_files(tmp_path)
    RunFolder(tmp_path).forget_run()

    def fails(step, batches, *, at_step):
        raise MemoryError

    monkeypatch.setattr(module, "evaluate", fails)
    with pytest.raises(MemoryError):
        make_trainer(tmp_path, replace(SETTINGS, seed=1)).run()
    assert drafter_files(tmp_path) == before
    assert "is of before it" in RunFolder(tmp_path).best_so_far


def drafter_files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("shape", [SHAPE, replace(SHAPE, layers=1)], ids=["of one shape", "of another shape"])
@pytest.mark.parametrize("dies_at", range(6))
def test_killed_while_it_saves_a_drafter_the_folder_holds_one_or_none(tmp_path, monkeypatch, shape, dies_at):
    def saved(folder, shape, seed):
        model = make_trainer(folder, replace(SETTINGS, seed=seed), shape=shape)._model
        RunFolder(folder).save_drafter(model, num_anchors=5)
        return halves(folder)

    def halves(folder):
        return (folder / "config.json").read_bytes(), (folder / "model.safetensors").read_bytes()

    before, after = saved(tmp_path / "place", SHAPE, 0), saved(tmp_path / "after", shape, 1)
    calls = []

    def dying(call):
        def step(*args, **kwargs):
            if len(calls) == dies_at:
                # A kill runs no clean-up that would matter: from here on nothing on disk changes.
                raise Killed
            calls.append(call)
            return call(*args, **kwargs)

        return step

    with monkeypatch.context() as patch:
        for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink")):
            patch.setattr(owner, name, dying(getattr(owner, name)))
        with suppress(Killed):
            saved(tmp_path / "place", shape, 1)
    if (tmp_path / "place" / "config.json").exists():
        assert halves(tmp_path / "place") in (before, after)
    else:
        assert not RunFolder(tmp_path / "place").has_drafter
        with pytest.raises(CheckpointError, match=r"config\.json"):
            resolve_drafter(str(tmp_path / "place"))


class Killed(BaseException):
    """Ends a process in the place where it stands."""


def test_the_best_drafter_is_kept_when_later_ones_are_worse(tmp_path, monkeypatch):
    watcher = Watcher()
    trainer = make_trainer(tmp_path, watcher=watcher)
    from dspark.engine.training import trainer as module

    real, stored = module.evaluate, []

    def worse_at_the_end(step, batches, *, at_step):
        stored.append({name: tensor.clone() for name, tensor in step.model.state_dict().items()})
        return replace(real(step, batches, at_step=at_step), sampled_length={3: 1.5, 6: 2.0, 9: 1.9}[at_step])

    monkeypatch.setattr(module, "evaluate", worse_at_the_end)
    state = trainer.run()
    assert [is_best for _, is_best in watcher.measured] == [True, True, False]
    assert state.best.step == 6
    saved = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(saved[name], tensor.bfloat16()) for name, tensor in stored[1].items())
    assert (tmp_path / "README.md").read_text() == "at step 9"


def test_a_loss_that_is_no_number_ends_the_run_and_spares_what_is_on_disk(tmp_path):
    trainer = make_trainer(tmp_path)
    interrupt_after(trainer, 4)
    state_before = (tmp_path / "training" / "state.pt").read_bytes()
    drafter_before = (tmp_path / "model.safetensors").read_bytes()
    again = make_trainer(tmp_path)
    again.resume()
    with torch.no_grad():
        again._model.fc.weight[0, 0] = float("nan")
    with pytest.raises(EngineError, match=r"the loss is nan by step 6.*diverged") as refused:
        again.run()
    assert_reads_well(refused.value)
    assert f"The best drafter so far is in {tmp_path}." in refused.value.remedy
    assert (tmp_path / "training" / "state.pt").read_bytes() == state_before
    assert (tmp_path / "model.safetensors").read_bytes() == drafter_before


def test_a_gradient_that_is_no_number_is_seen_before_its_weights_are_saved(tmp_path):
    trainer = make_trainer(tmp_path)
    weight = trainer._model.norm.weight
    weight.register_hook(lambda gradient: gradient * float("inf") if trainer.state.step == 2 else gradient)
    with pytest.raises(EngineError, match=r"the gradient is (inf|nan) by step 3") as refused:
        trainer.run()
    assert "No drafter was saved yet." in refused.value.remedy
    assert not list(tmp_path.iterdir())


def test_a_state_of_another_run_is_refused(tmp_path):
    interrupt_after(make_trainer(tmp_path), 1)
    other = make_trainer(tmp_path, identity={"text": "that"})
    with pytest.raises(UsageError, match='differs in text \\("this" then, "that" now\\)') as refused:
        other.resume()
    assert_reads_well(refused.value)
    (tmp_path / "training" / "state.pt").write_bytes(b"torn")
    with pytest.raises(UsageError, match="cannot be read") as refused:
        make_trainer(tmp_path).resume()
    assert_reads_well(refused.value)


def test_nothing_to_resume_begins_at_the_start(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.resume()
    assert trainer.state.step == 0


def test_a_finished_run_is_left_as_it_is(tmp_path):
    make_trainer(tmp_path).run()
    before = (tmp_path / "model.safetensors").stat().st_mtime_ns
    watcher = Watcher()
    again = make_trainer(tmp_path, watcher=watcher)
    again.resume()
    assert again.run().step == 9
    assert not watcher.measured
    assert (tmp_path / "model.safetensors").stat().st_mtime_ns == before


def test_a_run_of_minutes_ends_with_its_time(tmp_path):
    now = [0.0]
    settings = TrainSettings(minutes=1, rows=2, row_tokens=64, anchors=5, evaluate_every_s=25, save_every_s=20)
    watcher = Watcher()
    trainer = make_trainer(tmp_path, settings, watcher=watcher)
    trainer._clock = lambda: now[0]
    take = trainer._take_step

    def slow(host, rate):
        now[0] += 10
        take(host, rate)

    trainer._take_step = slow
    state = trainer.run()
    assert state.step == 6
    assert [acceptance.step for acceptance, _ in watcher.measured] == [3, 6]
    assert [reading.left_s for reading in watcher.readings][:2] == [50.0, 40.0]
    # Every step takes ten seconds, the first one too.
    speeds = [reading.gathered.positions_per_s for reading in watcher.readings]
    assert sum(speeds) * 10 == pytest.approx(state.positions) and min(speeds) > 0
    assert watcher.notes == [
        "A step takes 10.0 s here, which fits 6 times into --minutes 1, too few to teach a drafter much: "
        "lower --rows (2), --row-tokens (64) or --anchors (5)."
    ]


def test_training_raises_acceptance_on_the_text_it_sees(tmp_path):
    watcher = Watcher()
    settings = replace(SETTINGS, steps=60, evaluate_every_steps=30)
    make_trainer(tmp_path, settings, watcher=watcher).run()
    first, last = watcher.readings[0].gathered, watcher.readings[-1].gathered
    assert np.mean(last.acceptance) > np.mean(first.acceptance)
    assert last.loss < first.loss
