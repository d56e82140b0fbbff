"""Run files: how a program is run, as TOML that a person writes or a run has written.

    program = "grpo.rlf"
    schedule = "grpo.rls"
    steps = 200                # every long option of `rlgraph run` under its own name
    save-every = "30m"

    [set]
    lr = 1e-6                  # a number, true or false, or a text with an expression of the language

    [sweep]
    beta = [0, 0.1]
    seed = [0, 1, 2]

Paths begin in the folder of the file, or in `folder`, if it has that.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rlgraph.errors import ProgramError, Source, Span
from rlgraph.errors.source_files import read_source
from rlgraph.errors.toml_text import TomlText
from rlgraph.runs.options import RunOptions

UNREADABLE = "E0880"
UNKNOWN = "E0881"
OTHER_RUN = "E0883"

ENDING = ".toml"
PROGRAM, SCHEDULE, FOLDER, DIGEST, SET, SWEEP = "program", "schedule", "folder", "program-sha256", "set", "sweep"
"""The fields that are no options of the command."""
_AS_IT_IS = re.compile(r"true|false|-?(0|[1-9]\d{0,17})(\.\d+)?([eE][+-]?\d+)?")
_HINT = "a run file is TOML, as `run.toml` of a run's folder"
_OUTPUTS = ("record", "trace")
"""What a run writes elsewhere, which its repetition must not write over."""
_OF_A_RESUMED_RUN = ("resume", "changed")
_OPTION_NAMES = {"restarts": "max-restarts"}
"""The options that are called otherwise than the fields of `RunOptions`."""


@dataclass(frozen=True)
class RunFile:
    """What a run file says."""

    toml: TomlText
    folder: Path
    """Where its paths begin."""
    program: str
    schedule: str | None
    """A path, or the text of a schedule, which has several lines."""
    settings: Mapping[str, str]
    """Expressions of the language by name."""
    sweep: Mapping[str, tuple[str, ...]]
    """The values of every swept name."""
    options: Mapping[str, Any]
    """The values of options by their long names, as TOML has them."""

    def span(self, key: str, table: str = "") -> Span:
        """Return the place of a key."""
        return self.toml.key_span(key, table)

    def mistake(self, message: str, hint: str, key: str, table: str = "") -> ProgramError:
        """Return the error for a value that cannot stand there."""
        return self.toml.make_error(UNKNOWN, message, hint, self.span(key, table))


def read_run_file(path: str, options: Collection[str]) -> RunFile:
    """Read a run file. options: the long names of the options that may stand in it. Raise ProgramError with the line of
    what is wrong."""
    toml = TomlText(read_source(path, UNREADABLE, _HINT), UNREADABLE, UNKNOWN)
    content = toml.content
    toml.check_known_fields(content, [PROGRAM, SCHEDULE, FOLDER, DIGEST, *options, SET, SWEEP])
    texts = {name: _text(toml, name) for name in (PROGRAM, SCHEDULE, FOLDER, DIGEST)}
    program = texts[PROGRAM]
    if program is None:
        raise toml.make_error(UNKNOWN, "the file names no program", 'write `program = "NAME.rlf"`')
    file = RunFile(
        toml,
        Path(path).absolute().parent / (texts[FOLDER] or ""),
        program,
        texts[SCHEDULE],
        {name: _expression(toml, name, value, SET) for name, value in _table(toml, SET).items()},
        {name: _values(toml, name, value) for name, value in _table(toml, SWEEP).items()},
        {name: content[name] for name in content if name in options},
    )
    if not file.folder.is_dir():
        raise file.mistake(f"there is no folder `{texts[FOLDER]}`", "paths of the file begin there", FOLDER)
    _check_digest(file, texts[DIGEST])
    return file


def _text(toml: TomlText, name: str) -> str | None:
    value = toml.content.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise toml.make_error(UNKNOWN, f"`{name}` is no text", f'write `{name} = "..."`', toml.key_span(name))
    return value


def _table(toml: TomlText, name: str) -> Mapping[str, Any]:
    table = toml.content.get(name, {})
    if not isinstance(table, dict):
        raise toml.make_error(UNKNOWN, f"`{name}` is no table", f"write `[{name}]`", toml.key_span(name))
    return table


def _expression(toml: TomlText, name: str, value: object, table: str) -> str:
    """Return a value as an expression of the language."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str) and value.strip():
        return value.strip()
    hint = "give a number, true or false, or an expression of the language as text"
    raise toml.make_error(UNKNOWN, f"`{name}` has no value of the language", hint, toml.key_span(name, table))


