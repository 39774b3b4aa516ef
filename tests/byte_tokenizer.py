"""A tokenizer of one token a byte whose ids fit the fixtures' vocabulary of 256."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

SPECIAL = ["<pad>", "<s>", "</s>"]
TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)
# Bytes FD to FF, which no UTF-8 holds, give their ids to the special tokens.
_NEVER = "\u00fd\u00fe\u00ff"


def save_byte_tokenizer(folder: Path) -> None:
    """Write a tokenizer with a chat template into a model folder; its end token is 2, as the fixtures' is."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    kept = [character for character in alphabet if character not in _NEVER]
    backend = Backend(models.BPE(vocab={token: i for i, token in enumerate(SPECIAL + kept)}, merges=[]))
    backend.add_special_tokens(SPECIAL)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    assert backend.get_vocab_size() == 256
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
