"""The formats that drafters come in: how to tell them apart, and how each is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

from dspark.engine.errors import CheckpointError
from dspark.engine.models.config_values import flag, number, refuse, strings, whole_number
from dspark.engine.models.model_config import ModelConfig
from dspark.engine.models.refusals import Refusals
from dspark.engine.value_kinds import is_whole

ARCHITECTURE = "Qwen3DSparkModel"
MOST_BLOCK_SIZE = 64
MARKOV_HEAD_TYPES = ("vanilla", "gated", "rnn")
LOOKED_FOR = (
    f'`architectures: ["{ARCHITECTURE}"]` (DeepSpec), `speculators_model_type` (speculators) and `dflash_config` '
    "(z-lab DFlash)"
)
PICK_ANOTHER = "Use a drafter in one of the formats DeepSpec, speculators (dspark, dflash) and z-lab DFlash."
FETCH_AGAIN = "Fetch the checkpoint again, or correct its config.json."
SOURCE = "the drafter's config.json"
WINDOW_KEYS = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")
_FULL, _SLIDING = "full_attention", "sliding_attention"
_CONFIDENCE_FLAGS = ("enable_confidence_head", "confidence_head_with_markov")


class DraftFormat(Enum):
    """Whose layout of config.json and tensors it is."""

    DEEPSPEC = "DeepSpec"
    SPECULATORS = "speculators"
    ZLAB = "z-lab DFlash"


@dataclass(frozen=True, slots=True)
class DraftWindow:
    """Layers that see only the last `size` rows of context: `anchor - size <= p < anchor`."""

    size: int
    layers: frozenset[int]
    causal: bool  # inside the block: a slot sees those before it and itself


def is_drafter(raw: Mapping[str, Any]) -> bool:
    """Does a config.json bear the mark of a drafter's format, be it of several."""
    named = raw.get("architectures")
    is_deepspec = isinstance(named, list) and ARCHITECTURE in named
    return is_deepspec or "speculators_model_type" in raw or "dflash_config" in raw


def recognise(raw: Mapping[str, Any]) -> tuple[DraftFormat, str]:
    """The format of a config.json, and what gave it away.

    Raises:
        CheckpointError: it bears the mark of no format, or of several.
    """
    marks: list[tuple[DraftFormat, str]] = []
    if ARCHITECTURE in strings(raw, "architectures", source=SOURCE):
        marks.append((DraftFormat.DEEPSPEC, f'`architectures: ["{ARCHITECTURE}"]`'))
    if "speculators_model_type" in raw:
        kind = json.dumps(raw["speculators_model_type"])
        marks.append((DraftFormat.SPECULATORS, f"`speculators_model_type: {kind}`"))
    if "dflash_config" in raw:
        marks.append((DraftFormat.ZLAB, "`dflash_config`"))
    if not marks:
        raise CheckpointError(
            f"this is not a drafter: looked in config.json for {LOOKED_FOR}, and found "
            f"`architectures: {json.dumps(raw.get('architectures'))}`",
            PICK_ANOTHER,
        )
    if len(marks) > 1:
        found = " and ".join(f"{mark} ({format.value})" for format, mark in marks)
        raise CheckpointError(f"the drafter's config.json is of more than one format: it has {found}", FETCH_AGAIN)
    return marks[0]


def read_fields(raw: Mapping[str, Any], refusals: Refusals) -> dict[str, Any] | None:
    """Fields of a `DrafterConfig`; None if refusals leave open which tensors there have to be."""
    found = refusals.gather(lambda: recognise(raw), None)
    if found is None:
        return None
    readers = {
        DraftFormat.DEEPSPEC: _deepspec_fields,
        DraftFormat.SPECULATORS: _speculators_fields,
        DraftFormat.ZLAB: _zlab_fields,
    }
    fields = readers[found[0]](raw, refusals)
    backbone, mask = fields["backbone"], fields["mask_token_id"]
    if backbone is not None and mask is not None and mask >= backbone.vocab_size:
        refusals.add(
            f"the drafter's `mask_token_id` is {mask}, outside its vocabulary of {backbone.vocab_size}", FETCH_AGAIN
        )
    needed = ("backbone", "block_size", "mask_token_id", "target_layer_ids", "markov_rank")
    if any(fields[name] is None for name in needed):
        return None
    return {"format": found[0], **fields}


def _deepspec_fields(raw: Mapping[str, Any], refusals: Refusals) -> dict[str, Any]:
    # The authors' code applies no window in this format, whatever `layer_types` says, neither in training nor after it.
    plain = {key: value for key, value in raw.items() if key not in WINDOW_KEYS}
    return {
        "backbone": _backbone(plain, refusals),
        "block_size": refusals.gather(lambda: whole_number(raw, "block_size", 1, MOST_BLOCK_SIZE, source=SOURCE), None),
        "mask_token_id": refusals.gather(lambda: whole_number(raw, "mask_token_id", 0, source=SOURCE), None),
        "target_layer_ids": refusals.gather(lambda: _layer_ids(raw, "target_layer_ids"), None),
        "num_target_layers": refusals.gather(lambda: whole_number(raw, "num_target_layers", source=SOURCE), None),
        **_heads(raw, refusals),
    }


