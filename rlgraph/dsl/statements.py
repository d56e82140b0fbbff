"""Statements: assignments, loops and training steps become nodes and regions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlgraph.dsl import tree
from rlgraph.dsl.defs import AXES, names_in
from rlgraph.dsl.loops import Loops, targets
from rlgraph.dsl.scope import (
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
    Let,
    Node,
    Ref,
    Value,
    tensor_node,
)
from rlgraph.ir.types import Axis, Table, Tensor, axes_of, axis_of

_FLAT = ("detach", "sign", "floor", "ceil", "round", "floordiv")
"""Their gradient is 0 wherever they have one."""


class Statements(Loops):
    """The part of the checker that writes the graph of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.assigned: dict[str, Span] = {}
        self.reported: dict[str, Span] = {}

    def statements(self, body: Sequence[tree.Stmt]) -> None:
        self.block.later = dict(targets(body))
        for statement in body:
            self.place = statement.span
            try:
                self.statement(statement)
            except RecursionError:
                self.say(
                    "E0210",
                    "this has too many levels to be understood, the defs that it calls written out",
                    statement.span,
                    "give a part of it a name on a line of its own",
                )
                self.forget(statement)
            except Stop:
                self.forget(statement)

    def forget(self, statement: tree.Stmt) -> None:
        """What a wrong statement would have made is unknown, and no further mistake of the user's."""
        wrong = {name for name, _ in targets([statement]) if name not in self.declared}
        if isinstance(statement, tree.Collect) and statement.table.id in self.collected:
            wrong.add(statement.table.id)
        self.block.scope.update(dict.fromkeys(wrong, Wrong()))

    def statement(self, statement: tree.Stmt) -> None:
        if self.block.training and isinstance(statement, (tree.Store, tree.Keep, tree.Push, tree.Update)):
            raise self.stop(
                "E0505",
                "this cannot stand in a `train` body",
                statement.span,
                "a `train` body computes a loss; move it above or below",
            )
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
            raise self.stop(
                "E0602",
                f"`{target}` is a state: it lives across steps",
                statement.target_span,
                f"write `{target} := ...`",
            )
        if target in AXES:
            raise self.stop("E0208", f"`{target}` is the name of an axis", statement.target_span, "choose another name")
        if target in self.declared:
            place = self.declared[target]
            raise self.stop(
                "E0207",
                f"`{target}` is declared above and cannot be assigned",
                statement.target_span,
                related=(Related(place, "it is declared here"),),
            )
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
        if not isinstance(expr, Apply) or expr.op in _FLAT or expr.type.dtype != "float":
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
        if isinstance(held, Wrong):
            raise Stop
        if not isinstance(held, StateName):
            known = [name for name, meaning in self.block.scope.items() if isinstance(meaning, StateName)]
            hint = nearest(target.id, known) or f"declare it: `state {target.id} = 0.0`, or assign with `=`"
            raise self.stop("E0601", f"`{target.id}` is no state", target.span, hint)
        if held.state.keyed:
            raise self.stop(
                "E0601",
                f"`{target.id}` has a value for each key",
                target.span,
                f"name the key's column: `{target.id}[rollout.column] := ...`",
            )
        expr = self.number(statement.value)
        if expr.type.axis is not None:
            raise self.stop(
                "E0304",
                f"a state is one number, and this is {expr.type}",
                statement.value.span,
                "reduce it: `mean(...)`",
            )
        if expr.type.dtype != "float":
            expr = Apply("float", (expr,), Tensor("float"), None, statement.span)
        value = self.version(target.id, Tensor("float"))
        self.emit(tensor_node((Let(value.name, expr),), (value.name,), statement.span))
        self.block.versions[target.id] = value

    def store_keyed(self, target: tree.Index, statement: tree.Store) -> None:
        state = self.keyed_state(target)
        key, value = self.key(target), self.number(statement.value)
        if value.type.axis != key.type.axis:
            raise self.stop(
                "E0301",
                f"the value needs an entry for each row of the key, and this is {describe(value)}",
                statement.value.span,
            )
        made = self.version(state.name, self.block.versions[state.name].type)
        inputs = (self.block.versions[state.name].name, self.materialize(key, "key"), self.materialize(value, "value"))
        self.emit(Node("assign", inputs, (made,), span=statement.span))
        self.block.versions[state.name] = made

    def push(self, statement: tree.Push) -> None:
        held = self.block.scope.get(statement.buffer.id)
        if not isinstance(held, OutsideName) or held.outside.kind != "buffer":
            raise self.stop(
                "E0605",
                f"`{statement.buffer.id}` is no buffer",
                statement.buffer.span,
                f"declare `buffer {statement.buffer.id} = fifo(capacity=4096)`",
            )
        if len(statement.args) != 1:
            raise self.stop(
                "E0405",
                "`push` takes one table by place",
                statement.span,
                "more columns go by name: `push replay(rollout, score=score)`",
            )
        table = self.table(statement.args[0], "`push`")
        names, inputs, extra = [], [], list(table.type.extra)
        for option in statement.options:
            column = self.number(option.value)
            axis = column.type.axis
            if axis is None or not any(axis.key == own.key for own in axes_of(table.type)[:2]):
                rows = statement.args[0].span.text
                raise self.stop(
                    "E0301",
                    f"a column has an entry for each row or token of `{rows}`, and this is {describe(column)}",
                    option.value.span,
                )
            names.append(option.name)
            inputs.append(self.materialize(column, option.name))
            extra.append((option.name, Tensor(column.type.dtype, axis)))
        schema = replace(table.type, extra=tuple(extra))
        first = self.buffers.setdefault(statement.buffer.id, schema)
        differ = sorted(set(first.columns()) ^ set(schema.columns()))
        if differ:
            shown = ", ".join(f"`{name}`" for name in differ)
            raise self.stop(
                "E0605",
                f"what is pushed into `{statement.buffer.id}` has the same columns each time; here and "
                f"above differ in {shown}",
                statement.span,
            )
        handle = self.block.versions[statement.buffer.id]
        value = self.version(statement.buffer.id, handle.type)
        attrs: tuple[tuple[str, Constant], ...] = (("names", tuple(names)),)
        self.emit(Node("push", (handle.name, table.name, *inputs), (value,), attrs, span=statement.span))
        self.block.versions[statement.buffer.id] = value

    def update(self, statement: tree.Update) -> None:
        target, source = self.model_named(statement.target), self.model_named(statement.source)
        if target.name == source.name:
            raise self.stop(
                "E0607",
                f"`{target.name}` has its own weights already",
                statement.source.span,
                f"name another `{target.kind}`",
            )
        if target.kind != source.kind:
            raise self.stop(
                "E0607",
                f"`{target.name}` ({target.kind}) cannot take the weights of `{source.name}` ({source.kind})",
                statement.span,
            )
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
            raise self.stop(
                "E0504",
                "`minimize` belongs into a `train` body",
                statement.span,
                "write `train MODEL(lr=...):` above it",
            )
        expr = self.number(statement.value)
        if expr.type.axis is not None:
            raise self.stop(
                "E0501",
                f"`minimize` needs one number, and this is {expr.type}",
                statement.value.span,
                "reduce it: `mean(...)` is the mean of all tokens, `mean(mean(x, token))` that of rows",
            )
        if not self.differentiable(expr):
            raise self.stop(
                "E0506",
                f"this does not depend on `{model}` in a way that has a gradient",
                statement.value.span,
                f"call `{model}` inside the `train` body: what is computed above it is constant there",
            )
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
                    raise self.stop(
                        "E0304",
                        f"a metric is one number, and `{item.name}` is {expr.type}",
                        item.value.span,
                        "reduce it: `mean(...)`",
                    )
                if item.name in ("step", "seconds"):
                    raise self.stop(
                        "E0203", f"every run reports `{item.name}` by itself", item.name_span, "choose another name"
                    )
                if item.name in self.reported:
                    related = tuple(Related(s, "the first one") for n, s in self.reported.items() if n == item.name)
                    raise self.stop(
                        "E0203", f"there is a metric `{item.name}` already", item.name_span, related=related
                    )
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
            raise self.stop(
                "E0604",
                f"`keep` needs a table, and this is {describe(meaning)}",
                statement.table.span,
                "name the table whose rows are kept: `keep prompts where ...`",
            )
        if self.block.sliced:
            raise self.stop(
                "E0604",
                "`keep` cannot stand in a `minibatch`: its parts are cut already",
                statement.span,
                "move it above the loop",
            )
        mask = self.number(statement.condition)
        axis = meaning.type.axis
        if mask.type.axis is None or not axis.within(mask.type.axis):
            shown = "a single one" if mask.type.axis is None else str(mask.type)
            raise self.stop(
                "E0307",
                f"`keep {statement.table.id}` needs a condition for each row of `{statement.table.id}`, "
                f"and this is {shown}",
                statement.condition.span,
                f"reduce it with `by={statement.table.id}`",
            )
        name = self.materialize(mask, "kept")
        moved: dict[str, Axis] = {}
        inputs, outputs = [name], []
        renamed: dict[str, Value] = {}
        for word, held in list(self.block.scope.items()):
            if not isinstance(held, (Ref, TableValue)):
                continue
            chosen = self.chosen.get(held.name)
            if not _on(held, axis) and not (chosen and chosen.within(axis)):
                continue
            if isinstance(held, Ref) and held.type.dtype == "row":
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
            kind,
            axis=move(kind.axis),
            token=move(kind.token) if kind.token else None,
            turn=move(kind.turn) if kind.turn else None,
            extra=tuple((n, shift(t)) for n, t in kind.extra),
        )


def _on(held: Ref | TableValue, axis: Axis) -> bool:
    found = axis_of(held.type)
    return found is not None and found.within(axis)
