"""Under which licence a checkpoint says it comes."""

from __future__ import annotations

import re
from pathlib import Path

_MOST_BYTES = 1 << 16
_FRONT_MATTER = re.compile(r"\A\ufeff?---\s*\n(.*?)\n---\s*$", re.DOTALL | re.MULTILINE)
_KEY = r"^{}\s*:\s*[\"']?([^\"'#\n]+?)[\"']?\s*(?:#.*)?$"
_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "COPYING")


def stated_licence(folder: Path) -> str | None:
    """What the model card's `license` says, else the first line of a licence file; None if there is neither."""
    card = _beginning(folder / "README.md")
    front = _FRONT_MATTER.search(card)
    if front is not None:
        found = [re.search(_KEY.format(key), front[1], re.MULTILINE) for key in ("license_name", "license")]
        named = next((match[1].strip() for match in found if match is not None), None)
        if named:
            return named
    for name in _FILES:
        lines = [line.strip(" #*\t") for line in _beginning(folder / name).splitlines()]
        first = next((line for line in lines if line), None)
        if first is not None:
            return f"{first[:80]} ({name})"
    return None


def _beginning(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""
