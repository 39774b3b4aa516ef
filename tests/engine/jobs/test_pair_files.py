"""Whose files a run may replace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from profile_samples import make_conditions, make_profile
from report_samples import PAIR, make_rounds

from dspark.calibration import Provenance, calibrate, save_calibration, write_traces
from dspark.engine.errors import UsageError
from dspark.engine.jobs.pair_files import NamedPair, check_replaced
from dspark.profiles import save_profile

SAME = NamedPair("tiny", "tiny-drafter")
NAMES = ("profile.json", "calibration.json", "traces.parquet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """All three files of one pair."""
    made = tmp_path_factory.mktemp("w")
    save(made, PAIR)
    return made


def save(folder, provenance):
    traces = make_rounds(20, provenance=provenance)
    write_traces(traces, folder / "traces.parquet")
    save_calibration(calibrate(traces), folder / "calibration.json")
    conditions = make_conditions()
    target = replace(conditions.target, name=provenance.target or "unnamed")
    save_profile(replace(make_profile(), conditions=replace(conditions, target=target)), folder / "profile.json")


def test_files_of_the_same_pair_and_missing_ones_are_let_pass(folder, tmp_path):
    check_replaced([folder / name for name in NAMES], SAME)
    check_replaced([tmp_path / name for name in NAMES], SAME)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "pair",
    [NamedPair("tiny", "ngram"), NamedPair("big", "tiny-drafter"), NamedPair("tiny", "none"), NamedPair(None, None)],
    ids=str,
)
def test_files_of_another_pair_are_refused(folder, name, pair):
    with pytest.raises(UsageError) as caught:
        check_replaced([folder / name], pair)
    assert str(caught.value) == f"{folder / name} is of tiny with tiny-drafter, and would be replaced by one of {pair}"
    assert "--workdir" in caught.value.remedy and "--overwrite" in caught.value.remedy


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"PAR1", b"\xff"], ids=repr)
def test_what_cannot_be_read_counts_as_anothers(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match="cannot be read to see which models it is of"):
        check_replaced([tmp_path / name], SAME)


@pytest.mark.parametrize("name", NAMES)
def test_a_link_that_leads_nowhere_counts_as_anothers(tmp_path, name):
    (tmp_path / name).symlink_to(tmp_path / "gone" / name)
    with pytest.raises(UsageError, match="cannot be read to see which models it is of") as caught:
        check_replaced([tmp_path / name], SAME)
    assert "--overwrite" in caught.value.remedy


def test_all_reasons_are_told_at_once(folder):
    with pytest.raises(UsageError) as caught:
        check_replaced([folder / name for name in NAMES], NamedPair("big", "ngram"))
    assert all(str(folder / name) in str(caught.value) for name in NAMES)


def test_two_spellings_of_a_folder_are_one_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("other").mkdir()
    save(tmp_path, replace(PAIR, target="model"))
    check_replaced([tmp_path / name for name in NAMES], NamedPair("./model/", "tiny-drafter"))
    check_replaced([tmp_path / name for name in NAMES], NamedPair(str(tmp_path / "model"), "tiny-drafter"))
    with pytest.raises(UsageError):
        check_replaced([tmp_path / "profile.json"], NamedPair("other", "tiny-drafter"))


def test_models_that_nobody_named_are_alike(tmp_path):
    save(tmp_path, Provenance())
    check_replaced([tmp_path / "calibration.json", tmp_path / "traces.parquet"], NamedPair(None, None))
    with pytest.raises(UsageError, match="is of models that are not recorded"):
        check_replaced([tmp_path / "calibration.json"], SAME)
