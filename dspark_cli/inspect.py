"""`dspark inspect`: what a checkpoint is, what it needs, and every reason why it would be refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspark.cli import options
from dspark.engine.errors import UsageError
from dspark.engine.models.aliases import DEFAULT_DRAFTER, DEFAULT_TARGET, NGRAM_DRAFTER, NO_DRAFTER

if TYPE_CHECKING:
    from dspark.cli.output import Sink
    from dspark.engine.models.drafter_config import DrafterConfig
    from dspark.engine.models.inspection import Inspection
    from dspark.engine.ngram.drafter import NgramDrafter

REFUSED = 1


def inspect(
    ctx: typer.Context,
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="PATH|HUB_ID|ALIAS|ngram",
            help=f"A target or a drafter: a local folder, a hub id, `{DEFAULT_TARGET}`, `{DEFAULT_DRAFTER}` or "
            f"`{NGRAM_DRAFTER}`.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|HUB_ID|ALIAS",
            help="Target that a drafter is to be used with. Default: none, and the drafter is looked at by itself.",
            show_default=False,
            rich_help_panel=options.MODELS,
        ),
    ] = None,
    config: options.Config = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Say what a checkpoint is, what it needs of its target, and every reason why it would be refused.

    Reads the JSON files, a target's tokenizer and the headers of the tensors, never the weights; of a hub id only these
    are fetched.

    Exit codes: 0 usable, 1 it would be refused or cannot be read, 2 usage.
    """
    sink: Sink = ctx.obj
    sink.configure(json=json, quiet=quiet)
    for name in (checkpoint, target):
        if name == NO_DRAFTER or (name == NGRAM_DRAFTER and name is target):
            raise UsageError(f"`{name}` is no checkpoint: there is nothing to inspect", "Name a folder or a hub id.")
    found = _look(checkpoint, target, sink)
    sink.document({"command": "inspect", "target": target, **_document(found)})
    sink.table(f"inspect {checkpoint}", _rows(found, target))
    for number, refusal in enumerate(found.refusals, start=1):
        sink.note(f"{number}. {refusal}\n   {refusal.remedy}")
    if not found.usable:
        raise typer.Exit(REFUSED)


def _look(checkpoint: str, target: str | None, sink: Sink) -> Inspection:
    with sink.progress() as progress:
        progress.step("Starting")
        from dspark.engine.models.checkpoint_files import CheckpointFiles
        from dspark.engine.models.inspection import inspect_checkpoint, inspect_ngram
        from dspark.engine.ngram.drafter import NgramDrafter

        files = None if checkpoint == NGRAM_DRAFTER else CheckpointFiles.locate(checkpoint, progress=progress.step)
        other = None if target is None else CheckpointFiles.locate(target, progress=progress.step)
        progress.step(f"Reading what {checkpoint} says of itself")
        if files is None:
            return inspect_ngram(NgramDrafter(), target=other)
        return inspect_checkpoint(files, target=other)


def _document(found: Inspection) -> dict[str, Any]:
    model, drafter = found.model, found.drafter
    shape: dict[str, Any] | None = None
    if model is not None:
        shape = {
            "architecture": model.architecture,
            "layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "intermediate_size": model.intermediate_size,
            "heads": model.num_heads,
            "kv_heads": model.num_kv_heads,
            "head_dim": model.head_dim,
            "vocab_size": model.vocab_size,
            "max_position_embeddings": model.max_position_embeddings,
            "rope_theta": model.rope.theta,
        }
    return {
        "name": found.name,
        "kind": found.kind,
        "format": found.format,
        "recognised_by": found.recognised_by,
        "usable": found.usable,
        "refusals": [{"reason": str(refusal), "remedy": refusal.remedy} for refusal in found.refusals],
        "licence": found.licence,
        "shape": shape,
        "draft": _draft_document(drafter) if drafter is not None else _ngram_document(found.ngram),
        "needs": None if drafter is None else _needs_document(found, drafter),
        "tensors": {
            "count": len(found.headers),
            "parameters": found.parameters,
            "bytes": found.size_bytes,
            "dtypes": found.dtypes,
        },
    }


def _ngram_document(ngram: NgramDrafter | None) -> dict[str, Any] | None:
    if ngram is None:
        return None
    return {"block_size": ngram.block_size, "longest_match": ngram.longest_match}


def _draft_document(drafter: DrafterConfig) -> dict[str, Any]:
    window = drafter.window
    return {
        "block_size": drafter.block_size,
        "block_width": drafter.block_width,
        "samples_anchor": drafter.samples_anchor,
        "mask_token_id": drafter.mask_token_id,
        "draft_vocab_size": drafter.head_vocab_size,
        "markov_head": drafter.markov_head_type,
        "markov_rank": drafter.markov_rank,
        "confidence_head": drafter.enable_confidence_head,
        "confidence_head_with_markov": drafter.confidence_head_with_markov,
        "window": window and {"size": window.size, "layers": sorted(window.layers), "causal": window.causal},
    }


