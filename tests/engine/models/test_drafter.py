"""Every round that the method authors' own code recorded, and what no fixture covers against a dense float64 twin."""

import json

import pytest
import torch
from dense_drafter import DenseDrafter
from draft_pair import FIXTURES, PAGE_SIZE, cache_rows, context_batch, copy_drafter, draft_block
from safetensors.torch import load_file

from dspark.engine.models.drafter import Drafter
from dspark.engine.models.target import Target
from dspark.kernels import DRAFT, NoiseKeys

TOLERANCE = 1e-4
CPU = torch.device("cpu")
PAIRS = ("dspark_vanilla", "dspark_rnn", "dspark_sliding")


@pytest.fixture(scope="module")
def targets():
    return {name: Target.load(FIXTURES / name / "target", device=CPU, dtype="float32") for name in PAIRS}


def load_drafter(folder, target, *, dtype="float32"):
    return Drafter.load(folder, target=target, device=CPU, dtype=dtype)


def close(actual, expected, tolerance=TOLERANCE):
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0, check_dtype=False)


def scattered_pages(num_pages, seed=0):
    """A block table in no particular order, page 0 left out."""
    return (torch.randperm(num_pages - 1, generator=torch.Generator().manual_seed(seed)) + 1).tolist()


def poisoned_cache(drafter, num_pages):
    """Rows nobody wrote are NaN: reading one would show."""
    cache = drafter.new_cache(num_pages, PAGE_SIZE)
    cache.k[:, PAGE_SIZE:] = torch.nan
    cache.v[:, PAGE_SIZE:] = torch.nan
    return cache


@pytest.mark.parametrize("source", ["recorded", "target"])
@pytest.mark.parametrize("name", PAIRS)
def test_every_recorded_round(targets, name, source):
    expected = load_file(FIXTURES / name / "expected.safetensors")
    prompts = json.loads((FIXTURES / name / "expected.json").read_text())["prompts"]
    target = targets[name]
    drafter = load_drafter(FIXTURES / name / "draft", target)
    num_rounds = num_caches = 0
    for i, prompt in enumerate(prompts):
        table = scattered_pages(40, seed=i)
        cache, target_cache = poisoned_cache(drafter, 40), target.new_cache(40, PAGE_SIZE)
        written, text = 0, torch.tensor(prompt["run"]["output_ids"])
        for j, record in enumerate(prompt["rounds"]):
            key, start = f"p{i}.r{j}.", record["start"]
            features = expected[key + "ctx_features"]
            batch = context_batch([table], [written], [start - written], token_ids=text[written:start])
            if source == "target":
                own = target.forward(batch, target_cache, feature_layers=drafter.feature_layers).features
                close(own, features)
                features = own
            drafter.write_context(features, batch, cache)
            written = start
            rows = cache_rows(table, torch.arange(start))
            for layer in range(2):
                recorded = f"{key}draft_cache_after_crop.l{layer}."
                if recorded + "k" in expected:
                    close(cache.k[layer, rows].transpose(0, 1), expected[recorded + "k"])
                    close(cache.v[layer, rows].transpose(0, 1), expected[recorded + "v"])
                    num_caches += 1
            out = drafter.draft(draft_block([table], [record["anchor_token"]], [start], gamma=7), cache)
            close(out.hidden[0], expected[key + "block_hidden"])
            close(drafter.head(out.hidden[0]), expected[key + "base_logits"])
            close(out.logits[0], expected[key + "corrected_logits"])
            assert out.logits.dtype == torch.float32
            assert out.tokens[0].tolist() == record["draft_tokens"]
            if key + "confidence_logits" in expected:
                close(out.confidence_logits[0], expected[key + "confidence_logits"])
            else:
                largest = torch.softmax(expected[key + "corrected_logits"], -1).amax(-1)
                close(out.confidence_logits[0].sigmoid(), largest)
            num_rounds += 1
    assert num_rounds == sum(len(prompt["rounds"]) for prompt in prompts) > 20
    assert num_caches == 6


