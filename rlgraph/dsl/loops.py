"""Loops and training steps: a body is checked in a block of its own and becomes the region of one node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence

from rlgraph.dsl import tree
from rlgraph.dsl.expressions import Expressions
from rlgraph.dsl.scope import (
    Block,
    Meaning,
    ModelName,
    OutsideName,
    Stop,
    TableValue,
    Unknowable,
    Wrong,
    describe,
    nearest,
)
from rlgraph.dsl.signatures import STATEMENTS
from rlgraph.errors import Related, Span
from rlgraph.ir.graph import (
    Apply,
    Constant,
    Expr,
    Graph,
    Let,
    Model,
    Node,
    Outside,
    Ref,
    Value,
    captures,
    refs,
    substitute,
    tensor_node,
)
from rlgraph.ir.types import Handle, Table, Tensor, axis_of

Loop = tree.Train | tree.Minibatch | tree.Collect | tree.Every


class Loops(Expressions):
    """The part of the checker that writes nodes with regions."""

    def __init__(self) -> None:
        super().__init__()
        self.live: set[str] = set()
        """Values through which a gradient goes to the model being trained."""
        self.collected: set[str] = set()
        """Data that some `collect` of the phase draws."""

    @abstractmethod
    def statements(self, body: Sequence[tree.Stmt]) -> None: ...

    @abstractmethod
    def report(self, statement: tree.Report) -> None: ...

    @abstractmethod
    def data_columns(self, outside: Outside) -> tuple[str, ...] | None: ...

    def train(self, statement: tree.Train) -> None:
        if self.block.training:
            raise self.stop("E0508", "a `train` body cannot train", statement.span, "move it below this `train` block")
        model = self.model_named(statement.model)
        if model.frozen:
            raise self.stop(
                "E0502",
                f"`{model.name}` is frozen: no gradient goes to it",
                statement.model.span,
                "declare it without `frozen(...)`",
                (Related(model.span, "it is declared here"),),
            )
        options = self.constants.options(STATEMENTS["train"], statement.options, statement.span, self.block.scope)
        loss: list[str] = []

        def body() -> None:
            self.statements(statement.body)
            if len(self.block.minimized) != 1:
                if not any(isinstance(s, tree.Minimize) for s in statement.body):
                    raise self.stop(
                        "E0503",
                        "nothing is minimized in this `train` body",
                        statement.span,
                        "end it with `minimize LOSS`",
                    )
                if len(self.block.minimized) > 1:
                    raise self.stop(
                        "E0503",
                        "a `train` body minimizes one value",
                        self.block.minimized[1][1],
                        "add the losses: `minimize a + b`",
                    )
                raise Stop
            loss.append(self.materialize(self.block.minimized[0][0], f"{model.name}.loss"))

        try:
            self.region(
                "train", [model.name], body, options, statement.span, training=model.name, defers=True, loss=loss
            )
        finally:
            self.live.clear()

    def model_named(self, name: tree.Name) -> Model:
        meaning = self.block.scope.get(name.id)
        if isinstance(meaning, Wrong):
            raise Stop
        if not isinstance(meaning, ModelName):
            known = [word for word, found in self.block.scope.items() if isinstance(found, ModelName)]
            shown = f"`{name.id}` is {describe(meaning)}, not a model" if meaning else f"nothing is called `{name.id}`"
            raise self.stop("E0201", shown, name.span, nearest(name.id, known))
        self.used.add(name.id)
        return meaning.model

    def minibatch(self, statement: tree.Minibatch) -> None:
        if self.block.training:
            raise self.stop("E0505", "`minibatch` cannot stand in a `train` body", statement.span, "swap the two")
        axis = self.axis_named(statement.table)
        if axis is None:
            raise self.stop(
                "E0303",
                f"rows are sliced, and `{statement.table.id}` is no axis of rows",
                statement.table.span,
                "name the table that is sliced: `minibatch rollout(parts=4):`",
            )
        options = self.constants.options(STATEMENTS["minibatch"], statement.options, statement.span, self.block.scope)
        options |= {"axis": axis.key, "key": f"minibatch.{axis.key}"}
        self.region(
            "minibatch",
            self.writes(statement.body),
            lambda: self.statements(statement.body),
            options,
            statement.span,
            defers=True,
            sliced=True,
        )

    def collect(self, statement: tree.Collect) -> None:
        name = statement.table.id
        held = self.block.scope.get(name)
        if self.block.training or self.block.sliced:
            raise self.stop("E0505", "`collect` cannot stand here", statement.span, "move it to the top of the step")
        if isinstance(held, Wrong):
            raise Stop
        if not isinstance(held, OutsideName) or held.outside.kind != "data":
            drawn = name in self.declared and isinstance(held, TableValue)
            shown = f"and this is {describe(held)}" if held else f"and nothing is called `{name}`"
            shown = "and this one is drawn above already" if drawn else shown
            raise self.stop(
                "E0603",
                f"`collect` draws from a data source, {shown}",
                statement.table.span,
                "name a `data` that the lines above do not use",
            )
        args, options = self.constants.bind(
            STATEMENTS["collect"], statement.args, statement.options, statement.span, self.block.scope
        )
        attrs = args | options
        writes = [name, f"{name}.surplus", *(w for w in self.writes(statement.body) if w != name)]

        def body() -> None:
            self.read(name)
            self.statements(statement.body)
            kept = self.block.scope[name]
            if not isinstance(kept, TableValue):
                raise Stop
            attrs["axis"] = kept.type.axis.key

        self.region("collect", writes, body, attrs, statement.span, defers=True)

    def every(self, statement: tree.Every) -> None:
        if self.block.training or self.block.sliced:
            raise self.stop(
                "E0505", "`every` counts steps: it cannot stand in a loop", statement.span, "move it out of the loop"
            )
        period = self.constants.evaluate(statement.period, self.block.scope)
        if not isinstance(period, int) or isinstance(period, bool) or period < 1:
            raise self.stop("E0403", "`every` takes a whole number of steps, at least 1", statement.period.span)
        fresh = [name for name in self.data_names(statement.body) if isinstance(self.block.scope[name], OutsideName)]
        fresh = [name for name in fresh if name not in self.collected]

        def body() -> None:
            for name in fresh:
                self.read(name)
            self.statements(statement.body)

        writes = [*fresh, *(name for name in self.writes(statement.body) if name not in fresh)]
        outer = dict(self.block.scope)
        self.region("every", writes, body, {"steps": period}, statement.span, export=False)
        for word in {name for name, _ in targets(statement.body)} - set(outer):
            self.block.scope[word] = Unknowable(
                f"`{word}` is made on some steps only, and cannot be used after `every`", statement.span
            )

    def read(self, name: str) -> None:
        """The next rows of a data source, and where its cursor then stands."""
        held = self.block.scope[name]
        assert isinstance(held, OutsideName)
        axis = self.axis(name, None)
        table = Value(self.fresh(name), Table(axis, data=self.data_columns(held.outside)))
        handle = self.block.versions[name]
        cursor = self.version(name, handle.type)
        self.emit(Node("read", (handle.name,), (table, cursor), span=held.outside.span))
        self.block.versions[name] = cursor
        assert isinstance(table.type, Table)
        self.block.scope[name] = TableValue(table.name, table.type)

    def region(
        self,
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
        outer, columns = self.block, dict(self.columns)
        given = tuple(self.version(name, outer.versions[name].type) for name in writes)
        versions = {**outer.versions, **dict(zip(writes, given, strict=True))}
        inner = Block(dict(outer.scope), versions, training=training, defers=defers, sliced=sliced or outer.sliced)
        self.block = inner
        try:
            body()
        finally:
            self.block, self.columns = outer, columns
        new = [word for word in inner.scope if word not in outer.scope]
        outer.scope.update(dict.fromkeys(new, Wrong()))
        first = loss or [inner.versions[name].name for name in writes]
        exports: dict[str, Value] = {}
        after = _Exports(self, inner, {value.name for value in given}, exports)
        for word, meaning in inner.scope.items():
            if export and (word not in outer.scope or outer.scope[word] is not meaning):
                outer.scope[word] = after.meaning(word, meaning, span)
        carried = tuple(self.version(name, outer.versions[name].type) for name in writes)
        region = Graph(given, tuple(inner.nodes), (*first, *exports))
        inputs = tuple(outer.versions[name].name for name in writes) + captures(region)
        self.emit(Node(op, inputs, (*carried, *exports.values()), tuple(attrs.items()), regions=(region,), span=span))
        outer.versions.update(zip(writes, carried, strict=True))
        for node in after.nodes:
            self.emit(node)
        for report in inner.reports:
            self.report(report)

    # What a body reads and writes, seen from outside

    def writes(self, body: Sequence[tree.Stmt]) -> list[str]:
        """Things that live across steps which a body changes, in the order of their declaration."""
        found = set(_written(body))
        for statement in _loops(body):
            if isinstance(statement, tree.Every):
                found |= set(self.data_names(statement.body))
        return [name for name in self.block.versions if name in found]

    def data_names(self, body: Sequence[tree.Stmt]) -> list[str]:
        """Data sources that a body names."""
        named = self.named(tuple(body))
        return [
            name
            for name, kind in self.block.versions.items()
            if name in named and isinstance(kind.type, Handle) and kind.type.kind == "cursor"
        ]


class _Exports:
    """Gives the names of a loop's body their meaning after the loop.

    Values with rows are exported. A single number is computed again from the exported rows, so that it is about all the
    rows of the last pass and not about the last slice.
    """

    def __init__(self, checker: Loops, inner: Block, given: set[str], exports: dict[str, Value]) -> None:
        self.checker, self.exports = checker, exports
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
            if node.op != "tensor":
                raise LookupError(ref.name)
            self.cloned[ref.name] = self.clone(node, ref)
        return self.cloned[ref.name]

    def clone(self, node: Node, ref: Ref) -> Ref:
        expr = next(let.expr for let in node.body if let.name == ref.name)
        types: dict[str, Tensor] = dict(_ref_types(expr))
        expr = substitute(expr, {name: self.ref(Ref(name, types[name])) for name in set(refs(expr))})
        name = self.checker.fresh(ref.name)
        self.nodes.append(tensor_node((Let(name, expr),), (name,), node.span))
        return Ref(name, ref.type, ref.span)

    def export(self, name: str, kind: Tensor | Table) -> Value:
        if name not in self.exports:
            self.exports[name] = Value(self.checker.fresh(name), kind)
        return self.exports[name]


def _ref_types(expr: Expr) -> Iterator[tuple[str, Tensor]]:
    if isinstance(expr, Ref):
        yield expr.name, expr.type
    elif isinstance(expr, Apply):
        for arg in expr.args:
            yield from _ref_types(arg)


def _loops(body: Sequence[tree.Stmt]) -> Iterator[Loop]:
    for statement in body:
        if isinstance(statement, Loop):
            yield statement
            yield from _loops(statement.body)


def targets(body: Sequence[tree.Stmt]) -> Iterator[tuple[str, Span]]:
    """Names that a body assigns, its loops' bodies included."""
    for statement in body:
        if isinstance(statement, tree.Assign):
            yield statement.target, statement.target_span
        elif isinstance(statement, Loop):
            yield from targets(statement.body)


def _written(body: Sequence[tree.Stmt]) -> Iterator[str]:
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
        if isinstance(statement, Loop):
            yield from _written(statement.body)
