"""How a finished row is written: dspark's own form, or a line of an OpenAI Batch output file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dspark.engine.errors import UsageError

DSPARK, OPENAI_BATCH = FORMATS = ("dspark", "openai-batch")
# What a client may compare with; a time would make two runs of one input two different files.
_CREATED = 0


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """One of `FORMATS`, and what a line calls the model where its request names none.

    Raises:
        UsageError: there is no such format.
    """

    name: str = DSPARK
    model: str = ""

    def __post_init__(self) -> None:
        if self.name not in FORMATS:
            raise UsageError(f"output_format is {self.name!r}", f"Choose one of: {', '.join(FORMATS)}.")

    def line(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """What the output says of a row: `record` as the result file keeps it."""
        row: dict[str, Any] = record["row"]
        return row if self.name == DSPARK else self._batch_line(record, row)

    def _batch_line(self, record: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
        name = f"row-{row['index']}"
        line: dict[str, Any] = {
            "id": f"batch_req_{row['index']}",
            # A client finds its request by this, so a row without one is named by its place.
            "custom_id": name if row["custom_id"] is None else row["custom_id"],
            "response": None,
            "error": None,
        }
        if row["finish_reason"] == "error":
            line["error"] = {"code": "invalid_request", "message": row["error"]}
        else:
            line["response"] = {"status_code": 200, "request_id": name, "body": self._body(record, row)}
        return line

    def _body(self, record: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
        """The answer as the endpoint of the request gives it; what it has no place for is under `dspark`."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": row["finish_reason"], "logprobs": None}
        text = row["text"] or ""
        if record["chat"]:
            kind = "chat.completion"
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            kind = "text_completion"
            choice["text"] = text
        prompt_tokens, completion_tokens = row["usage"]["prompt_tokens"], row["usage"]["completion_tokens"]
        return {
            "id": f"{'chatcmpl' if record['chat'] else 'cmpl'}-{row['index']}",
            "object": kind,
            "created": _CREATED,
            "model": record["model"] or self.model,
            "choices": [choice],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            },
            "dspark": {name: row[name] for name in ("index", "spec", "token_ids", "turns") if name in row},
        }


def answer_of(line: Mapping[str, Any]) -> tuple[str, str]:
    """The name and the text of a line of either format; the text is empty where there is none."""
    if "response" not in line:
        return line["custom_id"] or f"row {line['index']}", line["text"] or ""
    if line["response"] is None:
        return line["custom_id"], ""
    (choice,) = line["response"]["body"]["choices"]
    return line["custom_id"], choice["message"]["content"] if "message" in choice else choice["text"]
