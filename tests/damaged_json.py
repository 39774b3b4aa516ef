"""A JSON document with one value in place of another, as a hand or a disk leaves it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

# The last is what `1e999` would be read as.
VALUES: tuple[Any, ...] = (None, True, "x", -1, [], {}, math.inf)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a document that hold no others."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inner = [leaf for key, child in children for leaf in leaves(child, (*path, key))]
    yield from inner or [path]


def damaged_documents(document: Any) -> Iterator[tuple[str, Any]]:
    """Where it was changed and to what, and `document` with that change: every leaf to each of `VALUES` in turn."""
    for path in leaves(document):
        *above, last = path
        for value in VALUES:
            damaged = copy.deepcopy(document)
            place = damaged
            for key in above:
                place = place[key]
            place[last] = value
            yield f"{'.'.join(map(str, path))} = {value!r}", damaged
