"""Evaluates constants, which are known before anything runs: options, models, data sources and params."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlgraph.dsl import tree
from rlgraph.dsl.scope import LiteralConstant, Meaning, Reporter, StatementError, describe_meaning, meaning_of
from rlgraph.dsl.signatures import CONSTRUCTORS, RATES, Signature
from rlgraph.dsl.words import LIBRARIES, RESERVED
from rlgraph.errors import Span, closest_match, count_phrase, did_you_mean
from rlgraph.ir.attributes import Attribute, Required, has_attribute_type
from rlgraph.ir.graph import Const, Constant, ConstructorCall
from rlgraph.ops import TENSOR
from rlgraph.ops.tensor import LARGEST

_ARITHMETIC = {op.sign: op.python for op in TENSOR.values() if op.sign and op.args == 2 and op.python}

LARGEST_PARTS = 100_000
"""The most characters of a text, or entries of a list with all that lies in them."""


def evaluate_constant(reporter: Reporter, expr: tree.Expr, scope: Mapping[str, Meaning]) -> Constant:
    """Return the value of an expression that has to be constant."""
    if isinstance(expr, (tree.Number, tree.String, tree.Bool)):
        return expr.value
    if isinstance(expr, tree.List):
        return check_constant_size(
            reporter, tuple(evaluate_constant(reporter, item, scope) for item in expr.items), expr.span
        )
    if isinstance(expr, tree.Name):
        return _name(reporter, expr, scope)
    if isinstance(expr, tree.Unary):
        return _unary(reporter, expr, scope)
    if isinstance(expr, tree.Binary):
        return _binary(reporter, expr, scope)
    if isinstance(expr, tree.Call) and isinstance(expr.func, tree.Name) and _is_constructor(expr.func.id):
        return evaluate_record(reporter, expr, CONSTRUCTORS, scope, "constant")
    raise reporter.statement_error("E0404", "this has to be a constant", expr.span, "use a number, a text or a `param`")


def _name(reporter: Reporter, expr: tree.Name, scope: Mapping[str, Meaning]) -> Constant:
    meaning = meaning_of(scope, expr.id)
    if isinstance(meaning, Const):
        return meaning.value
    if isinstance(meaning, LiteralConstant):
        return meaning.value
    if meaning is None and expr.id in reporter.below:
        raise reporter.too_early_error(expr, reporter.below[expr.id])
    if meaning is None:
        constants = [name for name, candidate in scope.items() if isinstance(candidate, (Const, LiteralConstant))]
        advice = "" if expr.id in RESERVED else f"declare it: `param {expr.id} = ...`, or "
        hint = did_you_mean(expr.id, constants) or f'{advice}quote it: `"{expr.id}"`'
        raise reporter.statement_error("E0201", f"nothing is called `{expr.id}`", expr.span, hint)
    raise reporter.statement_error(
        "E0404",
        f"this has to be a constant, and `{expr.id}` is {describe_meaning(meaning)}",
        expr.span,
        "use a number, a text or a `param`",
    )


def _unary(reporter: Reporter, expr: tree.Unary, scope: Mapping[str, Meaning]) -> Constant:
    value = evaluate_constant(reporter, expr.operand, scope)
    if expr.op == "not" and isinstance(value, bool):
        return not value
    if expr.op != "not" and isinstance(value, (int, float)):
        return -value if expr.op == "-" else value
    needed = "true or false" if expr.op == "not" else "a number"
    raise reporter.statement_error(
        "E0304", f"`{expr.op}` needs {needed}, and this is {_show(value)}", expr.operand.span
    )


def _binary(reporter: Reporter, expr: tree.Binary, scope: Mapping[str, Meaning]) -> Constant:
    left, right = evaluate_constant(reporter, expr.left, scope), evaluate_constant(reporter, expr.right, scope)
    if expr.op in ("and", "or") and isinstance(left, bool) and isinstance(right, bool):
        return (left and right) if expr.op == "and" else (left or right)
    if isinstance(left, str) and isinstance(right, str) and expr.op in ("+", "==", "!="):
        value: Constant = _ARITHMETIC[expr.op](left, right)
        return check_constant_size(reporter, value, expr.span)
    if expr.op not in _ARITHMETIC or not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        needed = "true or false on both sides" if expr.op in ("and", "or") else "two numbers"
        shown = f"{_show(left)} and {_show(right)}"
        raise reporter.statement_error("E0304", f"`{expr.op}` needs {needed}, and these are {shown}", expr.span)
    return compute_arithmetic(reporter, expr.op, left, right, expr.span)


def check_constant_size(reporter: Reporter, value: Constant, span: Span) -> Constant:
    """Return the constant, unless names of names of names have made it huge."""
    if _size(value) > LARGEST_PARTS:
        raise reporter.statement_error("E0403", f"this constant has more than {LARGEST_PARTS} parts", span)
    return value


def compute_arithmetic(reporter: Reporter, op: str, left: float, right: float, span: Span) -> int | float | bool:
    """Return a number computed from two; an error is reported where there is none."""
    try:
        if op == "**" and abs(right) > 1024:
            raise OverflowError
        value = _ARITHMETIC[op](left, right)
    except ZeroDivisionError:
        raise reporter.statement_error("E0403", "division by zero", span) from None
    except OverflowError:
        raise reporter.statement_error("E0403", "this number is too large", span) from None
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        raise reporter.statement_error("E0403", "this is not a finite number", span)
    if isinstance(value, int) and abs(value) > LARGEST:
        raise reporter.statement_error("E0403", "this number is too large", span)
    result: int | float | bool = value
    return result


def evaluate_record(
    reporter: Reporter, call: tree.Call, known: Mapping[str, Signature], scope: Mapping[str, Meaning], what: str
) -> ConstructorCall:
    """Return the constant that a constructor's call makes, its arguments and options checked against its signature."""
    assert isinstance(call.func, tree.Name)
    signature = known.get(call.func.id)
    if signature is None:
        choices = ", ".join(f"`{name}`" for name in known)
        hint = did_you_mean(call.func.id, known) or f"one of {choices}"
        raise reporter.statement_error("E0406", f"`{call.func.id}` makes no {what}", call.func.span, hint)
    args, options = bind_arguments(reporter, signature, call.args, call.options, call.span, scope)
    spans: dict[int | str, Span] = {at: arg.span for at, arg in enumerate(call.args)}
    spans |= {option.name: option.span for option in call.options}
    constant = ConstructorCall(
        signature.name, tuple(args.values()), tuple(options.items()), call.span, tuple(spans.items())
    )
    steps, warmup = options.get("steps"), options.get("warmup")
    if signature.name in RATES and isinstance(steps, int) and isinstance(warmup, int) and warmup > steps:
        message = f"`{signature.name}` ends after `steps={steps}` updates, and rises for {warmup}"
        raise reporter.statement_error("E0403", message, spans["warmup"], "`steps` counts those of `warmup`, too")
    check_constant_size(reporter, constant, call.span)
    return constant


