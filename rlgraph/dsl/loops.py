"""Loops and training steps: a body is checked in a block of its own and becomes the region of one node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rlgraph.dsl import constants, tree
from rlgraph.dsl.context import Block, Context
from rlgraph.dsl.names import axis_named, model_named, names_used
from rlgraph.dsl.nodes import emit, fresh, materialize, new_axis, version
from rlgraph.dsl.reports import report
from rlgraph.dsl.scope import Meaning, OutsideName, Stop, TableValue, Unknowable, Wrong, describe
from rlgraph.dsl.signatures import STATEMENTS
from rlgraph.errors import Related, Span
from rlgraph.ir.graph import (
    Apply,
    Constant,
    Expr,
    Graph,
    Let,
    Node,
    Outside,
    Ref,
    Value,
    captures,
    substitute,
    tensor_node,
)
from rlgraph.ir.types import Axis, Handle, Table, Tensor, axis_of


def train(context: Context, statement: tree.Train) -> None:
    """`train actor(lr=1e-6):`"""
    if context.block.training:
        raise context.stop("E0508", "a `train` body cannot train", statement.span, "move it below this `train` block")
    model = model_named(context, statement.model)
    if model.frozen:
        raise context.stop(
            "E0502",
            f"`{model.name}` is frozen: no gradient goes to it",
            statement.model.span,
            "declare it without `frozen(...)`",
            (Related(model.span, "it is declared here"),),
        )
    options = constants.options(context, STATEMENTS["train"], statement.options, statement.span, context.block.scope)
    loss: list[str] = []

    def body() -> None:
        context.write(statement.body)
        if len(context.block.minimized) != 1:
            if not any(isinstance(s, tree.Minimize) for s in statement.body):
                raise context.stop(
                    "E0503",
                    "nothing is minimized in this `train` body",
                    statement.span,
                    "end it with `minimize LOSS`",
                )
            if len(context.block.minimized) > 1:
                raise context.stop(
                    "E0503",
                    "a `train` body minimizes one value",
                    context.block.minimized[1][1],
                    "add the losses: `minimize a + b`",
                )
            raise Stop
        loss.append(materialize(context, context.block.minimized[0][0], f"{model.name}.loss"))

    _region(context, "train", [model.name], body, options, statement.span, training=model.name, defers=True, loss=loss)


def minibatch(context: Context, statement: tree.Minibatch) -> None:
    """`minibatch rollout(parts=4):`"""
    if context.block.training:
        raise context.stop("E0505", "`minibatch` cannot stand in a `train` body", statement.span, "swap the two")
    axis = axis_named(context, statement.table)
    if axis is None:
        raise context.stop(
            "E0303",
            f"rows are sliced, and `{statement.table.id}` is no axis of rows",
            statement.table.span,
            "name the table that is sliced: `minibatch rollout(parts=4):`",
        )
    options = constants.options(
        context, STATEMENTS["minibatch"], statement.options, statement.span, context.block.scope
    )
    options |= {"axis": axis.key, "key": f"minibatch.{axis.key}"}
    _region(
        context,
        "minibatch",
        _written(context, statement.body),
        lambda: context.write(statement.body),
        options,
        statement.span,
        defers=True,
        sliced=True,
    )


def collect(context: Context, statement: tree.Collect) -> None:
    """`collect prompts(512):`"""
    name = statement.table.id
    held = context.block.scope.get(name)
    if context.block.training or context.block.sliced:
        raise context.stop("E0505", "`collect` cannot stand here", statement.span, "move it to the top of the step")
    if isinstance(held, Wrong):
        raise Stop
    if not isinstance(held, OutsideName) or held.outside.kind != "data":
        above = name in context.declared and isinstance(held, TableValue)
        shown = f"and this is {describe(held)}" if held else f"and nothing is called `{name}`"
        shown = "and this one is read above already" if above else shown
        raise context.stop(
            "E0603",
            f"`collect` reads from a data source, {shown}",
            statement.table.span,
            "name a `data` that the lines above do not use",
        )
    args, options = constants.bind(
        context, STATEMENTS["collect"], statement.args, statement.options, statement.span, context.block.scope
    )
    attrs = args | {option: value for option, value in options.items() if value not in (None, "carry")}
    if "ahead" in attrs:
        attrs["batch"] = _batch(context, statement, held.outside)
    writes = [name, f"{name}.surplus", *(w for w in _written(context, statement.body) if w != name)]

    def body() -> None:
        read(context, name)
        context.write(statement.body)
        kept = context.block.scope[name]
        if not isinstance(kept, TableValue):
            raise Stop
        attrs["axis"] = kept.type.axis.key
        if attrs.get("rest") == "longest":
            _by_length(context, statement, kept.type.axis)

    _region(context, "collect", writes, body, attrs, statement.span, defers=True)


def _by_length(context: Context, statement: tree.Collect, axis: Axis) -> None:
    """The body of a `collect` that takes the rows which end first tells which these are, by the answers in them."""
    place = next(option.span for option in statement.options if option.name == "rest")
    if not any(option.name == "ahead" for option in statement.options):
        message = "`rest=longest` chooses among rows that are begun side by side, and no more are begun than are taken"
        hint = "say how many times as many: `ahead=1.25`"
        raise context.stop("E0411", message, place, hint)
    lengths = []
    made = [
        meaning
        for name, meaning in context.block.scope.items()
        if isinstance(meaning, TableValue) and meaning.type.sampled and name not in context.scope
    ]
    for table in [each for each in made if axis.key in {above.key for above in each.type.axis.path()}]:
        column = Value(fresh(context, f"{table.name}.ended"), table.type.columns()["length"])
        emit(context, Node("column", (table.name,), (column,), (("name", "length"),), span=statement.span))
        lengths.append(column.name)
    if not lengths:
        if any(isinstance(each, Wrong) for name, each in context.block.scope.items() if name not in context.scope):
            # It may have been generated by what is wrong.
            raise Stop
        message = f"nothing is generated for `{axis.name}` in this `collect`, so that no row of it is the longest"
        raise context.stop("E0411", message, place, "take the rows in the order of the data: `rest=later`")
    emit(context, Node("soonest", tuple(lengths), (), (("axis", axis.key),), span=statement.span))


def _batch(context: Context, statement: tree.Collect, source: Outside) -> Constant:
    """Rows that are read at a time: `ahead` counts batches."""
    size: Constant = source.record.option("batch")
    if size is None:
        place = next(option.span for option in statement.options if option.name == "ahead")
        message = f"`ahead` counts batches, and `{source.name}` is read whole"
        raise context.stop(
            "E0403", message, place, "say how many rows a batch has: `batch=64`", (Related(source.span, "here"),)
        )
    return size


def on_steps(context: Context, statement: tree.OnSteps) -> None:
    """`every 20:`"""
    word = statement.word
    if context.block.training or context.block.sliced:
        raise context.stop(
            "E0505", f"`{word}` counts steps: it cannot stand in a loop", statement.span, "move it out of the loop"
        )
    count = constants.evaluate(context, statement.count, context.block.scope)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise context.stop("E0403", f"`{word}` takes a whole number of steps, at least 1", statement.count.span)
    unread = [
        name for name in _data_names(context, statement.body) if isinstance(context.block.scope[name], OutsideName)
    ]
    unread = [name for name in unread if name not in context.phase.collected]

    def body() -> None:
        for name in unread:
            read(context, name)
        context.write(statement.body)

    writes = [*unread, *(name for name in _written(context, statement.body) if name not in unread)]
    outer = dict(context.block.scope)
    _region(context, word, writes, body, {"steps": count}, statement.span, export=False)
    for made in {name for name, _ in targets(statement.body)} - set(outer):
        context.block.scope[made] = Unknowable(
            f"`{made}` is made on some steps only, and cannot be used after `{word}`", statement.span
        )


def read(context: Context, name: str) -> None:
    """The next rows of a data source, and where its cursor then stands."""
    held = context.block.scope[name]
    assert isinstance(held, OutsideName)
    axis = new_axis(context, name, None)
    table = Value(fresh(context, name), Table(axis, data=_data_columns(context, held.outside)))
    handle = context.block.versions[name]
    cursor = version(context, name, handle.type)
    emit(context, Node("read", (handle.name,), (table, cursor), span=held.outside.span))
    context.block.versions[name] = cursor
    assert isinstance(table.type, Table)
    context.block.scope[name] = TableValue(table.name, table.type)


def _data_columns(context: Context, outside: Outside) -> tuple[str, ...] | None:
    if outside.name not in context.data_columns:
        context.data_columns[outside.name] = context.columns(outside.record)
    found = context.data_columns[outside.name]
    return None if found is None else tuple(found)


def _region(
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
    loss: list[str] | None = None,
) -> None:
    """Checks a body in a block of its own and writes it as the region of one node."""
    outer, columns = context.block, dict(context.phase.columns)
    given = tuple(version(context, name, outer.versions[name].type) for name in writes)
    versions = {**outer.versions, **dict(zip(writes, given, strict=True))}
    inner = Block(dict(outer.scope), versions, training=training, defers=defers, sliced=sliced or outer.sliced)
    context.block = inner
    try:
        body()
    finally:
        context.block, context.phase.columns = outer, columns
    new = [word for word in inner.scope if word not in outer.scope]
    outer.scope.update(dict.fromkeys(new, Wrong()))
    first = loss or [inner.versions[name].name for name in writes]
    exports: dict[str, Value] = {}
    after = _Exports(context, inner, {value.name for value in given}, exports)
    for word, meaning in inner.scope.items():
        if export and (word not in outer.scope or outer.scope[word] is not meaning):
            outer.scope[word] = after.meaning(word, meaning, span)
    carried = tuple(version(context, name, outer.versions[name].type) for name in writes)
    graph = Graph(given, tuple(inner.nodes), (*first, *exports))
    inputs = tuple(outer.versions[name].name for name in writes) + captures(graph)
    emit(context, Node(op, inputs, (*carried, *exports.values()), tuple(attrs.items()), regions=(graph,), span=span))
    outer.versions.update(zip(writes, carried, strict=True))
    for node in after.nodes:
        emit(context, node)
    for deferred in inner.reports:
        report(context, deferred)


def _written(context: Context, body: Sequence[tree.Stmt]) -> list[str]:
    """Things that live across steps which a body changes, in the order of their declaration."""
    found = set(_changed(body))
    for statement in _loops(body):
        if isinstance(statement, tree.OnSteps):
            found |= set(_data_names(context, statement.body))
    return [name for name in context.block.versions if name in found]


def _data_names(context: Context, body: Sequence[tree.Stmt]) -> list[str]:
    """Data sources that a body names."""
    named = names_used(context, tuple(body))
    return [
        name
        for name, kind in context.block.versions.items()
        if name in named and isinstance(kind.type, Handle) and kind.type.kind == "cursor"
    ]


class _Exports:
    """Gives the names of a loop's body their meaning after the loop.

    Values with rows are exported. A single number is computed again from the exported rows, so that it is about all the
    rows of the last pass and not about the last slice.
    """

    def __init__(self, context: Context, inner: Block, given: set[str], exports: dict[str, Value]) -> None:
        self.context, self.exports = context, exports
        self.given = given
        self.made = {value.name: node for node in inner.nodes for value in node.outputs}
        self.nodes: list[Node] = []
        self.cloned: dict[str, Ref] = {}

    def meaning(self, word: str, meaning: Meaning, span: Span) -> Meaning:
        if isinstance(meaning, TableValue) and meaning.name in self.made:
            value = self.export(meaning.name, meaning.type)
            return TableValue(value.name, meaning.type)
        if not isinstance(meaning, Ref):
            return meaning
        try:
            return self.ref(meaning)
        except LookupError:
            return Unknowable(f"`{word}` has a value in each turn of the loop, and none after it", span)

    def ref(self, ref: Ref) -> Ref:
        if ref.name in self.given:
            raise LookupError(ref.name)
        if ref.name not in self.made:
            return ref
        if axis_of(ref.type) is not None:
            return Ref(self.export(ref.name, ref.type).name, ref.type, ref.span)
        if ref.name not in self.cloned:
            node = self.made[ref.name]
            if not node.body:
                raise LookupError(ref.name)
            self.cloned[ref.name] = self.clone(node, ref)
        return self.cloned[ref.name]

    def clone(self, node: Node, ref: Ref) -> Ref:
        expr = next(let.expr for let in node.body if let.name == ref.name)
        # In the order in which they stand: a program is the same graph in every process.
        expr = substitute(expr, {name: self.ref(Ref(name, kind)) for name, kind in dict(_ref_types(expr)).items()})
        name = fresh(self.context, ref.name)
        self.nodes.append(tensor_node((Let(name, expr),), (name,), node.span))
        return Ref(name, ref.type, ref.span)

    def export(self, name: str, kind: Tensor | Table) -> Value:
        if name not in self.exports:
            self.exports[name] = Value(fresh(self.context, name), kind)
        return self.exports[name]


def _ref_types(expr: Expr) -> Iterator[tuple[str, Tensor]]:
    if isinstance(expr, Ref):
        yield expr.name, expr.type
    elif isinstance(expr, Apply):
        for arg in expr.args:
            yield from _ref_types(arg)


def _loops(body: Sequence[tree.Stmt]) -> Iterator[tree.Loop]:
    for statement in body:
        if isinstance(statement, tree.Loop):
            yield statement
            yield from _loops(statement.body)


def targets(body: Sequence[tree.Stmt]) -> Iterator[tuple[str, Span]]:
    """Names that a body assigns, its loops' bodies included."""
    for statement in body:
        if isinstance(statement, tree.Assign):
            yield statement.target, statement.target_span
        elif isinstance(statement, tree.Loop):
            yield from targets(statement.body)


def _changed(body: Sequence[tree.Stmt]) -> Iterator[str]:
    for statement in body:
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
        if isinstance(statement, tree.Loop):
            yield from _changed(statement.body)