def make_variant(folder, *, kind, confidence="with_markov", bias=False, own_vocabulary=True, seed=0):
    """A random drafter of one kind, beside the vanilla fixture's shapes."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator) * 0.3

    rank = 0 if kind == "none" else 16
    tensors = {}
    drop = ["markov_head.markov_w1.weight", "markov_head.markov_w2.weight"] if kind == "none" else []
    if kind == "gated":
        tensors |= {"markov_head.gate_proj.weight": normal(16, 80), "markov_head.gate_proj.bias": normal(16)}
    if kind == "rnn":
        tensors |= {"markov_head.joint_proj.weight": normal(48, 96), "markov_head.joint_proj.bias": normal(48)}
    if confidence == "off":
        drop += ["confidence_head.proj.weight", "confidence_head.proj.bias"]
    if confidence == "hidden_only":
        tensors["confidence_head.proj.weight"] = normal(1, 64)
    if bias:
        for layer in range(2):
            for projection, size in (("q", 64), ("k", 32), ("v", 32), ("o", 64)):
                tensors[f"layers.{layer}.self_attn.{projection}_proj.bias"] = normal(size)
    if not own_vocabulary:
        drop += ["embed_tokens.weight", "lm_head.weight"]
    config = {
        "markov_rank": rank,
        "markov_head_type": None if kind == "none" else kind,
        "enable_confidence_head": confidence != "off",
        "confidence_head_with_markov": True if confidence == "with_markov" else None,
        "attention_bias": bias,
    }
    return copy_drafter(FIXTURES / "dspark_vanilla" / "draft", folder, config=config, tensors=tensors, drop=drop)


VARIANTS = {
    "vanilla": {"kind": "vanilla"},
    "gated": {"kind": "gated"},
    "rnn": {"kind": "rnn"},
    "rank-0": {"kind": "none", "confidence": "hidden_only"},
    "rank-0-headless": {"kind": "none", "confidence": "off"},
    "gated-confidence-of-hidden-only": {"kind": "gated", "confidence": "hidden_only"},
    "attention-bias": {"kind": "vanilla", "bias": True},
    "shared-vocabulary": {"kind": "vanilla", "own_vocabulary": False},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_variants_match_the_dense_twin(tmp_path, targets, options):
    target = targets["dspark_vanilla"]
    folder = make_variant(tmp_path, **options)
    drafter = load_drafter(folder, target)
    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    vocabulary = load_file(FIXTURES / "dspark_vanilla" / "target" / "model.safetensors")
    twin = DenseDrafter(
        config,
        weights,
        embed=weights.get("embed_tokens.weight", vocabulary["model.embed_tokens.weight"]),
        head=weights.get("lm_head.weight", vocabulary["lm_head.weight"]),
    )
    # Three requests of unequal length in one block.
    generator = torch.Generator().manual_seed(1)
    lengths, anchors = [1, 9, 22], [3, 250, 17]
    pages = scattered_pages(40)
    tables = [pages[:8], pages[8:16], pages[16:24]]
    features = torch.randn(sum(lengths), 192, generator=generator)
    cache = poisoned_cache(drafter, 40)
    drafter.write_context(features, context_batch(tables, [0, 0, 0], lengths), cache)
    out = drafter.draft(draft_block(tables, anchors, lengths, gamma=7), cache)
    for row, part in enumerate(features.split(lengths)):
        tokens, logits, confidence = twin.draft(part, anchors[row], lengths[row])
        close(out.logits[row], logits)
        assert torch.equal(out.tokens[row], tokens)
        if confidence is not None:
            close(out.confidence_logits[row], confidence)


def drafted(drafter, **block_options):
    """Two requests of 5 and 11 random feature rows, drafted once."""
    tables = [[3, 1, 7, 9, 12], [4, 2, 6, 8, 11]]
    cache = poisoned_cache(drafter, 16)
    features = torch.randn(16, 192, generator=torch.Generator().manual_seed(2))
    drafter.write_context(features, context_batch(tables, [0, 0], [5, 11]), cache)
    return drafter.draft(draft_block(tables, [9, 8], [5, 11], gamma=7, **block_options), cache)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("steps", [1, 3])
def test_fewer_steps_draft_the_same_first_tokens(targets, name, steps):
    drafter = load_drafter(FIXTURES / name / "draft", targets[name])
    whole, part = drafted(drafter), drafted(drafter, steps=steps)
    assert torch.equal(part.tokens, whole.tokens[:, :steps])
    close(part.logits, whole.logits[:, :steps], 1e-5)
    close(part.confidence_logits, whole.confidence_logits[:, :steps], 1e-5)


def test_sampled_rows_depend_on_their_key_and_greedy_rows_do_not(targets):
    drafter = load_drafter(FIXTURES / "dspark_vanilla" / "draft", targets["dspark_vanilla"])

    def sampled(generation):
        noise = NoiseKeys(
            seeds=torch.tensor([5, 6]),
            positions=torch.tensor([5, 11]),
            generations=torch.full((2,), generation),
            purpose=DRAFT,
        )
        return drafted(drafter, noise=noise, temperature=torch.tensor([0.0, 5.0]))

    greedy, first, again, other = drafted(drafter), sampled(0), sampled(0), sampled(1)
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens[1], other.tokens[1])
    for out in (first, other):
        assert torch.equal(out.tokens[0], greedy.tokens[0])


def test_block_reaches_past_the_context_limit(targets):
    drafter = load_drafter(FIXTURES / "dspark_vanilla" / "draft", targets["dspark_vanilla"])
    limit = drafter.context_limit
    tables = [scattered_pages(limit // PAGE_SIZE + 4)]
    cache = drafter.new_cache(limit // PAGE_SIZE + 4, PAGE_SIZE)
    drafter.write_context(torch.randn(limit, 192), context_batch(tables, [0], [limit]), cache)
    assert torch.isfinite(drafter.draft(draft_block(tables, [1], [limit], gamma=7), cache).logits).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_narrow_weights_stay_near_the_wide_ones(dtype):
    folder = FIXTURES / "dspark_vanilla"
    outputs = []
    for name in ("float32", dtype):
        target = Target.load(folder / "target", device=CPU, dtype=name)
        drafter = load_drafter(folder / "draft", target, dtype=name)
        tables = [[3, 1, 7, 9, 12]]
        cache = drafter.new_cache(16, PAGE_SIZE)
        features = load_file(folder / "expected.safetensors")["p1.prompt_features"]
        drafter.write_context(features.to(drafter.dtype), context_batch(tables, [0], [5]), cache)
        outputs.append(drafter.draft(draft_block(tables, [9], [5], gamma=7), cache))
    wide, narrow = outputs
    assert narrow.logits.dtype == narrow.confidence_logits.dtype == torch.float32
    close(narrow.logits[:, 0], wide.logits[:, 0], 0.05 * float(wide.logits[:, 0].abs().max()))


def test_vocabulary_is_shared_when_absent_or_the_same(tmp_path, targets):
    target = targets["dspark_vanilla"]
    absent = load_drafter(make_variant(tmp_path / "absent", kind="vanilla", own_vocabulary=False), target)
    same = load_drafter(
        copy_drafter(
            FIXTURES / "dspark_vanilla" / "draft",
            tmp_path / "same",
            tensors={"embed_tokens.weight": target.embed.weight.clone(), "lm_head.weight": target.head.weight.clone()},
        ),
        target,
    )
    for drafter in (absent, same):
        assert drafter.embed is target.embed and drafter.head is target.head
