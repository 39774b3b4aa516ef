"""The whole way on a CPU: the tiny target writes, a drafter is trained, and decoding with it accepts more."""

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_training import SHAPE, chat_target

from dspark.engine import Engine, EngineConfig, Request, SamplingParams
from dspark.engine.training.job import train_drafter
from dspark.engine.training.settings import TextSettings, TrainJob, TrainSettings

STEPS = 300


class Nobody:
    """Training that nobody watches."""

    def step(self, name, done=0, total=0): ...
    def note(self, text): ...
    def wrote(self, progress): ...
    def trained(self, reading): ...
    def evaluated(self, acceptance, *, is_best): ...


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run after one step, at which nothing is learnt, and after all."""
    folder = tmp_path_factory.mktemp("training")
    job = TrainJob(
        target=str(chat_target(folder / "target")),
        output=folder / "trained",
        shape=replace(SHAPE, mask_token_id=0),
        settings=TrainSettings(steps=STEPS, rows=4, row_tokens=128, anchors=12),
        text=TextSettings(data=folder / "text.jsonl", minutes=None, tokens=12000, max_tokens=60),
        device="cpu",
    )
    trained = train_drafter(job, Nobody())
    # So small a step leaves everything where it was.
    still = replace(job.settings, steps=1, learning_rate=1e-12)
    untrained = train_drafter(replace(job, output=folder / "untrained", settings=still), Nobody())
    return job, trained, untrained


def accepted_length(target: str, drafter: Path, temperature: float) -> float:
    """Mean tokens a round over new prompts, by the engine itself."""
    engine = Engine(EngineConfig(target=target, drafter=str(drafter), device="cpu", seed=1, max_context=128))
    sampling = SamplingParams(temperature=temperature, max_tokens=40, ignore_eos=True)
    requests = (Request(index, [1, 40 + index, 90], sampling) for index in range(40))
    counts = [completion.counts for completion in engine.generate(requests)]
    return sum(each.emitted for each in counts) / sum(each.rounds for each in counts)


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_decoding_accepts_measurably_more_than_with_an_untrained_drafter(runs, temperature):
    job, _, _ = runs
    before = accepted_length(job.target, job.output.with_name("untrained"), temperature)
    after = accepted_length(job.target, job.output, temperature)
    assert after > before + 0.15


def test_held_out_acceptance_foretells_what_decoding_accepts(runs):
    _, trained, untrained = runs
    assert trained.state.best.sampled_length > untrained.state.best.sampled_length + 0.3
    assert trained.text == untrained.text


def test_the_card_names_what_made_the_drafter(runs):
    job, trained, _ = runs
    card = (job.output / "README.md").read_text()
    # Nobody has chosen a licence.
    assert card.startswith("---\nbase_model: ") and "license:" not in card
    assert f"{STEPS} steps" in card
    assert f"| {trained.state.best.sampled_length:.2f} |" in card
    assert trained.text.sha256 in card
    for name in TrainSettings.__dataclass_fields__:
        assert f"| {name} |" in card