def bind_arguments(
    reporter: Reporter,
    signature: Signature,
    args: Sequence[tree.Expr],
    given: Sequence[tree.Option],
    span: Span,
    scope: Mapping[str, Meaning],
) -> tuple[dict[str, Constant], dict[str, Constant]]:
    """Return the values of arguments and of options, with defaults, checked for type and range."""
    expected = signature.args
    if signature.repeats and len(args) > len(expected):
        last = expected[-1]
        more = range(2, 2 + len(args) - len(expected))
        expected = (*expected, *(replace(last, name=f"{last.name} {number}") for number in more))
    if len(args) != len(expected):
        named = ", ".join(f"`{opt.name}`" for opt in signature.args)
        wanted = f"{count_phrase(len(signature.args), 'value')} by place, {named}" if named else "nothing"
        place = args[len(signature.args)].span if len(args) > len(signature.args) else span
        raise reporter.statement_error("E0405", f"`{signature.name}` takes {wanted}, and is given {len(args)}", place)
    values = {
        argument.name: evaluate_option(reporter, argument, expr, signature, scope)
        for argument, expr in zip(expected, args, strict=True)
    }
    return values, evaluate_options(reporter, signature, given, span, scope)


def evaluate_options(
    reporter: Reporter, signature: Signature, options: Sequence[tree.Option], span: Span, scope: Mapping[str, Meaning]
) -> dict[str, Constant]:
    """Return every option of a signature with its value or default; other options of an open one as they were given."""
    given: dict[str, Constant] = {}
    declared = {opt.name: opt for opt in signature.options}
    failed = False
    for option in options:
        try:
            if option.name in declared:
                given[option.name] = evaluate_option(reporter, declared[option.name], option.value, signature, scope)
            elif signature.open:
                given[option.name] = evaluate_constant(reporter, option.value, scope)
            else:
                legal = ", ".join(f"`{name}`" for name in declared)
                hint = did_you_mean(LIBRARIES.get(option.name, option.name), declared) or (
                    f"it takes {legal}" if declared else "it takes no options"
                )
                raise reporter.statement_error(
                    "E0401", f"`{signature.name}` has no option `{option.name}`", option.name_span, hint
                )
        except StatementError:
            failed = True
    if failed:
        raise StatementError
    for opt in signature.options:
        if opt.name not in given and isinstance(opt.default, Required):
            raise reporter.statement_error(
                "E0402",
                f"`{signature.name}` needs `{opt.name}`",
                span,
                f"add `{opt.name}=...`: {opt.summary}".rstrip(": "),
            )
    values: dict[str, Constant] = {}
    for opt in signature.options:
        default = None if isinstance(opt.default, Required) else opt.default
        values[opt.name] = given.get(opt.name, default)
    return values | {name: value for name, value in given.items() if name not in declared}


