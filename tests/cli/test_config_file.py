"""--config: option values from a file, and the file named where one of them is wrong."""

import re
from pathlib import Path

import pytest
from decode_workplace import workplace

from dspark.cli.main import main

__all__ = ["workplace"]


def test_config_file_gives_defaults_and_flags_win(workplace):
    anywhere = 'max_tokens = 2\ntemperature = 1\nstop = ["a", "b"]\nseed = 4\n'
    Path("c.toml").write_text(anywhere + "[decode]\nmax-tokens = 1\ntoken-ids = true\n")
    assert main(["decode", "-i", "in.jsonl", "--config", "c.toml", "--seed", "5"]) == 0
    sampling = workplace.made.asked[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.stop) == (1, 1.0, ("a", "b"))
    assert workplace.configs[0].seed == 5
    assert "token_ids" in Path("dspark-out/decode.jsonl").read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("max-token = 1", "Did you mean `max-tokens`?"),
        ("[decode]\nfoo = 1", "[decode] in c.toml has an unknown key `foo`"),
        ("config = 'x'", "unknown key `config`"),
        ("resume = 'yes'", "Write true or false"),
        ("max-tokens = 1.5", "--max-tokens"),
        ("max-tokens = true", "Write a string or a number"),
        ("seed = [1]", "Write a string or a number"),
        ("seed = ", "is not TOML"),
        ('workdir = "a\\u0000b"', "holds a NUL character"),
        ("max-tokens = 1\nmax_tokens = 2", "c.toml has both `max-tokens` and `max_tokens`"),
        ("[decode]\ntop_k = 1\ntop-k = 1", "[decode] in c.toml has both `top-k` and `top_k`"),
        ("seed = " + "[" * 100_000, "c.toml is nested too deep"),
    ],
    ids=[
        "top level",
        "table",
        "itself",
        "flag",
        "fraction",
        "boolean",
        "list",
        "syntax",
        "NUL",
        "two spellings",
        "two in a table",
        "nested",
    ],
)
def test_config_mistakes_are_refused(workplace, capsys, content, message):
    Path("c.toml").write_text(content)
    assert main(["decode", "-i", "in.jsonl", "--config", "c.toml"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        ("max-tokens = 'many'", [], "--max-tokens.* \\(`max-tokens` is set in c.toml\\)$"),
        ("max_tokens = 0", [], "--max-tokens is 0 \\(`max-tokens` is set in c.toml\\)$"),
        ("[decode]\npolicy = 'best'", [], "--policy 'best' is unknown \\(`policy` is set in c.toml\\)$"),
        ("resume = true\noverwrite = true", [], "exclude each other \\(`overwrite` and `resume` are set in c.toml\\)$"),
        ("overwrite = true", ["--resume"], "exclude each other \\(`overwrite` is set in c.toml\\)$"),
        ("metrics = 'in.jsonl'", [], "--metrics is the input file in.jsonl \\(`metrics` is set in c.toml\\)$"),
        ("max-tokens = 5", ["--max-tokens", "0"], "--max-tokens is 0$"),
        ("seed = 5", ["--max-tokens", "0"], "--max-tokens is 0$"),
    ],
    ids=["kind", "range", "table", "two", "one of two", "late", "flag over file", "flag beside file"],
)
def test_a_wrong_value_names_the_file_that_it_comes_from(workplace, capsys, content, flags, message):
    Path("c.toml").write_text(content)
    assert main(["decode", "-i", "in.jsonl", "--config", "c.toml", *flags]) == 2
    assert re.search(message, capsys.readouterr().err.splitlines()[0])


def test_the_file_of_a_wrong_input_is_named(workplace, capsys):
    Path("c.toml").write_text("input = 'none.jsonl'")
    assert main(["decode", "--config", "c.toml"]) == 2
    assert "cannot read none.jsonl: No such file or directory (`input` is set in c.toml)" in capsys.readouterr().err
