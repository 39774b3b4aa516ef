"""A configuration says which of its values it cannot use, and what would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import assert_reads_well

from dspark.engine import EngineConfig
from dspark.engine.errors import UsageError

WRONG: list[tuple[str, Any]] = [
    ("target", Path("model")),
    ("target", None),
    ("drafter", 3),
    ("device", "gpu"),
    ("device", ["cpu"]),
    ("dtype", 16),
    ("policy", 3),
    ("acceptance", None),
    ("draft_top_k", 0),
    ("draft_top_k", -1),
    ("draft_top_k", True),
    ("draft_top_k", 2.5),
    ("concurrency", "8"),
    ("concurrency", 0),
    ("concurrency", True),
    ("concurrency", 2.0),
    ("seed", None),
    ("seed", "0"),
    ("max_context", 1.5),
    ("page_size", None),
    ("kv_cache_tokens", "many"),
    ("prefill_chunk_tokens", -1),
    ("gpu_memory_utilization", "0.9"),
    ("gpu_memory_utilization", float("nan")),
    ("gpu_memory_utilization", True),
    ("pipeline_depth", -1),
    ("pipeline_depth", 1.0),
    ("load_format", "x" * 500),
    ("graphs", 1),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=[f"{name}-{value!r:.12}" for name, value in WRONG])
def test_a_wrong_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UsageError) as refused:
        EngineConfig(**{name: value})
    assert_reads_well(refused.value)
    assert str(refused.value).startswith(f"{name} is ") and len(str(refused.value)) < 200


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    assert EngineConfig(concurrency=np.int64(4)).concurrency == 4  # type: ignore[arg-type]
