"""Help is tidy at any width, and says of each option what it takes and what it is by default."""

import re
from itertools import pairwise
from typing import get_type_hints

import pytest

from dspark.cli.main import app, main

NAMES = ["decode", "profile", "calibrate", "export", "report", "train", "inspect", "selftest"]
COMMANDS = [[], *([name] for name in NAMES)]


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


@pytest.mark.parametrize("command", COMMANDS[1:], ids=" ".join)
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


@pytest.mark.parametrize("command", ["decode", "profile", "calibrate", "selftest"])
def test_metavariables_are_not_broken_over_lines(help_of, command):
    text, _ = help_of([command])
    shared = ["PATH|HUB_ID|ALIAS", "auto|cpu|cuda"]
    own = {"decode": ["rejection|coupled", "FILE|-"], "profile": ["auto|dummy"], "calibrate": ["LOW,HIGH,POINTS"]}
    for metavar in shared + own.get(command, []):
        assert metavar in text
    assert text.count("PATH|HUB_ID|ALIAS") == 2


@pytest.mark.parametrize("command", ["export", "report"])
def test_where_a_folder_is_by_default_is_said_plainly(help_of, command):
    text, _ = help_of([command])
    assert f"Default: dspark-out/{command}, or {command} in --workdir." in " ".join(text.replace("│", " ").split())


def test_token_ids_of_several_turns_are_explained(help_of):
    text, _ = help_of(["decode"])
    words = " ".join(text.replace("│", " ").split())
    assert "with --all-turns those of the last answer" in words


def test_an_option_named_like_what_it_takes_spells_its_flag() -> None:
    # Some releases of Typer (0.27.2) would make of `policy` and the metavar POLICY the flag --POLICY.
    alike = [
        (name, option)
        for command in app.registered_commands
        for name, option in _options(command.callback)
        if option.metavar is not None and option.metavar.lower() == name
    ]
    assert {name for name, _ in alike} == {"policy", "minutes"}
    for name, option in alike:
        assert f"--{name}" in (option.default, *option.param_decls)


def _options(callback):
    for name, hint in get_type_hints(callback, include_extras=True).items():
        for option in getattr(hint, "__metadata__", ()):
            yield name, option
