"""Where inspection finds its files; of a hub id, without the weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from draft_pair import FIXTURES
from fake_hub import HubServer, served
from refusals import assert_reads_well
from safetensors.torch import load_file, save

from dspark.engine.errors import CheckpointError
from dspark.engine.models.checkpoint_files import CheckpointFiles

DRAFT = FIXTURES / "zlab_dflash" / "draft"
CARD = b"---\nlicense: mit\n---\n"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    files = {name: (DRAFT / name).read_bytes() for name in ("config.json", "model.safetensors")}
    with served(files | {"README.md": CARD, "tokenizer.model": b"t", "onnx/config.json": b"{}"}) as server:
        yield server


def inspect_elsewhere(spec: str, home: Path, **environment: str) -> dict[str, object]:
    """In a process of its own: huggingface_hub reads its environment once, on import."""
    script = """
import json, sys
from dspark.engine.errors import CheckpointError
from dspark.engine.models.checkpoint_files import CheckpointFiles
from dspark.engine.models.inspection import inspect_checkpoint
try:
    files = CheckpointFiles.locate(sys.argv[1])
    found = inspect_checkpoint(files)
    print(json.dumps({
        "files": sorted(path.name for path in files.folder.iterdir()),
        "shapes": {name: header.shape for name, header in found.headers.items()},
        "licence": found.licence,
        "refusals": [[str(refusal), refusal.remedy] for refusal in found.refusals],
    }))
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
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return json.loads(done.stdout)


def expected_shapes() -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in load_file(DRAFT / "model.safetensors").items()}


def test_of_a_hub_id_the_headers_are_read_and_the_weights_stay_there(hub: HubServer, tmp_path: Path) -> None:
    found = inspect_elsewhere("org/name", tmp_path, HF_ENDPOINT=hub.address)
    assert found["files"] == ["README.md", "config.json", "tokenizer.model"]
    assert found["shapes"] == expected_shapes()
    assert found["refusals"] == [] and found["licence"] == "mit"
    asked = [ranges for path, ranges in hub.asked if path.endswith(".safetensors")]
    assert asked and all(ranges is not None for ranges in asked)


def test_headers_of_shards(hub: HubServer, tmp_path: Path) -> None:
    tensors = load_file(DRAFT / "model.safetensors")
    names = sorted(tensors)
    del hub.files["model.safetensors"]
    index = {}
    for file, chosen in (("a.safetensors", names[:9]), ("b.safetensors", names[9:])):
        hub.files[file] = save({name: tensors[name] for name in chosen})
        index |= dict.fromkeys(chosen, file)
    hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": index}).encode()
    found = inspect_elsewhere("org/name", tmp_path, HF_ENDPOINT=hub.address)
    assert found["files"] == ["README.md", "config.json", "model.safetensors.index.json", "tokenizer.model"]
    assert found["shapes"] == expected_shapes() and found["refusals"] == []


@pytest.mark.parametrize("content", [None, b"short", b"\xff" * 64], ids=["absent", "short", "no-header"])
def test_headers_that_cannot_be_read_are_a_reason(hub: HubServer, tmp_path: Path, content: bytes | None) -> None:
    hub.files.pop("model.safetensors")
    if content is not None:
        hub.files["model.safetensors"] = content
    found = inspect_elsewhere("org/name", tmp_path, HF_ENDPOINT=hub.address)
    [[reason, remedy]] = found["refusals"]
    assert "tensor headers in model.safetensors of org/name could not be read" in reason
    assert_reads_well(CheckpointError(reason, remedy))


def test_offline_the_reason_names_the_switch(tmp_path: Path) -> None:
    answer = inspect_elsewhere("org/name", tmp_path, HF_HUB_OFFLINE="1")
    assert "could not be fetched" in answer["message"] and "HF_HUB_OFFLINE" in answer["remedy"]


def test_weights_that_were_fetched_before_are_looked_at_where_they_are(hub: HubServer, tmp_path: Path) -> None:
    inspect_elsewhere("org/name", tmp_path, HF_ENDPOINT=hub.address)
    [snapshot] = tmp_path.glob("hub/models--org--name/snapshots/*")
    (snapshot / "model.safetensors").write_bytes((DRAFT / "model.safetensors").read_bytes())
    found = inspect_elsewhere("org/name", tmp_path, HF_ENDPOINT=hub.address, HF_HUB_OFFLINE="1")
    assert found["shapes"] == expected_shapes()


@pytest.mark.parametrize("spec", ["/no/such/folder", "no-such-alias", "a/b/c"])
def test_what_is_not_there_is_refused(spec: str) -> None:
    with pytest.raises(CheckpointError, match="does not exist") as refused:
        CheckpointFiles.locate(spec)
    assert "smollm2-135m-dspark" in refused.value.remedy
    assert_reads_well(refused.value)
