"""Reading JSON no more kindly than its standard."""

import json
from typing import Any


def strict(text: str) -> Any:
    """What `text` holds; NaN and the infinities, which are no JSON, fail the test."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)
