"""Gives declarations their meaning: params, models, everything outside the program, states, defs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files

from rlgraph.conversations import TEMPLATE_NAMES
from rlgraph.dsl import constants, tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.names import AXES, BUILT_IN, free_names, names_in, parts_in
from rlgraph.dsl.outside_signatures import OUTSIDE
from rlgraph.dsl.parse import parse
from rlgraph.dsl.remembered_rows import check_buffer
from rlgraph.dsl.scope import (
    DefName,
    ExternalName,
    InvalidName,
    LiteralConstant,
    Meaning,
    ModelName,
    StatementError,
    StateName,
    describe_meaning,
    meaning_of,
)
from rlgraph.dsl.signatures import CONSTRUCTORS, MODELS
from rlgraph.errors import Related, Source, Span, did_you_mean
from rlgraph.ir import dtypes
from rlgraph.ir.graph import Const, ConstructorCall, External, Model, ScalarState
from rlgraph.ir.types import DType, Tensor


@cache
def _prelude() -> tree.File:
    path = files("rlgraph.dsl") / "prelude.rlf"
    return parse(Source("<prelude>", path.read_text("utf-8")))


def prelude() -> dict[str, Meaning]:
    """Return what the language itself defines."""
    scope: dict[str, Meaning] = {}
    for item in _prelude().declarations:
        assert isinstance(item, tree.Def)
        # These defs see only each other: what a program declares cannot change what they mean.
        scope[item.name] = DefName(item, scope)
    return scope


def report_unknown_changes(context: Context, declared: Sequence[tree.Decl], changes: Mapping[str, tree.Expr]) -> None:
    """Report the changes of names that are not declared."""
    names = [item.name for item in declared if isinstance(item, (tree.Declaration, tree.State))]
    for name, expr in changes.items():
        if name in names:
            continue
        hint, related = did_you_mean(name, names), tuple[Related, ...]()
        if option := _written_option(declared, name):
            text = option.value.span.covered_text
            hint = f"to set it, declare `param {name} = {text}`, and write `{name}={name}` there"
            related = (Related(option.span, "it is written here"),)
        hint = hint or f"it declares {', '.join(f'`{known_name}`' for known_name in names) or 'nothing'}"
        context.report("E0804", f"the program declares nothing called `{name}`", expr.span, hint, related)


def _written_option(declared: Sequence[tree.Decl], name: str) -> tree.Option | None:
    """Return the first option of that name whose value is written down; None where there is none."""
    options = parts_in(tuple(declared), tree.Option)
    written = (tree.Number, tree.String)
    return next((option for option in options if option.name == name and isinstance(option.value, written)), None)


def declare(context: Context, item: tree.Decl, changes: Mapping[str, tree.Expr]) -> None:
    """Put the name of a declaration and its meaning into the scope."""
    if isinstance(item, (tree.Declaration, tree.State, tree.Def)):
        if item.name in context.declared:
            related = (Related(context.declared[item.name], "it is declared here"),)
            raise context.statement_error("E0203", f"`{item.name}` is declared twice", item.name_span, related=related)
        context.declared[item.name] = item.name_span
        if item.name in AXES:
            raise context.statement_error(
                "E0208", f"`{item.name}` is the name of an axis", item.name_span, "choose another name"
            )
        callable_item = isinstance(item, tree.Def) or (isinstance(item, tree.Declaration) and item.kind == "func")
        if callable_item and item.name in BUILT_IN:
            context.report(
                "W0202", f"`{item.name}` takes the place of a built-in function", item.name_span, "choose another name"
            )
    changed = changes.get(item.name) if isinstance(item, (tree.Declaration, tree.State)) else None
    if changed is not None and isinstance(item, (tree.Declaration, tree.State)):
        # Errors found in it later on are in the change, not in the file.
        item = replace(item, value=_bare_text(context, item, changed), span=changed.span)
    if isinstance(item, tree.Declaration):
        context.scope[item.name] = _meaning(context, item)
    elif isinstance(item, tree.State):
        context.scope[item.name] = _state(context, item)
    elif isinstance(item, tree.Def):
        _define(context, item)


SET = "--set "
"""The beginning of the path of an expression that comes from the command line."""


_OF_A_TEXT = {"model": 'causal_lm("{}")', "data": 'files("{}", batch=16)', "func": 'python("{}")'}
"""What is likely meant by a text alone, by the word of the declaration."""


def is_unquoted_text(text: str) -> bool:
    """Return whether this could be a text whose quotes the shell took away: `Qwen/Qwen2.5-7B`."""
    return any(sign.isalpha() for sign in text) and not any(sign in text for sign in "\"'()[],\n")


def _bare_text(context: Context, item: tree.Declaration | tree.State, changed: tree.Expr) -> tree.Expr:
    """Return what a declaration is changed to: in the place of a text, a text without quotes is one too, unless it
    names something that is declared."""
    source = changed.span.source
    if not source.path.startswith(SET) or not is_unquoted_text(source.text):
        return changed
    if _takes_text(item) and not any(name.id in context.scope for name in names_in((changed,))):
        return tree.String(source.text, changed.span)
    if isinstance(changed, tree.String):
        made = _OF_A_TEXT.get(item.kind) if isinstance(item, tree.Declaration) else None
        value = (made or '"{}"').format(source.text)
        hint = f"{'for example' if made else 'a text has quotes of its own'}: `--set '{item.name}={value}'`"
        raise context.statement_error("E0101", f"`{source.text}` is no expression", changed.span, hint)
    return changed


def _takes_text(item: tree.Declaration | tree.State) -> bool:
    """Return whether a text may be in the place of what is declared: of another one, or of a param that is the source
    of a model, as `gguf("model.gguf")` is."""
    source = isinstance(item, tree.Declaration) and item.kind == "param" and isinstance(item.value, tree.Call)
    return isinstance(item.value, tree.String) or source


def _meaning(context: Context, item: tree.Declaration) -> Meaning:
    """Return the meaning of a declaration."""
    if item.kind == "param":
        value = constants.evaluate_constant(context, item.value, context.scope)
        if isinstance(value, (bool, int, float)):
            return Const(value, Tensor(_dtype(value)), item.value.span)
        return LiteralConstant(value)
    if item.kind == "model":
        return ModelName(_model(context, item))
    if not isinstance(item.value, tree.Call) or not isinstance(item.value.func, tree.Name):
        forms = ", ".join(f"`{name}(...)`" for name in OUTSIDE[item.kind])
        source, hint = item.value.span.source, ""
        text = item.value.value if isinstance(item.value, tree.String) else ""
        if not text and source.path.startswith(SET) and is_unquoted_text(source.text):
            text = source.text
        if text and item.kind in _OF_A_TEXT:
            hint = f"`{_OF_A_TEXT[item.kind].format(text)}` for example"
        raise context.statement_error("E0406", f"`{item.kind} {item.name}` needs one of {forms}", item.value.span, hint)
    what = {"data": "data source", "func": "function", "env": "environment", "buffer": "buffer"}[item.kind]
    record = _record(context, item.kind, item.value, what)
    options = [option.name for option in OUTSIDE[item.kind][record.name].options]
    context.diagnostics += context.faults(item.kind, record, options)
    if item.kind == "buffer":
        check_buffer(context, item.name, record)
    return ExternalName(External(item.kind, item.name, record, item.span))


def _record(context: Context, kind: str, call: tree.Call, what: str) -> ConstructorCall:
    """Return what a declaration's call makes: a mixture has the records of its sources as arguments."""
    assert isinstance(call.func, tree.Name)
    signature = OUTSIDE[kind].get(call.func.id)
    if signature is None or not signature.of_its_kind:
        return constants.evaluate_record(context, call, OUTSIDE[kind], context.scope, what)
    parts = [_part(context, kind, arg, what) for arg in call.args]
    options = constants.evaluate_options(context, signature, call.options, call.span, context.scope)
    spans: dict[int | str, Span] = {at: arg.span for at, arg in enumerate(call.args)}
    spans |= {option.name: option.span for option in call.options}
    return ConstructorCall(signature.name, tuple(parts), tuple(options.items()), call.span, tuple(spans.items()))