def evaluate_option(
    reporter: Reporter, opt: Attribute, expr: tree.Expr, signature: Signature, scope: Mapping[str, Meaning]
) -> Constant:
    """Return the value of an option, of the right type and in its range."""
    where = f"`{opt.name}` of `{signature.name}`"
    if opt.type == "word" or (opt.type == "outcome" and isinstance(expr, tree.Name) and expr.id not in scope):
        return _word(reporter, opt, expr, where)
    value = evaluate_constant(reporter, expr, scope)
    about = f"`{opt.name}`: {opt.summary}" if opt.summary else ""
    if not _has_type(opt, value):
        raise reporter.statement_error("E0403", f"{where} is {_TYPES[opt.type]}, not {_show(value)}", expr.span, about)
    if opt.type in ("float", "rate", "outcome") and isinstance(value, int):
        value = float(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and (bound := opt.missed_bound(value)):
        raise reporter.statement_error("E0403", f"{where} is {bound}, not {_show(value)}", expr.span, about)
    return value


def _word(reporter: Reporter, opt: Attribute, expr: tree.Expr, where: str) -> str:
    """Return one of the names that an option allows, whatever else is called so; any name, where the option lists none,
    in quotes where it is a word of the language."""
    if opt.names is None:
        if isinstance(expr, tree.Name):
            return expr.id
        if isinstance(expr, tree.String):
            return expr.value
        raise reporter.statement_error(
            "E0403", f"{where} is a name, not `{expr.span.covered_text}`", expr.span, f"`{opt.name}`: {opt.summary}"
        )
    names = list(opt.names())
    if isinstance(expr, tree.Name) and expr.id in names:
        return expr.id
    near = did_you_mean(expr.id, names) if isinstance(expr, tree.Name) else ""
    raise reporter.statement_error(
        "E0403",
        f"{where} is {opt.choices_text}, not `{expr.span.covered_text}`",
        expr.span,
        near or f"`{opt.name}`: {opt.summary}",
    )


def _size(value: Constant) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, tuple):
        return 1 + sum(map(_size, value))
    if isinstance(value, ConstructorCall):
        return 1 + sum(map(_size, value.args)) + sum(_size(option) for _, option in value.options)
    return 1


def _is_constructor(name: str) -> bool:
    """Return whether a call is meant to be a constant: of a constructor, or of a name that reads like one."""
    return name in CONSTRUCTORS or (name not in TENSOR and closest_match(name, CONSTRUCTORS) != "")


_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "text": "a text in quotes",
    "texts": "a text or a list of texts",
    "outcome": "stop, skip or a number",
    "rate": "a number or a schedule such as `cosine(1e-6, steps=1000)`",
    "source": 'a path or a hub name in quotes, `gguf("model.gguf")`, or `random("qwen2", ...)`',
    "lora": "adapters: `lora(rank=32)` for example",
    "chat": 'how conversations are written: `chat(system="Be brief.")` for example',
    "columns": 'columns and their values: `columns(answer="")` for example',
    "any": "a constant",
}

_RECORDS: Mapping[str, tuple[str, ...]] = {
    "rate": RATES,
    "source": ("random", "gguf"),
    "lora": ("lora",),
    "chat": ("chat",),
    "columns": ("columns",),
}
"""The constructors of the types that hold more than plain constants."""


def _has_type(opt: Attribute, value: Constant) -> bool:
    if value is None:
        return opt.default is None
    if isinstance(value, ConstructorCall) and opt.type in _RECORDS:
        return value.name in _RECORDS[opt.type]
    if opt.type == "texts" and isinstance(value, str):
        return True
    if opt.type == "outcome" and isinstance(value, str):
        return opt.names is not None and value in list(opt.names())
    return has_attribute_type(opt.type, value) and not (opt.type == "source" and value == "")


def _show(value: Constant) -> str:
    if isinstance(value, ConstructorCall):
        return f"`{value.name}(...)`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'"{value}"' if isinstance(value, str) else f"`{value}`" if not isinstance(value, tuple) else "a list"
