"""What `decode` writes and says of a run that goes well, and of one that fails on its way."""

import json
from pathlib import Path

from decode_workplace import texts, workplace
from fake_engine import FakeEngine, QuickEngine

from dspark.cli.main import main

__all__ = ["workplace"]


def test_answers_metrics_and_table(workplace, capsys):
    assert main(["decode", "-i", "in.jsonl"]) == 0
    assert texts() == ["ONE", "TWO"]
    assert json.loads(Path("dspark-out/decode.metrics.json").read_text())["rows"] == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "mean acceptance length" in captured.err
    assert "dspark-out/decode.jsonl" in captured.err
    assert "\x1b" not in captured.err


def test_of_rounds_that_ran_elsewhere_nothing_is_said(workplace, capsys):
    workplace.made = QuickEngine()
    assert main(["decode", "-i", "in.jsonl", "--json"]) == 0
    captured = capsys.readouterr()
    this_run = json.loads(captured.out)["this_run"]
    assert this_run["completion_tokens"] == 8
    assert [this_run[name] for name in ("engine_rounds", "prefill_tokens", "preemptions")] == [None] * 3
    assert "planned rounds" not in captured.err and "mean acceptance length" in captured.err


def test_json_is_one_document_and_quiet_is_quiet(workplace, capsys):
    assert main(["decode", "-i", "in.jsonl", "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["completion_tokens"] == 8
    assert captured.err == ""
    assert main(["decode", "-i", "in.jsonl", "--json", "--quiet"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["exit_code"] == 2
    assert captured.err.startswith("dspark: dspark-out/decode.jsonl exists\n")


def test_error_rows_exit_with_3_and_the_first_are_listed_by_line(workplace, capsys):
    with open("in.jsonl", "a") as file:
        file.write("nonsense\n" + '{"prompt": "a", "top_p": 7}\n' * 6)
    assert main(["decode", "-i", "in.jsonl"]) == 3
    told = capsys.readouterr().err.splitlines()
    start = told.index("dspark: 7 of 9 rows could not be decoded, see `error` in dspark-out/decode.jsonl")
    assert told[start + 1].startswith("  line 3: not JSON")
    assert told[start + 2] == "  line 4: top_p is 7. Give a number above 0 and up to 1 (1 = off)."
    assert [line[:9] for line in told[start + 3 : start + 6]] == ["  line 5:", "  line 6:", "  line 7:"]
    assert told[start + 6 :] == ["  and 2 more: `error` of their rows says why"]


def test_error_rows_are_told_in_one_line_when_quiet(workplace, capsys):
    with open("in.jsonl", "a") as file:
        file.write("nonsense\n")
    assert main(["decode", "-i", "in.jsonl", "--quiet"]) == 3
    told = capsys.readouterr().err
    assert told == "dspark: 1 of 3 rows could not be decoded, see `error` in dspark-out/decode.jsonl\n"


def test_the_first_answers_are_shown_to_a_person_alone(workplace, capsys):
    rows = [
        {"prompt": ""},
        {"prompt": "red\x1b[2J\n blue", "custom_id": "colours"},
        {"prompt": "x" * 900},
        {"prompt": "c"},
    ]
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["decode", "-i", "in.jsonl", "--max-tokens", "900"]) == 3
    told = capsys.readouterr().err
    assert "\ncolours: RED [2J BLUE\nrow 2: " + "X" * 197 + "...\n" in told
    assert "\nrow 3" not in told
    for flag in ("--json", "--quiet"):
        assert main(["decode", "-i", "in.jsonl", "--max-tokens", "900", "--overwrite", flag]) == 3
        assert "colours" not in capsys.readouterr().err


def test_fields_that_are_not_used_are_told_at_the_start_and_at_the_end(workplace, capsys):
    Path("in.jsonl").write_text('{"prompt": "one", "max_token": 1, "category": "a"}\n{"prompt": "two"}\n')
    assert main(["decode", "-i", "in.jsonl", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("in.jsonl has fields that are not used, in 1 row: `max_token` (1 row, did you mean")
    assert "max_token, category, in 1 of the input's rows" in captured.err
    assert json.loads(captured.out)["unused_fields"] == {"rows": 1, "rows_by_name": {"max_token": 1, "category": 1}}
    assert texts() == ["ONE", "TWO"]


def test_an_empty_input_is_warned_of_and_gives_an_empty_output(workplace, capsys):
    Path("in.jsonl").write_text("\n")
    assert main(["decode", "-i", "in.jsonl"]) == 0
    assert capsys.readouterr().err.startswith("in.jsonl holds no rows, so dspark-out/decode.jsonl will hold none.\n")
    assert Path("dspark-out/decode.jsonl").read_bytes() == b""


def test_default_drafter_belongs_to_the_default_target(workplace):
    assert main(["decode", "-i", "in.jsonl"]) == 0
    assert main(["decode", "-i", "in.jsonl", "--overwrite", "--target", "somewhere"]) == 0
    assert main(["decode", "-i", "in.jsonl", "--overwrite", "--drafter", "none"]) == 0
    drafters = [Path(config.drafter).name for config in workplace.configs]
    assert drafters == ["builtin_drafter", "none", "none"]


def test_a_fetched_drafter_shows_its_progress(workplace, capsys, monkeypatch):
    import dspark.engine.models.resolve

    def resolve(spec, *, progress):
        progress(f"Fetching {spec}", 1, 2)
        return None if spec == "none" else dspark.engine.models.resolve.builtin_drafter()

    monkeypatch.setattr(dspark.engine.models.resolve, "resolve_drafter", resolve)
    assert main(["decode", "-i", "in.jsonl", "--drafter", "org/name"]) == 0
    assert "Fetching org/name\n" in capsys.readouterr().err
    assert main(["decode", "-i", "in.jsonl", "--drafter", "org/name", "--policy", "none", "--overwrite"]) == 0
    assert "Fetching none\n" in capsys.readouterr().err


def test_a_full_disk_is_one_sentence(workplace, capsys):
    def full(index):
        raise OSError(28, "No space left on device")

    workplace.made = FakeEngine(before=full)
    assert main(["decode", "-i", "in.jsonl"]) == 1
    err = capsys.readouterr().err
    assert "no space is left" in err
    assert "--resume" in err
    assert "Traceback" not in err


def test_a_fault_of_ours_shows_where(workplace, capsys):
    def broken(index):
        raise ZeroDivisionError("oops")

    workplace.made = FakeEngine(before=broken)
    assert main(["decode", "-i", "in.jsonl"]) == 1
    assert "Traceback" in capsys.readouterr().err