def _speculators_fields(raw: Mapping[str, Any], refusals: Refusals) -> dict[str, Any]:
    kind = raw["speculators_model_type"]
    if kind not in ("dspark", "dflash"):
        refusals.add(
            f"the drafter is a speculators model of the type {json.dumps(kind)}, which is not supported", PICK_ANOTHER
        )
    _refuse_other_dflash(raw, refusals)
    layer = refusals.gather(lambda: _object(raw, "transformer_layer_config"), {})
    plain = {key: value for key, value in layer.items() if key not in WINDOW_KEYS}
    rope = layer.get("rope_parameters")
    if isinstance(rope, Mapping) and _SLIDING in rope:
        # One rotation serves all layers of this format; of an entry a layer type its authors take this one.
        plain["rope_parameters"] = rope[_SLIDING]
    backbone = _backbone(plain, refusals)
    if backbone is not None:
        # Head and embedding are modules of their own, whatever the verifier that the nested config was taken from ties.
        backbone = replace(backbone, tie_word_embeddings=False)
    target_hidden = raw.get("target_hidden_size")
    if backbone is not None and target_hidden not in (None, backbone.hidden_size):
        refusals.add(
            f"the drafter's hidden size is {backbone.hidden_size} and its target's {json.dumps(target_hidden)} "
            "(`target_hidden_size`); different sizes are not supported",
            PICK_ANOTHER,
        )
    samples_anchor = refusals.gather(lambda: flag(raw, "sample_from_anchor", source=SOURCE), False)
    if raw.get("sample_from_anchor") is None:
        samples_anchor = kind == "dspark"
    width = refusals.gather(lambda: _block_width(raw, samples_anchor=samples_anchor), None)
    features = refusals.gather(lambda: _layer_ids(raw, "aux_hidden_state_layer_ids", low=0), None)
    no_heads = {"markov_rank": 0, "markov_head_type": None} | dict.fromkeys(_CONFIDENCE_FLAGS, False)
    return {
        "backbone": backbone,
        "block_size": None if width is None else width - (0 if samples_anchor else 1),
        "mask_token_id": refusals.gather(lambda: whole_number(raw, "mask_token_id", 0, source=SOURCE), None),
        # This format counts the embedding output as layer 0.
        "target_layer_ids": None if features is None else tuple(layer - 1 for layer in features),
        "num_target_layers": None,
        **(_heads(raw, refusals) if kind == "dspark" else no_heads),
        "samples_anchor": samples_anchor,
        "draft_vocab_size": refusals.gather(lambda: _draft_vocab_size(raw, backbone), None),
        "window": refusals.gather(lambda: _window(raw, layer), None),
    }


def _zlab_fields(raw: Mapping[str, Any], refusals: Refusals) -> dict[str, Any]:
    own = refusals.gather(lambda: _object(raw, "dflash_config"), {})
    # What stands in dflash_config goes before what stands beside it.
    flat = {**raw, **own}
    _refuse_other_dflash(flat, refusals)
    for key in ("is_causal", "causal"):
        if flat.get(key):
            refusals.add(f"the drafter's block attention is causal (`{key}`), which is not supported", PICK_ANOTHER)
    for key, neutral in (("input_embedding_scale", 1.0), ("output_multiplier", 1.0), ("final_logit_softcapping", 0.0)):
        value = neutral if flat.get(key) is None else refusals.gather(partial(number, flat, key), neutral)
        if value != neutral:
            refusals.add(f"the drafter's `{key}` of {value:g} is not supported", PICK_ANOTHER)
    backbone = _backbone(raw, refusals)
    width = refusals.gather(lambda: _block_width(flat, samples_anchor=False), None)
    layers = flat.get("num_target_layers")
    return {
        # Embedding and head are the target's.
        "backbone": None if backbone is None else replace(backbone, tie_word_embeddings=False),
        "block_size": None if width is None else width - 1,
        "mask_token_id": refusals.gather(lambda: whole_number(flat, "mask_token_id", 0, source=SOURCE), None),
        "target_layer_ids": refusals.gather(lambda: _layer_ids(flat, "target_layer_ids"), None),
        "num_target_layers": layers
        and refusals.gather(lambda: whole_number(flat, "num_target_layers", source=SOURCE), None),
        "markov_rank": 0,
        "markov_head_type": None,
        **dict.fromkeys(_CONFIDENCE_FLAGS, False),
        "samples_anchor": False,
    }