def _values(toml: TomlText, name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        hint = f"write `{name} = [0, 0.1]`"
        raise toml.make_error(UNKNOWN, f"`{name}` has no list of values", hint, toml.key_span(name, SWEEP))
    return tuple(_expression(toml, name, item, SWEEP) for item in value)


def _check_digest(file: RunFile, expected: str | None) -> None:
    """Raise ProgramError if the program is not as it was when a run wrote the file."""
    if expected is None:
        return
    path = file.folder / file.program
    try:
        found = _digest(path.read_bytes().decode("utf-8-sig"))
    except (OSError, ValueError):
        # Whoever opens the program says why.
        return
    if found != expected:
        message = f"`{file.program}` has changed since the run that wrote this file"
        hint = f"what was run lies beside it; without the line `{DIGEST}` the program is run as it is now"
        raise file.toml.make_error(OTHER_RUN, message, hint, file.span(DIGEST))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# Writing


def run_file_text(
    source: Source,
    copy: Path,
    where: Mapping[str, object],
    settings: Mapping[str, str],
    options: RunOptions,
    others: Mapping[str, object] | None = None,
    sweep: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Return the run file of a run that is begun in the present folder.

    source: the program. copy: its copy in the run's folder, which stands for a program without a file. where: the
    schedule and the number of devices. settings: what was set. others: further options by their long names. sweep: what
    is swept.
    """
    is_file = Path(source.path).is_file()
    plain = {
        "folder": str(Path.cwd()),
        PROGRAM: source.path if is_file else str(copy.absolute()),
        DIGEST: _digest(source.text) if is_file else None,
        SCHEDULE: where.get("schedule"),
        "devices": where["devices"] if where.get("devices", 1) != 1 else None,
        **options_as_written(options),
        **(others or {}),
    }
    what = "goes on with the sweep" if sweep else "repeats the run"
    lines = [f"# `rlgraph run` with this file {what}.", *_entries(plain)]
    if settings:
        lines += ["", f"[{SET}]", *(f"{name} = {_expression_text(value)}" for name, value in settings.items())]
    if sweep:
        lines += ["", f"[{SWEEP}]"]
        lines += [f"{name} = [{', '.join(map(_expression_text, values))}]" for name, values in sweep.items()]
    return "\n".join(lines) + "\n"


def options_as_written(options: RunOptions) -> dict[str, object]:
    """Return the options of a run by their long names: steps and seed, and those that differ from their default."""
    left_out = (*_OUTPUTS, *_OF_A_RESUMED_RUN)
    return {
        _OPTION_NAMES.get(option.name, option.name.replace("_", "-")): value
        for option in fields(RunOptions)
        if option.name not in left_out
        and ((value := getattr(options, option.name)) != option.default or option.name in ("steps", "seed"))
    }


def _entries(values: Mapping[str, object]) -> list[str]:
    return [f"{name} = {_written(value)}" for name, value in values.items() if value is not None]


def _expression_text(value: str) -> str:
    """Return an expression of the language as TOML: a number as such where it is read back as it is written."""
    return value if _AS_IT_IS.fullmatch(value) else _written(value)


def _written(value: object) -> str:
    """Return a value as TOML."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    text = str(value)
    if '"' in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