def _part(context: Context, kind: str, arg: tree.Expr, what: str) -> ConstructorCall:
    """Return the record of a source that is named or called."""
    if isinstance(arg, tree.Call) and isinstance(arg.func, tree.Name):
        record = _record(context, kind, arg, what)
        options = [option.name for option in OUTSIDE[kind][record.name].options]
        context.diagnostics += context.faults(kind, record, options)
        return record
    meaning = meaning_of(context.scope, arg.id) if isinstance(arg, tree.Name) else None
    if isinstance(meaning, ExternalName) and meaning.outside.kind == kind:
        context.parts.add(meaning.outside.name)
        return meaning.outside.record
    if isinstance(meaning, InvalidName):
        raise StatementError
    if isinstance(arg, tree.Name) and meaning is None:
        if arg.id in context.below:
            raise context.too_early_error(arg, context.below[arg.id])
        hint = did_you_mean(arg.id, context.scope) or f"declare it above: `{kind} {arg.id} = ...`"
        raise context.statement_error("E0201", f"nothing is called `{arg.id}`", arg.span, hint)
    shown = f"`{arg.id}` is {describe_meaning(meaning)}" if isinstance(arg, tree.Name) and meaning else "this is none"
    hint = f"name a `{kind}`, or call one"
    raise context.statement_error("E0406", f"a {what} is needed here, and {shown}", arg.span, hint)


