"""Trace files: Parquet and CSV with the same columns, and the `.pt` shards of SGLang.

One row a round. Columns of a draft length G:

    request                       which request (number or text; required)
    accepted                      drafted tokens that were accepted (required)
    confidence_logit_1 ... _G     fp32, before the sigmoid and any temperature; empty past `drafted` (required)
    round                         0, 1, ... within the request          (default: order of the rows)
    drafted, verified, observed   see `Traces`                          (default: G; drafted; up to the first rejection)
    text_position                 of the anchor                         (default: not known)
    temperature, top_k, top_p     of the request's sampling             (default: not known)
    policy, dataset               texts                                 (default: empty)
    draft_max_probability_1 ... _G, draft_margin_1 ... _G, oracle_acceptance_1 ... _G      (optional)

Parquet files also say who drafted and verified (schema metadata key `dspark.traces`). Other columns are ignored.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dspark.calibration.columns import UNKNOWN, fp32
from dspark.calibration.combine import concatenate
from dspark.calibration.errors import CalibrationError
from dspark.calibration.sglang_shards import read_sglang_shard
from dspark.calibration.traces import NOT_RECORDED, SIGNALS, Provenance, Traces, make_traces
from dspark.profiles.typed_json import member, parse, typed
from dspark.profiles.whole_file import whole_file

if TYPE_CHECKING:
    import pandas as pd

_METADATA_KEY = b"dspark.traces"
_LOGIT = "confidence_logit"
_MOST_DIGITS = 6
_COUNTS = ("drafted", "verified", "observed")
_SETTINGS = ("text_position", "temperature", "top_k", "top_p")
_TEXTS = ("policy", "dataset")


def read_traces(paths: Sequence[Path]) -> Traces:
    """Read and join trace files; the ending decides: `.parquet`, `.csv`, `.pt`.

    Raises:
        CalibrationError: a file is missing or not what its ending says, or the files do not fit together.
    """
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise CalibrationError(f"{path} was given twice", "Give every trace file once.")
        seen.add(path.resolve())
    return concatenate([_read_file(path) for path in paths], names=[str(path) for path in paths])


def write_traces(traces: Traces, path: Path) -> None:
    """Write `.parquet` or `.csv` (which loses the provenance); the file appears whole or not at all.

    Raises:
        CalibrationError: another ending, or the folder cannot be written.
    """
    if path.suffix not in (".parquet", ".csv"):
        raise CalibrationError(f"{path} has no ending that traces are written as", "Use `.parquet` or `.csv`.")
    try:
        with whole_file(path) as unfinished:
            if path.suffix == ".csv":
                traces_to_frame(traces).to_csv(unfinished, index=False)
            else:
                _write_parquet(traces, unfinished)
    except OSError as error:
        raise CalibrationError(
            f"{path} cannot be written: {error.strerror or error}", "Choose another place."
        ) from None


def traces_to_frame(traces: Traces) -> pd.DataFrame:
    """The columns of the files; numbers that are not known become missing."""
    import pandas as pd

    columns: dict[str, Any] = {"request": traces.request, "round": traces.round}
    columns |= {name: getattr(traces, name) for name in (*_COUNTS, "accepted")}
    for name in _SETTINGS:
        values = getattr(traces, name)
        whole = np.issubdtype(values.dtype, np.integer)
        # pandas' own integers can be missing; numpy's cannot.
        columns[name] = pd.array(values, dtype="Int64") if whole else values
        if whole:
            columns[name][values == UNKNOWN] = pd.NA
    for name in _TEXTS:
        column = getattr(traces, name)
        columns[name] = pd.Categorical.from_codes(column.codes, list(column.names))
    for name, matrix in {_LOGIT: traces.confidence_logits, **traces.signals}.items():
        columns |= {f"{name}_{k + 1}": matrix[:, k] for k in range(traces.gamma)}
    return pd.DataFrame(columns)


def frame_to_traces(
    frame: pd.DataFrame,
    *,
    provenance: Provenance = NOT_RECORDED,
    requests_known: bool = True,
    source: str = "The table",
) -> Traces:
    """The reverse, of any table with at least the required columns.

    Raises:
        CalibrationError: a required column is missing, or the values contradict each other.
    """
    gamma = _width(frame, _LOGIT, source)
    missing = [name for name in ("request", "accepted", f"{_LOGIT}_1") if name not in frame.columns]
    if missing:
        raise CalibrationError(
            f"{source} has no column {' and none '.join(f'`{name}`' for name in missing)}",
            f"Traces need `request`, `accepted` and `{_LOGIT}_1` to `_{gamma or 'G'}`.",
        )
    optional = {name: frame[name].to_numpy() for name in ("round", *_COUNTS) if name in frame.columns}
    for name in _SETTINGS:
        if name in frame.columns:
            unknown = UNKNOWN if name in ("text_position", "top_k") else np.nan
            optional[name] = _numbers(frame, name, source, unknown=unknown)
    texts = {name: frame[name].astype("str").where(frame[name].notna(), "") for name in _TEXTS if name in frame.columns}
    return make_traces(
        request=_request_numbers(frame, source),
        accepted=frame["accepted"].to_numpy(),
        confidence_logits=_matrix(frame, _LOGIT, gamma, source),
        signals={name: _matrix(frame, name, gamma, source) for name in SIGNALS if f"{name}_1" in frame.columns},
        provenance=provenance,
        requests_known=requests_known,
        source=source,
        **optional,
        **{name: column.to_numpy(dtype=np.str_) for name, column in texts.items()},
    )


def _read_file(path: Path) -> Traces:
    readers = {".parquet": _read_parquet, ".csv": _read_csv, ".pt": read_sglang_shard}
    if path.suffix not in readers:
        raise CalibrationError(f"{path} is no trace file by its ending", f"Known endings: {', '.join(readers)}.")
    if not path.is_file():
        raise CalibrationError(f"{path} does not exist or is no file", "Check the path of the trace file.")
    try:
        return readers[path.suffix](path)
    except OSError as error:
        raise CalibrationError(f"{path} cannot be read: {error.strerror or error}", "Check the file.") from None


def _read_parquet(path: Path) -> Traces:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Opened here: a name that is no text cannot be handed on.
        with path.open("rb") as reader:
            _check_names(pq.read_schema(reader).names, path)
            reader.seek(0)
            table = pq.read_table(reader)
        # The columns alone decide: a note of pandas in the file could name an index among them.
        frame = table.to_pandas(ignore_metadata=True)
    except pa.ArrowInvalid as error:
        raise CalibrationError(f"{path} is no Parquet file: {_first_line(error)}", "Check the file.") from None
    provenance, requests_known = _recorded(table.schema.metadata or {}, path)
    return frame_to_traces(frame, provenance=provenance, requests_known=requests_known, source=str(path))


def _read_csv(path: Path) -> Traces:
    import pandas as pd

    try:
        # Pandas would give the second of two equal names another one.
        _check_names(pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0], path)
        frame = pd.read_csv(path)
    except CalibrationError:
        raise
    except (ValueError, pd.errors.ParserError) as error:
        raise CalibrationError(f"{path} is no CSV table: {_first_line(error)}", "Check the file.") from None
    return frame_to_traces(frame, source=str(path))


def _check_names(names: Iterable[str], path: Path) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1 and _is_read(name)), None)
    if twice is not None:
        raise CalibrationError(f"{path} has two columns `{twice}`", "Keep one of them.")


def _is_read(name: object) -> bool:
    """Other columns may be there in any number."""
    single = ("request", "round", "accepted", *_COUNTS, *_SETTINGS, *_TEXTS)
    return name in single or re.fullmatch(rf"({'|'.join((_LOGIT, *SIGNALS))})_[0-9]+", str(name)) is not None


def _write_parquet(traces: Traces, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(traces_to_frame(traces), preserve_index=False)
    about = {"format": "dspark-traces", "version": 1, "requests_known": traces.requests_known}
    about["provenance"] = asdict(traces.provenance)
    with path.open("wb") as writer:
        pq.write_table(table.replace_schema_metadata({_METADATA_KEY: json.dumps(about).encode()}), writer)


def _recorded(metadata: dict[bytes, bytes], path: Path) -> tuple[Provenance, bool]:
    """What `_write_parquet` noted about the whole file."""
    if _METADATA_KEY not in metadata:
        return Provenance(), True
    try:
        note = parse(metadata[_METADATA_KEY].decode("utf-8"))
        recorded = {column.name: note["provenance"].get(column.name) for column in fields(Provenance)}
        provenance: Provenance = typed(Provenance, recorded, "provenance")
        if provenance.draft_top_k is not None and provenance.draft_top_k < 0:
            raise ValueError
        return provenance, member(note, "requests_known", bool)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CalibrationError(
            f"{path}: the note on who drafted and verified cannot be read", "Record the traces again."
        ) from None


def _width(frame: pd.DataFrame, name: str, source: str) -> int:
    """G, from the columns `name_1` to `name_G`."""
    digits = [m[1] for m in (re.fullmatch(rf"{name}_([1-9][0-9]*)", str(c)) for c in frame.columns) if m]
    endless = next((number for number in digits if len(number) > _MOST_DIGITS), None)
    if endless is not None:
        raise CalibrationError(
            f"{source} has a column `{name}_{endless[:_MOST_DIGITS]}…`, and no draft block is that long",
            "Number the columns from 1 on.",
        )
    found = {int(number) for number in digits}
    gap = next((k for k in range(1, len(found) + 1) if k not in found), None)
    if gap is not None:
        raise CalibrationError(
            f"{source} has a column `{name}_{max(found)}` but no `{name}_{gap}`", "Number the columns from 1 on."
        )
    return len(found)


def _matrix(frame: pd.DataFrame, name: str, gamma: int, source: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    matrix = np.empty((len(frame), gamma), dtype=np.float32)
    for k in range(gamma):
        column = f"{name}_{k + 1}"
        if column not in frame.columns:
            raise CalibrationError(f"{source} has no column `{column}`", "Give one value a logit.")
        matrix[:, k] = fp32(_numbers(frame, column, source, unknown=np.nan))
    return matrix


def _numbers(frame: pd.DataFrame, name: str, source: str, *, unknown: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A column [N] with `unknown` where it is empty."""
    from pandas.api import types

    column = frame[name]
    try:
        # Times and truth values would convert to numbers that nobody wrote.
        if any(is_kind(column) for is_kind in (types.is_datetime64_any_dtype, types.is_timedelta64_dtype)):
            raise TypeError
        if types.is_bool_dtype(column):
            raise TypeError
        numbers = np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    except (TypeError, ValueError):
        raise CalibrationError(f"{source}: column `{name}` does not hold numbers only", "Correct the column.") from None
    return np.where(np.isnan(numbers), unknown, numbers)


def _request_numbers(frame: pd.DataFrame, source: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    import pandas as pd

    column = frame["request"]
    if column.isna().any():
        raise CalibrationError(
            f"{source}: {int(column.isna().sum())} rounds name no request",
            "Fit and hold-out are split by request: give every round one.",
        )
    if pd.api.types.is_integer_dtype(column):
        return np.asarray(column, dtype=np.int64)
    # The hash of a name, not its rank in this file, so that a request has one number in every file.
    hashes: np.ndarray[Any, np.dtype[np.uint64]] = pd.util.hash_array(column.astype("str").to_numpy(dtype=object))
    return hashes.view(np.int64)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
