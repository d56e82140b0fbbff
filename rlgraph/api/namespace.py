"""Functions of the language as a Python namespace: `functions("std").gae(reward, value, 1.0, 0.95)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any

from rlgraph.dsl.compile_def import CompiledDef, compile_def, read_defs
from rlgraph.dsl.scope import DefName
from rlgraph.dsl.tree import Expr
from rlgraph.errors import Source, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor


class Function:
    """A `def` that Python can call with numbers and tensors.

    Arguments are a number or a 0-d tensor, a tensor [rows], or a tensor [rows, tokens]; `mask=` [rows,
    tokens] says which tokens count. What the def takes as `by=` is an int tensor [rows] with the number of
    each row's group. The result is as wide as the widest argument, and 0 where the mask is. Gradients go
    through.
    """

    def __init__(self, called: DefName) -> None:
        definition = called.definition
        self._called = called
        self._defined: dict[tuple[Any, ...], CompiledDef] = {}
        self.__name__ = self.__qualname__ = definition.name
        self.__doc__ = _text(called)
        names = [parameter.id for parameter in definition.parameters]
        self._parameters = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names])
        # A def with a parameter called `mask` is called without a mask.
        self._masks = "mask" not in names
        mask = [Parameter("mask", Parameter.KEYWORD_ONLY, default=None)] if self._masks else []
        self.__signature__ = Signature([*self._parameters.parameters.values(), *mask])

    def __call__(self, *args: Tensor | float, **named: Any) -> Tensor:
        from rlgraph.backends.lowering.functions import argument_types, compute_padded

        mask = named.pop("mask", None) if self._masks else None
        try:
            arguments = self._parameters.bind(*args, **named).arguments
        except TypeError as error:
            raise TypeError(f"{self.__name__}{self.__signature__}: {error}") from None
        types = argument_types(arguments)
        key = tuple(types.items())
        if key not in self._defined:
            self._defined[key] = compile_def(self._called, types)
        defined = self._defined[key]
        return compute_padded(defined.node, arguments, mask, defined.group)

    def __repr__(self) -> str:
        return f"<function {self.__name__}{self.__signature__} of {self._called.definition.span.source.path}>"


def _text(called: DefName) -> str:
    """Return the def as it is written, with the comment above it."""
    span = called.definition.span
    lines = span.source.text.splitlines()
    first = last = span.line - 1
    while first > 0 and lines[first - 1].startswith("#"):
        first -= 1
    while last + 1 < len(lines) and (not lines[last + 1].strip() or lines[last + 1][0].isspace()):
        last += 1
    return "\n".join(lines[first : last + 1]).rstrip()


class Functions:
    """A namespace with the functions of a file as attributes; iterating over it yields their names."""

    def __init__(self, name: str, found: Mapping[str, Function]) -> None:
        self._name, self._functions = name, dict(found)

    def __getattr__(self, name: str) -> Function:
        functions = self.__dict__.get("_functions", {})
        if name in functions:
            function: Function = functions[name]
            return function
        hint = did_you_mean(name, functions) or f"it has {', '.join(functions) or 'none'}"
        raise AttributeError(f"{self.__dict__.get('_name')} has no function {name}: {hint}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __dir__(self) -> list[str]:
        return list(self._functions)

    def __repr__(self) -> str:
        return f"<functions of {self._name}: {', '.join(self._functions)}>"


def make_namespace(name: str, source: Source | None, changes: Mapping[str, Expr]) -> Functions:
    """Return the defs of a source, or those of the prelude for None. Raise ProgramError."""
    defs = read_defs(source, changes)
    return Functions(name, {key: Function(called) for key, called in defs.items()})
