"""GGUF of the Llama family -> an ordinary Hugging Face model folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dspark.engine.errors import CheckpointError
from dspark.engine.progress import Progress

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

CONVERT_STEP = "Converting the weights"

_TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


@dataclass(frozen=True, slots=True)
class Metadata:
    """The key-value part of a GGUF file."""

    fields: dict[str, Any]

    @classmethod
    def of(cls, reader: GGUFReader) -> Metadata:
        """All fields of a GGUF file."""
        return cls({name: field.contents() for name, field in reader.fields.items()})

    def require(self, key: str) -> Any:
        if key not in self.fields:
            raise CheckpointError(
                f"the GGUF file has no metadata key `{key}`",
                remedy="Use a GGUF file made by llama.cpp's own converter.",
            )
        return self.fields[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`, or `default` where the file has none."""
        return self.fields.get(key, default)


def convert_gguf(gguf: Path, folder: Path, *, progress: Progress | None = None) -> None:
    """Write `gguf` as config.json, model.safetensors, tokenizer files and README.md into the existing `folder`."""
    from gguf import GGUFReader

    from dspark.engine.models.builtin_tokenizer import write_tokenizer

    reader = GGUFReader(gguf)
    metadata = Metadata.of(reader)
    config = model_config(metadata, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation_config(config))
    write_tokenizer(metadata, folder, max_length=config["max_position_embeddings"])
    write_weights(reader, config, folder / "model.safetensors", progress=progress)
    (folder / "README.md").write_text(_model_card(metadata, gguf.name), encoding="utf-8")


def model_config(metadata: Metadata, *, tied: bool) -> dict[str, Any]:
    """config.json as transformers reads it.

    Raises:
        CheckpointError: the file holds another architecture than Llama's, or lacks a value.
    """
    architecture = metadata.require("general.architecture")
    if architecture != "llama":
        raise CheckpointError(
            f"the GGUF file holds the architecture `{architecture}`; only `llama` can be converted",
            remedy="Give a Hugging Face folder of this model instead.",
        )
    hidden_size = int(metadata.require("llama.embedding_length"))
    num_heads = int(metadata.require("llama.attention.head_count"))
    head_dim = int(metadata.get("llama.attention.key_length", hidden_size // num_heads))
    if int(metadata.get("llama.rope.dimension_count", head_dim)) != head_dim:
        raise CheckpointError(
            "the GGUF file rotates only a part of each head, which is not supported",
            remedy="Use a model with full rotary embedding.",
        )
    rope_theta = _shortest(metadata.get("llama.rope.freq_base", 10000.0))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(metadata.require("tokenizer.ggml.tokens")),
        "hidden_size": hidden_size,
        "intermediate_size": int(metadata.require("llama.feed_forward_length")),
        "num_hidden_layers": int(metadata.require("llama.block_count")),
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(metadata.get("llama.attention.head_count_kv", num_heads)),
        "head_dim": head_dim,
        "max_position_embeddings": int(metadata.require("llama.context_length")),
        "rms_norm_eps": _shortest(metadata.require("llama.attention.layer_norm_rms_epsilon")),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        # Both spellings: readers older than transformers 5 look at the top level only.
        "rope_theta": rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.require("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def generation_config(config: dict[str, Any]) -> dict[str, Any]:
    """generation_config.json: the special tokens of `config`."""
    return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}


def write_weights(reader: GGUFReader, config: dict[str, Any], path: Path, *, progress: Progress | None = None) -> None:
    """Stream every tensor into a safetensors file, one in memory at a time.

    Stored as float32: a dequantised weight is step x integer + minimum, which has up to 24 significant bits; half
    precision would round most of them and the model would no longer be the published one.
    """
    tensors = [(hf_name(tensor.name), tensor) for tensor in reader.tensors]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    total = 0
    for name, tensor in tensors:
        size = int(tensor.n_elements) * 4
        # GGUF lists the fastest dimension first.
        shape = [int(n) for n in reversed(tensor.shape)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [total, total + size]}
        total += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    # The format wants the data aligned to 8 bytes.
    encoded += b" " * (-len(encoded) % 8)
    done = 0
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for data in _dequantised(tensors, config):
            if progress is not None:
                progress(CONVERT_STEP, done, total)
            file.write(data.data)
            done += data.nbytes
    if progress is not None:
        progress(CONVERT_STEP, total, total)


def hf_name(gguf_name: str) -> str:
    """The name that transformers gives a tensor of the GGUF file.

    Raises:
        CheckpointError: a plain Llama model has no such tensor.
    """
    if gguf_name in _TOP_LEVEL:
        return _TOP_LEVEL[gguf_name]
    match = _BLOCK_TENSOR.fullmatch(gguf_name)
    if match is None or match[2] not in _IN_BLOCK:
        raise CheckpointError(
            f"the GGUF file has a tensor `{gguf_name}` that a plain Llama model does not have",
            remedy="Give a Hugging Face folder of this model instead.",
        )
    return f"model.layers.{match[1]}.{_IN_BLOCK[match[2]]}.weight"


def unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo llama.cpp's reordering of the rows of a query or key projection.

    llama.cpp rotates neighbouring rows of a head (0, 1), (2, 3), ...; Hugging Face rotates row i with row i + D/2. So
    the even rows of each head come first again, then the odd ones.
    """
    # [Hq*D, H] -> [Hq, D/2, 2, H] -> [Hq, 2, D/2, H]
    paired = weight.reshape(num_heads, -1, 2, weight.shape[-1])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(weight.shape)


def _dequantised(tensors: list[tuple[str, ReaderTensor]], config: dict[str, Any]) -> Iterator[np.ndarray]:
    from gguf.quants import dequantize

    rotated = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in tensors:
        data = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype="<f4")
        num_heads = rotated.get(name.split(".")[-2])
        yield data if num_heads is None else unpermute(data, num_heads)


def _shortest(value: float) -> float:
    # Metadata numbers are float32: 1e-05 is read as 9.999999747378752e-06, and must not be written as that.
    return float(str(np.float32(value)))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _model_card(metadata: Metadata, gguf_name: str) -> str:
    stated = metadata.get("general.license")
    licence = stated or "see the source"
    owner = metadata.get("general.organization", "its authors")
    front_matter = f"---\nlicense: {stated}\n---\n\n" if stated else ""
    return f"""{front_matter}# {gguf_name}, as a Hugging Face folder

Made by `dspark` from the GGUF file `{gguf_name}` ({owner}; licence of the weights: {licence}, unchanged).

The weights are the quantised ones of that file, dequantised to float32; they are not the original half-precision
weights, and the model's answers differ a little from those. Rows of the query and key projections are back in the
order that `transformers` expects. Vocabulary, merges, special tokens and chat template are the file's own.
"""
