"""The real built-in model; skipped where it is neither cached nor reachable."""

from __future__ import annotations

from pathlib import Path

# Published by other projects that run the model's own tokenizer.json or llama.cpp.
PREFIX = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182]
KNOWN = {
    "The Capital of France is": [504, 14937, 282, 4649, 314],
    "Hello world": [19556, 905],
    "The quick brown fox jumps over the lazy dog": [504, 2365, 6354, 16438, 27003, 690, 260, 23790, 2767],
    "  leading spaces": [216, 2899, 5600],
    "Write a haiku about the ocean.\n": [19161, 253, 421, 30614, 563, 260, 5065, 30, 198],
}


def test_tokenizer(builtin_target: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(builtin_target)
    for text, ids in KNOWN.items():
        assert tokenizer(text).input_ids == ids
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi there"}], add_generation_prompt=True, return_dict=False
    )
    assert chat == [*PREFIX, 2, 198, 1, 4093, 198, 26843, 665, 2, 198, 1, 520, 9531, 198]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert len(tokenizer) == 49152
    assert len(tokenizer.tokenize("1234567")) == 7


def test_answers(builtin_target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = (
        AutoTokenizer.from_pretrained(builtin_target),
        AutoModelForCausalLM.from_pretrained(builtin_target),
    )
    assert model.dtype == torch.float32
    for question, answer in {
        "What is the capital of France?": "The capital of France is Paris.<|im_end|>",
        "What is 12 * 4? Answer briefly.": "12 * 4 = 48.<|im_end|>",
    }.items():
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        output = model.generate(**prompt, max_new_tokens=20, do_sample=False)
        assert tokenizer.decode(output[0, prompt.input_ids.shape[1] :]) == answer
