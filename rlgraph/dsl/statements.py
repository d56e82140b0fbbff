"""Statements: assignments, loops and training steps become nodes and regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from rlgraph.dsl import tree
from rlgraph.dsl.expressions import Expressions, names_in
from rlgraph.dsl.scope import (
    Block,
    Meaning,
    ModelName,
    OutsideName,
    StateName,
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
    Const,
    Constant,
    Expr,
    Graph,
    Let,
    Node,
    Ref,
    Value,
    captures,
    refs,
    substitute,
    tensor_node,
)
from rlgraph.ir.types import Axis, Handle, Table, Tensor, axes_of, axis_of

Loop = tree.Train | tree.Minibatch | tree.Collect | tree.Every


class Statements(Expressions):
    """The part of the checker that writes the graph of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.live: set[str] = set()
        """Values through which a gradient goes to the model being trained."""
        self.assigned: dict[str, Span] = {}
        self.reported: dict[str, Span] = {}

    def statements(self, body: Sequence[tree.Stmt]) -> None:
        self.block.later = dict(_targets(body))
        for statement in body:
            self.place = statement.span
            try:
                self.statement(statement)
            except Stop:
                self.block.scope.update({name: Wrong() for name, _ in _targets([statement])})

    def statement(self, statement: tree.Stmt) -> None:
        if self.block.training and isinstance(statement, (tree.Store, tree.Keep, tree.Push, tree.Update)):
            raise self.stop("E0505", "this cannot stand in a `train` body", statement.span,
                            "a `train` body computes a loss; move it above or below")  # fmt: skip
        match statement:
            case tree.Assign():
                self.assign(statement)
            case tree.Store():
                self.store(statement)
            case tree.Minimize():
                self.minimize(statement)
            case tree.Report():
                self.report(statement)
            case tree.Keep():
                self.keep(statement)
            case tree.Push():
                self.push(statement)
            case tree.Update():
                self.update(statement)
            case tree.Train():
                self.train(statement)
            case tree.Minibatch():
                self.minibatch(statement)
            case tree.Collect():
                self.collect(statement)
            case tree.Every():
                self.every(statement)
            case tree.Return():
                raise self.stop("E0505", "`return` ends a `def`", statement.span)

    def assign(self, statement: tree.Assign) -> None:
        target = statement.target
        held = self.block.scope.get(target)
        if isinstance(held, StateName):
            raise self.stop("E0602", f"`{target}` is a state: it lives across steps", statement.target_span,
                            f"write `{target} := ...`")  # fmt: skip
        if target in self.declared:
            place = self.declared[target]
            raise self.stop("E0207", f"`{target}` is declared above and cannot be assigned", statement.target_span,
                            related=(Related(place, "it is declared here"),))  # fmt: skip
        self.assigned.setdefault(target, statement.target_span)
        meaning = self.evaluate(statement.value, target)
        if isinstance(meaning, Apply):
            meaning = Ref(self.materialize(meaning, target), meaning.type, meaning.span)
        if not isinstance(meaning, (Const, Ref, TableValue)):
            raise self.stop("E0305", f"{describe(meaning)} is not a value", statement.value.span)
        self.block.scope[target] = meaning
        self.block.later.pop(target, None)

    def materialize(self, expr: Expr, hint: str) -> str:
        name = super().materialize(expr, hint)
        if self.differentiable(expr):
            self.live.add(name)
        return name

    def differentiable(self, expr: Expr) -> bool:
        """Whether a gradient goes through an expression to the model being trained."""
        if isinstance(expr, Ref):
            return expr.name in self.live
        if not isinstance(expr, Apply) or expr.op == "detach" or expr.type.dtype in ("bool", "row"):
            return False
        return any(self.differentiable(arg) for arg in expr.args)

    def forward(self, expr, name, model, options, hint):  # type: ignore[no-untyped-def]
        found = super().forward(expr, name, model, options, hint)
        if self.block.training == model.name:
            self.live.add(found.name)
        return found

    # State

    def store(self, statement: tree.Store) -> None:
        target = statement.target
        if isinstance(target, tree.Index):
            self.store_keyed(target, statement)
            return
        assert isinstance(target, tree.Name)
        held = self.block.scope.get(target.id)
        if not isinstance(held, StateName):
            known = [name for name, meaning in self.block.scope.items() if isinstance(meaning, StateName)]
            raise self.stop("E0601", f"`{target.id}` is no state", target.span,
                            nearest(target.id, known) or f"declare it: `state {target.id} = 0.0`, or assign with `=`")  # fmt: skip
        if held.state.keyed:
            raise self.stop("E0601", f"`{target.id}` has a value for each key", target.span,
                            f"name the key's column: `{target.id}[rollout.column] := ...`")  # fmt: skip
        expr = self.number(statement.value)
        if expr.type.axis is not None:
            raise self.stop("E0304", f"a state is one number, and this is {expr.type}", statement.value.span,
                            "reduce it: `mean(...)`")  # fmt: skip
        if expr.type.dtype != "float":
            expr = Apply("float", (expr,), Tensor("float"), None, statement.span)
        value = self.version(target.id, Tensor("float"))
        self.emit(tensor_node((Let(value.name, expr),), (value.name,), statement.span))
        self.block.versions[target.id] = value

    def store_keyed(self, target: tree.Index, statement: tree.Store) -> None:
        state = self.keyed_state(target)
        key, value = self.tensor(target.key), self.number(statement.value)
        if key.type.axis is None or value.type.axis != key.type.axis:
            raise self.stop("E0301", f"the key is {key.type} and the value {value.type}: they need the same rows",
                            statement.span)  # fmt: skip
        made = self.version(state.name, self.block.versions[state.name].type)
        inputs = (self.block.versions[state.name].name, self.materialize(key, "key"), self.materialize(value, "value"))
        self.emit(Node("assign", inputs, (made,), span=statement.span))
        self.block.versions[state.name] = made

    def push(self, statement: tree.Push) -> None:
        held = self.block.scope.get(statement.buffer.id)
        if not isinstance(held, OutsideName) or held.outside.kind != "buffer":
            raise self.stop("E0605", f"`{statement.buffer.id}` is no buffer", statement.buffer.span,
                            f"declare `buffer {statement.buffer.id} = fifo(capacity=4096)`")  # fmt: skip
        if len(statement.args) != 1:
            raise self.stop("E0405", "`push` takes one table by place", statement.span,
                            "more columns go by name: `push replay(rollout, score=score)`")  # fmt: skip
        table = self.table(statement.args[0], "`push`")
        names, inputs, extra = [], [], list(table.type.extra)
        for option in statement.options:
            column = self.number(option.value)
            axis = column.type.axis
            if axis is None or not any(axis.key == own.key for own in axes_of(table.type)[:2]):
                raise self.stop("E0301", f"a column has an entry for each row or token of `{table.name}`, "
                                f"and this is {column.type}", option.value.span)  # fmt: skip
            names.append(option.name)
            inputs.append(self.materialize(column, option.name))
            extra.append((option.name, Tensor(column.type.dtype, axis)))
        schema = replace(table.type, extra=tuple(extra))
        first = self.buffers.setdefault(statement.buffer.id, schema)
        if _columns(first) != _columns(schema):
            raise self.stop("E0605", f"other columns were pushed into `{statement.buffer.id}` above", statement.span)
        handle = self.block.versions[statement.buffer.id]
        value = self.version(statement.buffer.id, handle.type)
        attrs: tuple[tuple[str, Constant], ...] = (("names", tuple(names)),)
        self.emit(Node("push", (handle.name, table.name, *inputs), (value,), attrs, span=statement.span))
        self.block.versions[statement.buffer.id] = value

    def update(self, statement: tree.Update) -> None:
        models = []
        for name in (statement.target, statement.source):
            meaning = self.block.scope.get(name.id)
            if not isinstance(meaning, ModelName):
                known = [n for n, m in self.block.scope.items() if isinstance(m, ModelName)]
                raise self.stop("E0206", f"`{name.id}` is no model", name.span, nearest(name.id, known))
            models.append(meaning.model)
            self.used.add(name.id)
        target, source = models
        if target.kind != source.kind or target.name == source.name:
            raise self.stop("E0607", f"`{target.name}` ({target.kind}) cannot take the weights of "
                            f"`{source.name}` ({source.kind})", statement.span)  # fmt: skip
        options = self.constants.options(STATEMENTS["update"], statement.options, statement.span, self.block.scope)
        old = self.block.versions[target.name]
        value = self.version(target.name, old.type)
        inputs = (old.name, self.block.versions[source.name].name)
        self.emit(Node("update", inputs, (value,), tuple(options.items()), span=statement.span))
        self.block.versions[target.name] = value

    # Losses and metrics

    def minimize(self, statement: tree.Minimize) -> None:
        model = self.block.training
        if not model:
            raise self.stop("E0504", "`minimize` belongs into a `train` body", statement.span,
                            "write `train MODEL(lr=...):` above it")  # fmt: skip
        expr = self.number(statement.value)
        if expr.type.axis is not None:
            raise self.stop("E0501", f"`minimize` needs one number, and this is {expr.type}", statement.value.span,
                            "reduce it: `mean(...)` is the mean of all tokens, `mean(mean(x, token))` that of rows")  # fmt: skip
        if not self.differentiable(expr):
            raise self.stop("E0506", f"this does not depend on `{model}` in a way that has a gradient",
                            statement.value.span, f"compute it from a call of `{model}` inside the `train` body")  # fmt: skip
        self.block.minimized.append((expr, statement.span))

    def report(self, statement: tree.Report) -> None:
        if self.block.defers:
            self.block.reports.append(statement)
            self.used.update(name.id for name in names_in(statement))
            return
        names, inputs, failed = [], [], False
        for item in statement.items:
            try:
                expr = self.number(item.value)
                if expr.type.axis is not None:
                    raise self.stop("E0304", f"a metric is one number, and `{item.name}` is {expr.type}",
                                    item.value.span, "reduce it: `mean(...)`")  # fmt: skip
                if item.name in self.reported or item.name in ("step", "seconds"):
                    related = tuple(Related(s, "the first one") for n, s in self.reported.items() if n == item.name)
                    raise self.stop("E0203", f"there is a metric `{item.name}` already", item.name_span, related=related)
            except Stop:
                failed = True
                continue
            self.reported[item.name] = item.name_span
            names.append(item.name)
            inputs.append(self.materialize(expr, f"report.{item.name}"))
        self.emit(Node("report", tuple(inputs), (), (("names", tuple(names)),), span=statement.span))
        if failed:
            raise Stop

    # Rows

    def keep(self, statement: tree.Keep) -> None:
        """Every live value on the axis, or on an axis in it, is replaced by its rows that are kept."""
        meaning = self.name(statement.table)
        if not isinstance(meaning, TableValue):
            raise self.stop("E0604", f"`keep` needs a table, and this is {describe(meaning)}", statement.table.span)
        if self.block.sliced:
            raise self.stop("E0604", "`keep` cannot stand in a `minibatch`: its parts are cut already",
                            statement.span, "move it above the loop")  # fmt: skip
        mask = self.number(statement.condition)
        axis = meaning.type.axis
        if mask.type.axis is None or not axis.within(mask.type.axis):
            raise self.stop("E0307", f"the condition is {mask.type}; `keep {statement.table.id}` needs one for each row "
                            f"of [{axis.name}]", statement.condition.span, f"reduce it with `by={statement.table.id}`")  # fmt: skip
        name = self.materialize(mask, "kept")
        moved: dict[str, Axis] = {}
        inputs, outputs = [name], []
        renamed: dict[str, Value] = {}
        for word, held in list(self.block.scope.items()):
            if not isinstance(held, (Ref, TableValue)) or not _on(held, axis):
                continue
            if held.type.dtype == "row" if isinstance(held, Ref) else False:
                reason = f"`{word}` chooses among rows of which some were dropped by `keep`"
                self.block.scope[word] = Unknowable(reason, statement.span)
                continue
            if held.name not in renamed:
                kind = self.moved(held.type, axis, moved)
                renamed[held.name] = Value(self.fresh(held.name), kind)
                inputs.append(held.name)
                outputs.append(renamed[held.name])
                if held.name in self.live:
                    self.live.add(renamed[held.name].name)
            value = renamed[held.name]
            self.block.scope[word] = (
                TableValue(value.name, value.type) if isinstance(value.type, Table) else Ref(value.name, value.type)  # type: ignore[arg-type]
            )
        attrs: tuple[tuple[str, Constant], ...] = (("axis", axis.key),)
        self.emit(Node("keep", tuple(inputs), tuple(outputs), attrs, span=statement.span))

    def moved(self, kind: Tensor | Table, axis: Axis, moved: dict[str, Axis]) -> Tensor | Table:
        """The type on the axes that `keep` leaves."""

        def move(old: Axis) -> Axis:
            if not old.within(axis):
                return old
            if old.key not in moved:
                parent = move(old.parent) if old.parent else None
                moved[old.key] = self.axis(old.name, parent, inner=old.inner, key=old.key)
            return moved[old.key]

        def shift(tensor: Tensor) -> Tensor:
            return Tensor(tensor.dtype, move(tensor.axis) if tensor.axis else None)

        if isinstance(kind, Tensor):
            return shift(kind)
        return replace(
            kind, axis=move(kind.axis), token=move(kind.token) if kind.token else None,
            turn=move(kind.turn) if kind.turn else None, extra=tuple((n, shift(t)) for n, t in kind.extra),
        )  # fmt: skip

    # Loops

    def train(self, statement: tree.Train) -> None:
        meaning = self.block.scope.get(statement.model.id)
        if self.block.training:
            raise self.stop("E0508", "a `train` body cannot train", statement.span)
        if not isinstance(meaning, ModelName):
            known = [name for name, found in self.block.scope.items() if isinstance(found, ModelName)]
            shown = f"`{statement.model.id}` is no model" if meaning else f"nothing is called `{statement.model.id}`"
            raise self.stop("E0201", shown, statement.model.span, nearest(statement.model.id, known))
        model = meaning.model
        self.used.add(model.name)
        if model.frozen:
            raise self.stop("E0502", f"`{model.name}` is frozen: no gradient goes to it", statement.model.span,
                            "declare it without `frozen(...)`",
                            (Related(model.span, "it is declared here"),))  # fmt: skip
        options = self.constants.options(STATEMENTS["train"], statement.options, statement.span, self.block.scope)
        loss: list[str] = []

        def body() -> None:
            self.statements(statement.body)
            if len(self.block.minimized) != 1:
                if not any(isinstance(s, tree.Minimize) for s in statement.body):
                    raise self.stop("E0503", "nothing is minimized in this `train` body", statement.span,
                                    "end it with `minimize LOSS`")  # fmt: skip
                if len(self.block.minimized) > 1:
                    raise self.stop("E0503", "a `train` body minimizes one value", self.block.minimized[1][1],
                                    "add the losses: `minimize a + b`")  # fmt: skip
                raise Stop
            loss.append(self.materialize(self.block.minimized[0][0], f"{model.name}.loss"))

        try:
            self.region("train", [model.name], body, options, statement.span, training=model.name, defers=True, loss=loss)
        finally:
            self.live.clear()

    def minibatch(self, statement: tree.Minibatch) -> None:
        if self.block.training:
            raise self.stop("E0505", "`minibatch` cannot stand in a `train` body", statement.span, "swap the two")
        axis = self.axis_named(statement.table)
        assert axis
        options = self.constants.options(STATEMENTS["minibatch"], statement.options, statement.span, self.block.scope)
        options |= {"axis": axis.key, "key": f"minibatch.{axis.key}"}
        self.region("minibatch", self.writes(statement.body), lambda: self.statements(statement.body), options,
                    statement.span, defers=True, sliced=True)  # fmt: skip

    def collect(self, statement: tree.Collect) -> None:
        name = statement.table.id
        held = self.block.scope.get(name)
        if self.block.training or self.block.sliced:
            raise self.stop("E0505", "`collect` cannot stand here", statement.span, "move it to the top of the step")
        if not isinstance(held, OutsideName) or held.outside.kind != "data":
            raise self.stop("E0603", "`collect` draws from a data source", statement.table.span,
                            "name a `data` that is not drawn above")  # fmt: skip
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
            raise self.stop("E0505", "`every` counts steps: it cannot stand in a loop", statement.span,
                            "move it out of the loop")  # fmt: skip
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
        for word in {name for name, _ in _targets(statement.body)} - set(outer):
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
        self, op: str, writes: Sequence[str], body: Callable[[], None], attrs: dict[str, Constant], span: Span, *,
        training: str = "", defers: bool = False, sliced: bool = False, export: bool = True,
        loss: list[str] | None = None,
    ) -> None:  # fmt: skip
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
        named = {name.id for name in names_in(tuple(body))}
        return [name for name, kind in self.block.versions.items()
                if name in named and isinstance(kind.type, Handle) and kind.type.kind == "cursor"]  # fmt: skip


class _Exports:
    """Gives the names of a loop's body their meaning after the loop.

    Values with rows are exported. A single number is computed again from the exported rows, so that it is about all the
    rows of the last pass and not about the last slice.
    """

    def __init__(self, checker: Statements, inner: Block, given: set[str], exports: dict[str, Value]) -> None:
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


def _on(held: Ref | TableValue, axis: Axis) -> bool:
    found = axis_of(held.type)
    return found is not None and found.within(axis)


def _columns(table: Table) -> set[str]:
    return set(table.columns())


def _loops(body: Sequence[tree.Stmt]) -> Iterator[Loop]:
    for statement in body:
        if isinstance(statement, Loop):
            yield statement
            yield from _loops(statement.body)


def _targets(body: Sequence[tree.Stmt]) -> Iterator[tuple[str, Span]]:
    """Names that a body assigns, its loops' bodies included."""
    for statement in body:
        if isinstance(statement, tree.Assign):
            yield statement.target, statement.target_span
        elif isinstance(statement, Loop):
            yield from _targets(statement.body)


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

