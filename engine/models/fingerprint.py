"""Which checkpoint a run used, as a short hash that survives moving the folder."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

_SAMPLE_BYTES = 1 << 20
_SAMPLES = 8


def checkpoint_fingerprint(folder: Path) -> str:
    """Hash of a model folder's `config.json` and of samples of its weight files (16 hex digits).

    Samples, not whole files: a 30 GB checkpoint must not be read twice. Eight evenly spaced megabytes of each file tell
    one fine-tune from another, because training moves every tensor.
    """
    digest = sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with path.open("rb") as file:
            for i in range(_SAMPLES):
                file.seek(i * max(size - _SAMPLE_BYTES, 0) // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]
