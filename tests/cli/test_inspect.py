"""The command: what it prints, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from draft_pair import copy_drafter
from fixture_engine import FIXTURES

from dspark.cli.main import main

SPECULATORS, ZLAB, VANILLA = (FIXTURES / name for name in ("spec_dspark_d2t", "zlab_dflash", "dspark_vanilla"))


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, dict[str, Any], str]:
    """Exit code, document and what people read."""
    code = main(["inspect", *map(str, arguments), "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out), captured.err


def test_a_speculators_drafter(capsys: pytest.CaptureFixture[str]) -> None:
    code, document, said = run(capsys, SPECULATORS / "draft", "--target", SPECULATORS / "target")
    assert code == 0
    assert document["usable"] and document["refusals"] == []
    assert (document["kind"], document["format"]) == ("drafter", "speculators")
    assert document["recognised_by"] == '`speculators_model_type: "dspark"` in config.json'
    assert document["draft"] == {
        "block_size": 7,
        "block_width": 7,
        "samples_anchor": True,
        "mask_token_id": 255,
        "draft_vocab_size": 150,
        "markov_head": "rnn",
        "markov_rank": 16,
        "confidence_head": True,
        "confidence_head_with_markov": False,
        "window": {"size": 8, "layers": [0], "causal": True},
    }
    assert document["needs"] == {
        "name": "target",
        "hidden_size": 64,
        "vocab_size": 256,
        "layers": None,
        "least_layers": 5,
        "feature_layers": [0, 2, 4],
        "embedding": False,
        "head": False,
    }
    assert document["tensors"]["dtypes"] == {"F32": 33, "I64": 1, "BOOL": 1}
    for words in ("speculators format", "8 tokens of context in layer 0, causal", "150 of the target's tokens"):
        assert words in said
    assert "\x1b" not in said


def test_a_zlab_drafter(capsys: pytest.CaptureFixture[str]) -> None:
    code, document, said = run(capsys, ZLAB / "draft")
    assert (code, document["format"], document["needs"]["layers"]) == (0, "z-lab DFlash", 6)
    assert document["needs"]["embedding"] and document["needs"]["head"]
    assert not document["draft"]["confidence_head"]
    for words in ("no confidence head", "behind an anchor that drafts none", "its embedding and head", "usable"):
        assert words in " ".join(said.split())


def test_the_drafter_without_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    code, document, said = run(capsys, "ngram", "--target", VANILLA / "target")
    assert (code, document["kind"], document["usable"]) == (0, "drafter", True)
    assert document["draft"] == {"block_size": 7, "longest_match": 8}
    assert (document["shape"], document["needs"], document["tensors"]["count"]) == (None, None, 0)
    assert "no weights" in said and "usable with" in said


def test_the_drafter_without_a_checkpoint_needs_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    code, document, said = run(capsys, "ngram", "--target", ZLAB / "draft")
    [refusal] = document["refusals"]
    assert code == 1 and refusal["reason"].endswith("is a drafter, not a target")
    assert "refused, for this reason" in said


def test_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    code, document, said = run(capsys, VANILLA / "target")
    assert (code, document["kind"], document["draft"], document["needs"]) == (0, "target", None, None)
    assert document["shape"]["layers"] == 6 and document["shape"]["rope_theta"] == 1e6
    assert "a target, transformers format" in said


def test_every_refusal_is_printed_with_its_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy_drafter(VANILLA / "draft", tmp_path, config={"num_target_layers": 8}, drop=["hidden_norm.weight"])
    code, document, said = run(capsys, folder, "--target", VANILLA / "target")
    assert code == 1 and not document["usable"]
    assert [refusal["reason"] for refusal in document["refusals"]] == [
        f"{folder} has no tensor hidden_norm.weight, which its config.json asks for",
        "the drafter expects 8 target layers, but the target has 6",
    ]
    assert "refused, for these 2 reasons" in said
    for number, refusal in enumerate(document["refusals"], start=1):
        assert f"{number}. {refusal['reason']}\n   {refusal['remedy']}" in said


def test_quiet_leaves_the_exit_code_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main(["inspect", str(tmp_path), "--quiet"]) == 1
    assert main(["inspect", str(ZLAB / "draft"), "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "Missing argument"),
        (("none",), 2, "`none` is no checkpoint"),
        ((ZLAB / "draft", "--target", "ngram"), 2, "`ngram` is no checkpoint"),
        (("no-such-alias",), 2, "does not exist"),
        ((ZLAB / "target", "--target", ZLAB / "target"), 2, "compared with no other"),
        ((ZLAB,), 2, r"has no config.json"),
    ],
    ids=["nothing", "none", "ngram", "absent", "two-targets", "no-folder-of-a-model"],
)
def test_what_cannot_be_inspected_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[Any, ...], code: int, words: str
) -> None:
    assert main(["inspect", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    assert captured.out == "" and words in captured.err
    *steps, sentence, _ = captured.err.splitlines()
    assert sentence.startswith("dspark: ") and not any(step.startswith("dspark: ") for step in steps)


def test_a_file_of_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.toml").write_text(f'[inspect]\ntarget = "{VANILLA / "target"}"\n')
    code, document, _ = run(capsys, VANILLA / "draft", "--config", tmp_path / "c.toml")
    assert (code, document["target"]) == (0, str(VANILLA / "target"))


def test_torch_stays_out(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom dspark.cli.main import main\ncode = main(['inspect', sys.argv[1], '--quiet'])\n"
        "assert code == 0 and not {'torch', 'transformers', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(SPECULATORS / "draft")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
