"""Checks schedule files (`.rls`) with the programs that they are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rlgraph.dsl import tree
from rlgraph.dsl.check import Checked, check_program_and_schedule
from rlgraph.dsl.names import names_in
from rlgraph.dsl.parse import parse
from rlgraph.dsl.schedule import check_schedule as checked
from rlgraph.errors import Diagnostic, ProgramError, Related, Span
from rlgraph.passes.compilation.read_program import (
    OpenedProgram,
    make_column_reader,
    make_python_reference_checker,
    open_program_file,
    parse_settings,
)


def check_schedule_file(
    schedule: OpenedProgram, settings: Mapping[str, str], programs: Sequence[Path]
) -> list[Diagnostic]:
    """Return what is wrong with a schedule. Raises ProgramError where it cannot be read, or its program is wrong.

    The program is the one of `programs` with the schedule's name, or `NAME.rlf` in the schedule's folder.
    """
    file = parse(schedule.source)
    program = _program_of(_head(file, schedule), schedule.folder, settings, programs)
    try:
        checked(file, program.program, schedule.source, program.scope)
    except ProgramError as error:
        return list(error.diagnostics)
    return []


def program_beside(schedule: OpenedProgram) -> Path:
    """Return the path of the program that a schedule is for, in the schedule's folder. Raises ProgramError."""
    return _sibling(_head(parse(schedule.source), schedule), schedule.folder)


def with_schedule(program: Checked, schedule: OpenedProgram) -> Checked:
    """Return a program with a schedule. Raises ProgramError with all mistakes in the schedule."""
    file = parse(schedule.source)
    head = _head(file, schedule)
    if program.schedule.span.line:
        related = (Related(program.schedule.span, "it is here"),)
        message = f"the program `{program.program.name}` has a schedule of its own"
        raise ProgramError(Diagnostic("E0901", message, head.span, "keep one of them", related=related))
    checked_schedule = checked(file, program.program, schedule.source, program.scope)
    used = {name.id for name in names_in(file.declarations)}
    warnings = [
        warning for warning in program.warnings if warning.code != "W0201" or warning.span.covered_text not in used
    ]
    return replace(program, warnings=warnings, schedule=checked_schedule)


def _head(file: tree.File, schedule: OpenedProgram) -> tree.Schedule:
    heads = [item for item in file.declarations if isinstance(item, tree.Schedule)]
    if not heads or not heads[0].name:
        top = Span(schedule.source, 1, 1, 1, 2)
        message = "the file does not say what it is a schedule of"
        raise ProgramError(Diagnostic("E0808", message, top, "begin it with `schedule NAME`"))
    return heads[0]


def _program_of(head: tree.Schedule, folder: Path, settings: Mapping[str, str], programs: Sequence[Path]) -> Checked:
    for path in programs:
        program = _program(path, settings)
        if program.program.name == head.name:
            return program
    return _program(_sibling(head, folder), settings)


def _sibling(head: tree.Schedule, folder: Path) -> Path:
    sibling = folder / f"{head.name}.rlf"
    if sibling.is_file():
        return sibling
    raise ProgramError(
        Diagnostic(
            "E0808",
            f"there is no program `{sibling}` for this schedule",
            head.span,
            "give the program too: `rlgraph check PROGRAM.rlf SCHEDULE.rls`",
        )
    )


def _program(path: Path, settings: Mapping[str, str]) -> Checked:
    opened = open_program_file(str(path))
    folders = opened.search_folders
    return check_program_and_schedule(
        opened.source,
        parse_settings(settings),
        columns=make_column_reader(folders),
        faults=make_python_reference_checker(folders),
    )
