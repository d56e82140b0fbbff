"""A `def` by itself, as one tensor node: how Python calls the functions of the language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlgraph.dsl import tree
from rlgraph.dsl.check import Checker
from rlgraph.dsl.parse import parse
from rlgraph.dsl.scope import (
    Block,
    DefName,
    Meaning,
    ModelName,
    OutsideName,
    StateName,
    Stop,
    Unknowable,
    describe,
)
from rlgraph.dsl.use import assemble
from rlgraph.errors import ProgramError, Source
from rlgraph.ir.graph import Apply, Const, Let, Node, Ref, tensor_node
from rlgraph.ir.types import Axis, Tensor


@dataclass(frozen=True, slots=True)
class Defined:
    """A def for arguments of certain types."""

    node: Node
    """One `tensor` node whose inputs are parameters."""
    group: str | None = None
    """The parameter that says in which group each row lies, where the def reduces by one."""


def definitions(source: Source | None, changes: Mapping[str, tree.Expr] | None = None) -> dict[str, DefName]:
    """The defs of a program, or of the prelude for None. Raises ProgramError for wrong declarations."""
    checker = Checker()
    checker.prelude()
    own = list(checker.scope)
    if source is not None:
        file = assemble(parse(source), source, checker)
        own = [item.name for item in file.declarations if isinstance(item, tree.Def)]
        checker.unknown_changes(file.declarations, changes or {})
        for item in file.declarations:
            try:
                checker.declaration(item, changes or {})
            except Stop:
                continue
        _raise(checker)
    scope: dict[str, Meaning] = {}
    for name, meaning in checker.scope.items():
        if isinstance(meaning, (ModelName, OutsideName, StateName)):
            span = {ModelName: "model", OutsideName: "outside", StateName: "state"}[type(meaning)]
            reason = f"`{name}` is {describe(meaning)}: it lives in a run, and Python calls this outside of one"
            scope[name] = Unknowable(reason, getattr(meaning, span).span)
        else:
            scope[name] = DefName(meaning.definition, scope) if isinstance(meaning, DefName) else meaning
    return {name: found for name in own if isinstance(found := scope[name], DefName)}


def define(called: DefName, types: Mapping[str, Tensor]) -> Defined:
    """The def for parameters of these types. Raises ProgramError where they do not fit."""
    definer = _Definer(called, types)
    try:
        return definer.defined()
    except Stop:
        _raise(definer)
        raise


def _raise(checker: Checker) -> None:
    errors = [d for d in checker.diagnostics if d.severity == "error"]
    if errors:
        raise ProgramError(errors)


class _Definer(Checker):
    """Checks the body of one def. `by=` takes a parameter that has the number of its group for each row."""

    def __init__(self, called: DefName, types: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.definition = called.definition
        self.parameters = types
        self.group: str | None = None
        self.taken = dict.fromkeys(types, 1)
        self.block = Block({**called.scope, **{name: Ref(name, kind) for name, kind in types.items()}}, {})

    def defined(self) -> Defined:
        name = self.definition.name
        meaning = self.body(self.definition, name)
        if not isinstance(meaning, (Const, Ref, Apply)):
            shown = f"`{name}` gives {describe(meaning)}"
            raise self.stop("E0305", f"{shown}: Python can call defs that give numbers", self.definition.span)
        lets = [let for node in self.block.nodes for let in node.body]
        result = self.fresh(f"{name}.result")
        return Defined(tensor_node((*lets, Let(result, meaning)), (result,), self.definition.span), self.group)

    def axis_named(self, expr: tree.Name) -> Axis | None:
        meaning = self.block.scope.get(expr.id)
        if isinstance(meaning, Ref) and meaning.name in self.parameters and meaning.type.dtype == "int":
            axis = meaning.type.axis
            if axis and not axis.inner and axis.parent:
                if self.group not in (None, meaning.name):
                    raise self.stop(
                        "E0303",
                        f"the rows are grouped by `{self.group}` already",
                        expr.span,
                        "a function called from Python has one kind of groups",
                    )
                self.group = meaning.name
                return axis.parent
        return super().axis_named(expr)
