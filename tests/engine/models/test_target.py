"""The target against transformers: same logits and hidden states, whatever the batch and the pages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from paged_text import PagedTexts, random_tokens
from tiny_models import TINY_MODELS, TinyModel
from torch.testing import assert_close

from dspark.engine.models.layers import PackedWeight
from dspark.engine.models.target import Target

CPU = torch.device("cpu")
TOLERANCE = {"atol": 1e-4, "rtol": 0.0}
NO_ROWS = torch.empty(0, dtype=torch.int64)


def load(model: TinyModel, dtype: str = "float32") -> Target:
    return Target.load(model.folder, device=CPU, dtype=dtype)


def oracle(model: TinyModel, tokens: list[int]) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    with torch.no_grad():
        output = model.reference(torch.tensor([tokens]), output_hidden_states=True)
    return output.logits[0], tuple(state[0] for state in output.hidden_states)


def test_prefill_logits_and_features(any_tiny_model: TinyModel) -> None:
    target = load(any_tiny_model)
    texts = PagedTexts(target.new_cache(32, 4), 1, pages_each=31)
    tokens = random_tokens(93, target.config.vocab_size, seed=1)
    output = target.forward(texts.batch({0: tokens}), texts.cache, feature_layers=(2, -1, 0))
    logits, states = oracle(any_tiny_model, tokens)
    assert_close(output.logits, logits, **TOLERANCE)
    assert output.features is not None
    # transformers' state l + 1 is that behind layer l; its last is already normed.
    assert_close(output.features, torch.cat((states[3], states[0], states[1]), dim=1), **TOLERANCE)


def test_chunked_prefill(any_tiny_model: TinyModel) -> None:
    target = load(any_tiny_model)
    texts = PagedTexts(target.new_cache(40, 4), 1, pages_each=39)
    tokens = random_tokens(120, target.config.vocab_size, seed=2)
    chunks = (tokens[:37], tokens[37:38], tokens[38:100], tokens[100:])
    logits = torch.cat([target.forward(texts.batch({0: chunk}), texts.cache).logits for chunk in chunks])
    assert_close(logits, oracle(any_tiny_model, tokens)[0], **TOLERANCE)


def test_mixed_batch_and_decode_after_rollbacks(any_tiny_model: TinyModel) -> None:
    target = load(any_tiny_model)
    vocab_size = target.config.vocab_size
    texts = PagedTexts(target.new_cache(1 + 5 * 12, 8), 5, pages_each=12)
    history = {text: random_tokens(length, vocab_size, seed=text) for text, length in enumerate((1, 5, 16, 33, 70))}
    target.forward(texts.batch(history), texts.cache, logit_rows=NO_ROWS)
    # Rounds of unequal query lengths, a long prefill chunk among verifications, texts that sit out, rollbacks between.
    for round_index, counts in enumerate(((3, 8, 1, 0, 20), (1, 1, 1, 1, 1), (0, 7, 2, 17, 4), (2, 2, 2, 2, 2))):
        new = {
            text: random_tokens(count, vocab_size, seed=100 * round_index + text)
            for text, count in enumerate(counts)
            if count
        }
        logits = target.forward(texts.batch(new), texts.cache).logits
        start = 0
        for text, tokens in new.items():
            expected = oracle(any_tiny_model, history[text] + tokens)[0][-len(tokens) :]
            assert_close(logits[start : start + len(tokens)], expected, **TOLERANCE)
            start += len(tokens)
            kept = (len(tokens) + 1) // 2
            history[text] = history[text] + tokens[:kept]
            texts.roll_back(text, len(history[text]))


def test_logit_rows_select(tiny_model) -> None:
    model = tiny_model("llama")
    target = load(model)
    texts = PagedTexts(target.new_cache(8, 8), 1, pages_each=7)
    tokens = random_tokens(20, target.config.vocab_size, seed=3)
    output = target.forward(texts.batch({0: tokens}), texts.cache, logit_rows=torch.tensor([19, 4]))
    assert_close(output.logits, oracle(model, tokens)[0][[19, 4]], **TOLERANCE)
    assert output.features is None
    texts.roll_back(0, 0)
    none = target.forward(texts.batch({0: tokens}), texts.cache, logit_rows=NO_ROWS)
    assert none.logits.shape == (0, target.config.vocab_size)


@pytest.mark.parametrize("name", ["llama_tied", "qwen2", "qwen3"])
@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 0.05), ("float16", 0.01), ("int8", 0.1)])
def test_narrow_dtypes_stay_near(tiny_model, name: str, dtype: str, bound: float) -> None:
    model = tiny_model(name)
    target = load(model, dtype)
    texts = PagedTexts(target.new_cache(8, 8), 1, pages_each=7)
    tokens = random_tokens(30, target.config.vocab_size, seed=4)
    logits = target.forward(texts.batch({0: tokens}), texts.cache).logits
    expected = oracle(model, tokens)[0]
    assert logits.dtype == torch.float32
    assert (logits - expected).norm() / expected.norm() < bound


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-6), ("bfloat16", 0.05), ("int8", 0.1)])
def test_a_torch_build_without_the_private_operations(
    tiny_model, monkeypatch: pytest.MonkeyPatch, dtype: str, bound: float
) -> None:
    monkeypatch.setattr(PackedWeight, "_OPERATIONS", ("no_such_operation",))
    model = tiny_model("llama_tied")
    target = load(model, dtype)
    assert all(layer.qkv.packed is None for layer in target.decoder.layers)
    texts = PagedTexts(target.new_cache(8, 8), 1, pages_each=7)
    tokens = random_tokens(30, target.config.vocab_size, seed=4)
    logits, expected = target.forward(texts.batch({0: tokens}), texts.cache).logits, oracle(model, tokens)[0]
    assert (logits - expected).norm() / expected.norm() < bound


def test_tied_head_shares_the_embedding(tiny_model) -> None:
    target = load(tiny_model("llama_tied"))
    assert target.head.weight.data_ptr() == target.embed.weight.data_ptr()


def test_sharded_checkpoint(tiny_model, tmp_path: Path) -> None:
    model = tiny_model("qwen3")
    model.reference.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    logits = []
    for folder in (model.folder, tmp_path):
        target = Target.load(folder, device=CPU, dtype="float32")
        texts = PagedTexts(target.new_cache(8, 8), 1, pages_each=7)
        logits.append(target.forward(texts.batch({0: [3, 1, 4]}), texts.cache).logits)
    assert torch.equal(*logits)


@pytest.mark.parametrize("name", list(TINY_MODELS))
def test_random_weights_run(tiny_model, name: str) -> None:
    config = load(tiny_model(name)).config
    target = Target.from_config(config, device=CPU, dtype="float32", seed=5)
    again = Target.from_config(config, device=CPU, dtype="float32", seed=5)
    logits = []
    for model in (target, again):
        texts = PagedTexts(model.new_cache(8, 8), 1, pages_each=7)
        logits.append(model.forward(texts.batch({0: [1, 2, 3]}), texts.cache).logits)
    assert torch.equal(*logits)
    assert logits[0].isfinite().all()


def test_builtin_model_equals_transformers(builtin_target: Path) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(
        builtin_target, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    model = TinyModel(builtin_target, reference)
    target = load(model)
    texts = PagedTexts(target.new_cache(1 + 2 * 8, 16), 2, pages_each=8)
    tokens = [random_tokens(count, target.config.vocab_size, seed=count) for count in (70, 9)]
    prefill = target.forward(texts.batch({0: tokens[0][:60], 1: tokens[1][:5]}), texts.cache, feature_layers=(29, 14))
    decode = target.forward(texts.batch({1: tokens[1][5:], 0: tokens[0][60:]}), texts.cache)
    expected = [oracle(model, text) for text in tokens]
    assert_close(prefill.logits, torch.cat((expected[0][0][:60], expected[1][0][:5])), **TOLERANCE)
    assert_close(decode.logits, torch.cat((expected[1][0][5:], expected[0][0][60:])), **TOLERANCE)
