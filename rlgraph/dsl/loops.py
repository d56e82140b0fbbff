"""Checks loops and training steps: a body is checked in its own block and becomes the region of a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rlgraph.dsl import constants, tree
from rlgraph.dsl.context import Block, Context
from rlgraph.dsl.exports import LoopExporter
from rlgraph.dsl.names import axis_named, model_named, names_used
from rlgraph.dsl.nodes import copy_column_sources, emit_node, materialize, new_axis, next_state_value, unique_name
from rlgraph.dsl.pairs import drop_pairs
from rlgraph.dsl.reports import emit_report
from rlgraph.dsl.scope import (
    ExternalName,
    InvalidName,
    Meaning,
    StatementError,
    TableValue,
    UnavailableName,
    describe_meaning,
    meaning_of,
)
from rlgraph.dsl.signatures import STATEMENTS
from rlgraph.dsl.step_numbers import computed_options
from rlgraph.errors import Related, Span
from rlgraph.ir.graph import (
    Constant,
    External,
    Graph,
    Node,
    Value,
    captured_names,
)
from rlgraph.ir.types import Axis, StateHandle, Table


def emit_train(context: Context, statement: tree.Train) -> None:
    """Check `train actor(lr=1e-6):` and write its node."""
    if context.block.training:
        raise context.statement_error(
            "E0508", "a `train` body cannot train", statement.span, "move it below this `train` block"
        )
    model = model_named(context, statement.model)
    if model.frozen:
        raise context.statement_error(
            "E0502",
            f"`{model.name}` is frozen: no gradient goes to it",
            statement.model.span,
            "declare it without `frozen(...)`",
            (Related(model.span, "it is declared here"),),
        )
    constant, computed = computed_options(context, model.name, statement)
    options = constants.evaluate_options(context, STATEMENTS["train"], constant, statement.span, context.block.scope)
    loss: list[str] = []

    def emit_train_body() -> None:
        for name, value in computed.items():
            handle = context.block.versions[model.name].name
            emit_node(context, Node("setting", (handle, value), (), (("name", name),), span=statement.span))
        context.emit_body(statement.body)
        if len(context.block.minimized) != 1:
            if not any(isinstance(inner, tree.Minimize) for inner in statement.body):
                raise context.statement_error(
                    "E0503",
                    "nothing is minimized in this `train` body",
                    statement.span,
                    "end it with `minimize LOSS`",
                )
            if len(context.block.minimized) > 1:
                raise context.statement_error(
                    "E0503",
                    "a `train` body minimizes one value",
                    context.block.minimized[1][1],
                    "add the losses: `minimize a + b`",
                )
            raise StatementError
        loss.append(materialize(context, context.block.minimized[0][0], f"{model.name}.loss"))

    write_region(
        context,
        "train",
        [model.name],
        emit_train_body,
        options,
        statement.span,
        training=model.name,
        defers=True,
        loss=loss,
    )


def emit_minibatch(context: Context, statement: tree.Minibatch) -> None:
    """Check `minibatch rollout(parts=4):` and write its node."""
    context.refuse_in_train("minibatch", statement.span, "swap the two")
    axis = axis_named(context, statement.table)
    if axis is None:
        raise context.statement_error(
            "E0303",
            f"rows are sliced, and `{statement.table.id}` is no axis of rows",
            statement.table.span,
            "name the table that is sliced: `minibatch rollout(parts=4):`",
        )
    beside = _beside(context, statement, axis)
    options = constants.evaluate_options(
        context,
        STATEMENTS["minibatch"],
        [option for option in statement.options if option.name != "beside"],
        statement.span,
        context.block.scope,
    )
    options |= {"axis": axis.key, "key": f"minibatch.{axis.key}"}
    if beside:
        options["beside"] = tuple(other.key for other in beside)

    def body() -> None:
        for sliced in (axis, *beside):
            reason = f"pairs rows that a slice of `{sliced.name}` need not have both of: slice what they lie in"
            drop_pairs(context, sliced, reason, statement.span, whole=True)
        context.emit_body(statement.body)

    write_region(
        context,
        "minibatch",
        names_written(context, statement.body),
        body,
        options,
        statement.span,
        defers=True,
        sliced=True,
    )


def _beside(context: Context, statement: tree.Minibatch, axis: Axis) -> list[Axis]:
    """Return the axes of the tables that `beside=` names: other ones than the sliced axis, and nothing that lies in it
    or around it."""
    found: list[Axis] = []
    named = next((option.value for option in statement.options if option.name == "beside"), None)
    for item in named.items if isinstance(named, tree.List) else (named,) if named else ():
        other = axis_named(context, item) if isinstance(item, tree.Name) else None
        if other is None:
            message = f"`beside` takes tables, and `{item.span.covered_text}` is none"
            hint = "name the table that is sliced, too: `beside=experts`, or several: `beside=[experts, old]`"
            raise context.statement_error("E0221", message, item.span, hint)
        near = next((one for one in (axis, *found) if one.is_within(other) or other.is_within(one)), None)
        if near is not None:
            message = f"the rows of `{item.span.covered_text}` and of `{near.name}` are the same, or lie in one another"
            hint = "a slice has all that lies in its rows: leave it out here, or slice the outer table"
            raise context.statement_error("E0221", message, item.span, hint)
        found.append(other)
    return found


def emit_collect(context: Context, statement: tree.Collect) -> None:
    """Check `collect prompts(512):` and write its node."""
    name = statement.table.id
    if context.block.training or context.block.sliced or context.block.conditional:
        raise context.statement_error(
            "E0505", "`collect` cannot stand here", statement.span, "move it to the top of the step"
        )
    meaning = meaning_of(context.block.scope, name)
    if not isinstance(meaning, ExternalName) or meaning.outside.kind != "data":
        above = name in context.declared and isinstance(meaning, TableValue)
        shown = f"and this is {describe_meaning(meaning)}" if meaning else f"and nothing is called `{name}`"
        shown = "and this one is read above already" if above else shown
        raise context.statement_error(
            "E0603",
            f"`collect` reads from a data source, {shown}",
            statement.table.span,
            "name a `data` that the lines above do not use",
        )
    args, options = constants.bind_arguments(
        context, STATEMENTS["collect"], statement.args, statement.options, statement.span, context.block.scope
    )
    attrs = args | {option: value for option, value in options.items() if value not in (None, "carry")}
    if "ahead" in attrs:
        attrs["batch"] = _batch(context, statement, meaning.outside)
    writes = [
        name,
        f"{name}.surplus",
        *(written for written in names_written(context, statement.body) if written != name),
    ]

    def emit_collect_body() -> None:
        context.block.collects = True
        emit_data_read(context, name)
        context.emit_body(statement.body)
        table = context.block.scope[name]
        if not isinstance(table, TableValue):
            raise StatementError
        attrs["axis"] = table.type.axis.key
        if attrs.get("rest") == "longest":
            _by_length(context, statement, table.type.axis)

    write_region(context, "collect", writes, emit_collect_body, attrs, statement.span, defers=True)


def _by_length(context: Context, statement: tree.Collect, axis: Axis) -> None:
    """Let the body of a `collect` that takes the rows which end first tell which these are, by their lengths."""
    place = next(option.span for option in statement.options if option.name == "rest")
    if not any(option.name == "ahead" for option in statement.options):
        message = "`rest=longest` chooses among rows that are begun side by side, and no more are begun than are taken"
        hint = "say how many times as many: `ahead=1.25`"
        raise context.statement_error("E0411", message, place, hint)
    lengths = []
    tables = [
        meaning
        for name, meaning in context.block.scope.items()
        if isinstance(meaning, TableValue) and meaning.type.sampled and name not in context.scope
    ]
    for table in [
        sampled for sampled in tables if axis.key in {above.key for above in sampled.type.axis.path_to_root()}
    ]:
        column = Value(unique_name(context, f"{table.name}.ended"), table.type.column_types()["length"])
        emit_node(context, Node("column", (table.name,), (column,), (("name", "length"),), span=statement.span))
        lengths.append(column.name)
    if not lengths:
        if any(
            isinstance(meaning, InvalidName)
            for name, meaning in context.block.scope.items()
            if name not in context.scope
        ):
            # A wrong statement may have generated it.
            raise StatementError
        message = f"nothing is generated for `{axis.name}` in this `collect`, so that no row of it is the longest"
        raise context.statement_error("E0411", message, place, "take the rows in the order of the data: `rest=later`")
    emit_node(context, Node("soonest", tuple(lengths), (), (("axis", axis.key),), span=statement.span))


def _batch(context: Context, statement: tree.Collect, source: External) -> Constant:
    """Return how many rows are read at a time: `ahead` counts batches."""
    size: Constant = source.record.option("batch")
    if size is None:
        place = next(option.span for option in statement.options if option.name == "ahead")
        message = f"`ahead` counts batches, and `{source.name}` is read whole"
        raise context.statement_error(
            "E0403", message, place, "say how many rows a batch has: `batch=64`", (Related(source.span, "here"),)
        )
    return size


def emit_on_steps(context: Context, statement: tree.OnSteps) -> None:
    """Check `every 20:` and write its node."""
    word = statement.word
    if context.block.training or context.block.sliced:
        raise context.statement_error(
            "E0505", f"`{word}` counts steps: it cannot stand in a loop", statement.span, "move it out of the loop"
        )
    count = constants.evaluate_constant(context, statement.count, context.block.scope)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise context.statement_error(
            "E0403", f"`{word}` takes a whole number of steps, at least 1", statement.count.span
        )
    unread = [
        name for name in _data_names(context, statement.body) if isinstance(context.block.scope[name], ExternalName)
    ]
    unread = [name for name in unread if name not in context.phase.collected]

    def emit_on_steps_body() -> None:
        for name in unread:
            emit_data_read(context, name)
        context.emit_body(statement.body)

    writes = [*unread, *(name for name in names_written(context, statement.body) if name not in unread)]
    write_region(context, word, writes, emit_on_steps_body, {"steps": count}, statement.span, export=False)
    # A name that was there before, too: what it means below is not what the line above says.
    for name in {name for name, _ in assigned_names(statement.body)}:
        context.block.scope[name] = UnavailableName(
            f"`{name}` is assigned on some steps only, and cannot be used after `{word}`", statement.span
        )


def emit_data_read(context: Context, name: str) -> None:
    """Emit the reading of the next rows of a data source."""
    source = context.block.scope[name]
    assert isinstance(source, ExternalName)
    axis = new_axis(context, name, None)
    table = Value(unique_name(context, name), Table(axis, data=_data_columns(context, source.outside)))
    handle = context.block.versions[name]
    cursor = next_state_value(context, name, handle.type)
    emit_node(context, Node("read", (handle.name,), (table, cursor), span=source.outside.span))
    context.block.versions[name] = cursor
    assert isinstance(table.type, Table)
    context.block.scope[name] = TableValue(table.name, table.type)


def _data_columns(context: Context, outside: External) -> tuple[str, ...] | None:
    if outside.name not in context.data_columns:
        context.data_columns[outside.name] = context.columns(outside.record)
    columns = context.data_columns[outside.name]
    return None if columns is None else tuple(columns)


def write_region(
    context: Context,
    op: str,
    writes: Sequence[str],
    body: Callable[[], None],
    attrs: dict[str, Constant],
    span: Span,
    *,
    training: str = "",
    defers: bool = False,
    sliced: bool = False,
    export: bool = True,
    conditional: bool = False,
    loss: list[str] | None = None,
) -> dict[str, Meaning]:
    """Check a body in its own block and write it as the region of one node. Return what names mean at its end."""
    outer, columns = context.block, dict(context.phase.columns)
    region_inputs = tuple(next_state_value(context, name, outer.versions[name].type) for name in writes)
    versions = {**outer.versions, **dict(zip(writes, region_inputs, strict=True))}
    inner = Block(
        dict(outer.scope),
        versions,
        training=training,
        defers=defers,
        sliced=sliced or outer.sliced,
        slices=sliced,
        scope_before=dict(outer.scope),
        conditional=conditional or outer.conditional,
    )
    context.block = inner
    try:
        body()
    finally:
        context.block, context.phase.columns = outer, columns
    new_words = [word for word in inner.scope if word not in outer.scope]
    outer.scope.update(dict.fromkeys(new_words, InvalidName()))
    leading_outputs = loss or [inner.versions[name].name for name in writes]
    exports: dict[str, Value] = {}
    exporter = LoopExporter(context, inner, {value.name for value in region_inputs}, exports)
    for word, meaning in inner.scope.items():
        if word in outer.scope and inner.whole_again.get(word) is meaning:
            continue
        if export and (word not in outer.scope or outer.scope[word] is not meaning):
            outer.scope[word] = exporter.export_meaning(word, meaning, span)
    copy_column_sources(context, exports)
    carried = tuple(next_state_value(context, name, outer.versions[name].type) for name in writes)
    graph = Graph(region_inputs, tuple(inner.nodes), (*leading_outputs, *exports))
    inputs = tuple(outer.versions[name].name for name in writes) + captured_names(graph)
    emit_node(
        context, Node(op, inputs, (*carried, *exports.values()), tuple(attrs.items()), regions=(graph,), span=span)
    )
    outer.versions.update(zip(writes, carried, strict=True))
    for node in exporter.nodes:
        emit_node(context, node)
    for deferred in inner.reports:
        emit_report(context, deferred)
    return inner.scope


def names_written(context: Context, body: Sequence[tree.Stmt]) -> list[str]:
    """Return the things living across steps that a body changes, in the order of their declaration."""
    changed = set(_names_changed(body))
    for statement in tree.all_statements(body):
        if isinstance(statement, tree.OnSteps):
            changed |= set(_data_names(context, statement.body))
    return [name for name in context.block.versions if name in changed]


def _data_names(context: Context, body: Sequence[tree.Stmt]) -> list[str]:
    """Return the data sources that a body names."""
    named = names_used(context, tuple(body))
    return [
        name
        for name, kind in context.block.versions.items()
        if name in named and isinstance(kind.type, StateHandle) and kind.type.kind == "cursor"
    ]


def assigned_names(body: Sequence[tree.Stmt]) -> Iterator[tuple[str, Span]]:
    """Yield the names that a body assigns, with those of its loops' bodies."""
    for statement in tree.all_statements(body):
        if isinstance(statement, tree.Assign):
            yield statement.target, statement.target_span


def _names_changed(body: Sequence[tree.Stmt]) -> Iterator[str]:
    for statement in tree.all_statements(body):
        match statement:
            case tree.Train():
                yield statement.model.id
            case tree.Store(target=tree.Name(id=name)) | tree.Store(target=tree.Index(base=tree.Name(id=name))):
                yield name
            case tree.Push():
                yield statement.buffer.id
            case tree.Update():
                yield statement.target.id
            case tree.Collect():
                yield statement.table.id
                yield f"{statement.table.id}.surplus"
