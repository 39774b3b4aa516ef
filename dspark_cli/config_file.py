"""`--config FILE`: option values from TOML, which flags override."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dspark.cli.errors import PARSER_ERROR, SeveralRefused, explain
from dspark.engine.errors import UsageError
from dspark.engine.wording import closest

if TYPE_CHECKING:
    from collections.abc import Mapping

_FLAG = re.compile(r"--[a-z][a-z-]*")
# Of the contexts' common memory: the command's context and its file.
_APPLIED = "dspark.cli.config_file"


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
    ctx.meta[_APPLIED] = (ctx, path)
    return path


@contextmanager
def file_named(ctx: Any) -> Iterator[None]:
    """Have usage errors that speak of an option say so where a configuration file set it.

    ctx: the command's, or the one above it.
    """
    try:
        yield
    except SeveralRefused as error:
        raise SeveralRefused([_naming_file(one, ctx) or one for one in error.errors]) from error
    except (UsageError, PARSER_ERROR) as error:
        named = _naming_file(error, ctx)
        if named is None:
            raise
        raise named from error


def _naming_file(error: Exception, ctx: Any) -> UsageError | None:
    """The error with the options that the file set; None if it speaks of none."""
    told = explain(error, resumable=False)
    keys = _set_by_file(ctx, set(_FLAG.findall(f"{told.message} {told.remedy}")))
    if not keys:
        return None
    names = " and ".join(f"`{key}`" for key in keys)
    where = f"{names} {'is' if len(keys) == 1 else 'are'} set in {ctx.meta[_APPLIED][1]}"
    return UsageError(f"{told.message} ({where})", told.remedy)


def _set_by_file(ctx: Any, flags: set[str]) -> list[str]:
    """Names of those options whose value comes from the configuration file, and not from a flag over it."""
    if _APPLIED not in ctx.meta:
        return []
    own: typer.Context = ctx.meta[_APPLIED][0]
    sources = {flag: own.get_parameter_source(param.name or "") for param in own.command.params for flag in param.opts}
    found = (flag for flag in sorted(flags & sources.keys()) if getattr(sources[flag], "name", "") == "DEFAULT_MAP")
    return [flag.removeprefix("--") for flag in found]


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
