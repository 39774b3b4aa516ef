"""The tokenizer inside a GGUF file -> tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark.engine.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from dspark.engine.models.builtin_convert import Metadata

# llama.cpp's token types.
_CONTROL, _USER_DEFINED = 3, 4


def write_tokenizer(metadata: Metadata, folder: Path, *, max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json into `folder`; `max_length` is the context limit in tokens."""
    build_tokenizer(metadata).save(str(folder / "tokenizer.json"))
    content = json.dumps(tokenizer_config(metadata, max_length=max_length), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(content + "\n", encoding="utf-8")


def build_tokenizer(metadata: Metadata) -> Tokenizer:
    """The byte-level BPE whose vocabulary and merges the GGUF file holds.

    Raises:
        CheckpointError: the file's tokenizer is of another kind.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = (metadata.require("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise CheckpointError(
            f"the GGUF file's tokenizer is `{kind[0]}` with pre-tokenizer `{kind[1]}`; only `gpt2` with `smollm` can "
            "be converted",
            remedy="Give a Hugging Face folder of this model instead.",
        )
    tokens: list[str] = metadata.require("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.require("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    prefix_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, trim_offsets=True, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types: list[int] = metadata.require("tokenizer.ggml.token_type")
    for token, token_type in zip(tokens, types, strict=True):
        if token_type in (_CONTROL, _USER_DEFINED):
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=token_type == _CONTROL)])
    return tokenizer


def tokenizer_config(metadata: Metadata, *, max_length: int) -> dict[str, Any]:
    """tokenizer_config.json: special tokens, and the chat template if there is one."""
    tokens: list[str] = metadata.require("tokenizer.ggml.tokens")
    config: dict[str, Any] = {
        # The generic class: it takes tokenizer.json as it is; GPT2Tokenizer would put its own pre-tokenizer in.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": bool(metadata.get("tokenizer.ggml.add_space_prefix", False)),
    }
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None:
            config[f"{role}_token"] = tokens[token_id]
    template = metadata.get("tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template
    return config
