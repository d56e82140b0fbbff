"""The options of `rlgraph run` that a run file (`run.toml`) gives, where the command line does not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from rlgraph.runs.run_file import RunFile
    from rlgraph.runs.sweeps.points import SweptName

_ONLY_COMMAND_LINE = ("help", "message-format", "set", "sweep", "resume", "changed")
"""The options that no run file has: `set` and `sweep` are tables in it."""
_PLACES = re.compile(r"(\w+=)?([^,:]+)(.*)", re.DOTALL)
"""A value of `--data` or `--reward`: a name, a path, and what follows it."""


def options_of_run_files(command: click.Command) -> dict[str, click.Option]:
    """Return the options that may stand in a run file, by their long names."""
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    named = {option.opts[0].removeprefix("--"): option for option in options}
    return {name: option for name, option in named.items() if name not in _ONLY_COMMAND_LINE}


def with_run_file(context: click.Context, given: Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
    """Return the parameters of the command with those of its run file, and the folder in which its paths begin. What
    the command line gives wins; its paths are made absolute. Raise ProgramError with the line of what is wrong."""
    from rlgraph.runs.run_file import read_run_file

    options = options_of_run_files(context.command)
    file = read_run_file(given["file"], options)
    values = {name: _absolute(context, name, value) for name, value in given.items()}
    for name, value in file.options.items():
        option = options[name]
        assert option.name is not None
        if not is_on_command_line(context, option.name):
            values[option.name] = _converted(context, file, name, option, value)
            context.set_parameter_source(option.name, ParameterSource.DEFAULT_MAP)
    values["file"] = file.program
    if values["schedule"] is None and file.schedule is not None:
        values["schedule"] = file.schedule if "\n" in file.schedule else Path(file.schedule)
    set_here = {text.partition("=")[0].strip() for text in given["settings"]}
    swept_here = {text.partition("=")[0].strip() for text in given["sweep"]}
    seed_here = {"seed"} if is_on_command_line(context, "seed") else set()
    values["settings"] = (
        *given["settings"],
        *(f"{name}={text}" for name, text in file.settings.items() if name not in set_here | swept_here),
    )
    values["sweep"] = (
        *(_swept(file, name) for name in file.sweep if name not in set_here | swept_here | seed_here),
        *given["sweep"],
    )
    return values, file.folder


def is_on_command_line(context: click.Context, name: str) -> bool:
    """Return whether the user typed a parameter."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _swept(file: RunFile, name: str) -> SweptName:
    from rlgraph.runs.run_file import SWEEP
    from rlgraph.runs.sweeps.points import make_swept_name

    span = file.span(name, SWEEP)
    return make_swept_name(name, file.sweep[name], span, [span] * len(file.sweep[name]))


def _absolute(context: click.Context, name: str, value: Any) -> Any:
    """Return a parameter of the command line with its path made absolute."""
    if not is_on_command_line(context, name):
        return value
    if isinstance(value, Path):
        return value.absolute()
    if name in ("data", "rewards"):
        return tuple(map(_absolute_source, value))
    return value


def _absolute_source(text: str) -> str:
    """Return a value of `--data` or `--reward` with its path made absolute, if it is one."""
    place = _PLACES.fullmatch(text)
    if place is None or not Path(place[2]).exists():
        return text
    return f"{place[1] or ''}{Path(place[2]).absolute()}{place[3]}"


def _converted(context: click.Context, file: RunFile, name: str, option: click.Option, value: Any) -> Any:
    """Return a value of the file as the command line would have it. Raise ProgramError if it would not take it."""
    if option.is_flag:
        if isinstance(value, bool):
            return value
        raise file.mistake(f"`{name}` is yes or no", f"write `{name} = true`", name)
    texts = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not option.multiple:
        raise file.mistake(f"`{name}` has one value, and not a list", f"write `{name} = ...`", name)
    if any(isinstance(text, (bool, list, dict)) for text in texts):
        raise file.mistake(f"`{name}` is a text or a number", f'write `{name} = "..."`', name)
    plain = [text if isinstance(text, str) else repr(text) for text in texts]
    try:
        return option.type_cast_value(context, plain if option.multiple else plain[0])
    except click.BadParameter as error:
        hint = f"as `--{name}` of the command line: `rlgraph run --help`"
        raise file.mistake(f"`{name}` cannot be that: {error.message.rstrip('.')}", hint, name) from None
