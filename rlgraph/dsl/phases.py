"""Builds the graph of each phase and of the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from rlgraph.dsl import constants, tree
from rlgraph.dsl.context import Block, Context, PhaseContext
from rlgraph.dsl.loops import emit_data_read
from rlgraph.dsl.names import names_used
from rlgraph.dsl.nodes import next_state_value
from rlgraph.dsl.scope import ExternalName, ModelName, StatementError, StateName
from rlgraph.dsl.signatures import STATEMENTS
from rlgraph.dsl.staleness_bounds import apply_staleness_bounds
from rlgraph.errors import Related, Span
from rlgraph.ir.graph import Constant, Graph, Phase, Staleness, Value
from rlgraph.ir.types import StateHandle, Tensor


def build_phases(context: Context, found: Sequence[tree.Phase], top: Span) -> list[Phase]:
    """Return every phase without errors, the step last."""
    if not any(phase.name == "step" for phase in found):
        context.report("E0609", "the program has no `step:`", top, "say in `step:` what one step does")
    seen: dict[str, Span] = {}
    built: list[Phase] = []
    for item in found:
        if item.name in seen:
            context.report(
                "E0203",
                f"there are two phases `{item.name}`",
                item.span,
                related=(Related(seen[item.name], "the first one"),),
            )
        seen[item.name] = item.span
        try:
            built.append(_phase_with_buffers(context, item))
        except StatementError:
            continue
    built = apply_staleness_bounds(context, built, {item.name: item for item in found})
    return sorted(built, key=lambda phase: phase.name == "step")


def _phase_with_buffers(context: Context, item: tree.Phase) -> Phase:
    """Return a phase. Where it reads a buffer above the line that says what the buffer holds, it is checked again, with
    what it pushed the first time."""
    before = (
        len(context.diagnostics),
        context.error_count,
        set(context.used),
        dict(context.axes),
        set(context.collected),
        context.phase,
    )
    context.buffers_read_early = {}
    phase = _phase(context, item)
    _drop_errors_of_wrong_pushes(context)
    if not any(name in context.buffers for name in context.buffers_read_early):
        return phase
    count, context.error_count, context.used, context.axes, context.collected, context.phase = before
    del context.diagnostics[count:]
    return _phase(context, item)


def _drop_errors_of_wrong_pushes(context: Context) -> None:
    """Take back that it is not known what a buffer holds where the `push` that would say it is wrong itself."""
    early = context.buffers_read_early
    follow_on = [said for name in context.wrong_pushes for said in early.get(name, ())]
    context.diagnostics[:] = [said for said in context.diagnostics if not any(said is other for other in follow_on)]
    context.error_count -= len(follow_on)


def _phase(context: Context, item: tree.Phase) -> Phase:
    steps, staleness = _options(context, item)
    context.used -= set(context.phase.assigned)
    collected = {statement.table.id for statement in _walk(item.body) if isinstance(statement, tree.Collect)}
    context.phase = PhaseContext(staleness, frozenset(name for name in collected if _is_data(context, name)))
    context.collected |= context.phase.collected
    inputs = _phase_inputs(context, item)
    versions = {kind.type.name if isinstance(kind.type, StateHandle) else name: kind for name, kind in inputs.items()}
    context.block = Block(dict(context.scope), versions)
    for name in _read_first(context, item.body):
        emit_data_read(context, name)
    context.emit_body(item.body)
    # What follows from a wrong declaration is left out without a word.
    if not context.block.nodes and not any(found.severity == "error" for found in context.diagnostics):
        context.report("E0609", f"`{item.name}` does nothing", item.span)
    _unused_values(context)
    names = tuple(context.block.versions[name].name for name in versions)
    graph = Graph(tuple(inputs.values()), tuple(context.block.nodes), names)
    return Phase(item.name, graph, steps, staleness)


def _options(context: Context, item: tree.Phase) -> tuple[int | None, Staleness]:
    """Return how many steps a phase has, and how old the weights are that sample."""
    steps: Constant = None
    staleness = Staleness()
    if item.asynchronous:
        staleness = _staleness(context, item)
    elif item.name != "step":
        steps = constants.evaluate_options(context, STATEMENTS["phase"], item.options, item.span, context.scope)[
            "steps"
        ]
    elif item.options:
        raise context.statement_error(
            "E0401",
            f"`step` has no option `{item.options[0].name}`",
            item.options[0].name_span,
            "write `step async(lag=2):` to let sampling run ahead",
        )
    assert steps is None or isinstance(steps, int)
    return steps, staleness


def _staleness(context: Context, item: tree.Phase) -> Staleness:
    """Return the age of the weights that sample: `lag` is exact, `staleness` a bound, under which rows may span
    versions."""
    values = constants.evaluate_options(context, STATEMENTS["async"], item.options, item.span, context.scope)
    given = [option for option in item.options if option.name in ("lag", "staleness")]
    hint = "`lag=2`: rows come from the weights of 2 steps ago; `staleness=2`: of at most 2"
    if not given:
        raise context.statement_error("E0402", "`async` needs `lag` or `staleness`", item.span, hint)
    first, *more = given
    if more:
        message = "`lag` is an age, and `staleness` a bound of it: only one of them can be said"
        raise context.statement_error(
            "E0407", message, more[0].name_span, hint, related=(Related(first.name_span, "the other"),)
        )
    steps = values[first.name]
    assert isinstance(steps, int)
    span, updates = values["span"] or "row", values["unit"] == "update"
    for name, usual in (("late", "wait"), ("order", "data")) if first.name == "lag" else ():
        if values[name] != usual:
            place = next(option for option in item.options if option.name == name)
            message = f"with `lag` rows are as old as it says, and `{name}={values[name]}` is for a bound"
            raise context.statement_error("E0407", message, place.value.span, "bound their age instead: `staleness=2`")
    if updates and first.name == "lag":
        place = next(option for option in item.options if option.name == "unit")
        message = "`lag` counts steps, and `unit=update` is for a bound"
        raise context.statement_error(
            "E0407", message, place.value.span, "`staleness=7, unit=update`: at most 7 updates behind"
        )
    if updates:
        # The bound in steps is known only when the graph is.
        return Staleness(steps, False, cast(Literal["row", "turn", "token"], span), steps)
    exact = first.name == "lag" or steps == 0
    if exact and span != "row":
        place = next(option for option in item.options if option.name == "span")
        message = (
            f"all tokens of a row are of one version with `{first.name}={steps}`, and `span={span}` is for several"
        )
        raise context.statement_error(
            "E0407", message, place.value.span, "bound their age instead: `staleness=1`, or more"
        )
    return Staleness(steps, exact, cast(Literal["row", "turn", "token"], span))


def _is_data(context: Context, name: str) -> bool:
    meaning = context.scope.get(name)
    return isinstance(meaning, ExternalName) and meaning.outside.kind == "data"


def _phase_inputs(context: Context, item: tree.Phase) -> dict[str, Value]:
    """Return the first versions of everything living across steps that the phase names, or a copy of what it names."""
    named = names_used(context, item.body)
    inputs: dict[str, Value] = {}
    for name, meaning in context.scope.items():
        if name not in named:
            continue
        if isinstance(meaning, ModelName):
            inputs[name] = next_state_value(context, name, StateHandle("model", name))
        elif isinstance(meaning, StateName):
            kind = StateHandle("keyed", name) if meaning.state.keyed else Tensor("float")
            inputs[name] = next_state_value(context, name, kind)
        elif isinstance(meaning, ExternalName) and meaning.outside.kind == "data":
            inputs[name] = next_state_value(context, name, StateHandle("cursor", name))
            if name in context.phase.collected:
                surplus = f"{name}.surplus"
                inputs[surplus] = next_state_value(context, surplus, StateHandle("buffer", surplus))
        elif isinstance(meaning, ExternalName) and meaning.outside.kind == "buffer":
            inputs[name] = next_state_value(context, name, StateHandle("buffer", name))
    return inputs


def _read_first(context: Context, body: Sequence[tree.Stmt]) -> list[str]:
    """Return the data that are read when the step begins: all but what `collect` reads and what only `every` needs."""
    named = names_used(context, tuple(statement for statement in body if not isinstance(statement, tree.OnSteps)))
    later = context.phase.collected
    return [name for name in context.scope if name in named and _is_data(context, name) and name not in later]


def _unused_values(context: Context) -> None:
    for name, span in context.phase.assigned.items():
        if name not in context.used and not name.startswith("_"):
            context.report("W0201", f"`{name}` is never used", span, "use it, report it or leave it out")


def _walk(body: Sequence[tree.Stmt]) -> list[tree.Stmt]:
    """Return statements, with those of the blocks in which `collect` may stand."""
    statements: list[tree.Stmt] = []
    for statement in body:
        statements.append(statement)
        if isinstance(statement, (tree.Collect, tree.OnSteps)):
            statements += _walk(statement.body)
    return statements
