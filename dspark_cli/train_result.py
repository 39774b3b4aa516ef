"""What a finished `dspark train` says: a table for people, a document for programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspark.cli.output import Sink
    from dspark.engine.training.acceptance import Acceptance
    from dspark.engine.training.job import TrainResult


def render(result: TrainResult, output: Path, sink: Sink) -> None:
    """Print what training gave; the drafter is in `output`."""
    from dspark.engine.training.settings import STATE_FOLDER

    state, best = result.state, result.state.best
    assert best is not None, "a run ends with a measurement"
    training_s = max(state.elapsed_s, 1e-9)
    sink.document(
        {
            "command": "train",
            "output": str(output),
            "steps": state.step,
            "training_s": state.elapsed_s,
            "block_positions": state.positions,
            "parameters": result.parameters,
            "texts": result.text.texts,
            "text_tokens": result.text.tokens,
            "best": best.to_dict(),
        }
    )
    speed = state.positions / training_s
    rows = [
        ("text", f"{result.text.tokens:,} tokens in {result.text.texts:,} texts"),
        ("training", f"{state.step:,} steps in {training_s:,.0f} s, {speed:,.0f} block positions a second"),
        *_lengths(best),
        ("drafter", f"{output} ({result.parameters / 1e6:.1f} M parameters)"),
    ]
    sink.table("train", rows)
    state_folder = output / STATE_FOLDER
    size = sum(path.stat().st_size for path in state_folder.glob("*") if path.is_file())
    if size:
        sink.note(f"{state_folder} ({size / 1e6:,.1f} MB) is only needed for --resume, and may be deleted.")


def _lengths(best: Acceptance) -> list[tuple[str, str]]:
    measured: list[tuple[str, Any, Any]] = [
        ("held out, temperature 1", best.sampled_length, best.sampled_conditional),
        ("held out, temperature 0", best.greedy_length, best.greedy_conditional),
    ]
    return [
        (name, f"{length:.2f} tokens a round; by position {' '.join(f'{rate:.2f}' for rate in rates)}")
        for name, length, rates in measured
        if length is not None
    ]
