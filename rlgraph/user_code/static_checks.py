"""Checks a user's Python without running or importing it: whether what a program names exists, and takes the options
that it is given."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.user_code.code_diagnostics import (
    missing_argument_errors,
    missing_name_error,
    parse_target,
    unknown_option_errors,
)
from rlgraph.user_code.files import NO_FILE, SearchFolders, is_module
from rlgraph.user_code.spec import CallSpec, single_text_argument

NO_MODULE_HERE = "W0703"
LARGEST_BYTES = 1 << 20
_DYNAMIC = {"exec", "globals", "locals", "setattr", "vars"}
"""Names whose use lets a module have names that its text does not show."""


@dataclass(frozen=True, slots=True)
class CallParameters:
    """The parameters of a function or a class that can be given by name, as its text says."""

    named: tuple[str, ...]
    required: tuple[str, ...]
    """Those that have no default."""


def python_reference_faults(
    spec: CallSpec,
    folders: SearchFolders,
    known: Collection[str] = (),
    *,
    alone: bool = False,
    given: Collection[str] = (),
) -> list[Diagnostic]:
    """Return what is wrong with `python("FILE_OR_MODULE:NAME")`; a file that is not here may be where the run will be.

    known: the options that are rlgraph's. alone: it is called with the other options and what is `given`, and nothing
    else.
    """
    try:
        reference = single_text_argument(
            spec, "a file or a module and a name in it", 'python("rewards.py:exact_match")'
        )
        target = parse_target(reference, folders, spec.argument_span(0), spec.kind)
    except ProgramError as error:
        [fault] = error.diagnostics
        if fault.code != NO_FILE:
            return [fault]
        return [Diagnostic(NO_MODULE_HERE, fault.message, fault.span, fault.hint)] * is_module(
            reference.rpartition(":")[0]
        )
    module = _read(target.code.file)
    if module is None:
        return []
    names = [name for name, _ in _defined(module.body)]
    if target.name not in names:
        hidden = {"*", "__getattr__"} & set(names)
        return (
            [] if hidden else [missing_name_error(target, "missing", [name for name in set(names) if name[0] != "_"])]
        )
    parameters = _parameters([maker for name, maker in _defined(module.body) if name in (target.name, "*")])
    if parameters is None:
        return []
    options = [name for name in spec.options if name not in known]
    return [
        *unknown_option_errors(spec, known, parameters.named, target.name),
        *(missing_argument_errors(target, parameters.required, options, spec.kind, given) if alone else ()),
    ]


def _read(file: Path) -> ast.Module | None:
    """Return the syntax tree of a module; None if it does not show what the module defines."""
    try:
        if file.suffix != ".py" or file.stat().st_size > LARGEST_BYTES:
            return None
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # The run says what is wrong with it.
    if any(isinstance(node, ast.Name) and node.id in _DYNAMIC for node in ast.walk(tree)):
        return None
    return tree


def _parameters(makers: Sequence[ast.stmt]) -> CallParameters | None:
    """Return the parameters of what these statements define under one name; None if their text does not say them."""
    match makers:
        case [ast.FunctionDef(decorator_list=[]) | ast.AsyncFunctionDef(decorator_list=[]) as function]:
            return _accepted(function.args, 0)
        case [ast.ClassDef(decorator_list=[], bases=[], keywords=[], body=body)]:
            methods = [method for name, method in _defined(body) if name in ("__init__", "__new__")]
            match methods:
                case []:
                    return CallParameters((), ())
                case [ast.FunctionDef(decorator_list=[], name="__init__") as method]:
                    return _accepted(method.args, 1)
    return None


def _accepted(arguments: ast.arguments, bound: int) -> CallParameters | None:
    """Return the parameters that can be given by name, without the first `bound` ones; None if others cannot."""
    if len(arguments.posonlyargs) > bound:
        return None
    plain = arguments.args[max(0, bound - len(arguments.posonlyargs)) :]
    optional = (
        {argument.arg for argument in plain[len(plain) - len(arguments.defaults) :]} if arguments.defaults else set()
    )
    optional |= {
        argument.arg
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is not None
    }
    named = tuple(argument.arg for argument in (*plain, *arguments.kwonlyargs))
    return CallParameters(named, tuple(name for name in named if name not in optional))


def _defined(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the names that statements of a module define, also within `if`, `try` and loops, each with its
    statement."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name, statement
            continue
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield from (((alias.asname or alias.name).partition(".")[0], statement) for alias in statement.names)
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id, statement
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(statement, "handlers", [])]
        blocks += [case.body for case in getattr(statement, "cases", [])]
        for block in blocks:
            yield from _defined(block)
