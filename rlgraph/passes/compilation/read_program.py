"""Reads what the user hands over: a program as a path or as text, and settings that change it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError, Source, Span, did_you_mean
from rlgraph.files import PROGRAMS, failure_reason, read_bytes
from rlgraph.user_code.code_diagnostics import FROM_A_CELL

if TYPE_CHECKING:
    from rlgraph.columns import Column
    from rlgraph.dsl.tree import Expr
    from rlgraph.ir.graph import ConstructorCall
    from rlgraph.user_code.files import SearchFolders

_ALIKE = 0.7
"""How similar the name of a file must be to be suggested, where many are alike."""

Setting = str | float | bool | Path
"""A value for a setting: a str is an expression of the language, as after `--set NAME=`; a path is a string of the
language."""


@dataclass(frozen=True, slots=True)
class OpenedProgram:
    """The source of a program that was read."""

    source: Source
    folder: Path
    """The folder of the program."""

    @property
    def search_folders(self) -> SearchFolders:
        """The folders to which its relative paths refer."""
        from rlgraph.user_code.files import SearchFolders

        return SearchFolders(self.folder)


def open_program(program: str | Path, name: str = "<text>") -> OpenedProgram:
    """Read a program from a path or a text. A str without a line break that ends in `.rlf` or `.rls`, or is a file, is
    a path, and one word is the name of an algorithm that ships: no program is one word.

    Raises ProgramError where the file cannot be read.
    """
    if isinstance(program, str) and program.isidentifier():
        return open_program_file(program)
    if isinstance(program, Path) or ("\n" not in program and (program.endswith(PROGRAMS) or os.path.isfile(program))):
        return open_program_file(str(program))
    return OpenedProgram(Source(name, program), Path())


def open_program_file(path: str) -> OpenedProgram:
    """Read the program in a file, or an algorithm that ships. Raises ProgramError where it cannot be read."""
    from rlgraph.dsl.use import LARGEST_BYTES

    if Path(path).suffix not in PROGRAMS and Path(path).is_file():
        _refuse_other_file(path)
    try:
        raw = read_bytes(path, LARGEST_BYTES, PROGRAMS)
    except FileNotFoundError:
        shipped = Path(__file__).parents[2] / "algorithms" / f"{path}.rlf"
        if path.isidentifier() and shipped.is_file():
            return open_program_file(str(shipped))
        raise _unreadable(path, f"there is no file `{path}`", _near(path)) from None
    except IsADirectoryError:
        raise _unreadable(path, f"`{path}` is a folder", f"name the files in it: `{path.rstrip('/')}/*.rlf`") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, f"`{path}` cannot be read: {failure_reason(error)}") from None
    return OpenedProgram(decode_source(path, raw), Path(path).parent)


def _refuse_other_file(path: str) -> None:
    """Raise ProgramError for a file whose ending says that it holds no program; a text may hold one."""
    from rlgraph.data.listing import ListedFile

    what, run = "", "run a program with "
    if Path(path).suffix.lower() == ".py":
        what, run = "a file of Python", f"{run}a function of it: `rlgraph run PROGRAM.rlf --reward {path}:NAME`"
    elif Path(path).suffix == ".json" and _is_plan_file(path):
        what, run = "a plan file", f"it has its program: name it alone, `rlgraph run {path}`"
    elif ListedFile(path, Path(path)).format not in ("", "text"):
        what, run = "a file of data", f"{run}it: `rlgraph run PROGRAM.rlf --data {path}`"
    if what:
        raise _unreadable(path, f"`{path}` is {what}, not a program", run)


def _is_plan_file(path: str) -> bool:
    """Return whether a file begins as plan files do, with the version that they are of."""
    try:
        with open(path, "rb") as file:
            return bool(re.match(rb'\s*\{\s*"rlgraph"\s*:', file.read(100)))
    except OSError:
        return False


def decode_source(path: str, raw: bytes) -> Source:
    """Decode a file's bytes. Raises ProgramError where they are not UTF-8."""
    try:
        # Some editors write a byte order mark.
        return Source(path, raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"`{path}` is no text in UTF-8: line {line} has the byte 0x{raw[error.start]:02x}"
        raise ProgramError(Diagnostic("E0806", message, file_span(path), "save it as UTF-8")) from None


def _unreadable(path: str, message: str, hint: str = "") -> ProgramError:
    return ProgramError(Diagnostic("E0805", message, file_span(path), hint))


def file_span(path: str) -> Span:
    """Return the span of a whole file, for which no line is shown."""
    return Span(Source(path, ""), 0, 0, 0, 0)


def _near(path: str) -> str:
    """Return a hint at a file that may have been meant: one in the same folder, or an algorithm that ships."""
    wanted = Path(path)
    try:
        siblings = [entry.name for entry in wanted.parent.iterdir() if entry.suffix in PROGRAMS]
    except OSError:
        return f"there is no folder `{wanted.parent}` either"
    shipped = Path(__file__).parents[2] / "algorithms" / wanted.name
    if shipped.is_file():
        return f"an algorithm of that name ships with rlgraph: `{shipped}`"
    if near := did_you_mean(wanted.name, siblings, str(wanted.parent / "{}"), _ALIKE):
        return near
    ships = did_you_mean(path, [entry.stem for entry in shipped.parent.glob("*.rlf")]) if path.isidentifier() else ""
    return ships or "give a file, or the name of an algorithm that ships: `rlgraph list` has them"


def settings_as_text(settings: Mapping[str, Setting] | None) -> dict[str, str]:
    """Return every setting as an expression of the language."""
    if settings is not None and not (isinstance(settings, Mapping) and all(isinstance(key, str) for key in settings)):
        message = f"`set` is a dict of names and values, not {settings!r:.60}"
        raise ProgramError(Diagnostic("E0807", message, NO_SPAN, 'as in `set={"lr": 1e-6}`'))
    return {name: _text(name, value) for name, value in (settings or {}).items()}


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)) and math.isfinite(value):
        return repr(value)
    if isinstance(value, Path):
        escaped = "".join("\\" + character if character in '\\"' else character for character in str(value))
        return f'"{escaped}"'
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(name, item) for item in value)}]"
    if isinstance(value, str):
        return value
    shown = " ".join(repr(value).split())
    message = f"`{name}` cannot be set to {shown:.60}: that is no value of the language"
    hint = "give a number, true or false, a path, or an expression as text"
    if callable(value):
        hint = f'a function is named by its file: `python("rewards.py:score")`, as a text{FROM_A_CELL}'
    elif isinstance(value, Mapping):
        hint = 'rows are in a file, `jsonl("rows.jsonl")`, or made by a function, `python("tasks.py:rows")`, as a text'
    elif hasattr(value, "to_json"):
        # A data frame of pandas, or a data set of `datasets`.
        hint = 'rows are in a file: `to_json("rows.jsonl", orient="records", lines=True)`, then `jsonl("rows.jsonl")`'
    raise ProgramError(Diagnostic("E0807", message, NO_SPAN, hint))


