"""The folder that a run fills: what is in it, of which run that is, and who may write to it."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from dspark.engine.errors import UsageError
from dspark.engine.jobs.file_lock import locked_folder, refuse_locked
from dspark.engine.models.tensor_files import SINGLE_FILE
from dspark.engine.training.settings import PARTIAL_SUFFIX, STATE_FOLDER

CONFIG_FILE = "config.json"
STATE_FILE, BEST_FILE = "state.pt", "best.json"
_FLAG = "--output"


class OutputFolder:
    """A drafter, its card, and `training/` with text and state of the run that makes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state_folder = folder / STATE_FOLDER
        self.state_path = self.state_folder / STATE_FILE
        # What was measured of this run's drafter: without it, a drafter in the folder is of before the run.
        self.best_path = self.state_folder / BEST_FILE

    @property
    def has_drafter(self) -> bool:
        """Whether a drafter of any run is there; half of one is none."""
        return (self.folder / CONFIG_FILE).exists() and (self.folder / SINGLE_FILE).exists()

    @property
    def has_earlier_run(self) -> bool:
        """Whether starting anew would cost anything."""
        return self.has_drafter or self.state_folder.exists()

    @property
    def best_so_far(self) -> str:
        """Where the best drafter of the present run is, without a full stop."""
        if not self.has_drafter:
            return "No drafter was saved yet"
        if self.best_path.exists():
            return f"The best drafter so far is in {self.folder}"
        return f"This run has saved no drafter yet, and the one in {self.folder} is of before it"

    def check(self, data: Path, *, resume: bool, overwrite: bool) -> None:
        """Refuse a folder that would be written over.

        Args:
            data: where the run's text is, or is to be.

        Raises:
            UsageError: another process writes to it, or it holds something and nothing says what is to become of it.
        """
        refuse_locked(self.folder, self.folder, flag=_FLAG)
        if resume or overwrite:
            return
        # A link that leads nowhere, to a disk that is away, is not given up unasked either.
        taken = [name for name in (CONFIG_FILE, SINGLE_FILE, STATE_FOLDER) if os.path.lexists(self.folder / name)]
        if taken:
            raise UsageError(
                f"{self.folder} holds a drafter or an interrupted run ({taken[0]})",
                "Go on with --resume, start anew with --overwrite, or give another --output.",
            )
        partial = data.with_name(data.name + PARTIAL_SUFFIX)
        if partial.exists() and not data.exists():
            raise UsageError(
                f"{partial} holds text of an interrupted run", "Go on with --resume, or start anew with --overwrite."
            )

    def locked(self) -> AbstractContextManager[None]:
        """Hold the folder, which is made if need be, for one run.

        Raises:
            UsageError: another process writes to it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        return locked_folder(self.folder, flag=_FLAG)

    def forget_run(self) -> None:
        """Drop the state of an earlier run. Its drafter stays until there is a new one."""
        for path in (self.state_path, self.best_path):
            path.unlink(missing_ok=True)
