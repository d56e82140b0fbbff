"""Checks operators and built-in functions: typed expressions, whose axes have to nest."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.distributions import reduce_vocabulary, refuse_other_operation
from rlgraph.dsl.keys import evaluate_groups, grouping
from rlgraph.dsl.names import AXES, axis_named
from rlgraph.dsl.nodes import limit_depth, materialize
from rlgraph.dsl.scope import ExternalName, KeyValue, OptionalValue, TableValue, describe_meaning, is_over_vocabulary
from rlgraph.dsl.values import (
    evaluate_numbers,
    evaluate_optional,
    evaluate_optionals,
    evaluate_value,
    missing_value_hint,
    split_optional_values,
)
from rlgraph.errors import Span, count_phrase, did_you_mean
from rlgraph.ir.graph import Apply, Const, Expr, Ref
from rlgraph.ir.types import Axis, inner_of_two_axes
from rlgraph.ops import TENSOR, infer_type

_SIGNS = {(op.sign, op.args): op.name for op in TENSOR.values() if op.sign}
"""The operation of each sign, by how many values it takes."""


def unary_expr(context: Context, expr: tree.Unary) -> Expr | OptionalValue:
    """Return `-x` or `not x` as an expression."""
    operand = evaluate_optional(context, expr.operand)
    if expr.op == "+":
        return operand
    operands, given = split_optional_values([operand])
    return _optional(apply_operation(context, _SIGNS[expr.op, 1], operands, expr.span), given)


def _optional(expr: Expr, given: tuple[Ref, ...]) -> Expr | OptionalValue:
    """Return a value that the rows lack for which one of `given` is false."""
    return OptionalValue(expr, given) if given else expr


def binary_expr(context: Context, expr: tree.Binary) -> Expr | OptionalValue:
    """Return `a + b` as an expression; two texts can be compared."""
    op = _SIGNS[expr.op, 2]
    if TENSOR[op].texts:
        sides, given = split_optional_values([evaluate_value(context, expr.left), evaluate_value(context, expr.right)])
        texts = [side.type.dtype == "text" for side in sides]
        if any(texts) and all(side.type.dtype in ("text", "any") for side in sides):
            return _optional(apply_operation(context, op, sides, expr.span), given)
    sides, given = evaluate_optionals(context, [expr.left, expr.right])
    return _optional(apply_operation(context, op, sides, expr.span), given)


def apply_operation(context: Context, op: str, args: list[Expr], span: Span, axis: Axis | None = None) -> Expr:
    """Return an operation on typed arguments; report where their axes do not nest."""
    if not TENSOR[op].is_grouped:
        common_axis(context, args, span)
    if TENSOR[op].kind != "elementwise":
        refuse_other_operation(context, op, args, span)
    kind = infer_type(op, [arg.type for arg in args], axis)
    return limit_depth(context, Apply(op, tuple(args), kind, axis.key if axis else None, context.call_site or span))


def common_axis(context: Context, values: Sequence[Expr], span: Span) -> Axis | None:
    """Return the innermost axis of some values, to which the others are broadcast; report where their axes do not
    nest."""
    joined: Axis | None = None
    for value in values:
        try:
            joined = inner_of_two_axes(joined, value.type.axis)
        except ValueError:
            assert joined and value.type.axis
            raise context.statement_error(
                "E0301", _unnested(joined, value.type.axis), span, _nest_hint(joined, value.type.axis)
            ) from None
    return joined


def builtin_expr(context: Context, expr: tree.Call, name: str) -> Expr | OptionalValue:
    """Return a tensor operation that is called by its name."""
    by = next((option for option in expr.options if option.name == "by"), None)
    for option in expr.options:
        if option is not by or not TENSOR[name].is_grouped:
            hint = f"`{name}` takes `by=`" if TENSOR[name].is_grouped else "it takes no options"
            raise context.statement_error("E0401", f"`{name}` has no option `{option.name}`", option.name_span, hint)
    if name in ("min", "max") and by is None and len(expr.args) == 2 and not _is_axis(context, expr.args[1]):
        args, given = evaluate_optionals(context, expr.args)
        return _optional(apply_operation(context, "minimum" if name == "min" else "maximum", args, expr.span), given)
    op = TENSOR[name]
    if op.kind == "ranking":
        return _ranking(context, expr, name, by)
    if op.kind == "reduction":
        return _reduce(context, expr, name, by)
    if len(expr.args) != op.args:
        raise context.statement_error(
            "E0405", f"`{name}` takes {count_phrase(op.args, 'value')}, not {len(expr.args)}", expr.span
        )
    args, given = evaluate_optionals(context, expr.args)
    if name == "clip":
        _check_clip_range(context, expr, args)
    if op.kind == "scan" and (args[0].type.axis is None or not args[0].type.axis.inner):
        raise context.statement_error(
            "E0306", f"`{name}` runs along tokens or turns, and this is {args[0].type}", expr.args[0].span
        )
    for arg, syntax in zip(args[1:], expr.args[1:], strict=True):
        if op.kind == "scan" and not _inside(args[0].type.axis, arg.type.axis):
            assert args[0].type.axis and arg.type.axis
            raise context.statement_error(
                "E0301",
                _unnested(args[0].type.axis, arg.type.axis),
                syntax.span,
                f"`{name}` takes one number there, or one for each row or entry of the first value",
            )
    return _optional(apply_operation(context, name, args, expr.span), given)


def valid_expr(context: Context, expr: tree.Call) -> Expr:
    """Return `valid(x)`: whether each row has a value."""
    if len(expr.args) != 1 or expr.options:
        raise context.statement_error("E0405", "`valid` takes one value", expr.span, "`valid(score)`")
    value = evaluate_value(context, expr.args[0])
    if value.type.axis is None:
        raise context.statement_error(
            "E0302", "`valid` needs a value with an axis, and this is one number", expr.args[0].span
        )
    if not isinstance(value, OptionalValue):
        return apply_operation(context, "eq", [value, value], expr.span)
    return all_given_expr(context, value.given, expr.span)


def all_given_expr(context: Context, given: tuple[Ref, ...], span: Span) -> Expr:
    """Return whether each row has all of some values."""
    result: Expr = given[0]
    for ref in given[1:]:
        result = apply_operation(context, "and", [result, ref], span)
    return result


def otherwise_expr(context: Context, expr: tree.Call) -> Expr | OptionalValue:
    """Return `otherwise(x, y)`: x, and y for the rows that lack it."""
    if len(expr.args) != 2 or expr.options:
        raise context.statement_error("E0405", "`otherwise` takes two values", expr.span, "`otherwise(score, 0.0)`")
    value, instead = evaluate_optional(context, expr.args[0]), evaluate_optional(context, expr.args[1])
    if not isinstance(value, OptionalValue):
        return value
    here = all_given_expr(context, value.given, expr.span)
    rest, given = split_optional_values([instead])
    if value.type.dtype == "bool" and instead.type.dtype == "bool":
        # `where` would make numbers of them.
        missing = apply_operation(context, "not", [here], expr.span)
        sides = [[here, value.expr], [missing, *rest]]
        result = apply_operation(
            context, "or", [apply_operation(context, "and", side, expr.span) for side in sides], expr.span
        )
    else:
        result = apply_operation(context, "where", [here, value.expr, *rest], expr.span)
    if not given:
        return result
    either = apply_operation(context, "or", [here, all_given_expr(context, given, expr.span)], expr.span)
    return OptionalValue(result, (Ref(materialize(context, either, "given"), either.type, expr.span),))


def _is_axis(context: Context, expr: tree.Expr) -> bool:
    """Return whether an argument names an axis, not a value."""
    if not isinstance(expr, tree.Name):
        return False
    meaning = context.block.scope.get(expr.id)
    data = isinstance(meaning, ExternalName) and meaning.outside.kind == "data"
    return data or isinstance(meaning, TableValue) or (meaning is None and expr.id in AXES)


def _reduce(context: Context, expr: tree.Call, name: str, by: tree.Option | None) -> Expr:
    """Return `mean(x)`, `mean(x, token)` or `mean(x, by=prompts)`; `quantile` has a number before the axis."""
    value_count = TENSOR[name].args
    shown_args = "x" if value_count == 1 else "x, 0.5"
    if not value_count <= len(expr.args) <= value_count + (by is None):
        raise context.statement_error(
            "E0405",
            f"`{name}` takes {count_phrase(value_count, 'value')} and at most one axis",
            expr.span,
            f"`{name}({shown_args})`, `{name}({shown_args}, token)` or `{name}({shown_args}, by=prompts)`",
        )
    args, given = evaluate_optionals(context, expr.args[:1])
    if is_over_vocabulary(args[0]):
        return reduce_vocabulary(context, expr, name, args[0], by, given)
    args += evaluate_numbers(context, expr.args[1:value_count])
    if name == "quantile" and not 0 <= _known_number(args[1], 0) <= 1:
        message = f"`quantile` takes a share from 0 to 1, and this is {expr.args[1].span.covered_text}"
        hint = f"`{name}(x, 0.9)` is what nine tenths are below"
        raise context.statement_error("E0403", message, expr.args[1].span, hint)
    source = args[0].type.axis
    if source is None:
        raise context.statement_error(
            "E0302", f"`{name}` needs a value with an axis, and this is one number", expr.args[0].span
        )
    groups = KeyValue(None)
    if by is not None:
        groups = evaluate_groups(context, by.value, source)
    elif len(expr.args) > value_count:
        groups = KeyValue(_reduced_axis(context, expr.args[value_count], source, name))
    if TENSOR[name].dtype == "row":
        if source.inner:
            raise context.statement_error(
                "E0308",
                f"`{name}` chooses a row, and this has an entry for each {source.name}",
                expr.args[0].span,
                f"reduce it first: `sum(x, {source.name})`",
            )
        if by is not None and groups.values:
            key, order = by.value.span.covered_text, "" if name == "argmax" else "-"
            message = f"`{name}` chooses a row of each row of a table, and rows with one key lie in none"
            hint = f"keep the first of each: `keep {source.name} where rank({order}x, by={key}) == 0`"
            raise context.statement_error("E0213", message, by.value.span, hint)
        if groups.within is None:
            outer = source.parent.name if source.parent else "prompts"
            raise context.statement_error(
                "E0308", f"`{name}` chooses a row in each group", expr.span, f"say which groups: `by={outer}`"
            )
    return _grouped(context, expr, name, args, given, groups)


def _grouped(
    context: Context, expr: tree.Call, name: str, args: list[Expr], given: tuple[Ref, ...], groups: KeyValue
) -> Expr:
    """Return an operation on the entries that are there, in each group or in the whole batch."""
    target, key = grouping(groups)
    for arg, syntax in zip(args[1:], expr.args[1:], strict=False):
        if (
            not TENSOR[name].by_entry
            and arg.type.axis is not None
            and (target is None or not target.is_within(arg.type.axis))
        ):
            where = f", or one for each row of `{target.name}`" if target else ""
            message = f"`{name}` takes one number here{where}, and this is {arg.type}"
            form = f"mean(x, by={target.name})" if target else "mean(x)"
            raise context.statement_error("E0855", message, syntax.span, f"reduce it: `{form}` for example")
    if not given:
        return apply_operation(context, name, [*args, *key], expr.span, target)
    if context.block.training:
        shown = describe_meaning(OptionalValue(args[0], given))
        message = f"a loss needs a value of each row, and this is {shown}"
        raise context.statement_error("E0781", message, expr.args[0].span, missing_value_hint(context, given))
    return apply_operation(context, name, [*args, all_given_expr(context, given, expr.span), *key], expr.span, target)


def _ranking(context: Context, expr: tree.Call, name: str, by: tree.Option | None) -> Expr | OptionalValue:
    """Return `rank(x, by=prompts)` or `top(x, 2, by=prompts)`. Rows that lack a value are not ranked: they have no
    rank, and are none of the largest."""
    value_count = TENSOR[name].args
    form = "x" if value_count == 1 else "x, y" if TENSOR[name].by_entry else "x, 2"
    if len(expr.args) != value_count:
        raise context.statement_error(
            "E0405",
            f"`{name}` takes {count_phrase(value_count, 'value')}, not {len(expr.args)}",
            expr.span,
            f"`{name}({form})` of the whole batch, or `{name}({form}, by=prompts)` in each group",
        )
    args, given = evaluate_optionals(context, expr.args[:1])
    source = args[0].type.axis
    if source is None:
        raise context.statement_error(
            "E0302", f"`{name}` needs a value with an axis, and this is one number", expr.args[0].span
        )
    for syntax in expr.args[1:]:
        args += evaluate_numbers(context, [syntax])
        if TENSOR[name].by_entry:
            _check_meets_entries(context, args[-1], source, syntax, name)
        else:
            _check_whole_number(context, args[-1], syntax, name)
    groups = evaluate_groups(context, by.value, source) if by else KeyValue(None)
    result = _grouped(context, expr, name, args, given, groups)
    return result if result.type.dtype == "bool" else _optional(result, given)


def _check_meets_entries(context: Context, value: Expr, source: Axis, syntax: tree.Expr, name: str) -> None:
    """Report an order that has not an entry for each entry of the value."""
    if not source.is_within(value.type.axis):
        message = f"`{name}` takes an order of the entries of [{source.label}], and this is {value.type}"
        hint = f"reduce it to a value for each `{source.name}`, or name a column of `{source.row_axis.name}`"
        raise context.statement_error("E0223", message, syntax.span, hint)


def _check_whole_number(context: Context, value: Expr, syntax: tree.Expr, name: str) -> None:
    """Report a count of rows that is no whole number, or less than 1."""
    if value.type.dtype not in ("int", "any", "number"):
        message = f"`{name}` takes a whole number of rows, and this is {value.type}"
        hint = "for a share of the rows write `rank(x, by=prompts) < 0.5 * size(x, by=prompts)`"
        raise context.statement_error("E0854", message, syntax.span, hint)
    if _known_number(value, 1) < 1:
        message = f"`{name}` takes at least one row, and this is {syntax.span.covered_text}"
        hint = "for the smallest ones negate the values: `top(-x, 2)`"
        raise context.statement_error("E0854", message, syntax.span, hint)


def _check_clip_range(context: Context, expr: tree.Call, args: Sequence[Expr]) -> None:
    """Report a range that ends below where it begins, where both ends are known."""
    bounds = _known_number(args[1], -math.inf), _known_number(args[2], math.inf)
    if bounds[0] <= bounds[1]:
        return
    texts = [arg.span.covered_text for arg in expr.args[1:]]
    computed = [isinstance(arg, Apply) and arg.op != "neg" for arg in args[1:]]
    low, high = (
        f"{text} = {bound:g}" if more else text for text, more, bound in zip(texts, computed, bounds, strict=True)
    )
    message = f"`clip` holds a value between a lower and a higher one, and {low} is more than {high}"
    hint = "is what is taken away and added below 0?" if any(computed) else f"`clip(x, {texts[1]}, {texts[0]})`"
    raise context.statement_error("E0403", message, expr.args[1].span, hint)


def _known_number(value: Expr, otherwise: float) -> float:
    """Return a number that is written in the program, or computed from such; else `otherwise`."""
    if isinstance(value, Const) and not isinstance(value.value, str):
        return value.value
    python = TENSOR[value.op].python if isinstance(value, Apply) else None
    if python is None:
        return otherwise
    assert isinstance(value, Apply)
    args = [_known_number(arg, math.nan) for arg in value.args]
    try:
        return otherwise if any(map(math.isnan, args)) else float(python(*map(float, args)))
    except (ArithmeticError, TypeError, ValueError):
        return otherwise


def _reduced_axis(context: Context, expr: tree.Expr, source: Axis, name: str) -> Axis | None:
    """Return the axis that is left when the one named is reduced away."""
    if not isinstance(expr, tree.Name):
        raise context.statement_error(
            "E0302", "the name of an axis is needed here", expr.span, "`token`, or the name of a table"
        )
    axis_names = [axis.name for axis in source.path_to_root()]
    if expr.id not in context.block.scope and expr.id not in context.block.later and expr.id not in AXES:
        raise context.statement_error(
            "E0302",
            f"there is no axis `{expr.id}`; the value has [{source.label}]",
            expr.span,
            did_you_mean(expr.id, axis_names),
        )
    named = axis_named(context, expr)
    if source.name == expr.id or (named and named.key == source.key):
        # Tokens of an episode lie in its turns, and what is left of them is a value of each row all the same.
        return source.row_axis if source.inner else source.parent
    if (named and source.is_within(named)) or (named is None and expr.id in axis_names):
        unit = f"row of `{expr.id}`" if named else expr.id
        raise context.statement_error(
            "E0302",
            f"`{expr.id}` cannot be reduced before `{source.name}`, the innermost axis of this value",
            expr.span,
            f"for one value for each {unit} write `by={expr.id}`",
        )
    raise context.statement_error(
        "E0302",
        f"the value has no axis `{expr.id}`; it has [{source.label}]",
        expr.span,
        did_you_mean(expr.id, axis_names),
    )


def _unnested(a: Axis, b: Axis) -> str:
    return f"{_owner(a)} and {_owner(b)} do not meet: neither lies in the other"


def _owner(axis: Axis) -> str:
    return f"[{axis.label}] of `{axis.key.rsplit('.', 1)[0]}`" if axis.inner else f"[{axis.label}]"


def _inside(inner: Axis | None, outer: Axis | None) -> bool:
    return inner is not None and inner.is_within(outer)


def _nest_hint(a: Axis, b: Axis) -> str:
    if a.inner and b.inner and a.row_axis.key == b.row_axis.key:
        kinds = f"{a.name}s of different tables" if a.name == b.name else f"{a.name}s and {b.name}s of the same rows"
        return f"they are {kinds}: reduce each first, with `sum(x, {a.name})` for example"
    shared = next((axis.name for axis in a.path_to_root() if b.is_within(axis)), None)
    if shared is None:
        tables = f"`{a.row_axis.name}` and `{b.row_axis.name}`"
        return f"rows of {tables} have nothing in common: reduce one side to a single number"
    return f"reduce one side to `{shared}`, in which both lie: `mean(x, by={shared})` for example"
