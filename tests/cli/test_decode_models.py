"""The command on real models: a fixture's target and drafter, against what the authors' code and transformers wrote."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from byte_tokenizer import save_byte_tokenizer
from fixture_engine import FIXTURES, generate

from dspark.cli.main import main

PAIR = FIXTURES / "dspark_rnn"
EXPECTED = json.loads((PAIR / "expected.json").read_text())
GAMMA, MAX_TOKENS = EXPECTED["block_size"], EXPECTED["max_new_tokens"]
CPU = ["--device", "cpu", "--dtype", "float32"]


@pytest.fixture(autouse=True)
def _workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def decode(rows, *arguments, target=PAIR / "target", exit_code=0):
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = ["--target", str(target), "--drafter", str(PAIR / "draft")]
    assert main(["decode", "-i", "in.jsonl", "--overwrite", *models, *CPU, *arguments]) == exit_code
    return [json.loads(line) for line in Path("dspark-out/decode.jsonl").read_text().splitlines()]


def greedy_rows():
    return [{"custom_id": f"p{p['index']}", "prompt_token_ids": p["prompt_ids"]} for p in EXPECTED["prompts"]]


def accepted_lengths(prompt):
    """The authors' accepted lengths, less their round after the last token and acceptance past the limit."""
    for theirs in prompt["rounds"]:
        tokens_left = MAX_TOKENS - (theirs["start"] - len(prompt["prompt_ids"]) + 1)
        if tokens_left > 0:
            yield min(theirs["accepted"], tokens_left - 1)


def test_tokens_counts_and_metrics_are_the_authors(capsys):
    bad = [{"prompt_token_ids": [1, 256]}, {"prompt": "text"}, {"prompt_token_ids": [5], "stop": "x"}]
    limit = ["--max-tokens", str(MAX_TOKENS)]
    rows = decode([*greedy_rows(), *bad], *limit, "--json", exit_code=3)
    summary = json.loads(capsys.readouterr().out)
    accepted = [list(accepted_lengths(prompt)) for prompt in EXPECTED["prompts"]]
    for row, prompt, lengths in zip(rows, EXPECTED["prompts"], accepted, strict=False):
        assert row["token_ids"] == prompt["greedy_ids"]
        assert (row["text"], row["finish_reason"], row["error"]) == (None, "length", None)
        assert row["custom_id"] == f"p{prompt['index']}"
        assert row["spec"]["rounds"] == len(lengths)
        assert row["spec"]["accepted"] == sum(lengths)
        assert row["spec"]["acceptance_histogram"] == [lengths.count(k) for k in range(GAMMA + 1)]
    assert [row["error"].partition(": ")[0] for row in rows[4:]] == ["line 5", "line 6", "line 7"]
    flat = [length for lengths in accepted for length in lengths]
    assert summary["spec"]["mean_acceptance_length"] == pytest.approx(1 + sum(flat) / len(flat))
    assert summary["finish_reasons"] == {"stop": 0, "length": 4, "error": 3}
    metrics = json.loads(Path("dspark-out/decode.metrics.json").read_text())
    assert {name: summary[name] for name in metrics.keys() & summary.keys()} == {
        name: metrics[name] for name in metrics.keys() - {"run", "manifest"}
    }
    assert metrics["run"]["engine"]["policy"] == f"fixed:{GAMMA}"
    assert metrics["manifest"]["threads"] == torch.get_num_threads()
    assert metrics["manifest"]["device_name"]
    # The same again has nothing to do, and says the same.
    again = ["--target", str(PAIR / "target"), "--drafter", str(PAIR / "draft"), *CPU, *limit, "--json", "--resume"]
    assert main(["decode", "-i", "in.jsonl", *again]) == 3
    assert json.loads(capsys.readouterr().out) == summary
    assert main(["decode", "-i", "in.jsonl", *again, "--policy", "fixed:3"]) == 2
    assert '--policy ("fixed:7" then, "fixed:3" now)' in capsys.readouterr().err
    assert main(["decode", "-i", "in.jsonl", *again, "--drafter", str(FIXTURES / "dspark_vanilla" / "draft")]) == 2
    assert "--drafter (" in capsys.readouterr().err


def test_coupled_samples_are_those_of_plain_decoding():
    rows = [{**row, "temperature": 0.4 + index / 2, "seed": -index} for index, row in enumerate(greedy_rows())]
    rows[2] |= {"top_k": 20, "top_p": 0.9}
    plain = decode(rows, "--policy", "none", "--acceptance", "coupled")
    drafted = decode(rows, "--acceptance", "coupled")
    assert [row["token_ids"] for row in drafted] == [row["token_ids"] for row in plain]
    assert sum(row["spec"]["accepted"] for row in drafted) > 0 == sum(row["spec"]["drafted"] for row in plain)
    greedy = [prompt["greedy_ids"] for prompt in EXPECTED["prompts"]]
    assert not any(row["token_ids"][:MAX_TOKENS] == ids for row, ids in zip(drafted, greedy, strict=True))


