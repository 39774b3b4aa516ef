"""Errors read alike wherever they are raised: a message behind `dspark: `, and a remedy that is a sentence."""

import ast
from pathlib import Path

import pytest

FOLDERS = ("calibration", "dspark_cli", "engine", "kernels", "profiles")
ROOT = Path(__file__).parents[1]
# Words that begin with a capital wherever they stand.
NAMES = ("ECE ", "RoPE ")


def literal(node):
    """The text of a string, with `{}` for what is put into it; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def raised(folder):
    """(where, message, remedy) of every error that is made with a message in place."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith("Error"):
                texts = [literal(argument) for argument in node.args[:2]]
                if texts[0] is not None:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", texts[0], texts[1] if len(texts) > 1 else None


@pytest.mark.parametrize("folder", FOLDERS)
def test_messages_begin_small_and_end_without_a_full_stop(folder):
    wrong = [
        (where, message)
        for where, message, _ in raised(folder)
        if (message[:1].isupper() and not message.startswith(NAMES)) or message.endswith((".", "!"))
    ]
    assert not wrong


@pytest.mark.parametrize("folder", FOLDERS)
def test_remedies_are_sentences(folder):
    wrong = [
        (where, remedy)
        for where, _, remedy in raised(folder)
        if remedy and (remedy[0].islower() or not remedy.endswith((".", "?", "}")))
    ]
    assert not wrong


def test_messages_are_found():
    assert sum(1 for folder in FOLDERS for _ in raised(folder)) > 200
