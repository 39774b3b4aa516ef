"""The target's tokenizer: text and chats to token ids, token ids to text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.engine.errors import CheckpointError, RequestError
from dspark.engine.wording import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


class Tokenizer:
    """A model folder's own tokenizer and chat template."""

    def __init__(self, backend: PreTrainedTokenizerBase) -> None:
        self._backend = backend

    @classmethod
    def load(cls, folder: Path) -> Tokenizer | None:
        """The tokenizer of a local model folder; None if it has none (rows of token ids need none).

        Raises:
            CheckpointError: there is one, but it cannot be used.
        """
        if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
            return None
        from transformers import AutoTokenizer
        from transformers.utils import logging

        # Its warnings are about other uses than this (lengths beyond the training length, say).
        logging.set_verbosity_error()
        try:
            backend = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:  # the library raises nearly anything for a broken file
            raise CheckpointError(
                f"the tokenizer in {folder} cannot be loaded: {first_line(error)}",
                "Check its tokenizer.json and tokenizer_config.json against the model's original ones.",
            ) from error
        return cls(backend)

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's own end token; it stops a text as the model's generation config does."""
        token_id = self._backend.eos_token_id
        return token_id if isinstance(token_id, int) else None

    def spare_tokens(self) -> tuple[list[int], int]:
        """Special tokens that neither begin, end nor fill a text, and the number of tokens that have a meaning."""
        backend = self._backend
        meant = {backend.bos_token_id, backend.eos_token_id, backend.pad_token_id, backend.unk_token_id}
        special = sorted(token for token, added in backend.added_tokens_decoder.items() if added.special)
        return [token for token in special if token not in meant], len(backend)

    def encode(self, text: str) -> list[int]:
        """Raw text, with the special tokens the tokenizer puts around a text by default."""
        return list(self._backend.encode(text))

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """A chat up to where the model's answer begins, as the chat template spells it.

        Raises:
            RequestError: there is no template, or it refuses these messages.
        """
        if not self._backend.chat_template:
            raise RequestError("the target's tokenizer has no chat template", "Give raw `prompt` rows.")
        try:
            text = self._backend.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template is code of the checkpoint's
            raise RequestError(
                f"the chat template refuses the messages: {first_line(error)}",
                "Give roles, and an order of them, that the model was trained with.",
            ) from error
        # The template writes the special tokens itself.
        return list(self._backend.encode(str(text), add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, special tokens left out."""
        text = self._backend.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)
