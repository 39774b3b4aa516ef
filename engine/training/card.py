"""The model card of a trained drafter: every setting, what it was trained on, what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.training.acceptance import Acceptance
from dspark.engine.training.checkpoint import RunState, describe
from dspark.engine.training.settings import TrainSettings


@dataclass(frozen=True, slots=True)
class TextSummary:
    """What a drafter was trained on."""

    texts: int
    held_out_texts: int
    tokens: int  # written by the target
    sha256: str
    by_temperature: Mapping[str, int]  # texts
    by_source: Mapping[str, int]  # texts
    held_out_by: str = "prompt"  # or "text": what is on one side only


@dataclass(frozen=True, slots=True)
class CardFacts:
    """All that a card says besides where the run stands."""

    name: str
    target: str
    target_fingerprint: str
    config: DrafterConfig
    parameters: int
    settings: TrainSettings
    text: TextSummary
    command: str
    manifest: Mapping[str, Any]
    license: str | None = None  # as the user named it


def model_card(facts: CardFacts, state: RunState) -> str:
    """The card as Markdown, with a front matter that model hubs read."""
    parts = [
        _front_matter(facts),
        f"# {facts.name}\n\nA DSpark drafter for `{facts.target}`, trained by `dspark train`. It proposes text for "
        "that model to verify; on its own it generates nothing, and it fits no other target. A poor draft costs time, "
        "never correctness.",
        f"```sh\n{facts.command}\n```",
        _table([("", ""), *_facts(facts, state)]),
        _measured(state),
        _table([("setting", "value"), *((name, _shown(value)) for name, value in asdict(facts.settings).items())]),
        f"{_licence(facts)} The target's weights are not included; its own licence applies to it, and to what may be "
        "done with text that it wrote.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(facts: CardFacts) -> str:
    stated = f"license: {facts.license}\n" if facts.license else ""
    return f"---\n{stated}base_model: {facts.target}\ntags: [speculative-decoding, dspark]\n---"


def _licence(facts: CardFacts) -> str:
    if facts.license is None:
        return "No licence was named for the weights of the drafter."
    return f"The weights of the drafter carry this card's licence, {facts.license}."


def _facts(facts: CardFacts, state: RunState) -> list[tuple[str, str]]:
    config, text, manifest = facts.config, facts.text, facts.manifest
    confidence = "no confidence head"
    if config.enable_confidence_head:
        confidence = "confidence head" + (" with Markov" if config.confidence_head_with_markov else "")
    megabytes = 2 * facts.parameters / 1e6
    training_s = max(state.elapsed_s, 1e-9)
    layout = (
        f"DeepSpec (`Qwen3DSparkModel`), bf16, {facts.parameters / 1e6:.1f} M parameters, {megabytes:.0f} MB; "
        "embedding and head are the target's"
    )
    features = (
        f"features of target layers {', '.join(map(str, config.target_layer_ids))}; mask token "
        f"{config.mask_token_id}; RoPE θ {config.backbone.rope.theta:g}; rms eps {config.backbone.rms_norm_eps:g}"
    )
    training = (
        f"{state.step:,} steps, {state.positions:,} block positions in {training_s:.0f} s "
        f"({state.positions / training_s:,.0f} a second) on {manifest.get('device_name') or 'a CPU'}; "
        f"torch {manifest.get('torch')}, triton {manifest.get('triton')}, dspark {manifest.get('dspark')}"
    )
    texts = (
        f"{text.tokens:,} tokens in {text.texts:,} texts that the target wrote, up to "
        f"{facts.settings.row_tokens} tokens each with their prompts; {text.held_out_texts:,} of them held out by "
        f"{text.held_out_by}; by temperature {_counts(text.by_temperature)}; by source {_counts(text.by_source)}; "
        f"sha256 {text.sha256}"
    )
    return [
        ("layout", layout),
        ("shape", f"{describe(config)}, {confidence}"),
        ("input", features),
        ("target", f"`{facts.target}`, fingerprint {facts.target_fingerprint}"),
        ("training", training),
        ("text", texts),
    ]


def _measured(state: RunState) -> str:
    """Held-out acceptance of the checkpoint that is on disk, and how it grew."""
    best = state.best
    if best is None:
        return ""
    positions = range(1, 1 + max(len(best.sampled_conditional), len(best.greedy_conditional)))
    head = ("held-out text", "tokens a round", *(f"position {k}" for k in positions), "blocks")
    rows = [
        (name, f"{length:.2f}", *(f"{rate:.3f}" for rate in rates), f"{blocks:,}")
        for name, length, rates, blocks in (
            ("temperature 1", best.sampled_length, best.sampled_conditional, best.sampled_blocks),
            ("temperature 0", best.greedy_length, best.greedy_conditional, best.greedy_blocks),
        )
        if length is not None
    ]
    notes = [
        f"Held-out acceptance at step {best.step:,}, which is the checkpoint here, behind any token of a text; "
        "decoding begins its blocks where the one before ended, which is at harder tokens. Position k is conditional: "
        "it counts where all before it passed. Tokens a round count the bonus token."
    ]
    if best.confidence_error is not None:
        notes.append(f"Confidence misses the true probability by {best.confidence_error:.3f} on average.")
    history = [("step", "T = 1", "T = 0", "loss"), *map(_history_row, state.history)]
    return "\n\n".join((_table([head, *rows]), " ".join(notes), _table(history)))


def _history_row(entry: Acceptance) -> tuple[str, ...]:
    lengths = ("-" if x is None else f"{x:.3f}" for x in (entry.sampled_length, entry.greedy_length))
    return (f"{entry.step:,}", *lengths, f"{entry.loss:.4f}")


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items())


def _shown(value: object) -> str:
    return "-" if value is None else str(value)