def parse_settings(settings: Mapping[str, str]) -> dict[str, Expr]:
    """Parse the settings. Raises ProgramError with a caret in each that is no expression."""
    from rlgraph.dsl.declarations import is_unquoted_text
    from rlgraph.dsl.parse import parse_expression
    from rlgraph.dsl.tree import String

    expressions: dict[str, Expr] = {}
    problems: list[Diagnostic] = []
    for name, text in settings.items():
        try:
            expressions[name] = parse_expression(Source(f"--set {name}", text))
        except ProgramError as error:
            if is_unquoted_text(text):
                # The setting's declaration says whether it may be a string.
                source = Source(f"--set {name}", text)
                expressions[name] = String(text, Span(source, 1, 1, 1, len(text) + 1))
                continue
            # The first mistake suffices: a string without quotes causes several.
            problems += error.diagnostics[:1]
    if problems:
        raise ProgramError(problems)
    return expressions


def with_quote_hints(found: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Return the diagnostics, with a better hint where a setting lacks quotes, as in `--set n=Qwen/Qwen2.5-7B`."""
    return [_with_quotes(diagnostic) for diagnostic in found]


def _with_quotes(diagnostic: Diagnostic) -> Diagnostic:
    from rlgraph.dsl.declarations import SET, is_unquoted_text

    path, text = diagnostic.span.source.path, diagnostic.span.source.text
    if diagnostic.code in ("E0804", "E0406") or "--set '" in diagnostic.hint:
        # Quotes do not make a name that there is not, nor a model or data of a text.
        return diagnostic
    if not path.startswith(SET) or not is_unquoted_text(text) or not any(sign in text for sign in "/.~:-"):
        return diagnostic
    name = path.removeprefix(SET)
    return replace(diagnostic, hint=f"a text has quotes of its own: `--set '{name}=\"{text}\"'`")


def make_python_reference_checker(
    folders: SearchFolders,
) -> Callable[[str, ConstructorCall, Collection[str]], list[Diagnostic]]:
    """Return a function that finds mistakes in references to the user's Python, without running or importing it."""

    def check_reference(word: str, record: ConstructorCall, known: Collection[str]) -> list[Diagnostic]:
        from rlgraph.data.emptiness import no_rows_errors
        from rlgraph.data.sources import check_source
        from rlgraph.user_code.environment_kinds import environment_declaration_faults
        from rlgraph.user_code.function_declarations import check_function_declaration
        from rlgraph.user_code.spec import CallSpec
        from rlgraph.user_code.static_checks import python_reference_faults

        args, options = record.plain_arguments()
        spec = CallSpec(record.name, args, options, record.span, dict(record.spans))
        if word == "data":
            try:
                check_source(spec)
            except ProgramError as error:
                return [*error.diagnostics]
            if empty := no_rows_errors(spec, folders):
                return empty
        if word == "env":
            return environment_declaration_faults(spec, folders)
        if record.name != "python":
            return []
        if word == "func":
            try:
                check_function_declaration(spec)
            except ProgramError as error:
                return [*error.diagnostics]
        return python_reference_faults(spec, folders, known, alone=word != "func")

    return check_reference


def make_column_reader(folders: SearchFolders) -> Callable[[ConstructorCall], Mapping[str, Column] | None]:
    """Return a function that reads the columns of data files, without running anything."""

    def read_columns(record: ConstructorCall) -> Mapping[str, Column] | None:
        from rlgraph.data.sources import source_columns
        from rlgraph.user_code.spec import CallSpec

        args, options = record.plain_arguments()
        return source_columns(CallSpec(record.name, args, options, record.span), folders)

    return read_columns
