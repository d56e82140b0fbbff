"""Defs: each is written out where it is called, with the types that it is called with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from rlgraph.dsl import tree
from rlgraph.dsl.calls import Calls
from rlgraph.dsl.scope import DefName, Meaning, nearest
from rlgraph.errors import Span
from rlgraph.ir.graph import Apply, Ref
from rlgraph.ops import TENSOR

FUNCTIONS = frozenset(op.name for op in TENSOR.values() if op.function)
AXES = ("token", "turn")
MOST_CALLS = 2000
"""Calls of defs in a program: there are this many, or one of them doubles at each level."""


class Defs(Calls):
    """The part of the checker that knows the defs."""

    def __init__(self) -> None:
        super().__init__()
        self.scope: dict[str, Meaning] = {}
        """What the declarations mean."""
        self.declared: dict[str, Span] = {}
        """Names of declarations."""
        self.active: list[tree.Def] = []
        """Defs that are being written out, the outermost first."""
        self.written = 0
        """Calls of defs so far."""
        self.step_scope: dict[str, Meaning] = {}
        """Outside of them."""

    def expand(self, expr: tree.Call, called: DefName, hint: str) -> Meaning:
        """A def is written out at each call, with the types that it is called with."""
        definition = called.definition
        if expr.options:
            raise self.stop("E0401", f"`{definition.name}` takes its values by place", expr.options[0].name_span)
        if len(expr.args) != len(definition.parameters):
            names = ", ".join(parameter.id for parameter in definition.parameters)
            raise self.stop(
                "E0405",
                f"`{definition.name}({names})` takes {len(definition.parameters)} values, not {len(expr.args)}",
                expr.span,
            )
        self.written += 1
        if self.written > MOST_CALLS:
            raise self.stop(
                "E0210",
                f"defs are written out where they are called, and these make more than {MOST_CALLS} calls",
                expr.span,
                "a def that calls another twice, level over level, doubles at each",
            )
        if any(definition is outer for outer in self.active):
            raise self.stop("E0206", f"`{definition.name}` calls itself", expr.span, "a def cannot be recursive")
        uses = Counter(name.id for name in names_in(definition.body))
        if not self.active:
            self.step_scope = self.block.scope
        # What is declared has its meaning of the step: data are tables there, and `keep` may have replaced them.
        scope = {
            name: self.step_scope.get(name, held) if name in self.declared else held
            for name, held in called.scope.items()
        }
        for parameter, arg in zip(definition.parameters, expr.args, strict=True):
            meaning = self.evaluate(arg)
            # An argument that is used twice is computed once.
            if isinstance(meaning, Apply) and uses[parameter.id] > 1:
                kind = meaning.type
                label = f"{hint or definition.name}.{parameter.id}"
                meaning = Ref(self.materialize(meaning, label), kind, arg.span)
            scope[parameter.id] = meaning
        outer, place = self.block.scope, self.call_site
        self.block.scope, self.call_site = scope, place or expr.span
        self.active.append(definition)
        try:
            return self.body(definition, hint or definition.name)
        finally:
            self.block.scope, self.call_site = outer, place
            self.active.pop()

    def named(self, body: object) -> set[str]:
        """Names that a piece of syntax uses, those of the defs that it calls included."""
        found: set[str] = set()
        pending = {name.id for name in names_in(body)}
        while pending:
            name = pending.pop()
            found.add(name)
            held = self.scope.get(name)
            if isinstance(held, DefName):
                pending |= free_names(held.definition) - found
        return found

    def unknown_in(self, definition: tree.Def) -> bool:
        """Says which names of a def mean nothing, whether it is called or not."""
        free = free_names(definition)
        built_in = {*FUNCTIONS, *AXES, "min", "max", "pick", "encode"}
        unknown = [
            n for n in names_in(definition.body) if n.id in free and n.id not in self.scope and n.id not in built_in
        ]
        known = {*self.scope, *built_in, *(parameter.id for parameter in definition.parameters)}
        for name in unknown:
            self.say("E0201", f"nothing is called `{name.id}`", name.span, nearest(name.id, known))
        return bool(unknown)

    def body(self, definition: tree.Def, hint: str) -> Meaning:
        for statement in definition.body:
            if isinstance(statement, tree.Return):
                return self.evaluate(statement.value, hint)
            assert isinstance(statement, tree.Assign)
            meaning = self.evaluate(statement.value, f"{hint}.{statement.target}")
            if isinstance(meaning, Apply):
                kind = meaning.type
                meaning = Ref(self.materialize(meaning, f"{hint}.{statement.target}"), kind, statement.span)
            self.block.scope[statement.target] = meaning
        raise AssertionError("a def ends with return: the parser has seen to it")


def free_names(definition: tree.Def) -> set[str]:
    """Names in a def that are neither its parameters nor its own."""
    local = {p.id for p in definition.parameters} | {s.target for s in definition.body if isinstance(s, tree.Assign)}
    return {name.id for name in names_in(definition.body)} - local


def names_in(node: object) -> Iterator[tree.Name]:
    """Every name in a piece of syntax."""
    if isinstance(node, tree.Name):
        yield node
    elif isinstance(node, tuple):
        for item in node:
            yield from names_in(item)
    elif is_dataclass(node) and not isinstance(node, Span):
        for field in fields(node):
            if "span" not in field.name:
                yield from names_in(getattr(node, field.name))
