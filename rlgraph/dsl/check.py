"""Checks a program: declarations get their meaning, and each step becomes a graph.

Nothing is run here. No Python file of the user's is imported, and no file is opened but the program itself, those it
`use`s, and (through `columns`) the first rows of its data files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlgraph.dsl import tree
from rlgraph.dsl.bodies import emit_body
from rlgraph.dsl.branches import unread_branches
from rlgraph.dsl.columns import column_misuses, hidden_column_warnings
from rlgraph.dsl.context import Columns, Context, Faults
from rlgraph.dsl.declarations import declare, prelude, report_unknown_changes, report_unknown_names, report_unused
from rlgraph.dsl.expressions import evaluate_expression
from rlgraph.dsl.lints import is_allowed, lint
from rlgraph.dsl.loss_checks import row_choice_errors
from rlgraph.dsl.parse import parse
from rlgraph.dsl.phases import build_phases
from rlgraph.dsl.schedule import check_schedule
from rlgraph.dsl.scope import ExternalName, InvalidName, Meaning, ModelName, StatementError, StateName
from rlgraph.dsl.shared_statements import merge_repeated, write_out_statements
from rlgraph.dsl.step_numbers import count_steps
from rlgraph.dsl.use import Read, resolve_uses
from rlgraph.errors import Diagnostic, ProgramError, Related, Source, Span, sorted_diagnostics
from rlgraph.ir.graph import ConstructorCall, External, Program
from rlgraph.ir.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking a text."""

    program: Program
    warnings: list[Diagnostic]
    schedule: Schedule
    """The schedule of the block `schedule:`; empty if there is none."""
    scope: Mapping[str, Meaning]
    """The meaning of each name: a schedule in a file of its own may use the params."""


def check(
    source: Source,
    changes: Mapping[str, tree.Expr] | None = None,
    *,
    columns: Columns = lambda record: None,
    faults: Faults = lambda word, record, options: [],
    read: Read | None = None,
) -> tuple[Program, list[Diagnostic]]:
    """Return the program that a text describes, and warnings about it.

    `changes` replaces right sides of declarations by name. Raises ProgramError with everything that is wrong.
    """
    checked = check_program_and_schedule(source, changes, columns=columns, faults=faults, read=read)
    return checked.program, checked.warnings


def check_program_and_schedule(
    source: Source,
    changes: Mapping[str, tree.Expr] | None = None,
    *,
    columns: Columns = lambda record: None,
    faults: Faults = lambda word, record, options: [],
    read: Read | None = None,
) -> Checked:
    """Return what `check` returns, with the schedule and the names of the text."""
    context = new_context(columns, faults)
    file = resolve_uses(parse(source), source, context, read)
    if any(d.code != "E0803" for d in context.diagnostics):
        # Without the used file, the other errors cannot be known.
        raise ProgramError(sorted_diagnostics(context.diagnostics))
    program = _program(context, count_steps(write_out_statements(file, context)), source, changes or {})
    context.diagnostics = merge_repeated(context.diagnostics)
    # A value that seems unused may be used in a statement that is wrong: warnings wait until there are no errors.
    _raise_errors(context.diagnostics)
    diagnostics = [
        *context.diagnostics,
        *row_choice_errors(program),
        *unread_branches(program),
        *column_misuses(program, context.data_columns),
        *hidden_column_warnings(program, context.data_columns),
        *lint(program),
    ]
    schedule = Schedule()
    try:
        schedule = check_schedule(file, program, source, context.scope)
    except ProgramError as error:
        diagnostics += error.diagnostics
    _raise_errors(diagnostics)
    warnings = [warning for warning in sorted_diagnostics(diagnostics) if not is_allowed(warning)]
    return Checked(program, warnings, schedule, context.scope)


def _raise_errors(diagnostics: Sequence[Diagnostic]) -> None:
    """Raise the errors among the diagnostics, if any."""
    errors = [d for d in diagnostics if d.severity == "error"]
    if errors:
        raise ProgramError(sorted_diagnostics(errors))


def new_context(columns: Columns = lambda record: None, faults: Faults = lambda word, record, options: []) -> Context:
    """Return a context with what the language itself defines."""
    return Context(evaluator=evaluate_expression, writer=emit_body, columns=columns, faults=faults, scope=prelude())


def _program(context: Context, file: tree.File, source: Source, changes: Mapping[str, tree.Expr]) -> Program:
    """Return the program of a file."""
    top = Span(source, 1, 1, 1, max(2, len(source.line_text(1)) + 1))
    declared = file.declarations
    report_unknown_changes(context, declared, changes)
    context.below = {item.name: item.name_span for item in declared if isinstance(item, (tree.Declaration, tree.State))}
    for item in declared:
        if isinstance(item, (tree.Declaration, tree.State)):
            context.below.pop(item.name, None)
        try:
            declare(context, item, changes)
        except StatementError:
            if isinstance(item, (tree.Declaration, tree.State, tree.Def)):
                context.scope[item.name] = InvalidName()
    wrong = [item.name for item in declared if isinstance(item, tree.Def) and report_unknown_names(context, item)]
    context.scope.update({name: InvalidName() for name in wrong})
    algorithms = [item for item in declared if isinstance(item, tree.Algorithm)]
    if not algorithms:
        context.report(
            "E0609", "the file does not say what its algorithm is called", top, "begin it with `algorithm NAME`"
        )
    for extra in algorithms[1:]:
        context.report(
            "E0203", "a file is one algorithm", extra.span, related=(Related(algorithms[0].span, "the first one"),)
        )
    program_phases = build_phases(context, [item for item in declared if isinstance(item, tree.Phase)], top)
    report_unused(context, declared, source)
    meanings = context.scope.values()
    outside = [meaning.outside for meaning in meanings if isinstance(meaning, ExternalName)]
    # What is only read as a part of a mixture is opened by it.
    outside = [thing for thing in outside if thing.name not in context.parts - context.data_columns.keys()]
    outside += [External("buffer", f"{name}.surplus", ConstructorCall("surplus")) for name in sorted(context.collected)]
    return Program(
        algorithms[0].name if algorithms else "program",
        tuple(meaning.model for meaning in meanings if isinstance(meaning, ModelName)),
        tuple(outside),
        tuple(meaning.state for meaning in meanings if isinstance(meaning, StateName)),
        tuple(program_phases),
    )
