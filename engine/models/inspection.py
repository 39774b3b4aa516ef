"""What a checkpoint is, what it needs, and every reason to refuse it, without reading its weights."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dspark.engine.errors import CheckpointError, UsageError
from dspark.engine.jobs.tokenizer import Tokenizer
from dspark.engine.models.aliases import NGRAM_DRAFTER
from dspark.engine.models.checkpoint_files import CheckpointFiles
from dspark.engine.models.drafter_config import DrafterConfig
from dspark.engine.models.drafter_formats import LOOKED_FOR, PICK_ANOTHER, is_drafter, recognise
from dspark.engine.models.licence import stated_licence
from dspark.engine.models.model_config import FAMILIES, SUPPORTED, ModelConfig, read_json_object
from dspark.engine.models.refusals import Refusals
from dspark.engine.models.tensor_files import (
    FLOAT_DTYPES,
    FLOATS,
    SAME_CHECKPOINT,
    WHOLE_DTYPES,
    WHOLE_NUMBERS,
    TensorHeader,
    left_over,
    missing_tensor,
    wrong_dtype,
    wrong_shape,
)
from dspark.engine.models.tensor_shapes import drafter_tensors, target_tensors
from dspark.engine.ngram.drafter import NgramDrafter

TARGET, DRAFTER, UNKNOWN = "target", "drafter", "unknown"


@dataclass(slots=True)
class Inspection:
    """All that can be said of a checkpoint without reading its weights."""

    name: str
    kind: str  # TARGET, DRAFTER or UNKNOWN
    format: str | None
    recognised_by: str
    licence: str | None
    model: ModelConfig | None = None  # a target's layers, or a drafter's
    drafter: DrafterConfig | None = None
    ngram: NgramDrafter | None = None  # in place of a checkpoint
    made_for: str | None = None  # the target that a drafter names
    headers: dict[str, TensorHeader] = field(default_factory=dict)
    refusals: list[CheckpointError] = field(default_factory=list)

    def has(self, tensor: str) -> bool:
        """Is there such a tensor."""
        return tensor in self.headers

    @property
    def usable(self) -> bool:
        """Would it load?"""
        return not self.refusals

    @property
    def parameters(self) -> int:
        """Weights in all tensors of floating-point numbers."""
        return sum(header.elements for header in self.headers.values() if header.dtype in FLOAT_DTYPES)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(header.size_bytes for header in self.headers.values())

    @property
    def dtypes(self) -> dict[str, int]:
        """Tensors by dtype, most frequent first."""
        return dict(Counter(header.dtype for header in self.headers.values()).most_common())


def inspect_checkpoint(files: CheckpointFiles, *, target: CheckpointFiles | None = None) -> Inspection:
    """`target`: the one that a drafter is to be used with.

    Raises:
        CheckpointError: there is no config.json that can be read at all.
        UsageError: `target` was given for a target.
    """
    raw = read_json_object(files.folder / "config.json")
    refusals = Refusals()
    kind, format, recognised_by = _kind(raw, refusals)
    licence = stated_licence(files.folder) or files.licence
    found = Inspection(files.name, kind, format, recognised_by, licence)
    readable = refusals.check(lambda: found.headers.update(files.read_headers()))
    if kind == DRAFTER:
        found.made_for = _verifier(raw)
        found.drafter = DrafterConfig.read(raw, refusals)
        found.model = None if found.drafter is None else found.drafter.backbone
    if kind == TARGET:
        found.model = ModelConfig.read(raw, refusals)
        refusals.check(lambda: ModelConfig.check_generation(files.folder))
        refusals.check(lambda: Tokenizer.load(files.folder))
    if found.model is not None and readable:
        refusals.extend(_tensor_refusals(found, found.model))
    if target is not None:
        _compare(found, target, refusals)
    found.refusals = refusals.reasons
    return found


def inspect_ngram(drafter: NgramDrafter, *, target: CheckpointFiles | None = None) -> Inspection:
    """The drafter that is no checkpoint, and what speaks against using it with `target`.

    Raises:
        CheckpointError: the target has no config.json that can be read at all.
    """
    refusals = Refusals()
    found = Inspection(NGRAM_DRAFTER, DRAFTER, None, "its name", None, ngram=drafter)
    if target is not None:
        _compare(found, target, refusals)
    found.refusals = refusals.reasons
    return found


def _kind(raw: Mapping[str, Any], refusals: Refusals) -> tuple[str, str | None, str]:
    """Kind, format, and what gave them away."""
    if is_drafter(raw):
        try:
            format, mark = recognise(raw)
        except CheckpointError:
            # Reading the drafter tells why.
            return DRAFTER, None, "the marks of several formats in config.json"
        return DRAFTER, format.value, f"{mark} in config.json"
    named = raw.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    by_type = [name for name, family in FAMILIES.items() if family.model_type == raw.get("model_type")]
    if isinstance(first, str) and first.endswith("ForCausalLM"):
        return TARGET, "transformers", f"`architectures: {json.dumps(named)}` in config.json"
    if not named and by_type:
        return TARGET, "transformers", f"`model_type: {json.dumps(raw['model_type'])}` in config.json"
    refusals.add(
        f"this is neither a drafter nor a target: looked in config.json for {LOOKED_FOR}, and for `architectures` of "
        f"a target ({SUPPORTED}), and found `architectures: {json.dumps(named)}`",
        f"Use a target of one of these architectures. {PICK_ANOTHER}",
    )
    return UNKNOWN, None, "nothing in config.json"


def _verifier(raw: Mapping[str, Any]) -> str | None:
    """The target that a speculators checkpoint was trained for."""
    place: Any = raw
    for key in ("speculators_config", "verifier", "name_or_path"):
        place = place.get(key) if isinstance(place, Mapping) else None
    return place if isinstance(place, str) and place else None


def _tensor_refusals(found: Inspection, model: ModelConfig) -> list[CheckpointError]:
    """Missing tensors, wrong shapes, wrong dtypes, and tensors without a use."""
    name, headers = found.name, found.headers
    if model.num_layers > len(headers):
        # Naming every tensor of every layer might take more memory than there is.
        return [
            CheckpointError(
                f"config.json of {name} has {model.num_layers} layers, but there are only {len(headers)} tensors",
                SAME_CHECKPOINT,
            )
        ]
    drafter = found.drafter
    expected = target_tensors(model) if drafter is None else drafter_tensors(drafter, headers)
    reasons = [missing_tensor(name, tensor) for tensor in expected.required if tensor not in headers]
    wanted = {**expected.required, **expected.optional}
    for tensor, shape in wanted.items():
        header = headers.get(tensor)
        if header is None:
            continue
        if header.shape != shape:
            reasons.append(wrong_shape(tensor, header.shape, shape))
        whole = tensor in expected.whole_numbers
        if header.dtype not in (WHOLE_DTYPES if whole else FLOAT_DTYPES):
            reasons.append(wrong_dtype(tensor, header.dtype, WHOLE_NUMBERS if whole else FLOATS))
    without_use = left_over(name, headers.keys() - wanted.keys() - expected.unused)
    return reasons if without_use is None else [*reasons, without_use]


def _compare(found: Inspection, target: CheckpointFiles, refusals: Refusals) -> None:
    """Add what speaks against using a drafter with `target`."""
    if found.kind == TARGET:
        raise UsageError(
            f"`{found.name}` is a target, which is compared with no other", "Name the drafter first, then --target."
        )
    other = inspect_checkpoint(target)
    if other.kind == DRAFTER:
        refusals.add(f"{target.name} is a drafter, not a target", f"Use a target of one of: {SUPPORTED}.")
    for reason in other.refusals:
        refusals.add(f"the target cannot be used: {reason}", reason.remedy)
    if found.drafter is not None and other.model is not None and other.kind == TARGET:
        drafter, model = found.drafter, other.model
        refusals.check(lambda: drafter.check_target(model))