def _model(context: Context, item: tree.Declaration) -> Model:
    value, frozen = item.value, False
    if isinstance(value, tree.Call) and isinstance(value.func, tree.Name) and value.func.id == "frozen":
        if len(value.args) != 1 or value.options:
            raise context.statement_error("E0405", "`frozen` takes one model", value.span, "`frozen(actor)`")
        value, frozen = value.args[0], True
    if isinstance(value, tree.Name):
        meaning = meaning_of(context.scope, value.id)
        if isinstance(meaning, ModelName):
            context.used.add(value.id)
            return replace(
                meaning.model, name=item.name, source=None, copy_of=value.id, frozen=frozen, options=(), span=item.span
            )
        if meaning is None and value.id in context.below:
            raise context.too_early_error(value, context.below[value.id])
        models = [name for name, candidate in context.scope.items() if isinstance(candidate, ModelName)]
        shown = (
            f"`{value.id}` is {describe_meaning(meaning)}, not a model"
            if meaning
            else f"nothing is called `{value.id}`"
        )
        hint = did_you_mean(value.id, models) or f"load one: `causal_lm({value.id})`"
        raise context.statement_error("E0201", shown, value.span, hint)
    if not isinstance(value, tree.Call) or not isinstance(value.func, tree.Name):
        name = value.value if isinstance(value, tree.String) else "folder or hub name"
        raise context.statement_error(
            "E0406", "a model is needed here", value.span, f'`causal_lm("{name}")` for example'
        )
    if value.func.id in ("random", "gguf"):
        does = "makes" if value.func.id == "random" else "reads"
        raise context.statement_error(
            "E0406",
            f"`{value.func.id}` {does} weights, and the kind of model is missing",
            value.func.span,
            f"`causal_lm({value.func.id}(...))` for example",
        )
    record = constants.evaluate_record(context, value, MODELS, context.scope, "model")
    if record.option("dtype") not in (None, *dtypes.OF_MODELS):
        place = next(option.value.span for option in value.options if option.name == "dtype")
        wanted = str(record.option("dtype"))
        message = f'a dtype is "float32", "float64" or "bfloat16", not "{wanted}"'
        raise context.statement_error("E0403", message, place, did_you_mean(wanted, dtypes.OF_MODELS))
    _check_autocast(context, record, value)
    _check_lora(context, record, value)
    _check_chat(context, record, value)
    return Model(item.name, record.name, record.args[0], None, frozen, record.options, item.span)


