"""Numbers that go from step to step: the number of the step, schedules as values, options of `train` that are computed.

The number of the step is a state of its own, which every program has that uses it: it lives in checkpoints, and is the
same on every backend, as other states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlgraph.dsl import constants, tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.names import names_in
from rlgraph.dsl.nodes import materialize
from rlgraph.dsl.scope import LiteralConstant, Meaning, StateName, describe_meaning
from rlgraph.dsl.signatures import CONSTRUCTORS, RATES, STATEMENTS
from rlgraph.dsl.values import evaluate_number
from rlgraph.errors import NO_SPAN
from rlgraph.ir.graph import Apply, Const
from rlgraph.ir.types import Tensor

STEP = "step"
"""The name of the number of a step: 1 in the first one, going on from phase to phase."""

PI = 3.141592653589793


def count_steps(file: tree.File) -> tree.File:
    """Return the file with a state that counts the steps, where it uses their number."""
    if not any(_uses_step(item) for item in file.declarations):
        return file
    target, zero, one = tree.Name(STEP, NO_SPAN), tree.Number(0, "0", NO_SPAN), tree.Number(1, "1", NO_SPAN)
    count = tree.Store(target, tree.Binary("+", target, one, NO_SPAN), NO_SPAN)
    phases = (
        replace(item, body=(count, *item.body)) if isinstance(item, tree.Phase) else item for item in file.declarations
    )
    return replace(file, declarations=(tree.State(STEP, None, zero, NO_SPAN, NO_SPAN), *phases))


def _uses_step(syntax: object) -> bool:
    """Return whether syntax has the number of the step in it, or a schedule as a value. A schedule that is a
    parameter, or the whole of an option `lr`, is one by update."""
    if isinstance(syntax, tree.Declaration):
        return False
    lr = {
        id(option.value.func)
        for train in tree.all_statements(_body(syntax))
        if isinstance(train, tree.Train)
        for option in train.options
        if option.name == "lr" and isinstance(option.value, tree.Call)
    }
    return any(name.id == STEP or (name.id in RATES and id(name) not in lr) for name in _names(syntax))


def _body(syntax: object) -> Sequence[tree.Stmt]:
    return syntax.body if isinstance(syntax, (tree.Phase, tree.Def)) else ()


def _names(syntax: object) -> list[tree.Name]:
    return [name for statement in _body(syntax) for name in names_in(statement)]


def schedule_value(context: Context, call: tree.Call) -> Meaning:
    """Return `linear(0.1, steps=1000)` as the number of this step, which has the schedule's first value in the first
    one."""
    record = constants.evaluate_record(context, call, CONSTRUCTORS, context.block.scope, "number")
    [peak, *_], options = record.plain_arguments()
    steps, warmup, final = options.get("steps"), options.get("warmup") or 0, options.get("final") or 0.0
    span = call.span

    def number(value: object) -> tree.Expr:
        assert isinstance(value, (int, float))
        return tree.Number(value, str(value), span)

    def binary(op: str, left: tree.Expr, right: tree.Expr) -> tree.Expr:
        return tree.Binary(op, left, right, span)

    def function(name: str, *args: tree.Expr) -> tree.Expr:
        return tree.Call(tree.Name(name, span), args, (), span)

    done = binary("-", tree.Name(STEP, span), number(1))
    value = number(peak)
    if record.name != "constant":
        assert isinstance(steps, int) and isinstance(warmup, int)
        share = binary("/", binary("-", done, number(warmup)), number(max(1, steps - warmup)))
        left = binary("-", number(1), function("min", function("max", share, number(0)), number(1)))
        if record.name == "cosine":
            # Half a cosine from 1 to 0: the angle goes from pi to 0 of what is left, so (1 - cos(pi * left)) / 2.
            left = binary("/", binary("-", number(1), function("cos", binary("*", left, number(PI)))), number(2))
        assert isinstance(peak, (int, float)) and isinstance(final, (int, float))
        value = binary("+", number(final), binary("*", number(peak - final), left))
    if warmup:
        rising = binary("/", binary("*", number(peak), tree.Name(STEP, span)), number(warmup))
        value = function("where", binary("<", done, number(warmup)), rising, value)
    return evaluate_number(context, value)


def computed_options(
    context: Context, model: str, statement: tree.Train
) -> tuple[tuple[tree.Option, ...], dict[str, str]]:
    """Return the options of a `train` that are constants, and of those that are computed the name of the value. A
    learning rate that is computed has a constant in its place, which no run looks at."""
    declared = {option.name: option for option in STATEMENTS["train"].options}
    constant, computed = list[tree.Option](), dict[str, str]()
    for option in statement.options:
        if option.name not in declared or not _is_computed(context, option.value):
            constant.append(option)
            continue
        wanted = "true or false" if declared[option.name].type == "bool" else "a number"
        value = evaluate_number(context, option.value)
        if value.type.axis is not None:
            message = f"`{option.name}` of `train` is one for the whole step, and this is {describe_meaning(value)}"
            raise context.statement_error("E0220", message, option.value.span, "reduce it: `mean(...)`")
        if (value.type.dtype == "bool") != (wanted == "true or false"):
            hint = "compare it: `x > 0`" if wanted == "true or false" else "`where(condition, a, b)` chooses a number"
            message = f"`{option.name}` of `train` is {wanted}, and this is {describe_meaning(value)}"
            raise context.statement_error("E0220", message, option.value.span, hint)
        if value.type.dtype != "float":
            value = Apply("float", (value,), Tensor("float"), None, option.value.span)
        computed[option.name] = materialize(context, value, f"{model}.{option.name}")
        if option.name == "lr":
            constant.append(replace(option, value=tree.Number(1.0, "1.0", option.value.span)))
    return tuple(constant), computed


def _is_computed(context: Context, expr: tree.Expr) -> bool:
    """Return whether an option is computed in the step, so that it is no constant: whether a name in it is a value."""
    if isinstance(expr, tree.Call) and isinstance(expr.func, tree.Name) and expr.func.id in RATES:
        return False
    meanings = [(name.id, context.block.scope.get(name.id)) for name in names_in(expr)]
    return any(
        name in RATES
        or (hasattr(meaning, "type") and not isinstance(meaning, (Const, LiteralConstant)))
        or isinstance(meaning, StateName)
        for name, meaning in meanings
    )
