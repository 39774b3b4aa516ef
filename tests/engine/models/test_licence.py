"""The licence that a folder states."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspark.engine.models.licence import stated_licence


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"README.md": "# A model\nlicense: mit\n"}, None),
        ({"README.md": "---\nlicense: apache-2.0\ntags:\n- a\n---\n# A model\n"}, "apache-2.0"),
        ({"README.md": "\ufeff---\r\nlicense: \"mit\" # sic\r\n---\r\n"}, "mit"),
        ({"README.md": "---\nlicense: other\nlicense_name: qwen-research\n---\n"}, "qwen-research"),
        ({"README.md": "---\na: 1\n---\nlicense: x\n", "LICENSE": "\n   MIT License\n\nC"}, "MIT License (LICENSE)"),
        ({"LICENSE.txt": "Llama 3.1 Community\n"}, "Llama 3.1 Community (LICENSE.txt)"),
        ({"README.md": b"---\nlicense: \xff\n---\n"}, "�"),
        ({"LICENSE": "x" * 500}, "x" * 80 + " (LICENSE)"),
    ],
    ids=["nothing", "no-front-matter", "card", "windows", "named", "file", "other-file", "no-utf-8", "long"],
)  # fmt: skip
def test_stated_licence(tmp_path: Path, files: dict[str, str | bytes], expected: str | None) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert stated_licence(tmp_path) == expected
