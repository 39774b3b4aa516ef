"""Fields that decoding does not use are told, and likely misspellings with what they were meant to be."""

import pytest

from dspark.engine.jobs.unused_fields import UnusedFields

USER = {"role": "user", "content": "hi"}


def unused(*rows):
    fields = UnusedFields()
    for row in rows:
        fields.add(row)
    return fields


MISSPELT = {
    "max_token": "max_tokens",
    "maxTokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_completion_token": "max_completion_tokens",
    "temprature": "temperature",
    "Temperature": "temperature",
    "top-p": "top_p",
    "topk": "top_k",
    "stops": "stop",
    "custom-id": "custom_id",
    "ignore_eso": "ignore_eos",
}


@pytest.mark.parametrize(("name", "meant"), MISSPELT.items(), ids=MISSPELT)
def test_a_misspelt_setting_names_the_right_one(name, meant):
    expected = f"fields that are not used, in 1 row: `{name}` (1 row, did you mean `{meant}`?)"
    assert unused({"prompt": "a", name: 1}).sentence() == expected


@pytest.mark.parametrize(
    "name", ["category", "task_id", "conversation_id", "reference", "answer", "step", "id", "x" * 99]
)
def test_data_of_a_data_set_is_told_without_a_guess(name):
    sentence = unused({"turns": ["a"], name: 1}).sentence()
    assert "did you mean" not in sentence
    assert sentence.startswith("fields that are not used, in 1 row: `")


def test_rows_are_counted_by_field_and_misspellings_come_first():
    fields = unused(
        *[{"prompt": "a", "category": i} for i in range(3)],
        {"prompt": "a", "category": 1, "temprature": 0.5},
        {"prompt": "a", "max_tokens": 3},
        {"prompt": "a", "category": None},
    )
    assert fields.to_dict() == {"rows": 4, "rows_by_name": {"temprature": 1, "category": 4}}
    assert list(fields.to_dict()["rows_by_name"]) == ["temprature", "category"]
    assert "in 4 rows: `temprature` (1 row, did you mean `temperature`?), `category` (4 rows)" in fields.sentence()


USED = {
    "settings": {"prompt": "a", "max_tokens": 3, "seed": 1, "stop": "x", "ignore_eos": True, "custom_id": "c"},
    "asks for nothing": {"prompt": "a", "n": 1, "logprobs": False, "tools": [], "guided_json": None},
    "batch": {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [USER], "x": 1}},
    "an error row": {"promt": "a", "max_token": 3},
}


@pytest.mark.parametrize("row", USED.values(), ids=USED)
def test_fields_that_are_read_or_refused_elsewhere_are_not_told(row):
    assert unused(row).sentence() == ""
    assert unused(row).to_dict() == {"rows": 0, "rows_by_name": {}}


def test_beside_a_batch_body_other_fields_are_unused():
    assert unused({"body": {"messages": [USER]}, "note": 1}).to_dict()["rows_by_name"] == {"note": 1}


def test_a_long_list_is_cut():
    sentence = unused({"prompt": "a", **{f"column{i:03}": i for i in range(50)}}).sentence()
    assert sentence.endswith(" and 42 more")
