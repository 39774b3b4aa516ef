"""Where the JSON files, tokenizer and tensor headers of a checkpoint are, without fetching its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dspark.engine.errors import CheckpointError
from dspark.engine.models.aliases import DEFAULT_DRAFTER, DEFAULT_TARGET
from dspark.engine.models.builtin import BUILTIN_LICENCE, builtin_target
from dspark.engine.models.resolve import builtin_drafter, fetch_failure, resolve_description
from dspark.engine.models.tensor_files import SINGLE_FILE, TensorHeader, indexed_files, read_headers
from dspark.engine.progress import Progress


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """A folder with the JSON files; of a hub id, the tensors' headers may still be on the hub."""

    name: str  # as the user named it
    folder: Path
    hub_id: str | None = None
    licence: str | None = None  # where the folder states none

    @classmethod
    def locate(cls, spec: str, *, progress: Progress | None = None) -> CheckpointFiles:
        """Alias, local folder or hub id of a target or a drafter.

        Raises:
            CheckpointError: there is no such checkpoint, or the hub cannot be reached.
        """
        if spec == DEFAULT_TARGET:
            return cls(spec, builtin_target(progress=progress), licence=BUILTIN_LICENCE)
        if spec == DEFAULT_DRAFTER:
            return cls(spec, builtin_drafter())
        folder, from_hub = resolve_description(spec, progress=progress)
        return cls(spec, folder, spec if from_hub else None)

    def read_headers(self) -> dict[str, TensorHeader]:
        """Dtype and shape of every tensor.

        Raises:
            CheckpointError: there are no safetensors files, or their headers cannot be read.
        """
        if self.hub_id is None or any(self.folder.glob("*.safetensors")):
            return read_headers(self.folder)
        return _hub_headers(self.hub_id, self.folder)


def _hub_headers(repo_id: str, folder: Path) -> dict[str, TensorHeader]:
    """The first bytes of the hub's files, of the commit that `folder` is a snapshot of."""
    import huggingface_hub

    headers: dict[str, TensorHeader] = {}
    for name in sorted(set(indexed_files(folder).values())) or [SINGLE_FILE]:
        try:
            file = huggingface_hub.parse_safetensors_file_metadata(repo_id, name, revision=folder.name)
        except Exception as error:  # also whatever the HTTP library of the day raises
            why, remedy = fetch_failure(error)
            raise CheckpointError(
                f"the tensor headers in {name} of {repo_id} could not be read on the Hugging Face hub: {why}",
                f"{remedy} Or give the path of a local folder with safetensors files.",
            ) from error
        headers |= {tensor: TensorHeader(str(info.dtype), tuple(info.shape)) for tensor, info in file.tensors.items()}
    return headers