def _check_autocast(context: Context, record: ConstructorCall, call: tree.Call) -> None:
    """Check that products are asked for in a dtype that there is, of weights that are wider."""
    autocast, dtype = record.option("autocast"), record.option("dtype")
    if autocast is None:
        return
    place = next((option.value.span for option in call.options if option.name == "autocast"), call.span)
    if autocast not in dtypes.AUTOCAST:
        raise context.statement_error("E0403", f'`autocast` is "bfloat16" or "auto", not "{autocast}"', place)
    if dtype not in (None, "float32"):
        message = f"`autocast` has products of float32 weights in bfloat16, and these are {dtype}"
        raise context.statement_error("E0403", message, place, "leave it out, or leave `dtype` out")


def _check_lora(context: Context, record: ConstructorCall, call: tree.Call) -> None:
    """Check the adapters of a model for what is wrong with any model."""
    lora = record.option("lora")
    if lora is None:
        return
    place = next(option.value for option in call.options if option.name == "lora")
    given = {option.name: option.value.span for option in place.options} if isinstance(place, tree.Call) else {}
    if lora.option("targets") in ((), ""):
        hint = 'name layers, `["q_proj", "v_proj"]`, or leave it out: all of them'
        raise context.statement_error(
            "E0403", "`targets` of `lora` names no layer", given.get("targets", place.span), hint
        )


def _check_chat(context: Context, record: ConstructorCall, call: tree.Call) -> None:
    """Check that what a chat template is given besides has no name of what every template is given."""
    chat = record.option("chat")
    if chat is None:
        return
    for name, _ in chat.options:
        if name in TEMPLATE_NAMES - {option.name for option in CONSTRUCTORS["chat"].options}:
            place = dict(chat.spans).get(name, call.span)
            hint = "conversations and tools are columns of the data; `chat` takes what the template is given besides"
            raise context.statement_error("E0773", f"every chat template is given `{name}` already", place, hint)


def _state(context: Context, item: tree.State) -> Meaning:
    value = constants.evaluate_constant(context, item.value, context.scope)
    if not isinstance(value, (int, float)):
        raise context.statement_error("E0304", "a state begins with a number", item.value.span)
    return StateName(ScalarState(item.name, float(value), item.key is not None, item.span))


def _define(context: Context, item: tree.Def) -> None:
    seen: dict[str, Span] = {}
    for parameter in item.parameters:
        if parameter.id in seen:
            raise context.statement_error("E0203", f"`{item.name}` has two parameters `{parameter.id}`", parameter.span)
        seen[parameter.id] = parameter.span
    local_names = [
        *item.parameters,
        *(
            tree.Name(statement.target, statement.target_span)
            for statement in tree.all_statements(item.body)
            if isinstance(statement, tree.Assign)
        ),
    ]
    for name in local_names:
        if name.id in AXES:
            raise context.statement_error(
                "E0208", f"`{name.id}` is the name of an axis", name.span, "choose another name"
            )
    context.used |= free_names(item)
    # A def sees every declaration, those below it too.
    context.scope[item.name] = DefName(item, context.scope)


def report_unknown_names(context: Context, definition: tree.Def) -> bool:
    """Report names in a def that mean nothing, whether it is called or not; return whether there are any."""
    free = free_names(definition)
    built_in = {*BUILT_IN, *AXES}
    unknown = [
        name
        for name in names_in(definition.body)
        if name.id in free and name.id not in context.scope and name.id not in built_in
    ]
    names = {*context.scope, *built_in, *(parameter.id for parameter in definition.parameters)}
    for name in unknown:
        context.report("E0201", f"nothing is called `{name.id}`", name.span, did_you_mean(name.id, names))
    return bool(unknown)


def report_unused(context: Context, declared: Sequence[tree.Decl], source: Source) -> None:
    """Warn of declarations that are never used."""
    named = {name.id for item in declared for name in names_in(item)} | context.used
    for item in declared:
        # The file that changes a used file cannot leave out what that one declares.
        in_this_file = item.span.source.path == source.path
        if in_this_file and isinstance(item, (tree.Declaration, tree.State)) and item.name not in named:
            kind = item.kind if isinstance(item, tree.Declaration) else "state"
            context.report("W0201", f"{kind} `{item.name}` is never used", item.name_span, "leave it out")


def _dtype(value: bool | int | float) -> DType:
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
