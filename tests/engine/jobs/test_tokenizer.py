import json

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from dspark.engine.errors import CheckpointError, RequestError
from dspark.engine.jobs.tokenizer import Tokenizer

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'alien' %}{{ raise_exception('no aliens') }}{% endif %}"
    "<s>{{ m.role }}:{{ m.content }}{% endfor %}{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


@pytest.fixture
def folder(tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.add_special_tokens(["<s>", "</s>"])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def with_template(folder):
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return Tokenizer.load(folder)


def test_raw_text_gets_the_default_special_tokens_and_a_chat_its_templates(folder):
    tokenizer = with_template(folder)
    assert tokenizer.encode("a")[0] == 256
    assert len(tokenizer.encode("a")) == 2
    chat = tokenizer.encode_chat([{"role": "user", "content": "a"}])
    assert [i for i, token in enumerate(chat) if token == 256] == [0, 7]
    assert tokenizer.decode(chat) == "user:aassistant:"
    assert tokenizer.eos_token_id == 257


def test_texts_survive(folder):
    tokenizer = with_template(folder)
    for text in ("  two  blanks , kept .", "é\u2028🎉\x00", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_chats_that_cannot_be_spelt(folder):
    with pytest.raises(RequestError, match="no chat template"):
        Tokenizer.load(folder).encode_chat([{"role": "user", "content": "a"}])
    with pytest.raises(RequestError, match="no aliens"):
        with_template(folder).encode_chat([{"role": "alien", "content": "a"}])


def test_folders_without_a_usable_tokenizer(tmp_path):
    assert Tokenizer.load(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        Tokenizer.load(tmp_path)
