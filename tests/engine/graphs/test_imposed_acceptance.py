"""The double that imposes recorded acceptance on random weights."""

from __future__ import annotations

import torch
from fixture_engine import prompts
from graph_engine import make_pair_engine
from imposed_acceptance import RecordedRounds, imposed

from dspark.engine import Request, SamplingParams


def recorded(accepted: list[int], confidence: float = 0.0) -> RecordedRounds:
    """One request whose rounds accepted so many tokens each."""
    count = torch.tensor([len(accepted)])
    logits = torch.full((len(accepted), 7), confidence)
    return RecordedRounds(count - count, count, torch.tensor(accepted), logits)


def histogram(rounds: RecordedRounds, policy: str, temperature: float) -> list[int]:
    """Rounds by accepted tokens, the last of each request aside, which ends at its limit."""
    with imposed(rounds):
        engine = make_pair_engine("dspark_vanilla", "cpu", graphs=True, policy=policy, concurrency=5)
        sampling = SamplingParams(temperature=temperature, max_tokens=1 + 4 * 6, ignore_eos=True)
        done = list(engine.generate([Request(index, prompt, sampling) for index, prompt in enumerate(prompts())]))
    return [sum(c.counts.acceptance_histogram[k] for c in done) for k in range(8)]


def test_every_round_accepts_what_was_recorded() -> None:
    for temperature in (0.0, 1.0):
        rounds = histogram(recorded([3, 3]), "fixed:7", temperature)
        assert rounds[3] == sum(rounds) > 0


def test_no_more_is_accepted_than_was_verified() -> None:
    rounds = histogram(recorded([7]), "fixed:2", 0.0)
    assert rounds[2] > 0
    assert not any(rounds[3:])


def test_a_policy_sees_the_recorded_confidence() -> None:
    assert histogram(recorded([7], confidence=-9.0), "threshold:0.5", 0.0)[0] > 0
    assert histogram(recorded([7], confidence=9.0), "threshold:0.5", 0.0)[7] > 0


def test_traces_of_the_calibration_are_read(tmp_path) -> None:
    import pandas as pd

    rows = {"request": [1, 0, 0], "round": [0, 1, 0], "drafted": [7] * 3, "verified": [7, 7, 7], "accepted": [5, 2, 1]}
    logits = {f"confidence_logit_{k}": [float(k)] * 3 for k in range(1, 8)}
    pd.DataFrame(rows | logits).to_parquet(tmp_path / "traces.parquet")
    rounds = RecordedRounds.read(tmp_path / "traces.parquet", torch.device("cpu"))
    assert rounds.accepted.tolist() == [1, 2, 5]
    assert (rounds.first.tolist(), rounds.count.tolist()) == ([0, 2], [2, 1])
    assert rounds.confidence_logits[1].tolist() == [1, 2, 3, 4, 5, 6, 7]
