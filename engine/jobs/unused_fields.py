"""Fields of an input's rows that are not used: mostly data of a data set, sometimes a misspelt setting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from dspark.engine.jobs.request_fields import misspelt_setting, unused_fields
from dspark.engine.wording import shortened

_MOST_NAMED = 8


class UnusedFields:
    """Counts, over the rows of one input, the fields that are not used."""

    def __init__(self) -> None:
        self.num_rows = 0  # that have any
        self.rows_by_name: Counter[str] = Counter()

    def add(self, fields: Mapping[str, Any]) -> None:
        """Count one row in."""
        names = unused_fields(fields)
        self.num_rows += bool(names)
        self.rows_by_name.update(names)

    def sentence(self) -> str:
        """What there is, misspellings first; empty if there is nothing."""
        if not self.num_rows:
            return ""
        ordered = self._ordered()
        words = []
        for name, meant in ordered[:_MOST_NAMED]:
            hint = f", did you mean `{meant}`?" if meant else ""
            words.append(f"`{shortened(name)}` ({_rows(self.rows_by_name[name])}{hint})")
        more = len(ordered) - len(words)
        others = f" and {more} more" if more else ""
        return f"fields that are not used, in {_rows(self.num_rows)}: {', '.join(words)}{others}"

    def to_dict(self) -> dict[str, Any]:
        """Ready for strict JSON, in the same order."""
        return {"rows": self.num_rows, "rows_by_name": {name: self.rows_by_name[name] for name, _ in self._ordered()}}

    def _ordered(self) -> list[tuple[str, str | None]]:
        """Names and what they are probably meant to be: misspellings first, then the most frequent."""
        meant = [(name, misspelt_setting(name)) for name in self.rows_by_name]
        return sorted(meant, key=lambda pair: (pair[1] is None, -self.rows_by_name[pair[0]]))


def _rows(count: int) -> str:
    return f"{count:,} row" + "s" * (count != 1)
