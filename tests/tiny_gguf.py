"""A tiny Llama in a GGUF file, written the way llama.cpp's converter writes one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, INTERMEDIATE = 64, 4, 2, 16, 2, 96
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# `1 2` would join digits and `Ġ t` a leading space, if the pre-tokenizer let them.
MERGES = ["Ġ t", "h e", "Ġt he", "1 2"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def vocabulary() -> list[str]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    # GPT-2's alphabet: a byte without a visible character takes the next one from 256 on.
    alphabet = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(rest))]
    return SPECIAL + alphabet + [merge.replace(" ", "") for merge in MERGES]


def source_weights() -> dict[str, np.ndarray]:
    """Weights under their Hugging Face names and in Hugging Face's row order."""
    rng = np.random.default_rng(0)
    shapes = {"model.embed_tokens": (len(vocabulary()), HIDDEN), "model.norm": (HIDDEN,)}
    for layer in range(LAYERS):
        block = {
            "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        }
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
    return {f"{name}.weight": rng.standard_normal(shape).astype(np.float32) * 0.1 for name, shape in shapes.items()}


def llama_cpp_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """Row by row: llama.cpp wants the two rows that rotate together, i and i + D/2, next to each other."""
    order = [
        head * HEAD_DIM + row for head in range(heads) for i in range(HEAD_DIM // 2) for row in (i, i + HEAD_DIM // 2)
    ]
    return weight[order]


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path: Path, *, quantised: bool = False, extra_tensor: str = "", architecture: str = "llama") -> None:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_license("apache-2.0")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocabulary())
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(vocabulary()) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    for name, weight in source_weights().items():
        prefix, _, short = name.removesuffix(".weight").rpartition("layers.")
        layer, _, inner = short.partition(".")
        gguf_name = f"blk.{layer}.{GGUF_NAMES[inner]}" if prefix else GGUF_NAMES[short]
        if "q_proj" in name or "k_proj" in name:
            weight = llama_cpp_rows(weight, HEADS if "q_proj" in name else KV_HEADS)
        if quantised and weight.ndim == 2:
            data = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q4_1)
            writer.add_tensor(f"{gguf_name}.weight", data, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
        else:
            writer.add_tensor(f"{gguf_name}.weight", weight)
    if extra_tensor:
        writer.add_tensor(extra_tensor, np.zeros(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
