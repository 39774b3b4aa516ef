"""`--config FILE`: option values from TOML, which flags override."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dspark.engine.errors import UsageError
from dspark.engine.wording import closest

if TYPE_CHECKING:
    from collections.abc import Mapping


def apply_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Make the file's values the command's defaults.

    Top-level keys are the long option names of any command; a table named like a command holds values for that command
    alone.

    Raises:
        UsageError: the file cannot be read, or has a key or a value that no option takes.
    """
    if path is None or ctx.resilient_parsing:
        return path
    commands = getattr(ctx.find_root().command, "commands", {})
    own_name = ctx.info_name or ""
    own = _options(ctx.command)
    anywhere = {name for command in commands.values() for name in _options(command)}
    defaults: dict[str, Any] = {}
    content = _read(path)
    _refuse_two_spellings(content, str(path))
    for key, value in content.items():
        if key in commands and isinstance(value, dict):
            _refuse_two_spellings(value, f"[{key}] in {path}")
            known = _options(commands[key])
            values = {known[_known(name, known, path, table=key)]: (name, entry) for name, entry in value.items()}
            if key == own_name:
                defaults |= {param.name: _as_argument(param, name, v, path) for param, (name, v) in values.items()}
            continue
        name = _known(key, anywhere, path)
        if name in own:
            defaults.setdefault(own[name].name, _as_argument(own[name], key, value, path))
    ctx.default_map = defaults
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Check the path given to --config.") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deep", "Write lines like `max-tokens = 64`.") from None
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {error}", "Write lines like `max-tokens = 64`.") from None


def _refuse_two_spellings(content: Mapping[str, Any], where: str) -> None:
    for key in content:
        name = key.replace("_", "-")
        if name != key and name in content:
            raise UsageError(f"{where} has both `{name}` and `{key}`", "Keep one of them.")


def _options(command: Any) -> dict[str, Any]:
    """Long option name -> option, of those that make sense in a file."""
    return {
        flag.removeprefix("--"): param
        for param in command.params
        for flag in param.opts
        if flag.startswith("--") and flag not in ("--config", "--help")
    }


def _known(key: str, names: Mapping[str, Any] | set[str], path: Path, *, table: str = "") -> str:
    name = key.replace("_", "-")
    if name in names:
        return name
    meant = closest(name, names)
    where = f"[{table}] in {path}" if table else str(path)
    remedy = f"Did you mean `{meant}`?" if meant else f"Known are {', '.join(sorted(names))}."
    raise UsageError(f"{where} has an unknown key `{key}`", remedy)


def _as_argument(param: Any, key: str, value: Any, path: Path) -> Any:
    """A TOML value as the command line would bring it, so that both are checked alike."""
    if param.is_flag:
        if isinstance(value, bool):
            return value
        raise UsageError(f"`{key}` in {path} is no boolean", "Write true or false, without quotes.")
    values = value if param.multiple and isinstance(value, list) else [value]
    if any(isinstance(entry, bool) or not isinstance(entry, str | int | float) for entry in values):
        kinds = "a string or a list of strings" if param.multiple else "a string or a number"
        raise UsageError(f"`{key}` in {path} has a value of the wrong kind", f"Write {kinds}.")
    texts = [str(entry) for entry in values]
    if any("\0" in text for text in texts):
        raise UsageError(f"`{key}` in {path} holds a NUL character, which no option takes", "Remove it.")
    return texts if param.multiple else texts[0]