def test_drafting_from_few_tokens(capsys):
    rows = [{**row, "temperature": index / 2, "seed": index} for index, row in enumerate(greedy_rows())]
    plain = decode(rows, "--policy", "none", "--acceptance", "coupled")
    few = ["--draft-top-k", "2", "--acceptance", "coupled"]
    drafted = decode(rows, *few)
    assert [row["token_ids"] for row in drafted] == [row["token_ids"] for row in plain]
    assert sum(row["spec"]["accepted"] for row in drafted)
    assert json.loads(Path("dspark-out/decode.metrics.json").read_text())["run"]["engine"]["draft_top_k"] == 2
    models = ["--target", str(PAIR / "target"), "--drafter", str(PAIR / "draft"), *CPU]
    assert main(["decode", "-i", "in.jsonl", *models, *few, "--resume"]) == 0
    capsys.readouterr()
    for other, now in (([], "null"), (["--draft-top-k", "3"], "3")):
        assert main(["decode", "-i", "in.jsonl", *models, *few[2:], *other, "--resume"]) == 2
        assert f"--draft-top-k (2 then, {now} now)" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["decode", "-i", "in.jsonl"], ["calibrate"], ["selftest"]], ids=lambda c: c[0])
@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("0", "--draft-top-k is 0\n  Give a whole number of at least 1."),
        ("-3", "--draft-top-k is -3\n  Give a whole number of at least 1."),
        ("many", "--draft-top-k"),
    ],
    ids=["zero", "negative", "word"],
)
def test_a_count_of_drafted_from_tokens_that_is_none(capsys, command, value, sentence):
    Path("in.jsonl").write_text('{"prompt_token_ids": [1]}\n')
    assert main([*command, "--draft-top-k", value]) == 2
    told = capsys.readouterr().err
    assert sentence in told and "Traceback" not in told


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [(["--drafter", "none"], "nothing is drafted"), (["--drafter", "ngram"], "n-gram drafts are looked up")],
    ids=["no-drafter", "ngram"],
)
def test_no_distribution_to_cut(capsys, flags, sentence):
    Path("in.jsonl").write_text('{"prompt_token_ids": [1]}\n')
    models = ["--target", str(PAIR / "target"), *CPU, *flags]
    assert main(["decode", "-i", "in.jsonl", *models, "--draft-top-k", "4"]) == 2
    assert f"--draft-top-k is 4, and {sentence}" in capsys.readouterr().err


def test_a_stop_in_a_row_without_a_tokenizer_is_an_error_row_with_a_remedy():
    rows = decode([{"prompt_token_ids": [1, 2], "stop": "x"}], exit_code=3)
    assert rows[0]["error"] == "line 1: stop strings need a tokenizer, and there is none. Leave `stop` out."


@pytest.fixture
def spoken(tmp_path):
    """A copy of the target with a tokenizer, and what transformers answers to a prompt or a chat in text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = shutil.copytree(PAIR / "target", tmp_path / "target")
    save_byte_tokenizer(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def answer(text, max_tokens=40):
        prompt = tokenizer.encode(text, add_special_tokens=False)
        return generate(model, prompt, max_tokens, pad_token_id=0), tokenizer.decode

    return folder, answer


def test_text_and_chat(spoken):
    folder, answer = spoken
    rows = [
        {"prompt": "Once upon"},
        {"messages": [{"role": "system", "content": "Hm"}, {"role": "user", "content": "é?"}]},
        {"turns": ["first", "second"]},
    ]
    texts = ["Once upon", "<s>system:Hm<s>user:é?<s>assistant:", "<s>user:first<s>assistant:"]
    for row, text in zip(decode(rows, "--max-tokens", "40", "--token-ids", target=folder), texts, strict=True):
        token_ids, spell = answer(text)
        assert row["token_ids"] == token_ids
        assert row["text"] == spell(token_ids, skip_special_tokens=True)


def test_a_stop_string_ends_the_text_before_it(spoken):
    folder, answer = spoken
    token_ids, spell = answer("Once upon")
    whole = spell(token_ids, skip_special_tokens=True)
    stop = next(whole[i : i + 2] for i in range(6, len(whole)) if whole[i : i + 2].isascii())
    by_row, by_flag = decode([{"prompt": "Once upon", "stop": [stop, "zzzz"]}] * 2, "--stop", stop, target=folder)
    assert by_row["text"] == by_flag["text"] == whole[: whole.index(stop)]
    assert by_row["finish_reason"] == "stop"
    assert by_row["usage"]["completion_tokens"] < len(token_ids)


def test_a_stop_token_is_counted_and_not_in_the_text(spoken):
    folder, answer = spoken
    token_ids, spell = answer("Once upon")
    stop = token_ids[11]
    cut = token_ids[: token_ids.index(stop)]
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(config | {"eos_token_id": [2, stop]}))
    (row,) = decode([{"prompt": "Once upon"}], "--token-ids", target=folder)
    assert row["token_ids"] == [*cut, stop]
    assert (row["text"], row["finish_reason"]) == (spell(cut), "stop")
    assert row["usage"]["completion_tokens"] == len(cut) + 1
    (row,) = decode([{"prompt": "Once upon"}], "--ignore-eos", "--max-tokens", "40", target=folder)
    assert (row["text"], row["finish_reason"]) == (spell(token_ids), "length")
