"""What `--target` and `--drafter` name -> a local model folder."""

from __future__ import annotations

import errno
import importlib.resources
import io
import os
import re
from pathlib import Path
from typing import Any

from dspark.engine.errors import CheckpointError, UnknownModelError
from dspark.engine.models.aliases import DEFAULT_DRAFTER, DEFAULT_TARGET, NGRAM_DRAFTER, NO_DRAFTER
from dspark.engine.models.builtin import builtin_target
from dspark.engine.ngram.drafter import NgramDrafter
from dspark.engine.progress import Progress
from dspark.engine.wording import first_line, shortened

# Role -> aliases of the other one.
_OTHERS = {"target": (DEFAULT_DRAFTER, NGRAM_DRAFTER), "drafter": (DEFAULT_TARGET,)}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_TEXT = ["*.json", "*.jinja", "tokenizer*", "vocab*", "merges.txt"]
_HUB_FILES = [*_HUB_TEXT, "*.safetensors"]
_HUB_DESCRIPTION = [*_HUB_TEXT, "README.md", "LICENSE*"]
# Sub-folders hold other formats of the same weights, and so does Mistral's consolidated file.
_HUB_NOT = ["*/*", "consolidated*"]
# The hub's client passes on what these raise; which of them it uses has changed.
_HTTP_LIBRARIES = ("httpx", "httpcore", "requests", "urllib3")


def resolve_target(spec: str, *, progress: Progress | None = None) -> Path:
    """Alias, local folder or hub id of a target; fetched if need be."""
    if spec == DEFAULT_TARGET:
        return builtin_target(progress=progress)
    return _resolve(spec, "target", progress)


def resolve_drafter(spec: str, *, progress: Progress | None = None) -> Path | NgramDrafter | None:
    """The same for a drafter; `none` is no drafter, and `ngram` one without a folder."""
    if spec == NO_DRAFTER:
        return None
    if spec == NGRAM_DRAFTER:
        return NgramDrafter()
    if spec == DEFAULT_DRAFTER:
        return builtin_drafter()
    return _resolve(spec, "drafter", progress)


def resolve_description(spec: str, *, progress: Progress | None = None) -> tuple[Path, bool]:
    """Local folder or hub id of a target or drafter -> its folder, and whether that is the hub's copy.

    Of a hub id all but the weights is fetched, unless they are there already.
    """
    if _HUB_ID.fullmatch(spec) and not os.path.exists(spec):
        return _check_folder(_hub_folder(spec, "model", progress, _HUB_DESCRIPTION), spec, "model"), True
    return _resolve(spec, "model", progress), False


def builtin_drafter() -> Path:
    """The folder of the drafter that comes with dspark.

    Raises:
        CheckpointError: this installation lacks it.
    """
    folder = Path(str(importlib.resources.files("dspark.engine.models").joinpath("builtin_drafter")))
    if not (folder / "model.safetensors").is_file():
        raise CheckpointError(
            f"the built-in drafter is missing from this installation ({folder})", remedy="Install dspark again."
        )
    return folder


def _resolve(spec: str, role: str, progress: Progress | None) -> Path:
    path = Path(spec).expanduser()
    # Not Path.exists: a name too long for any file is none, and no failure.
    if os.path.exists(path):
        return _check_folder(path, spec, role)
    if _HUB_ID.fullmatch(spec):
        return _check_folder(_hub_folder(spec, role, progress), spec, role)
    if role in _OTHERS and spec in _OTHERS[role]:
        other = "drafter" if role == "target" else "target"
        raise UnknownModelError(f"{spec} is a {other}, not a {role}", remedy=_choices(role))
    raise UnknownModelError(
        f"the {role} `{shortened(spec, most=200)}` does not exist: it is no folder, no hub id and no alias",
        remedy=_choices(role),
    )


