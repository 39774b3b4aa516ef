"""Aliases, folders and hub ids; every way to fail is a sentence with a remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import served
from refusals import assert_reads_well

from dspark.engine.errors import CheckpointError, UsageError
from dspark.engine.models import resolve

WANTED = {
    "config.json": b"{}",
    "model-00001-of-00001.safetensors": b"w" * 300_000,
    "model.safetensors.index.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer.model": b"t",
    "chat_template.jinja": b"c",
}
NOT_WANTED = {
    "README.md": b"r",
    "pytorch_model.bin": b"p",
    "consolidated.safetensors": b"c",
    "onnx/config.json": b"{}",
    "original/params.json": b"{}",
}


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    with served(WANTED | NOT_WANTED) as hub:
        yield hub.address


def resolve_elsewhere(spec: str, home: Path, **environment: str) -> tuple[dict[str, str], str]:
    """In a process of its own: huggingface_hub reads its environment once, on import."""
    script = """
import json, sys
from dspark.engine.errors import CheckpointError
from dspark.engine.models.resolve import resolve_target
seen = []
try:
    folder = resolve_target(sys.argv[1], progress=lambda *event: seen.append(event))
    print(json.dumps({"folder": str(folder), "last": seen[-1:]}))
except CheckpointError as error:
    print(json.dumps({"message": str(error), "remedy": error.remedy}))
"""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("HF_") and "PROXY" not in name.upper()
    }
    environment = {**inherited, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-c", script, spec], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize(
    ("find", "alias", "says"),
    [
        (resolve.resolve_drafter, "smollm2-135m", "smollm2-135m is a target, not a drafter"),
        (resolve.resolve_target, "smollm2-135m-dspark", "smollm2-135m-dspark is a drafter, not a target"),
        (resolve.resolve_target, "ngram", "ngram is a drafter, not a target"),
    ],
    ids=["target", "drafter", "look-up"],
)
def test_an_alias_of_the_other_role_is_said_to_be_one(tmp_path, monkeypatch, find, alias, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^{says}$") as refused:
        find(alias)
    assert_reads_well(refused.value)


class TestHub:
    def test_only_the_needed_files_and_then_from_the_cache(self, hub: str, tmp_path: Path) -> None:
        first, printed = resolve_elsewhere("org/name", tmp_path, HF_ENDPOINT=hub)
        folder = Path(first["folder"])
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == WANTED
        assert printed == ""
        total = sum(len(data) for data in WANTED.values())
        assert first["last"] == [["Fetching org/name", total, total]]
        again, _ = resolve_elsewhere("org/name", tmp_path, HF_ENDPOINT=hub, HF_HUB_OFFLINE="1")
        assert again["folder"] == first["folder"]

    @pytest.mark.parametrize(
        ("spec", "says", "remedy"),
        [
            ("org/gated", "is gated", "hf auth login"),
            ("org/missing", "neither a local folder nor a model on the Hugging Face hub", "hf auth login"),
            (
                "org/broken",
                "could not be fetched from the Hugging Face hub: the hub answers with HTTP status 400",
                "local folder",
            ),
            ("org/empty", "no config.json", "path of a Hugging Face model folder"),
            ("org/a--b", "not a valid hub id", "`org/name`"),
        ],
    )
    def test_refusals(self, hub: str, tmp_path: Path, spec: str, says: str, remedy: str) -> None:
        answer, printed = resolve_elsewhere(spec, tmp_path, HF_ENDPOINT=hub)
        assert spec in answer["message"] and says in answer["message"] and remedy in answer["remedy"]
        assert printed == ""
        assert_reads_well(CheckpointError(answer["message"], answer["remedy"]))

    @pytest.mark.parametrize(
        ("environment", "why", "remedy"),
        [
            ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set, and it was not fetched before", "Unset HF_HUB_OFFLINE."),
            ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "the hub cannot be reached", "Check the network"),
        ],
        ids=["offline", "no-network"],
    )
    def test_no_network(self, tmp_path: Path, environment: dict[str, str], why: str, remedy: str) -> None:
        answer, _ = resolve_elsewhere("org/name", tmp_path, **environment)
        assert answer["message"].endswith(f"could not be fetched from the Hugging Face hub: {why}")
        assert remedy in answer["remedy"] and "local folder" in answer["remedy"]
        assert_reads_well(CheckpointError(answer["message"], answer["remedy"]))


FETCH_FAILURES = {
    "full disk": (OSError(28, "No space left on device"), "no space is left to write to"),
    "no permission": (PermissionError(13, "Permission denied", "/cache"), "/cache cannot be written to"),
    "connection": (ConnectionResetError(104, "Connection reset by peer"), "the hub cannot be reached"),
    "silent": (RuntimeError(), "the hub's client does not say why"),
    "other": (RuntimeError("Consistency check failed.\nDetails"), "Consistency check failed"),
}


@pytest.mark.parametrize(("error", "why"), FETCH_FAILURES.values(), ids=FETCH_FAILURES)
def test_why_a_download_failed_is_said_in_words(monkeypatch: pytest.MonkeyPatch, error: Exception, why: str) -> None:
    import huggingface_hub

    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(CheckpointError) as refused:
        resolve.resolve_target("org/name")
    assert str(refused.value).endswith(f"hub: {why}")
    assert type(error).__name__ not in str(refused.value)
    assert not isinstance(refused.value, UsageError)
    assert_reads_well(refused.value)


class TestLocal:
    def test_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tmp_path / "org" / "name"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        assert resolve.resolve_target(str(folder)) == resolve.resolve_drafter(str(folder)) == folder
        # What lies on the disk wins over a hub id that reads the same.
        monkeypatch.chdir(tmp_path)
        assert resolve.resolve_target("org/name") == Path("org/name")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert resolve.resolve_target("~/org/name") == folder

    @pytest.mark.parametrize(
        "spec", ["/no/such/folder", "./no", "no-such-alias", "~/no", "a/b/c", "", "ends/", "n" * 300]
    )
    def test_absent(self, spec: str) -> None:
        for role, function in (("target", resolve.resolve_target), ("drafter", resolve.resolve_drafter)):
            with pytest.raises(CheckpointError, match=role) as refused:
                function(spec)
            # What was typed is wrong, not a checkpoint.
            assert isinstance(refused.value, UsageError)
            assert f"--{role}" in refused.value.remedy
            assert_reads_well(refused.value)

    def test_not_a_model_folder(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"no config\.json"):
            resolve.resolve_target(str(tmp_path))
        (tmp_path / "model.gguf").touch()
        with pytest.raises(CheckpointError, match="is a file"):
            resolve.resolve_target(str(tmp_path / "model.gguf"))


class TestAliases:
    def test_target(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resolve, "builtin_target", lambda *, progress: tmp_path)
        assert resolve.resolve_target(resolve.DEFAULT_TARGET) == tmp_path

    def test_drafter(self) -> None:
        folder = resolve.resolve_drafter(resolve.DEFAULT_DRAFTER)
        assert folder is not None
        config = json.loads((folder / "config.json").read_text())
        assert (config["architectures"], config["block_size"]) == (["Qwen3DSparkModel"], 7)
        assert (folder / "model.safetensors").stat().st_size < 40_000_000
        assert (folder / "README.md").is_file()

    def test_none(self) -> None:
        assert resolve.resolve_drafter(resolve.NO_DRAFTER) is None
