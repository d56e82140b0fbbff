"""Writes bodies, statement by statement; a wrong statement does not keep the others from being checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlgraph.dsl import tree
from rlgraph.dsl.conditions import emit_if, emit_stop
from rlgraph.dsl.context import Context
from rlgraph.dsl.loops import assigned_names, emit_collect, emit_minibatch, emit_on_steps, emit_train
from rlgraph.dsl.reports import emit_report
from rlgraph.dsl.scope import InvalidName, StatementError
from rlgraph.dsl.selecting import emit_keep, emit_resample
from rlgraph.dsl.shared_statements import CALLED_HERE
from rlgraph.dsl.statements import emit_assign, emit_minimize, emit_push, emit_store, emit_update
from rlgraph.errors import Related


def emit_body(context: Context, body: Sequence[tree.Stmt]) -> None:
    """Write the nodes of a body into the current block."""
    context.block.later = dict(assigned_names(body))
    for at, statement in enumerate(body):
        said = len(context.diagnostics)
        try:
            if isinstance(statement, tree.Stop):
                emit_stop(context, statement, body[at + 1 :])
                return
            _statement(context, statement)
        except RecursionError:
            context.report(
                "E0210",
                "this has too many levels to be understood, the defs that it calls written out",
                statement.span,
                "give a part of it a name on a line of its own",
            )
            _forget(context, statement)
        except StatementError:
            if isinstance(statement, tree.Push) and len(context.diagnostics) > said:
                context.wrong_pushes.add(statement.buffer.id)
            _forget(context, statement)
        finally:
            _note_calls(context, statement, said)


def _note_calls(context: Context, statement: tree.Stmt, said: int) -> None:
    """Add to what was said of a statement of a def where the def is called."""
    _, calls = context.calls.get(id(statement), (statement, ()))
    for at in range(said, len(context.diagnostics)) if calls else ():
        before = context.diagnostics[at]
        notes = [Related(call, CALLED_HERE) for call in calls]
        related = (*before.related, *(note for note in notes if note not in before.related))
        noted = context.diagnostics[at] = replace(before, related=related)
        for name, early in context.buffers_read_early.items():
            context.buffers_read_early[name] = [noted if other is before else other for other in early]


def _forget(context: Context, statement: tree.Stmt) -> None:
    """Mark what a wrong statement would have made as wrong, so that its uses are no new mistakes."""
    wrong = {name for name, _ in assigned_names([statement]) if name not in context.declared}
    if isinstance(statement, tree.Collect) and statement.table.id in context.phase.collected:
        wrong.add(statement.table.id)
    context.block.scope.update(dict.fromkeys(wrong, InvalidName()))


def _statement(context: Context, statement: tree.Stmt) -> None:
    if context.block.training and isinstance(
        statement, (tree.Store, tree.Keep, tree.Resample, tree.Push, tree.Update, tree.If)
    ):
        raise context.statement_error(
            "E0505",
            "this cannot stand in a `train` body",
            statement.span,
            "a `train` body computes a loss; move it above or below",
        )
    match statement:
        case tree.Assign():
            emit_assign(context, statement)
        case tree.Store():
            emit_store(context, statement)
        case tree.Minimize():
            emit_minimize(context, statement)
        case tree.Report():
            emit_report(context, statement)
        case tree.Keep():
            emit_keep(context, statement)
        case tree.Resample():
            emit_resample(context, statement)
        case tree.Push():
            emit_push(context, statement)
        case tree.Update():
            emit_update(context, statement)
        case tree.Train():
            emit_train(context, statement)
        case tree.Minibatch():
            emit_minibatch(context, statement)
        case tree.Collect():
            emit_collect(context, statement)
        case tree.OnSteps():
            emit_on_steps(context, statement)
        case tree.If():
            emit_if(context, statement)
        case tree.Run():
            raise AssertionError("calls of statements are written out before")
        case tree.Return():
            raise context.statement_error("E0505", "`return` ends a `def`", statement.span)