def _heads(raw: Mapping[str, Any], refusals: Refusals) -> dict[str, Any]:
    """Markov and confidence head, which DeepSpec and speculators spell alike."""
    rank = refusals.gather(lambda: whole_number(raw, "markov_rank", 0, source=SOURCE), None)
    kind = raw.get("markov_head_type") or "vanilla" if rank else None
    if kind is not None and kind not in MARKOV_HEAD_TYPES:
        refusals.add(
            f"the drafter's Markov head type {kind!r} is not supported",
            f"Use a drafter whose `markov_head_type` is one of {', '.join(MARKOV_HEAD_TYPES)}.",
        )
    enabled, with_markov = (refusals.gather(partial(flag, raw, key, source=SOURCE), False) for key in _CONFIDENCE_FLAGS)
    with_markov = with_markov and enabled
    if with_markov and rank == 0:
        refusals.add(
            "the drafter's config.json gives its confidence head a Markov part, but `markov_rank` is 0", FETCH_AGAIN
        )
    return {
        "markov_rank": rank,
        "markov_head_type": kind,
        "enable_confidence_head": enabled,
        "confidence_head_with_markov": with_markov,
    }


def _backbone(raw: Mapping[str, Any], refusals: Refusals) -> ModelConfig | None:
    """The Qwen3 layers that `raw` describes, whichever model its numbers were taken from."""
    found = Refusals()
    config = ModelConfig.read({**raw, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}, found)
    for reason in found.reasons:
        refusals.add(f"the drafter cannot be used: {reason}", reason.remedy)
    return config


def _refuse_other_dflash(raw: Mapping[str, Any], refusals: Refusals) -> None:
    """Refuse relatives of DFlash that compute something else, in either format that carries DFlash."""
    projector = raw.get("projector_type")
    if projector not in (None, "dflash", "dspark"):
        refusals.add(f"the drafter's `projector_type` {json.dumps(projector)} is not supported", PICK_ANOTHER)
    for key, what in (
        ("shift_label", "labels are shifted by one position"),
        ("selector_rank", "candidates are chosen by a selector (DFlash 2)"),
        ("conv_kernel_size", "layers have convolutions (DFlash 2)"),
    ):
        if raw.get(key):
            refusals.add(f"the drafter's {what} (`{key}`), which is not supported", PICK_ANOTHER)
    if raw.get("markov_rank") and "speculators_model_type" not in raw:
        refusals.add(
            f"the drafter has a Markov head (`markov_rank: {json.dumps(raw['markov_rank'])}`), which the z-lab format "
            "does not know",
            PICK_ANOTHER,
        )


def _block_width(raw: Mapping[str, Any], *, samples_anchor: bool) -> int:
    """`block_size` of the formats in which it counts the anchor's slot."""
    extra = 0 if samples_anchor else 1
    return whole_number(raw, "block_size", 1 + extra, MOST_BLOCK_SIZE + extra, source=SOURCE)


def _draft_vocab_size(raw: Mapping[str, Any], backbone: ModelConfig | None) -> int | None:
    if raw.get("draft_vocab_size") is None:
        return None
    most = {} if backbone is None else {"high": backbone.vocab_size}
    return whole_number(raw, "draft_vocab_size", source=SOURCE, **most)


def _window(raw: Mapping[str, Any], layer: Mapping[str, Any]) -> DraftWindow | None:
    """Sliding layers of a speculators drafter."""
    kinds = strings(layer, "layer_types", source=SOURCE)
    num_layers = whole_number(layer, "num_hidden_layers", source=SOURCE)
    if not kinds:
        first = num_layers
        if flag(layer, "use_sliding_window", source=SOURCE) and layer.get("sliding_window") is not None:
            first = whole_number({"max_window_layers": 28, **layer}, "max_window_layers", 0, source=SOURCE)
        kinds = [_FULL if index < first else _SLIDING for index in range(num_layers)]
    if len(kinds) != num_layers or not {*kinds} <= {_FULL, _SLIDING}:
        refuse(layer, "layer_types", f"`{_FULL}` or `{_SLIDING}` for each of {num_layers} layers", source=SOURCE)
    sliding = frozenset(index for index, kind in enumerate(kinds) if kind == _SLIDING)
    non_causal = flag(raw, "sliding_window_non_causal", source=SOURCE)
    if not sliding:
        return None
    if layer.get("use_sliding_window") is False:
        raise CheckpointError(
            f"the drafter's `layer_types` names `{_SLIDING}`, but its `use_sliding_window` is false", FETCH_AGAIN
        )
    return DraftWindow(whole_number(layer, "sliding_window", source=SOURCE), sliding, causal=not non_causal)


def _layer_ids(raw: Mapping[str, Any], key: str, *, low: int | None = None) -> tuple[int, ...]:
    ids = raw.get(key)
    if not isinstance(ids, list) or not ids or not all(map(is_whole, ids)):
        refuse(raw, key, "a list of layer numbers", source=SOURCE)
    if low is not None and min(ids) < low:
        refuse(raw, key, f"a list of layer numbers from {low} up", source=SOURCE)
    return tuple(ids)


def _object(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    if not isinstance(value, Mapping):
        refuse(raw, key, "an object", source=SOURCE)
    return value
