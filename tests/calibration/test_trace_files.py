"""Parquet, CSV and SGLang shards."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dspark.calibration import CalibrationError, Provenance, calibrate, make_traces, read_traces, write_traces
from dspark.calibration.traces import SIGNALS, Categories

WHO = Provenance("target", "drafter", "rejection", "0f" * 8, "f0" * 8)


@pytest.fixture
def everything() -> Any:
    """Traces that use every column, with blocks of every length and values that were not recorded."""
    rng = np.random.default_rng(0)
    drafted = rng.integers(0, 4, 40)
    verified = rng.integers(0, drafted + 1)
    accepted = rng.integers(0, verified + 1)
    return make_traces(
        request=np.arange(40) // 4,
        round=np.arange(40) % 4 * 2,
        text_position=rng.integers(0, 90, 40),
        drafted=drafted,
        verified=verified,
        accepted=accepted,
        confidence_logits=rng.normal(size=(40, 3)),
        temperature=np.where(np.arange(40) < 30, 0.7, np.nan),
        top_k=np.where(np.arange(40) < 30, 20, -1),
        top_p=0.95,
        policy=["async"] * 20 + ["fixed:3"] * 20,
        dataset=["Mathe, \u201equoted\u201c\n"] * 40,
        signals={name: rng.random((40, 3)) for name in SIGNALS},
        provenance=WHO,
    )


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("name", [b"traces", b"tr\xff"], ids=["text", "no text"])
def test_what_is_written_is_read(everything: Any, tmp_path: Path, ending: str, name: bytes) -> None:
    path = tmp_path / f"{os.fsdecode(name)}.{ending}"
    write_traces(everything, path)
    back = read_traces([path])
    for name in type(everything).__slots__:
        ours, theirs = getattr(everything, name), getattr(back, name)
        if isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(ours, theirs, err_msg=name)
            assert ours.dtype == theirs.dtype
        elif isinstance(ours, Categories):
            assert [ours.names[c] for c in ours.codes] == [theirs.names[c] for c in theirs.codes]
    for name in SIGNALS:
        np.testing.assert_array_equal(everything.signals[name], back.signals[name])
    assert back.provenance == (WHO if ending == "parquet" else Provenance())
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_three_columns_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("request,accepted,confidence_logit_1,confidence_logit_2\nb,2,0.5,1\na,0,1,2\nb,1,3,4\n")
    traces = read_traces([path])
    assert traces.observed.tolist() == [2, 1, 2]
    assert traces.round.tolist() == [0, 0, 1]
    assert traces.request[0] == traces.request[2] != traces.request[1]


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_zero_rows_are_read_and_refused_by_calibration(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t.{ending}"
    write_traces(make_traces(request=[], accepted=[], confidence_logits=np.zeros((0, 7))), path)
    traces = read_traces([path])
    assert (len(traces), traces.gamma) == (0, 7)
    with pytest.raises(CalibrationError, match="no rounds"):
        calibrate(traces)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "no CSV table"),
        ("request,accepted\n0,1\n", "no column `confidence_logit_1`"),
        ("accepted,confidence_logit_1\n0,1\n", "no column `request`"),
        ("request,accepted,confidence_logit_2\n0,1,1\n", "`confidence_logit_2` but no `confidence_logit_1`"),
        ("request,accepted,confidence_logit_1\n0,1,high\n", "`confidence_logit_1` does not hold numbers"),
        ("request,accepted,confidence_logit_1\n0,1,\n", "NaN or infinite"),
        ("request,accepted,confidence_logit_1\n0,1,inf\n", "NaN or infinite"),
        ("request,accepted,confidence_logit_1\n,1,2\n", "1 rounds name no request"),
        ("request,accepted,confidence_logit_1\n0,yes,2\n", "`accepted` does not hold whole numbers"),
        ("request,round,accepted,confidence_logit_1\n0,1,1,2\n0,1,1,3\n", "more than once"),
        ("request,accepted,confidence_logit_1,temperature\n0,1,2,warm\n", "`temperature` does not hold numbers"),
        ("request,accepted,confidence_logit_1,temperature\n0,1,2,True\n", "`temperature` does not hold numbers"),
        ("request,accepted,confidence_logit_1,temperature\n0,1,2,-5\n", r"`temperature` has -5\.0 in row 0"),
        ("request,accepted,confidence_logit_1,draft_margin_1\n0,1,2,5\n", "`draft_margin` is 5 in row 0"),
        ("request,accepted,confidence_logit_1\n0,1,1e39\n", "NaN or infinite"),
        (f"request,accepted,confidence_logit_1,confidence_logit_{'9' * 5000}\n0,1,2,3\n", "`confidence_logit_999999…`"),
        ("request,accepted,confidence_logit_1,accepted\n0,1,2,0\n", "two columns `accepted`"),
        ("\n \nrequest,accepted,request,confidence_logit_1\n0,1,2,0\n", "two columns `request`"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_bad_tables_are_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(CalibrationError, match=sentence) as caught:
        read_traces([path])
    assert str(path) in str(caught.value)
    assert caught.value.remedy


def _parquet(path: Path, columns: list[tuple[str, Any]], note: bytes | None = None) -> Path:
    table = pa.table([pa.array(values) for _, values in columns], names=[name for name, _ in columns])
    pq.write_table(table if note is None else table.replace_schema_metadata({b"dspark.traces": note}), path)
    return path


ROUNDS: list[tuple[str, Any]] = [("request", [0, 1]), ("accepted", [1, 0]), ("confidence_logit_1", [0.5, 0.1])]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("accepted", [0, 0]), "two columns `accepted`"),
        (("confidence_logit_2", pd.to_datetime([1, 2])), "`confidence_logit_2` does not hold numbers"),
        (("temperature", pd.to_timedelta([1, 2])), "`temperature` does not hold numbers"),
        (("top_p", [True, False]), "`top_p` does not hold numbers"),
    ],
    ids=["twice", "times", "durations", "truth values"],
)
def test_parquet_columns_that_are_no_numbers_are_refused_by_name(tmp_path: Path, more: Any, sentence: str) -> None:
    with pytest.raises(CalibrationError, match=sentence):
        read_traces([_parquet(tmp_path / "t.parquet", [*ROUNDS, more])])


@pytest.mark.parametrize(
    "note",
    [
        b'{"requests_known": true, "provenance": {"target": {"a": 1}}}',
        b'{"requests_known": true, "provenance": {"drafter": ["x"]}}',
        b'{"requests_known": true, "provenance": {"acceptance": 5}}',
        b'{"requests_known": true, "provenance": {"draft_top_k": 1.5}}',
        b'{"requests_known": true, "provenance": {"draft_top_k": -1}}',
        b'{"requests_known": true, "provenance": []}',
        b'{"requests_known": 1, "provenance": {}}',
        b'{"provenance": {}}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
    ids=lambda note: note[-20:].decode("ascii", "replace"),
)
def test_a_note_of_other_types_is_refused_and_not_carried_on(tmp_path: Path, note: bytes) -> None:
    with pytest.raises(CalibrationError, match="who drafted and verified cannot be read") as caught:
        read_traces([_parquet(tmp_path / "t.parquet", ROUNDS, note)])
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["t.parquet", "t.pt", "t.csv"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff\x80 not what it says"], ids=["empty", "bytes"])
def test_files_that_are_not_what_their_ending_says(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CalibrationError) as caught:
        read_traces([tmp_path / name])
    assert caught.value.remedy


def test_paths_that_cannot_be_read(tmp_path: Path, everything: Any) -> None:
    with pytest.raises(CalibrationError, match="does not exist"):
        read_traces([tmp_path / "t.csv"])
    with pytest.raises(CalibrationError, match="does not exist or is no file"):
        (tmp_path / "folder.csv").mkdir()
        read_traces([tmp_path / "folder.csv"])
    with pytest.raises(CalibrationError, match="no trace file by its ending"):
        read_traces([tmp_path / "t.json"])
    with pytest.raises(CalibrationError, match="no ending that traces are written as"):
        write_traces(everything, tmp_path / "t.json")
    write_traces(everything, tmp_path / "t.csv")
    with pytest.raises(CalibrationError, match="cannot be written"):
        write_traces(everything, tmp_path / "t.csv" / "t.parquet")
    with pytest.raises(CalibrationError, match="given twice"):
        read_traces([tmp_path / "t.csv", tmp_path / "folder.csv" / ".." / "t.csv"])


def _shard(path: Path, rows: int, gamma: int, *, seed: int = 0, **changes: Any) -> Path:
    import torch

    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, gamma, generator=generator)
    mask = (torch.rand(rows, gamma, generator=generator) < torch.sigmoid(logits)).int().cumprod(dim=1).bool()
    torch.save({"logits": logits.bfloat16(), "prefix_mask": mask} | changes, path)
    return path


def test_sglang_shards_are_read(tmp_path: Path) -> None:
    import torch

    paths = [_shard(tmp_path / f"{i}.pt", 300, 5, seed=i) for i in range(3)]
    traces = read_traces(paths)
    masks = torch.cat([torch.load(path)["prefix_mask"] for path in paths]).numpy()
    assert (len(traces), traces.gamma, traces.requests_known) == (900, 5, False)
    assert len(set(traces.request)) == 60
    for k in range(1, 6):
        known, survived = traces.survival_known_at(k)
        assert known.all()
        np.testing.assert_array_equal(survived, masks[:, k - 1])
    assert any("name no requests" in warning for warning in calibrate(traces).warnings)


def test_row_runs_stay_row_runs_through_a_file(tmp_path: Path) -> None:
    shard = read_traces([_shard(tmp_path / "a.pt", 100, 2)])
    write_traces(shard, tmp_path / "a.parquet")
    assert not read_traces([tmp_path / "a.parquet"]).requests_known


def test_sglang_shards_that_do_not_fit(tmp_path: Path) -> None:
    import torch

    good = _shard(tmp_path / "good.pt", 50, 4)
    with pytest.raises(CalibrationError, match=r"4 draft positions and .* has 5"):
        read_traces([good, _shard(tmp_path / "five.pt", 50, 5)])
    with pytest.raises(CalibrationError, match="same 50 rounds"):
        read_traces([good, _shard(tmp_path / "copy.pt", 50, 4)])
    bad: dict[str, tuple[dict[str, Any], str]] = {
        "gap": ({"prefix_mask": torch.tensor([[0, 1, 0, 0]] * 50)}, "ones followed by zeros"),
        "two": ({"prefix_mask": torch.full((50, 4), 2)}, "ones followed by zeros"),
        "shape": ({"prefix_mask": torch.ones(50, 3)}, "not both of one shape"),
        "nan": ({"logits": torch.full((50, 4), torch.nan)}, "NaN or infinite"),
        "none": ({"logits": None}, "no SGLang trace shard"),
        "code": ({"logits": Path("x")}, "no SGLang trace shard"),
    }
    for name, (changes, sentence) in bad.items():
        with pytest.raises(CalibrationError, match=sentence):
            read_traces([_shard(tmp_path / f"{name}.pt", 50, 4, **changes)])


def test_other_columns_and_missing_numbers_are_fine(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "request": [0, 1],
            "accepted": [1, 0],
            "confidence_logit_1": [0.5, 0.1],
            "note": ["a", None],
            "top_k": [5, None],
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    assert read_traces([tmp_path / "t.parquet"]).top_k.tolist() == [5, -1]
