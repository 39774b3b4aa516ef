"""A batch output file is what the official client's own types say it is."""

import json
from dataclasses import replace

import pytest
from fake_engine import CharCodec, FakeEngine, NoProgress

from dspark.engine.errors import UsageError
from dspark.engine.jobs.decode_job import DecodeJob, decode_file
from dspark.engine.jobs.input_file import open_input
from dspark.engine.jobs.output_format import OutputFormat, answer_of
from dspark.engine.requests import SamplingParams

USER = {"role": "user", "content": "hi"}
ROWS = [
    {
        "custom_id": "chat",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": [USER]},
    },
    {"custom_id": "text", "url": "/v1/completions", "body": {"prompt": "ab", "max_tokens": 2}},
    {"custom_id": "bad", "url": "/v1/chat/completions", "body": {"messages": [USER], "n": 2}},
    {"prompt": "own"},
    {"turns": ["a", "b"]},
    {"prompt_token_ids": [120], "max_tokens": 1},
    "nonsense",
]


@pytest.fixture
def job(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in ROWS))
    return DecodeJob(
        open_input(str(source)),
        tmp_path / "out.jsonl",
        tmp_path / "metrics.json",
        SamplingParams(),
        output_format=OutputFormat("openai-batch", model="the-target"),
        all_turns=True,
    )


def decode(job, engine=None, codec=CharCodec):
    decode_file(engine or FakeEngine(), codec and codec(), job, NoProgress())
    return [json.loads(line) for line in job.output.read_text().splitlines()]


def test_every_answer_is_parsed_by_the_clients_types_strictly(job):
    openai = pytest.importorskip("openai")
    lines = decode(job)
    assert len(lines) == len(ROWS)
    kinds = {"chat.completion": openai.types.chat.ChatCompletion, "text_completion": openai.types.Completion}
    answers = {}
    for line in lines:
        assert set(line) == {"id", "custom_id", "response", "error"}
        if line["error"] is not None:
            assert line["response"] is None
            assert openai.types.BatchError.model_validate(line["error"], strict=True).message
            continue
        assert line["response"]["status_code"] == 200
        body = line["response"]["body"]
        answers[line["custom_id"]] = kinds[body["object"]].model_validate(body, strict=True)
    assert answers["chat"].choices[0].message.content == "<USER>HI<ASSISTANT>"
    assert answers["chat"].usage.total_tokens == 19 + 20
    assert (answers["chat"].model, answers["text"].model) == ("m", "the-target")
    assert (answers["text"].choices[0].text, answers["text"].choices[0].finish_reason) == ("AB", "length")
    assert answers["row-3"].choices[0].text == "OWN"


def test_what_cannot_be_decoded_is_an_error_line_that_names_the_line(job):
    failed = {line["custom_id"]: line["error"] for line in decode(job) if line["error"]}
    assert failed["bad"] == {"code": "invalid_request", "message": "line 3: `n` is not supported. Leave it out."}
    assert failed["row-6"]["message"].startswith("line 7: not JSON")
    assert len(failed) == 2


def test_counts_turns_and_token_ids_are_kept_beside_the_answer(job):
    bodies = {line["custom_id"]: line["response"]["body"] for line in decode(job) if line["response"]}
    assert bodies["row-5"]["dspark"]["token_ids"] == [88]
    assert len(bodies["row-4"]["dspark"]["turns"]) == 2
    assert bodies["row-3"]["dspark"]["spec"]["rounds"] == 3


def test_a_text_that_no_tokenizer_spells_is_empty(job):
    bodies = {line["custom_id"]: line["response"]["body"] for line in decode(job, codec=None) if line["response"]}
    assert bodies["row-5"]["choices"][0]["text"] == ""


def test_resumed_it_is_the_same_file_and_in_the_other_form_it_is_refused(job, tmp_path):
    decode(job)
    whole = job.output.read_bytes()

    def stop(index):
        if len(engine.asked) > 3:
            raise KeyboardInterrupt

    engine = FakeEngine(before=stop)
    again = replace(job, output=tmp_path / "again.jsonl")
    with pytest.raises(KeyboardInterrupt):
        decode(again, engine)
    with pytest.raises(UsageError, match="--output-format"):
        decode(replace(again, resume=True, output_format=OutputFormat()))
    decode(replace(again, resume=True))
    assert again.output.read_bytes() == whole


def test_names_and_texts_are_found_in_lines_of_both_forms(job, tmp_path):
    batch = [answer_of(line) for line in decode(job)]
    own = [answer_of(line) for line in decode(replace(job, output=tmp_path / "own", output_format=OutputFormat()))]
    assert [text for _, text in batch] == [text for _, text in own]
    assert (batch[0], own[3]) == (("chat", "<USER>HI<ASSISTANT>"), ("row 3", "OWN"))


def test_another_name_is_no_format():
    with pytest.raises(UsageError, match="output_format is 'csv'"):
        OutputFormat("csv")
