"""Drafters of the speculators format in every form that no fixture covers, against a dense float64 twin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense_drafter import DenseDrafter
from draft_pair import PAGE_SIZE, context_batch, copy_drafter, draft_block
from safetensors.torch import load_file
from sampling_oracle import target_probs
from speculators_folders import GAMMA, HIDDEN, SHUFFLED, SOME, SOURCE, VARIANTS, VOCAB, write_drafter

from dspark.engine.models.drafter import Drafter
from dspark.engine.models.target import Target
from dspark.kernels import DRAFT, NoiseKeys, gumbel

CPU = torch.device("cpu")
STARTS, ANCHORS = [1, 9, 22], [3, 250, 17]
TOLERANCE = {"rtol": 0.0, "atol": 1e-4}


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(SOURCE / "target", device=CPU, dtype="float32")


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, **TOLERANCE, check_dtype=False)


def twin_of(folder: Path, target: Target) -> DenseDrafter:
    """What the checkpoint says, read without our reader."""
    raw = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    layer = raw["transformer_layer_config"]
    anchor = raw.get("sample_from_anchor", raw["speculators_model_type"] == "dspark")
    sliding = {i for i, kind in enumerate(layer["layer_types"]) if kind == "sliding_attention"}
    ids = None
    if "d2t" in weights:
        ids = torch.tensor([i + int(offset) for i, offset in enumerate(weights["d2t"])])
    return DenseDrafter(
        {"markov_rank": 0} | layer | raw | {"block_size": GAMMA},
        {name: tensor for name, tensor in weights.items() if name not in ("d2t", "t2d")},
        embed=weights.get("embed_tokens.weight", target.embed.weight),
        head=weights.get("lm_head.weight", target.head.weight),
        samples_anchor=anchor,
        ids=ids,
        window=(layer["sliding_window"] or 0, sliding, not raw["sliding_window_non_causal"]),
    )


def draft(drafter: Drafter, features: torch.Tensor, **block_options: Any):
    """One block of three requests of unequal length, from a cache whose unwritten rows are NaN."""
    pages = (torch.randperm(39, generator=torch.Generator().manual_seed(1)) + 1).tolist()
    tables = [pages[:8], pages[8:16], pages[16:24]]
    cache = drafter.new_cache(40, PAGE_SIZE)
    cache.k[:, PAGE_SIZE:] = cache.v[:, PAGE_SIZE:] = torch.nan
    drafter.write_context(features, context_batch(tables, [0, 0, 0], STARTS), cache)
    block = draft_block(tables, ANCHORS, STARTS, gamma=drafter.block_width, steps=GAMMA, **block_options)
    return drafter.draft(block, cache)


def features() -> torch.Tensor:
    return torch.randn(sum(STARTS), 3 * HIDDEN, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_every_form_matches_the_dense_twin(tmp_path: Path, target: Target, options: dict[str, Any]) -> None:
    folder = write_drafter(tmp_path, **options)
    drafter = Drafter.load(folder, target=target, device=CPU, dtype="float32")
    assert drafter.block_size == GAMMA
    assert list(drafter.feature_layers) == [layer - 1 for layer in options.get("aux", (1, 3, 5))]
    twin, given = twin_of(folder, target), features()
    out = draft(drafter, given)
    for row, part in enumerate(given.split(STARTS)):
        tokens, logits, confidence = twin.draft(part, ANCHORS[row], STARTS[row])
        close(out.logits[row][:, twin.ids], logits)
        assert out.tokens[row].tolist() == tokens.tolist()
        if confidence is not None:
            close(out.confidence_logits[row], confidence)
        else:
            close(out.confidence_logits[row].sigmoid(), logits.softmax(-1).amax(-1))
    unknown = torch.ones(VOCAB, dtype=torch.bool).index_fill(0, twin.ids, False)
    assert out.logits[..., unknown].isneginf().all()


def noise_keys() -> NoiseKeys:
    return NoiseKeys(
        seeds=torch.tensor([5, 6, 7]),
        positions=torch.tensor(STARTS),
        generations=torch.tensor([1, 2, 3]),
        purpose=DRAFT,
    )


@pytest.mark.parametrize("ids", [SOME, SHUFFLED], ids=["ordered", "unordered"])
def test_sampled_tokens_are_drawn_with_the_noise_of_their_target_ids(
    tmp_path: Path, target: Target, ids: torch.Tensor
) -> None:
    drafter = Drafter.load(write_drafter(tmp_path, ids=ids), target=target, device=CPU, dtype="float32")
    temperature, keys = torch.tensor([0.0, 0.7, 4.0]), noise_keys()
    given = features()
    out = draft(drafter, given, noise=keys, temperature=temperature)
    # Every draw is the argmax over the whole vocabulary of q and noise by target id.
    for step in range(GAMMA):
        scores = out.logits[:, step] + temperature[:, None] * gumbel(keys.at(step + 1), VOCAB)
        assert torch.equal(out.tokens[:, step], scores.argmax(-1))
    assert torch.equal(out.tokens[0], draft(drafter, given).tokens[0])
    assert torch.isin(out.tokens, ids).all()


@pytest.mark.parametrize("ids", [None, SOME, SHUFFLED], ids=["whole", "ordered", "unordered"])
def test_drafts_from_few_tokens_know_them_by_their_target_ids(
    tmp_path: Path, target: Target, ids: torch.Tensor | None
) -> None:
    drafter = Drafter.load(write_drafter(tmp_path, ids=ids), target=target, device=CPU, dtype="float32")
    temperature, keys = torch.tensor([0.0, 0.7, 4.0]), noise_keys()
    given = features()
    whole = draft(drafter, given, noise=keys, temperature=temperature)
    out = draft(drafter, given, noise=keys, temperature=temperature, top_k=5)
    assert out.logits is None and out.top is not None
    for row, logits in enumerate(whole.logits[:, 0].numpy()):
        q = target_probs(logits, temperature=float(temperature[row]) or 1.0, top_k=5)
        assert out.top.ids[row, 0].tolist() == np.flatnonzero(q).tolist()
        close(out.top.log_probs[row, 0].exp(), torch.from_numpy(q[q > 0]).float())
    for step in range(GAMMA):
        top = out.top[:, step]
        noise = gumbel(keys.at(step + 1), VOCAB).gather(1, top.ids.long())
        best = (top.log_probs + torch.where(temperature[:, None] > 0, noise, 0.0)).argmax(-1, keepdim=True)
        assert torch.equal(out.tokens[:, step], top.ids.long().gather(1, best)[:, 0])
    assert torch.equal(out.tokens[0], draft(drafter, given).tokens[0])


def test_among_equal_logits_the_lowest_target_id_is_drafted(tmp_path: Path, target: Target) -> None:
    folder = write_drafter(tmp_path, head=None, confidence=None, ids=torch.tensor([200, 7, 31]))
    copy_drafter(folder, folder, tensors={"lm_head.weight": torch.ones(3, HIDDEN)})
    drafter = Drafter.load(folder, target=target, device=CPU, dtype="float32")
    assert (draft(drafter, features()).tokens == 7).all()


@pytest.mark.parametrize("ids", [None, SOME], ids=["whole", "reduced"])
def test_a_confidence_without_a_head_never_depends_on_the_token_that_it_judges(
    tmp_path: Path, target: Target, ids: torch.Tensor | None
) -> None:
    drafter = Drafter.load(
        write_drafter(tmp_path, confidence=None, ids=ids), target=target, device=CPU, dtype="float32"
    )
    first, second = {}, {}
    for generation in range(40):
        keys = NoiseKeys(
            seeds=torch.tensor([5, 6, 7]),
            positions=torch.tensor(STARTS),
            generations=torch.full((3,), generation),
            purpose=DRAFT,
        )
        out = draft(drafter, features(), noise=keys, temperature=torch.full((3,), 2.0))
        for row in range(3):
            token, following = out.tokens[row, :2].tolist()
            first.setdefault(row, []).append((token, float(out.confidence_logits[row, 0])))
            # Behind one and the same first token.
            second.setdefault((row, token), []).append((following, float(out.confidence_logits[row, 1])))
    for drawn in [*first.values(), *second.values()]:
        assert len({confidence for _, confidence in drawn}) == 1
    assert all(len({token for token, _ in drawn}) > 1 for drawn in first.values())
    assert any(len({token for token, _ in drawn}) > 1 for drawn in second.values())
