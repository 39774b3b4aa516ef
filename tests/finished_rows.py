"""Finished rows as a job appends them to its result file."""

from __future__ import annotations

from typing import Any


def record(index: int, text: str = "é\u2028") -> dict[str, Any]:
    """One with every field and sound counts."""
    return {
        "observed": 3,
        "emitted": 4,
        "chat": False,
        "model": None,
        "row": {
            "index": index,
            "custom_id": None,
            "text": text,
            "finish_reason": "stop",
            "usage": {"prompt_tokens": 2, "completion_tokens": 5},
            "spec": {"rounds": 2, "drafted": 6, "verified": 4, "accepted": 2, "acceptance_histogram": [1, 0, 1]},
            "error": None,
        },
    }
