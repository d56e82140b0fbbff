"""Expressions: names and axes are resolved here, and everything that is not tensor mathematics becomes a node."""

from __future__ import annotations

from collections.abc import Sequence

from rlgraph.dsl import tree
from rlgraph.dsl.defs import AXES, FUNCTIONS, Defs
from rlgraph.dsl.scope import (
    DefName,
    Literal,
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
from rlgraph.errors import Related, Span
from rlgraph.ir.graph import Apply, Const, Expr, Node, Ref, Value
from rlgraph.ir.types import Axis, Tensor, join
from rlgraph.ops import TENSOR

_SIGNS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "<": "lt",
    "<=": "le",
    ">": "gt",
    ">=": "ge",
    "==": "eq",
    "!=": "ne",
    "and": "and",
    "or": "or",
}


class Expressions(Defs):
    """The part of the checker that turns syntax into typed expressions."""

    def tensor(self, expr: tree.Expr) -> Expr:
        """An expression that has to be a number, or numbers along an axis."""
        meaning = self.evaluate(expr)
        if isinstance(meaning, (Const, Ref, Apply)):
            return meaning
        column = "length" if isinstance(meaning, TableValue) and meaning.type.token else "column"
        table = "" if self.call_site else expr.span.text
        hint = f"name one of its columns: `{table}.{column}`" if isinstance(meaning, TableValue) else ""
        raise self.stop("E0305", f"numbers are needed here, and this is {describe(meaning)}", expr.span, hint)

    def number(self, expr: tree.Expr) -> Expr:
        """A tensor that one can calculate with."""
        found = self.tensor(expr)
        if found.type.dtype in ("text", "row"):
            what = "a text" if found.type.dtype == "text" else "a choice of rows"
            raise self.stop("E0304", f"one cannot calculate with {what}", expr.span)
        return found

    def each(self, exprs: Sequence[tree.Expr]) -> list[Expr]:
        """Several numbers; all that is wrong with them is said."""
        found: list[Expr] = []
        for expr in exprs:
            try:
                found.append(self.number(expr))
            except Stop:
                continue
        if len(found) < len(exprs):
            raise Stop
        return found

    def evaluate(self, expr: tree.Expr, hint: str = "") -> Meaning:
        """What an expression means; `hint` is the name that its value is going to have."""
        if isinstance(expr, tree.Name):
            return self.name(expr)
        if isinstance(expr, tree.Number):
            return Const(expr.value, Tensor("float" if isinstance(expr.value, float) else "int"), expr.span)
        if isinstance(expr, tree.Bool):
            return Const(expr.value, Tensor("bool"), expr.span)
        if isinstance(expr, tree.String):
            return Const(expr.value, Tensor("text"), expr.span)
        if isinstance(expr, tree.List):
            raise self.stop("E0305", "a list can stand in an option only", expr.span)
        if isinstance(expr, tree.Unary):
            return self.unary(expr)
        if isinstance(expr, tree.Binary):
            return self.binary(expr)
        if isinstance(expr, tree.Attribute):
            return self.attribute(expr)
        if isinstance(expr, tree.Index):
            return self.keyed(expr)
        return self.call(expr, hint)

    def name(self, expr: tree.Name) -> Meaning:
        meaning = self.block.scope.get(expr.id)
        if isinstance(meaning, Wrong):
            raise Stop
        if isinstance(meaning, Unknowable):
            raise self.stop("E0209", meaning.reason, expr.span, related=(Related(meaning.span, "it was made here"),))
        if isinstance(meaning, StateName):
            return self.state(meaning, expr.span)
        if isinstance(meaning, OutsideName) and meaning.outside.kind == "data":
            return self.data(meaning, expr.span)
        if meaning is not None:
            self.used.add(expr.id)
            if isinstance(meaning, Literal) and isinstance(meaning.value, str):
                return Const(meaning.value, Tensor("text"), expr.span)
            return meaning
        if expr.id in self.block.later:
            place = self.block.later[expr.id]
            raise self.stop(
                "E0202",
                f"`{expr.id}` is used before it is assigned",
                expr.span,
                related=(Related(place, "it is assigned here"),),
            )
        known = [*self.block.scope, *FUNCTIONS]
        raise self.stop("E0201", f"nothing is called `{expr.id}`", expr.span, nearest(expr.id, known))

    def state(self, meaning: StateName, span: Span) -> Expr:
        self.used.add(meaning.state.name)
        if meaning.state.keyed:
            raise self.stop(
                "E0305",
                f"`{meaning.state.name}` has a value for each key",
                span,
                f"name the key's column: `{meaning.state.name}[rollout.column]`",
            )
        value = self.block.versions[meaning.state.name]
        assert isinstance(value.type, Tensor)
        return Ref(value.name, value.type)

    def unary(self, expr: tree.Unary) -> Expr:
        operand = self.number(expr.operand)
        if expr.op == "+":
            return operand
        return self.apply("neg" if expr.op == "-" else "not", [operand], expr.span)

    def binary(self, expr: tree.Binary) -> Expr:
        op = _SIGNS[expr.op]
        if op in ("eq", "ne"):
            sides = [self.tensor(expr.left), self.tensor(expr.right)]
            texts = [side.type.dtype == "text" for side in sides]
            if any(texts) and all(side.type.dtype in ("text", "any") for side in sides):
                return self.apply(op, sides, expr.span)
        left, right = self.each([expr.left, expr.right])
        return self.apply(op, [left, right], expr.span)

    def apply(self, op: str, args: list[Expr], span: Span, axis: Axis | None = None) -> Expr:
        """An operation on typed arguments; says so where their axes do not nest."""
        met: Axis | None = None
        for arg in args if TENSOR[op].kind != "reduction" else []:
            try:
                met = join(met, arg.type.axis)
            except ValueError:
                assert met and arg.type.axis
                raise self.stop("E0301", _unnested(met, arg.type.axis), span, _nest_hint(met, arg.type.axis)) from None
        kind = self.infer(op, [arg.type for arg in args], axis)
        return self.leveled(Apply(op, tuple(args), kind, axis.key if axis else None, self.call_site or span))

    def attribute(self, expr: tree.Attribute) -> Meaning:
        base = self.evaluate(expr.base)
        if isinstance(base, TableValue):
            return self.column(base, expr)
        if isinstance(base, ModelName):
            known = self.methods(base.model)
            hint = nearest(expr.name, known) or f"call one of {', '.join(f'`{name}`' for name in known)}"
            if expr.name in known:
                raise self.stop(
                    "E0206", f"`{expr.name}` of a model has to be called", expr.name_span, f"`{expr.span.text}(...)`"
                )
            raise self.stop("E0206", f"a model has no column `{expr.name}`", expr.name_span, hint)
        raise self.stop("E0206", f"{describe(base)} has no columns", expr.span)

    def column(self, table: TableValue, expr: tree.Attribute) -> Ref:
        known = table.type.columns()
        kind = known.get(expr.name)
        if kind is None and table.type.data is None:
            kind = Tensor("any", table.type.axis)
        if kind is None:
            hint = nearest(expr.name, known) or f"it has {', '.join(sorted(known)) or 'none that is known here'}"
            raise self.stop("E0204", f"the table has no column `{expr.name}`", expr.name_span, hint)
        memo = (table.name, expr.name)
        if memo not in self.columns:
            value = Value(self.fresh(f"{table.name}.{expr.name}"), kind)
            self.emit(Node("column", (table.name,), (value,), (("name", expr.name),), span=expr.span))
            self.columns[memo] = value.name
        return Ref(self.columns[memo], kind, expr.span)

    def key(self, expr: tree.Index) -> Expr:
        key = self.tensor(expr.key)
        if key.type.axis is None or key.type.axis.inner or key.type.dtype == "row":
            raise self.stop(
                "E0304",
                f"a key is a column with an entry for each row, and this is {describe(key)}",
                expr.key.span,
                "name a column of a table: `rollout.agent` for example",
            )
        return key

    def keyed(self, expr: tree.Index) -> Expr:
        state = self.keyed_state(expr)
        key = self.key(expr)
        handle = self.block.versions[state.name]
        value = Value(self.fresh(f"{state.name}.value"), Tensor("float", key.type.axis))
        self.emit(Node("lookup", (handle.name, self.materialize(key, "key")), (value,), span=expr.span))
        return Ref(value.name, value.type, expr.span)  # type: ignore[arg-type]

    # Calls

    def call(self, expr: tree.Call, hint: str) -> Meaning:
        if isinstance(expr.func, tree.Attribute):
            return self.method(expr, hint)
        if not isinstance(expr.func, tree.Name):
            raise self.stop("E0206", "this cannot be called", expr.func.span)
        name = expr.func.id
        meaning = self.block.scope.get(name)
        if isinstance(meaning, DefName):
            self.used.add(name)
            return self.expand(expr, meaning, hint)
        if isinstance(meaning, OutsideName) and meaning.outside.kind == "func":
            self.used.add(name)
            return self.function(expr, meaning.outside, hint)
        # A value may have the name of a built-in function: what is called is the function.
        if name in ("pick", "encode"):
            return self.pick(expr, hint) if name == "pick" else self.encode(expr, hint)
        if name in FUNCTIONS or name in ("min", "max"):
            return self.builtin(expr, name)
        if isinstance(meaning, Wrong):
            raise Stop
        if meaning is not None:
            shown = describe(meaning)
            more = f"call one of its methods: `{name}.generate(...)`" if isinstance(meaning, ModelName) else ""
            raise self.stop("E0206", f"`{name}` is {shown}, which cannot be called", expr.func.span, more)
        known = [*FUNCTIONS, "min", "max", "pick", "encode"]
        known += [n for n, m in self.block.scope.items() if isinstance(m, (DefName, OutsideName))]
        raise self.stop("E0201", f"no function is called `{name}`", expr.func.span, nearest(name, known))

    def builtin(self, expr: tree.Call, name: str) -> Expr:
        by = next((option for option in expr.options if option.name == "by"), None)
        for option in expr.options:
            if option is not by or TENSOR[name].kind != "reduction":
                hint = "reductions take `by=`" if TENSOR[name].kind == "reduction" else "it takes no options"
                raise self.stop("E0401", f"`{name}` has no option `{option.name}`", option.name_span, hint)
        if name in ("min", "max") and by is None and len(expr.args) == 2 and not self.is_axis(expr.args[1]):
            left, right = self.each(expr.args)
            return self.apply("minimum" if name == "min" else "maximum", [left, right], expr.span)
        op = TENSOR[name]
        if op.kind == "reduction":
            return self.reduce(expr, name, by)
        if len(expr.args) != op.args:
            raise self.stop(
                "E0405", f"`{name}` takes {op.args} value{'s' * (op.args > 1)}, not {len(expr.args)}", expr.span
            )
        args = self.each(expr.args)
        if op.kind == "scan" and (args[0].type.axis is None or not args[0].type.axis.inner):
            raise self.stop(
                "E0306", f"`{name}` runs along tokens or turns, and this is {args[0].type}", expr.args[0].span
            )
        for arg, syntax in zip(args[1:], expr.args[1:], strict=True):
            if op.kind == "scan" and not _inside(args[0].type.axis, arg.type.axis):
                assert args[0].type.axis and arg.type.axis
                raise self.stop(
                    "E0301",
                    _unnested(args[0].type.axis, arg.type.axis),
                    syntax.span,
                    f"`{name}` takes one number there, or one for each row or entry of the first value",
                )
        return self.apply(name, args, expr.span)

    def is_axis(self, expr: tree.Expr) -> bool:
        """Whether an argument names an axis to reduce, not a value."""
        if not isinstance(expr, tree.Name):
            return False
        meaning = self.block.scope.get(expr.id)
        data = isinstance(meaning, OutsideName) and meaning.outside.kind == "data"
        return data or isinstance(meaning, TableValue) or (meaning is None and expr.id in ("token", "turn"))

    def reduce(self, expr: tree.Call, name: str, by: tree.Option | None) -> Expr:
        """`mean(x)`, `mean(x, token)`, `mean(x, by=prompts)`; `quantile` has a number before the axis."""
        plain = TENSOR[name].args
        first = "x" if plain == 1 else "x, 0.5"
        if not plain <= len(expr.args) <= plain + (by is None):
            raise self.stop(
                "E0405",
                f"`{name}` takes {plain} value{'s' * (plain > 1)} and at most one axis",
                expr.span,
                f"`{name}({first})`, `{name}({first}, token)` or `{name}({first}, by=prompts)`",
            )
        args = self.each(expr.args[:plain])
        source = args[0].type.axis
        if source is None:
            raise self.stop("E0302", f"`{name}` needs a value with an axis, and this is one number", expr.args[0].span)
        target: Axis | None = None
        if by is not None:
            target = self.group_axis(by.value, source)
        elif len(expr.args) > plain:
            target = self.reduced_axis(expr.args[plain], source, name)
        if TENSOR[name].dtype == "row":
            if source.inner:
                raise self.stop(
                    "E0308",
                    f"`{name}` chooses a row, and this has an entry for each {source.name}",
                    expr.args[0].span,
                    f"reduce it first: `sum(x, {source.name})`",
                )
            if target is None:
                raise self.stop(
                    "E0308", f"`{name}` chooses a row in each group", expr.span, "say which groups: `by=prompts`"
                )
        return self.apply(name, args, expr.span, target)

    def reduced_axis(self, expr: tree.Expr, source: Axis, name: str) -> Axis | None:
        """The axis that is left when the one named is reduced away."""
        if not isinstance(expr, tree.Name):
            raise self.stop("E0302", "the name of an axis is needed here", expr.span, "`token`, or the name of a table")
        known = [axis.name for axis in source.path()]
        if expr.id not in self.block.scope and expr.id not in self.block.later and expr.id not in AXES:
            raise self.stop(
                "E0302",
                f"there is no axis `{expr.id}`; the value has [{source.label}]",
                expr.span,
                nearest(expr.id, known),
            )
        named = self.axis_named(expr)
        if source.name == expr.id or (named and named.key == source.key):
            return source.parent
        if named and source.within(named):
            raise self.stop(
                "E0302",
                f"`{expr.id}` cannot be reduced before `{source.name}`, the innermost axis of this value",
                expr.span,
                f"for one value for each row of `{expr.id}` write `by={expr.id}`",
            )
        raise self.stop(
            "E0302", f"the value has no axis `{expr.id}`; it has [{source.label}]", expr.span, nearest(expr.id, known)
        )

    def group_axis(self, expr: tree.Expr, source: Axis) -> Axis:
        named = self.axis_named(expr) if isinstance(expr, tree.Name) else None
        if named is None:
            raise self.stop(
                "E0303", "`by=` takes the name of a table", expr.span, f"`by={source.row.name}` for example"
            )
        if not source.within(named):
            rows = [axis.name for axis in source.path() if not axis.inner]
            raise self.stop(
                "E0303",
                f"this value has no `{expr.span.text}` to be grouped by; it is [{source.label}]",
                expr.span,
                f"its rows lie in {', '.join(f'`{name}`' for name in rows)}",
            )
        return named

    def axis_named(self, expr: tree.Name) -> Axis | None:
        if expr.id in ("token", "turn") and expr.id not in self.block.scope:
            return None
        meaning = self.name(expr)
        if isinstance(meaning, TableValue):
            return meaning.type.axis
        raise self.stop(
            "E0303",
            f"an axis is needed here, and `{expr.id}` is {describe(meaning)}",
            expr.span,
            "name the table whose rows are meant",
        )


def _unnested(a: Axis, b: Axis) -> str:
    return f"{_owner(a)} and {_owner(b)} do not meet: neither lies in the other"


def _owner(axis: Axis) -> str:
    return f"[{axis.label}] of `{axis.key.rsplit('.', 1)[0]}`" if axis.inner else f"[{axis.label}]"


def _inside(inner: Axis | None, outer: Axis | None) -> bool:
    return inner is not None and inner.within(outer)


def _nest_hint(a: Axis, b: Axis) -> str:
    if a.inner and b.inner and a.row.key == b.row.key:
        kinds = f"{a.name}s of different tables" if a.name == b.name else f"{a.name}s and {b.name}s of the same rows"
        return f"they are {kinds}: reduce each first, with `sum(x, {a.name})` for example"
    shared = next((axis.name for axis in a.path() if b.within(axis)), None)
    if shared is None:
        return f"rows of `{a.row.name}` and `{b.row.name}` have nothing in common: reduce one side to a single number"
    return f"reduce one side to `{shared}`, in which both lie: `mean(x, by={shared})` for example"