def _needs_document(found: Inspection, drafter: DrafterConfig) -> dict[str, Any]:
    return {
        "name": found.made_for,
        "hidden_size": drafter.backbone.hidden_size,
        "vocab_size": drafter.backbone.vocab_size,
        "layers": drafter.num_target_layers,
        "least_layers": max(drafter.target_layer_ids) + 1,
        "feature_layers": list(drafter.target_layer_ids),
        "embedding": not found.has("embed_tokens.weight"),
        "head": not found.has("lm_head.weight"),
    }


def _rows(found: Inspection, target: str | None) -> list[tuple[str, str]]:
    """What people read."""
    rows = [
        ("it is", f"a {found.kind}" if found.format is None else f"a {found.kind}, {found.format} format"),
        ("recognised by", found.recognised_by),
    ]
    model, drafter = found.model, found.drafter
    if model is not None:
        layers = "1 layer" if model.num_layers == 1 else f"{model.num_layers} layers"
        limit = model.max_position_embeddings
        heads = f"{model.num_heads}/{model.num_kv_heads} heads of {model.head_dim}"
        rows += [
            ("layers", f"{layers} of {model.hidden_size}, {heads}, MLP {model.intermediate_size}"),
            ("vocabulary", f"{model.vocab_size:,} tokens"),
            ("context limit", "1 token" if limit == 1 else f"{limit:,} tokens"),
        ]
    if drafter is not None:
        rows += _draft_rows(drafter)
    if found.headers:
        dtypes = ", ".join(found.dtypes)
        size = f"{found.parameters:,} parameters, {found.size_bytes / 1e6:,.1f} MB ({dtypes})"
        rows.append(("tensors", f"{len(found.headers)}, {size}"))
    if drafter is not None:
        rows.append(("needs", _needs(found, drafter)))
    if found.ngram is not None:
        rows += _ngram_rows(found.ngram)
    else:
        rows.append(("licence", found.licence or "the folder does not say"))
    verdict = "usable" if target is None else f"usable with {target}"
    if not found.usable:
        count = len(found.refusals)
        verdict = f"refused, for {'this reason' if count == 1 else f'these {count} reasons'}"
    return [*rows, ("verdict", verdict)]


def _ngram_rows(ngram: NgramDrafter) -> list[tuple[str, str]]:
    return [
        ("drafts", f"{ngram.block_size} tokens a block: what followed where the text last read as it reads now"),
        ("confidence", f"how often drafts behind as many equal tokens were right, up to {ngram.longest_match} tokens"),
        ("needs", "nothing: it has no weights, and any target will do"),
    ]


def _draft_rows(drafter: DrafterConfig) -> list[tuple[str, str]]:
    first = "the anchor's slot drafts the first" if drafter.samples_anchor else "behind an anchor that drafts none"
    heads = "no Markov head"
    if drafter.markov_head_type is not None:
        heads = f"{drafter.markov_head_type} Markov head of rank {drafter.markov_rank}"
    confidence = "confidence head"
    if not drafter.enable_confidence_head:
        confidence = "no confidence head: the likeliest token's probability takes its place"
    rows = [("drafts", f"{drafter.block_size} tokens a block, {first}"), ("heads", f"{heads}; {confidence}")]
    if drafter.head_vocab_size < drafter.backbone.vocab_size:
        rows.append(("draft vocabulary", f"{drafter.head_vocab_size:,} of the target's tokens"))
    if drafter.window is not None:
        numbers = ", ".join(map(str, sorted(drafter.window.layers)))
        inside = "causal" if drafter.window.causal else "bidirectional"
        which = "layer" if len(drafter.window.layers) == 1 else "layers"
        rows.append(
            ("window", f"{drafter.window.size:,} tokens of context in {which} {numbers}, {inside} in the block")
        )
    return rows


def _needs(found: Inspection, drafter: DrafterConfig) -> str:
    layers = ", ".join(map(str, drafter.target_layer_ids))
    count = drafter.num_target_layers
    parts = [
        f"a target of hidden size {drafter.backbone.hidden_size} with a vocabulary of {drafter.backbone.vocab_size:,}",
        f"{count} layers" if count is not None else f"at least {max(drafter.target_layer_ids) + 1} layers",
        f"features of layers {layers}",
    ]
    shared = [
        what for what, name in (("embedding", "embed_tokens"), ("head", "lm_head")) if not found.has(f"{name}.weight")
    ]
    if shared:
        parts.append(f"its {' and '.join(shared)}")
    made_for = f" (made for {found.made_for})" if found.made_for else ""
    return ", ".join(parts) + made_for
