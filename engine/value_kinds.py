"""What a value is, where Python counts True and False as whole numbers and nobody else does."""

from __future__ import annotations

from typing import TypeGuard


def is_whole(value: object) -> TypeGuard[int]:
    """Is it a whole number?"""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Is it a number?"""
    return isinstance(value, int | float) and not isinstance(value, bool)