def _check_folder(folder: Path, spec: str, role: str) -> Path:
    if folder.is_file():
        raise UnknownModelError(
            f"the {role} `{spec}` is a file; a model is a folder with config.json and *.safetensors",
            remedy=_choices(role),
        )
    if not (folder / "config.json").is_file():
        raise UnknownModelError(
            f"the {role} `{spec}` has no config.json, so it is not a Hugging Face model folder", remedy=_choices(role)
        )
    return folder


def _choices(role: str) -> str:
    if role == "model":
        return (
            "Give the path of a Hugging Face model folder, a hub id like `org/name`, "
            f"`{DEFAULT_TARGET}` or `{DEFAULT_DRAFTER}`."
        )
    alias = DEFAULT_TARGET if role == "target" else f"{DEFAULT_DRAFTER}`, `{NGRAM_DRAFTER}` or `{NO_DRAFTER}"
    return f"Give --{role} the path of a Hugging Face model folder, a hub id like `org/name`, or `{alias}`."


def _hub_folder(repo_id: str, role: str, progress: Progress | None, files: list[str] = _HUB_FILES) -> Path:
    import huggingface_hub
    from huggingface_hub import errors

    try:
        folder = huggingface_hub.snapshot_download(
            repo_id, allow_patterns=files, ignore_patterns=_HUB_NOT, tqdm_class=_progress_bar(repo_id, progress)
        )
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"the {role} `{repo_id}` is gated: its owners must grant you access",
            remedy=f"Accept the terms at https://huggingface.co/{repo_id}, then `hf auth login` or set HF_TOKEN.",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UnknownModelError(
            f"the {role} `{repo_id}` is neither a local folder nor a model on the Hugging Face hub (or it is private)",
            remedy=f"{_choices(role)} For a private model log in with `hf auth login` or set HF_TOKEN.",
        ) from error
    except errors.HFValidationError as error:
        raise UnknownModelError(f"the {role} `{repo_id}` is not a valid hub id", remedy=_choices(role)) from error
    except Exception as error:  # also whatever the HTTP library of the day raises
        why, remedy = fetch_failure(error)
        raise CheckpointError(
            f"the {role} `{repo_id}` is not a local folder and could not be fetched from the Hugging Face hub: {why}",
            remedy=f"{remedy} Or give {'' if role == 'model' else f'--{role} '}the path of a local folder.",
        ) from error
    return Path(folder)


def fetch_failure(error: Exception) -> tuple[str, str]:
    """Why a download failed, in words, and what to do."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, and it was not fetched before", "Unset HF_HUB_OFFLINE."
    cause: BaseException | None = error
    # The client says "not in the cache" of a hub that answered with an error, and keeps that one behind it.
    while cause is not None:
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if status is not None:
            return f"the hub answers with HTTP status {status}", "Try again later."
        cause = cause.__cause__
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "no space is left to write to", "Free some space; HF_HOME moves the hub's cache to another disk."
    if isinstance(error, PermissionError):
        return f"{error.filename or 'its cache'} cannot be written to", "Point HF_HOME at a folder that can be."
    unreachable = isinstance(error, errors.LocalEntryNotFoundError | ConnectionError | TimeoutError)
    if unreachable or type(error).__module__.partition(".")[0] in _HTTP_LIBRARIES:
        return "the hub cannot be reached", "Check the network, and HTTPS_PROXY if there is a proxy."
    why = first_line(error) if str(error).strip() else "the hub's client does not say why"
    return why, "Try again."


def _progress_bar(repo_id: str, progress: Progress | None) -> type[Any]:
    from tqdm import tqdm

    class HubProgress(tqdm):  # type: ignore[misc]
        """The hub client reports through tqdm; this passes bytes on to the caller and prints nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # Of its bars one counts files and, where it has two for bytes, one counts compressed bytes on the wire.
            self.reports = kwargs.get("unit") == "B" and kwargs.get("desc") != "Downloading bytes"
            super().__init__(*args, **{**kwargs, "file": io.StringIO(), "disable": False})

        def display(self, *args: Any, **kwargs: Any) -> None:
            if progress is not None and self.reports and self.total:
                progress(f"Fetching {repo_id}", int(self.n), int(self.total))

    return HubProgress
