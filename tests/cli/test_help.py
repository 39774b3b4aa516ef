"""Help is tidy at any width, and says of each option what it takes and what it is by default."""

import re
from itertools import pairwise

import pytest

from dspark.cli.main import main

COMMANDS = [[], ["decode"], ["profile"], ["export"], ["train"], ["selftest"]]
# These take arguments too, of which the parser shows the type.
WITH_ARGUMENTS = [["calibrate"], ["report"], ["inspect"]]


@pytest.fixture(params=[80, 120])
def help_of(request, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(request.param))

    def show(command):
        assert main([*command, "--help"]) == 0
        return capsys.readouterr().out, request.param

    return show


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "dspark")
def test_no_type_names_of_the_parser_are_shown(help_of, command):
    text, width = help_of(command)
    assert not re.search(r"<\w+|\[x[<>]", text)
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("command", COMMANDS[1:] + WITH_ARGUMENTS, ids=" ".join)
def test_every_option_names_its_default(help_of, command):
    text, _ = help_of(command)
    blocks = re.split(r"│ (?=--[a-z])", text)[1:]
    switches = ("--json", "--quiet", "--help")
    for block in blocks:
        name = block.split()[0]
        words = " ".join(block.replace("│", " ").split())
        assert name in switches or re.search(r"[Dd]efault: |Required", words), name
    assert len(blocks) >= 4


def test_a_paragraph_is_as_wide_as_the_screen(help_of):
    text, width = help_of(["decode"])
    paragraph = text.partition("A `prompt`")[2].partition("Exit codes")[0]
    lines = [line for line in ("A `prompt`" + paragraph).splitlines() if line.strip()]
    # No line ends where the next word would have fitted.
    for line, following in pairwise(lines):
        assert len(line.rstrip()) + 1 + len(following.split()[0]) > width - 2


def test_metavariables_are_not_broken_over_lines(help_of):
    text, _ = help_of(["decode"])
    for metavar in ("PATH|HUB_ID|ALIAS|ngram|none", "rejection|coupled", "auto|cpu|cuda", "FILE|-"):
        assert metavar in text


def test_token_ids_of_several_turns_are_explained(help_of):
    text, _ = help_of(["decode"])
    words = " ".join(text.replace("│", " ").split())
    assert "with --all-turns those of the last answer" in words
