"""GGUF to a Hugging Face folder, against independent descriptions of both formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_gguf as tiny
from refusals import assert_reads_well
from safetensors.numpy import load_file

from dspark.engine.errors import CheckpointError
from dspark.engine.models import builtin_convert
from dspark.engine.models.licence import stated_licence

gguf = pytest.importorskip("gguf")


def convert(folder: Path, **options: object) -> Path:
    tiny.write_gguf(folder / "tiny.gguf", **options)  # type: ignore[arg-type]
    model = folder / "model"
    model.mkdir()
    builtin_convert.convert_gguf(folder / "tiny.gguf", model)
    return model


class TestConversion:
    def test_transformers_loads_the_source_weights(self, tmp_path: Path) -> None:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(convert(tmp_path))
        state = model.state_dict()
        for name, weight in tiny.source_weights().items():
            np.testing.assert_array_equal(state[name].numpy(), weight, err_msg=name)
        assert model.lm_head.weight is model.model.embed_tokens.weight
        config = model.config
        assert (config.rms_norm_eps, config.rope_parameters["rope_theta"]) == (1e-5, 100000.0)
        assert (config.head_dim, config.num_key_value_heads, config.max_position_embeddings) == (
            tiny.HEAD_DIM,
            tiny.KV_HEADS,
            128,
        )
        assert (model.generation_config.eos_token_id, model.dtype.is_floating_point) == (2, True)

    def test_the_folder_states_the_licence_of_the_file(self, tmp_path: Path) -> None:
        assert stated_licence(convert(tmp_path)) == "apache-2.0"

    def test_both_rotations_agree(self) -> None:
        """llama.cpp rotating neighbours in its row order = Hugging Face rotating halves in the order we write."""
        rng = np.random.default_rng(1)
        theirs = rng.standard_normal((tiny.HEADS * tiny.HEAD_DIM, tiny.HIDDEN))
        x = rng.standard_normal(tiny.HIDDEN)
        angles = 5 / 10000.0 ** (np.arange(tiny.HEAD_DIM // 2) / (tiny.HEAD_DIM // 2))
        pairs = (theirs @ x).reshape(tiny.HEADS, tiny.HEAD_DIM // 2, 2)
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)
        halves = (builtin_convert.unpermute(theirs, tiny.HEADS) @ x).reshape(tiny.HEADS, 2, tiny.HEAD_DIM // 2)
        cos, sin = np.cos(angles), np.sin(angles)
        np.testing.assert_allclose(halves[:, 0] * cos - halves[:, 1] * sin, turned.real, atol=1e-12)
        np.testing.assert_allclose(halves[:, 1] * cos + halves[:, 0] * sin, turned.imag, atol=1e-12)

    def test_q4_1_blocks(self, tmp_path: Path) -> None:
        """A block is step and minimum (fp16), then 32 nibbles: low halves of 16 bytes first, then their high halves."""
        weights = load_file(convert(tmp_path, quantised=True) / "model.safetensors")
        raw = {t.name: np.asarray(t.data) for t in gguf.GGUFReader(tmp_path / "tiny.gguf").tensors}[
            "blk.1.ffn_down.weight"
        ]
        blocks = raw.reshape(-1, 20)
        step, minimum = (blocks[:, i : i + 2].copy().view(np.float16).astype(np.float32) for i in (0, 2))
        nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
        expected = (step * nibbles + minimum).reshape(tiny.HIDDEN, tiny.INTERMEDIATE)
        actual = weights["model.layers.1.mlp.down_proj.weight"]
        assert actual.dtype == np.float32
        np.testing.assert_array_equal(actual, expected)

    def test_tokenizer(self, tmp_path: Path) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(convert(tmp_path))
        assert tokenizer.tokenize("the the12") == ["t", "he", "Ġthe", "1", "2"]
        assert tokenizer("<|im_start|>the<|im_end|>").input_ids[::3] == [1, 2]
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id, len(tokenizer)) == (1, 2, len(tiny.vocabulary()))
        for text in ("a  b\n\t1²½ é 漢 🙂", " leading", "trailing ", "don't", ""):
            assert tokenizer.decode(tokenizer(text).input_ids) == text
        messages = [{"role": "user", "content": "the"}]
        assert tokenizer.apply_chat_template(messages, tokenize=False) == "<|im_start|>user\nthe<|im_end|>\n"

    @pytest.mark.parametrize(
        ("options", "named"),
        [({"extra_tensor": "blk.0.attn_q.bias"}, "blk.0.attn_q.bias"), ({"architecture": "gemma"}, "gemma")],
        ids=["tensor", "architecture"],
    )
    def test_what_is_not_plain_llama_is_refused_by_name(
        self, tmp_path: Path, options: dict[str, str], named: str
    ) -> None:
        with pytest.raises(CheckpointError, match=named) as refused:
            convert(tmp_path, **options)
        assert_reads_well(refused.value)
