"""A schedule (`.rls`) and the program that it is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlgraph.api.programs import Opened, changes, columns_in, open_file
from rlgraph.dsl import tree
from rlgraph.dsl.check import Checker
from rlgraph.dsl.parse import parse
from rlgraph.dsl.scope import Meaning
from rlgraph.dsl.use import assemble
from rlgraph.errors import Diagnostic, ProgramError, Span
from rlgraph.ir.graph import Program


def check_schedule(schedule: Opened, settings: Mapping[str, str], programs: Sequence[Path]) -> list[Diagnostic]:
    """What is wrong with a schedule. Raises ProgramError where it cannot be read, or its program is wrong.

    The program is the one of `programs` that has the schedule's name, or `NAME.rlf` beside the schedule.
    """
    from rlgraph.dsl.schedule import check_schedule as checked

    file = parse(schedule.source)
    heads = [item for item in file.declarations if isinstance(item, tree.Schedule)]
    if not heads:
        top = Span(schedule.source, 1, 1, 1, 2)
        message = "the file does not say what it is a schedule of"
        raise ProgramError(Diagnostic("E0808", message, top, "begin it with `schedule NAME`"))
    program, scope = _program_of(heads[0], schedule.folder, settings, programs)
    try:
        checked(file, program, schedule.source, scope)
    except ProgramError as error:
        return list(error.diagnostics)
    return []


Meanings = Mapping[str, Meaning]


def _program_of(
    head: tree.Schedule, folder: Path, settings: Mapping[str, str], programs: Sequence[Path]
) -> tuple[Program, Meanings]:
    for path in programs:
        program, scope = _program(path, settings)
        if program.name == head.name:
            return program, scope
    beside = folder / f"{head.name}.rlf"
    if beside.is_file():
        return _program(beside, settings)
    raise ProgramError(
        Diagnostic(
            "E0808",
            f"there is no program `{beside}` for this schedule",
            head.span,
            "give the program too: `rlgraph check PROGRAM.rlf SCHEDULE.rls`",
        )
    )


def _program(path: Path, settings: Mapping[str, str]) -> tuple[Program, Meanings]:
    """A program, and what its names mean: a schedule may use its params."""
    opened = open_file(str(path))
    checker = Checker(columns_in(opened.folder))
    program = checker.program(assemble(parse(opened.source), opened.source, checker), opened.source, changes(settings))
    errors = [found for found in checker.diagnostics if found.severity == "error"]
    if errors:
        raise ProgramError(errors)
    return program, checker.scope
