"""Calls of models, functions and tables: each becomes a node of the graph."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from rlgraph.dsl import tree
from rlgraph.dsl.constants import Constants
from rlgraph.dsl.scope import (
    Block,
    Meaning,
    ModelName,
    OutsideName,
    Reporter,
    StateName,
    Stop,
    TableValue,
    Wrong,
    describe,
    nearest,
)
from rlgraph.dsl.signatures import METHODS, STATEMENTS, Signature
from rlgraph.errors import NO_SPAN, Related, Span
from rlgraph.ir.graph import (
    Apply,
    Constant,
    Expr,
    Let,
    Model,
    Node,
    Outside,
    Ref,
    State,
    Value,
    tensor_node,
)
from rlgraph.ir.types import Axis, Table, Tensor, Type
from rlgraph.ops import TENSOR, infer

RESERVED = frozenset({"tensor", "per", "yield", "given", "true", "false", "null", "because", "to", "batch"})
"""Words of the graph's own text: a value of that name gets a number."""

MOST_LEVELS = 64

_NUMBERED = re.compile(r"(\.\d+)+$")


class Calls(Reporter):
    """The part of the checker that writes nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.constants = Constants(self)
        self.block = Block({}, {})
        self.taken: dict[str, int] = {}
        self.axis_keys: set[str] = set()
        """Of the phase."""
        self.axes: dict[str, Axis] = {}
        """Of all phases, by key."""
        self.used: set[str] = set()
        """Names that some expression uses."""
        self.columns: dict[tuple[str, str], str] = {}
        self.chosen: dict[str, Axis] = {}
        """For a value that chooses rows: the axis it chooses from."""
        self.buffers: dict[str, Table] = {}
        """What was pushed into each buffer."""
        self.levels: dict[int, tuple[Expr, int]] = {}
        """How deep an expression is, by its identity."""
        self.staleness = 0
        self.place: Span = NO_SPAN
        """Of the statement being checked."""
        self.call_site: Span | None = None
        """Where the user called the def whose body is being checked."""

    @abstractmethod
    def evaluate(self, expr: tree.Expr, hint: str = "") -> Meaning: ...

    @abstractmethod
    def tensor(self, expr: tree.Expr) -> Expr: ...

    @abstractmethod
    def number(self, expr: tree.Expr) -> Expr: ...

    def stop(self, code: str, message: str, span: Span, hint: str = "", related: tuple[Related, ...] = ()) -> Stop:
        """An error in a def is shown where the user called it."""
        if self.call_site:
            related, span = (*related, Related(span, "it arises in this def")), self.call_site
        return super().stop(code, message, span, hint, related)

    # Writing nodes

    def fresh(self, hint: str) -> str:
        """A name for a value that no other has in this phase."""
        base = _NUMBERED.sub("", hint)
        count = self.taken.get(base, 1 if base in RESERVED else 0) + 1
        self.taken[base] = count
        return base if count == 1 else f"{base}.{count}"

    def version(self, name: str, kind: Type) -> Value:
        """The next value of something that lives across steps."""
        count = self.taken.get(f"{name}@", -1) + 1
        self.taken[f"{name}@"] = count
        return Value(f"{name}@{count}", kind)

    def axis(self, name: str, parent: Axis | None, *, inner: bool = False, key: str = "") -> Axis:
        """A new axis; its key is the name, with a number where another has it."""
        wanted = key or name
        made, count = Axis(wanted, name, parent, inner), 1
        # Phases may share an axis where it is the same one in both.
        while made.key in self.axis_keys or self.axes.get(made.key, made) != made:
            count += 1
            made = Axis(f"{wanted}.{count}", name, parent, inner)
        self.axis_keys.add(made.key)
        self.axes[made.key] = made
        return made

    def inner_axis(self, name: str, table: str, parent: Axis) -> Axis:
        return self.axis(name, parent, inner=True, key=f"{table}.{name}")

    def emit(self, node: Node) -> None:
        # What a def computes is shown where the user called it.
        self.block.nodes.append(replace(node, span=self.call_site) if self.call_site else node)

    def materialize(self, expr: Expr, hint: str) -> str:
        """The name of a value that holds the expression; makes one unless it has a name already."""
        if isinstance(expr, Ref):
            return expr.name
        name = self.fresh(hint)
        self.emit(tensor_node((Let(name, expr),), (name,), expr.span))
        if isinstance(expr, Apply) and TENSOR[expr.op].dtype == "row":
            source = expr.args[0].type.axis
            assert source
            self.chosen[name] = source
        return name

    def leveled(self, expr: Apply) -> Apply:
        """The expression, parts of it under names of their own where it is deep: whoever reads it may call itself."""
        levels = [self.levels.get(id(arg), (arg, 0))[1] for arg in expr.args]
        if max(levels) >= MOST_LEVELS:
            named = tuple(
                Ref(self.materialize(arg, "part"), arg.type, expr.span) if isinstance(arg, Apply) else arg
                for arg in expr.args
            )
            expr, levels = replace(expr, args=named), [0]
        self.levels[id(expr)] = (expr, max(levels) + 1)
        return expr

    def infer(self, op: str, args: Sequence[Tensor], axis: Axis | None = None) -> Tensor:
        return infer(op, args, axis)

    # Looking things up

    def data(self, meaning: OutsideName, span: Span) -> TableValue:
        raise self.stop(
            "E0603",
            f"`{meaning.outside.name}` is drawn inside `collect`, further down",
            span,
            "use it in the body of `collect`, or after it",
        )

    def keyed_state(self, expr: tree.Index) -> State:
        meaning = self.block.scope.get(expr.base.id) if isinstance(expr.base, tree.Name) else None
        if isinstance(meaning, Wrong):
            raise Stop
        if isinstance(meaning, StateName) and not meaning.state.keyed:
            raise self.stop(
                "E0601",
                f"`{meaning.state.name}` is one value and takes no `[...]`",
                expr.base.span,
                f"declare it with a key: `state {meaning.state.name}[key] = ...`",
            )
        if not isinstance(meaning, StateName):
            raise self.stop(
                "E0601",
                "only a state that was declared with a key has `[...]`",
                expr.base.span,
                "declare `state NAME[key] = 0.0`",
            )
        self.used.add(meaning.state.name)
        return meaning.state

    def methods(self, model: Model) -> dict[str, Signature]:
        return METHODS[model.kind]

    def table(self, expr: tree.Expr, what: str) -> TableValue:
        """An argument that has to be a table with tokens."""
        meaning = self.evaluate(expr)
        if not isinstance(meaning, TableValue):
            hint = f"name the whole table: `{expr.base.span.text}`" if isinstance(expr, tree.Attribute) else ""
            raise self.stop("E0305", f"{what} needs a table, and this is {describe(meaning)}", expr.span, hint)
        if meaning.type.token is None:
            raise self.stop(
                "E0305",
                f"{what} needs rows with tokens, and `{expr.span.text}` is plain data",
                expr.span,
                "generate from it, or make tokens with `encode(prompt, answer)`",
            )
        return meaning

    # Models

    def method(self, expr: tree.Call, hint: str) -> Meaning:
        assert isinstance(expr.func, tree.Attribute)
        base = self.evaluate(expr.func.base)
        name = expr.func.name
        if isinstance(base, OutsideName) and base.outside.kind == "buffer":
            return self.sample(expr, base.outside, hint)
        if isinstance(base, TableValue) and name in base.type.columns():
            raise self.stop(
                "E0206",
                f"`{name}` is a column, which cannot be called",
                expr.func.name_span,
                f"write `{expr.func.span.text}`",
            )
        if not isinstance(base, ModelName):
            raise self.stop(
                "E0206",
                f"`{expr.func.base.span.text}` is {describe(base)}, and has no `{name}` to call",
                expr.func.name_span,
            )
        model = base.model
        known = self.methods(model)
        if name not in known:
            owners = [kind for kind, methods in METHODS.items() if name in methods]
            more = nearest(name, known) or f"it has {', '.join(f'`{n}`' for n in known)}"
            if owners:
                more = f"`{name}` belongs to a `{owners[0]}`; a `{model.kind}` has {', '.join(f'`{n}`' for n in known)}"
            raise self.stop("E0205", f"`{model.name}` cannot `{name}`", expr.func.name_span, more)
        options = self.constants.options(known[name], expr.options, expr.span, self.block.scope)
        wanted = {"generate": 1, "interact": 2}.get(name, 1)
        if len(expr.args) != wanted:
            said = {"generate": "the rows to answer", "interact": "an environment and the rows to start from"}
            shown = "1 value" if len(expr.args) == 1 else f"{len(expr.args)} values"
            example = {"generate": "prompts, max_tokens=512", "interact": "shell, tasks, max_turns=8, max_tokens=4096"}
            raise self.stop(
                "E0405",
                f"`{name}` takes {said.get(name, 'a table')} by place, and this is {shown}",
                expr.span,
                f"`{model.name}.{name}({example.get(name, 'rollout')})`",
            )
        if name in ("generate", "interact"):
            if self.block.training:
                raise self.stop("E0505", f"`{name}` cannot stand in a `train` body", expr.span, "move it above `train`")
            return self.generate(expr, name, model, options, hint)
        return self.forward(expr, name, model, options, hint)

    def forward(self, expr: tree.Call, name: str, model: Model, options: dict[str, Constant], hint: str) -> Ref:
        """What a model computes for rows that are there."""
        table = self.table(expr.args[0], f"`{name}`")
        if options.get("temperature", 0) is None:
            # At temperature 0 nothing is drawn; the probabilities meant are the model's own.
            options["temperature"] = table.type.temperature or 1.0
        axis = table.type.axis if name == "score" else table.type.token
        value = Value(self.fresh(hint or f"{model.name}.{name}"), Tensor("float", axis))
        handle = self.block.versions[model.name]
        self.emit(Node(name, (handle.name, table.name), (value,), tuple(options.items()), span=expr.span))
        return Ref(value.name, Tensor("float", axis), expr.span)

    def generate(self, expr: tree.Call, name: str, model: Model, options: dict[str, Constant], hint: str) -> TableValue:
        """A new table of rows that the model samples."""
        if name == "interact":
            env = self.evaluate(expr.args[0])
            if not isinstance(env, OutsideName) or env.outside.kind != "env":
                raise self.stop(
                    "E0206",
                    f"an environment is needed here, and this is {describe(env)}",
                    expr.args[0].span,
                    'declare `env NAME = python("file.py:Class")`',
                )
            options["env"] = env.outside.name
        source = self.evaluate(expr.args[-1])
        if isinstance(source, TableValue):
            given, parent, data = source.name, source.type.axis, source.type.data
            if data is not None and "prompt" not in data and name == "generate":
                raise self.stop(
                    "E0204",
                    "the table has no column `prompt`",
                    expr.args[-1].span,
                    f"name the column: `{expr.args[-1].span.text}.{data[0]}`" if data else "",
                )
        elif (
            isinstance(source, Ref) and source.type.dtype in ("text", "any") and source.type.axis and name == "generate"
        ):
            given, parent, data = source.name, source.type.axis, None
        else:
            raise self.stop(
                "E0305", f"`{name}` needs a table of prompts, and this is {describe(source)}", expr.args[-1].span
            )
        label = self.fresh(hint or ("rollout" if name == "generate" else "episode"))
        least, most = options.get("min_tokens", 0), options["max_tokens"]
        if isinstance(least, int) and isinstance(most, int) and least > most:
            place = next(option.value.span for option in expr.options if option.name == "min_tokens")
            raise self.stop("E0403", f"`min_tokens` is {least}, and `max_tokens` only {most}", place)
        count = options["n"]
        assert isinstance(count, int)
        row = parent if count == 1 else self.axis(label, parent)
        temperature = options["temperature"]
        assert isinstance(temperature, float)
        token = self.inner_axis("token", label, row)
        turn = self.inner_axis("turn", label, row) if name == "interact" else None
        kind = Table(row, token, turn, True, temperature, data)
        attrs = {**options, "key": label}
        if isinstance(attrs.get("stop"), str):
            attrs["stop"] = (attrs["stop"],)
        if self.staleness and not model.frozen:
            attrs["lag"] = self.staleness
        handle = self.block.versions[model.name]
        self.emit(Node(name, (handle.name, given), (Value(label, kind),), tuple(attrs.items()), span=expr.span))
        return TableValue(label, kind)

    # Functions and tables

    def function(self, expr: tree.Call, func: Outside, hint: str) -> Ref:
        """A Python function on the rows of a table; more columns by name."""
        if self.block.training:
            raise self.stop(
                "E0505",
                f"`{func.name}` cannot be called in a `train` body: no gradient goes through it",
                expr.span,
                "move it above `train`",
            )
        if len(expr.args) != 1:
            raise self.stop(
                "E0405",
                f"`{func.name}` takes one table by place, not {len(expr.args)} values",
                expr.span,
                "give other columns by name: `f(rollout, length=rollout.length)`",
            )
        table = self.table(expr.args[0], f"`{func.name}`")
        names, inputs = [], [table.name]
        for option in expr.options:
            column = self.tensor(option.value)
            if column.type.axis is None or not table.type.axis.within(column.type.axis):
                raise self.stop(
                    "E0301",
                    f"a column has an entry for each row of `{expr.args[0].span.text}`, and this is {describe(column)}",
                    option.value.span,
                )
            names.append(option.name)
            inputs.append(self.materialize(column, option.name))
        value = Value(self.fresh(hint or func.name), Tensor("float", table.type.axis))
        attrs: tuple[tuple[str, Constant], ...] = (("func", func.name), ("names", tuple(names)))
        self.emit(Node("call", tuple(inputs), (value,), attrs, span=expr.span))
        return Ref(value.name, Tensor("float", table.type.axis), expr.span)

    def pick(self, expr: tree.Call, hint: str) -> TableValue:
        """`pick(table, argmax(x, by=group))`: the rows are the group's from there on."""
        if len(expr.args) != 2 or expr.options:
            raise self.stop(
                "E0405",
                "`pick` takes a table and a choice of rows",
                expr.span,
                "`pick(rollout, argmax(score, by=prompts))`",
            )
        table = self.table(expr.args[0], "`pick`")
        choice = self.tensor(expr.args[1])
        if choice.type.dtype != "row" or choice.type.axis is None:
            raise self.stop(
                "E0308",
                f"a choice of rows is needed here, and this is {describe(choice)}",
                expr.args[1].span,
                "`argmax(x, by=group)` or `argmin(x, by=group)`",
            )
        index = self.materialize(choice, f"{hint or 'pick'}.row")
        source = self.chosen[index]
        if source.key != table.type.axis.key:
            raise self.stop(
                "E0308",
                f"the rows are chosen from `{source.name}`, not from `{expr.args[0].span.text}`",
                expr.args[1].span,
            )
        label = self.fresh(hint or "pick")
        axis = choice.type.axis
        token = self.inner_axis("token", label, axis)
        turn = self.inner_axis("turn", label, axis) if table.type.turn else None
        moved = {table.type.axis.key: axis, table.type.token.key if table.type.token else "": token}
        extra = tuple(
            (n, replace(t, axis=moved.get(t.axis.key if t.axis else "", t.axis))) for n, t in table.type.extra
        )
        kind = replace(table.type, axis=axis, token=token, turn=turn, extra=extra)
        self.emit(Node("pick", (table.name, index), (Value(label, kind),), span=expr.span))
        return TableValue(label, kind)

    def encode(self, expr: tree.Call, hint: str) -> TableValue:
        """`encode(prompt, answer)`: rows with tokens, of which the answer's carry loss."""
        if len(expr.args) != 2 or expr.options:
            raise self.stop(
                "E0405", "`encode` takes a prompt and an answer", expr.span, "`encode(pairs.prompt, pairs.response)`"
            )
        sides: list[Expr] = []
        for arg in expr.args:
            side = self.evaluate(arg)
            column = isinstance(side, (Ref, Apply)) and side.type.axis is not None
            if not isinstance(side, (Ref, Apply)) or not column or side.type.dtype not in ("text", "any"):
                hint = f"name its column: `{arg.span.text}.prompt` for example" if isinstance(side, TableValue) else ""
                raise self.stop(
                    "E0304", f"a column of texts is needed here, and this is {describe(side)}", arg.span, hint
                )
            sides.append(side)
        if sides[0].type.axis != sides[1].type.axis:
            raise self.stop("E0301", "the prompt and the answer are columns of different tables", expr.span)
        axis = sides[0].type.axis
        assert axis
        label = self.fresh(hint or "answer")
        kind = Table(axis, self.inner_axis("token", label, axis), data=None)
        inputs = tuple(self.materialize(side, "text") for side in sides)
        self.emit(Node("encode", inputs, (Value(label, kind),), span=expr.span))
        return TableValue(label, kind)

    def sample(self, expr: tree.Call, buffer: Outside, hint: str) -> TableValue:
        """Rows of a buffer: independent ones, on an axis of their own."""
        assert isinstance(expr.func, tree.Attribute)
        if expr.func.name != "sample":
            raise self.stop("E0205", f"a buffer cannot `{expr.func.name}`", expr.func.name_span, "it has `sample`")
        args, _ = self.constants.bind(STATEMENTS["sample"], expr.args, expr.options, expr.span, self.block.scope)
        held = self.buffers.get(buffer.name)
        if held is None:
            raise self.stop(
                "E0605",
                f"nothing has been pushed into `{buffer.name}` above this line",
                expr.span,
                f"`push {buffer.name}(rollout)` comes first",
            )
        self.used.add(buffer.name)
        label = self.fresh(hint or buffer.name)
        axis = self.axis(label, None)
        token = self.inner_axis("token", label, axis)
        moved = {held.axis.key: axis, held.token.key if held.token else "": token}
        extra = tuple((n, replace(t, axis=moved[t.axis.key if t.axis else ""])) for n, t in held.extra)
        kind = replace(held, axis=axis, token=token, turn=None, extra=extra)
        handle = self.block.versions[buffer.name]
        attrs: tuple[tuple[str, Constant], ...] = (("rows", args["rows"]), ("key", label))
        self.emit(Node("sample", (handle.name,), (Value(label, kind),), attrs, span=expr.span))
        return TableValue(label, kind)
