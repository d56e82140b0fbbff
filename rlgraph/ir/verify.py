"""Verifies after each pass that a graph is well formed.

A broken graph is a bug of the pass that made it, not a mistake of the user: the runner of passes names the pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from rlgraph.ir.attributes import REQUIRED, Attribute
from rlgraph.ir.graph import Apply, Expr, Graph, Node, Program, Ref, captured_names, program_axes
from rlgraph.ir.types import Axis, Infer, StateHandle, Table, Tensor, Type

UNIT, FUSED = "unit", "fused"
"""Properties that passes add: the unit of every node, and tensor nodes with several outputs."""


class DeclaredOperation(Protocol):
    """The properties of an operation that verification needs; `rlgraph.ops`, which declares them, is built on this
    package."""

    @property
    def signature(self) -> str: ...

    @property
    def has_region(self) -> bool: ...

    @property
    def has_body(self) -> bool: ...

    @property
    def is_barrier(self) -> bool: ...

    @property
    def trains(self) -> bool: ...

    @property
    def attributes(self) -> tuple[Attribute, ...]: ...


class BrokenGraph(Exception):
    """Raised for a graph that breaks rules; `problems` has a message for each."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


def verify(
    program: Program,
    ops: Mapping[str, DeclaredOperation],
    infer: Infer,
    written: Collection[str] = (),
) -> None:
    """Raise BrokenGraph unless every phase of the program is well formed.

    written: what passes have added so far: `unit`, `fused`, and attributes such as `train.micro`. All of it must be
    there, and nothing that a later pass adds.
    """
    problems: list[str] = []
    declared = set[str]()
    for model in program.models:
        if model.copy_of is not None and model.copy_of not in declared:
            problems.append(f"model {model.name}: no model before it is called {model.copy_of}")
        declared.add(model.name)
    declared |= {outside.name for outside in program.outside}
    declared |= {state.name for state in program.states}
    by_key = program_axes(program)
    for phase in program.phases:
        check = _Check(ops, infer, by_key, written)
        check.check_graph(phase.graph, {})
        problems += [f"phase {phase.name}: {problem}" for problem in check.problems]
        first = [value.type for value in phase.graph.inputs]
        problems += [
            f"phase {phase.name}: {kind.name} is not declared"
            for kind in first
            if isinstance(kind, StateHandle) and kind.name not in declared
        ]
        if not check.problems:
            kinds = phase.graph.value_types()
            last = [kinds[name] for name in phase.graph.outputs]
            if [str(kind) for kind in first] != [str(kind) for kind in last]:
                problems.append(f"phase {phase.name}: given {first}, yields {last}")
    if problems:
        raise BrokenGraph(problems)


class _Check:
    """The check of one phase: every name is defined once and before its use, and operations get types that they
    take."""

    def __init__(
        self, ops: Mapping[str, DeclaredOperation], infer: Infer, by_key: Mapping[str, Axis], written: Collection[str]
    ) -> None:
        self.ops, self.infer, self.by_key, self.written = ops, infer, by_key, written
        self.made: set[str] = set()
        self.problems: list[str] = []

    def check_graph(self, graph: Graph, outer: Mapping[str, Type]) -> None:
        scope = dict(outer)
        self.define_values(scope, [(value.name, value.type) for value in graph.inputs], "given")
        for node in graph.nodes:
            missing = [name for name in node.inputs if name not in scope]
            if missing:
                self.problems.append(f"{node.name}: {', '.join(missing)} used before it is made")
            else:
                self.check_node(node, scope)
            self.define_values(scope, [(value.name, value.type) for value in node.outputs], node.op)
        self.problems += [f"yields {name}, which nothing makes" for name in graph.outputs if name not in scope]

    def define_values(self, scope: dict[str, Type], values: list[tuple[str, Type]], by: str) -> None:
        for name, kind in values:
            if name in self.made:
                self.problems.append(f"{name} is made twice, the second time by {by}")
            self.made.add(name)
            scope[name] = kind

    def check_node(self, node: Node, scope: Mapping[str, Type]) -> None:
        op = self.ops.get(node.op)
        if op is None:
            self.problems.append(f"{node.name}: no operation is called {node.op}")
            return
        taken, yielded = op.signature.split("->")
        if not _fits(taken.split(), [scope[name] for name in node.inputs]):
            kinds = ", ".join(str(scope[name]) for name in node.inputs)
            self.problems.append(f"{node.name}: {node.op} takes {taken.strip()}, is given {kinds}")
        if not _fits(yielded.split(), [value.type for value in node.outputs]):
            kinds = ", ".join(str(value.type) for value in node.outputs)
            self.problems.append(f"{node.name}: {node.op} makes {yielded.strip()}, not {kinds}")
        if bool(node.regions) != op.has_region:
            self.problems.append(
                f"{node.name}: {node.op} {'has no region' if op.has_region else 'cannot have a region'}"
            )
        self.check_attributes(node, op)
        self.check_unit(node, op)
        if bool(node.body) != op.has_body:
            self.problems.append(f"{node.name}: {node.op} {'has no body' if op.has_body else 'cannot have a body'}")
        if node.body:
            self.check_tensor(node, scope)
        for region in node.regions:
            self.check_region(node, op, region, scope)

    def check_attributes(self, node: Node, op: DeclaredOperation) -> None:
        given, declared = dict(node.attrs), {attribute.name: attribute for attribute in op.attributes}
        problems = [f"has no attribute `{name}`" for name in given if name not in declared]
        if len(given) < len(node.attrs):
            problems.append("says an attribute twice")
        for name, attribute in declared.items():
            late = attribute.by == "pass" and f"{node.op}.{name}" not in self.written
            if name not in given and not late and (attribute.by == "pass" or attribute.default is REQUIRED):
                problems.append(f"lacks `{name}`")
            elif name in given and late:
                problems.append(f"has `{name}`, which no pass has written yet")
            elif name in given and (problem := attribute.value_problem(given[name], self.by_key)):
                problems.append(problem)
        self.problems += [f"{node.name}: {node.op}: {problem}" for problem in problems]

    def check_unit(self, node: Node, op: DeclaredOperation) -> None:
        """Check that a node has a unit that fits its operation, with a reason where it is a barrier."""
        unit, due = node.unit, UNIT in self.written
        if unit is None or not due:
            problem = "has no unit" if due else "has a unit, which no pass has written yet" if unit else ""
        elif unit.axis is not None and unit.axis not in self.by_key:
            problem = f"works by {unit.axis}, which is no axis"
        elif unit.axis is not None and op.is_barrier:
            problem = f"works by {unit.axis}, and {node.op} needs the whole batch"
        else:
            problem = "is a barrier without a reason" if unit.axis is None and not unit.reason else ""
        if problem:
            self.problems.append(f"{node.name}: {problem}")

    def check_tensor(self, node: Node, scope: Mapping[str, Type]) -> None:
        if len(node.outputs) > 1 and FUSED not in self.written:
            self.problems.append(f"{node.name}: makes several values, and no pass has fused nodes yet")
        inner = dict(scope)
        used: set[str] = set()
        for let in node.body:
            self.check_expr(node, let.expr, inner, used)
            if let.name in self.made and let.name not in {value.name for value in node.outputs}:
                self.problems.append(f"{node.name}: {let.name} is made twice")
            inner[let.name] = let.expr.type
        defined = {let.name for let in node.body}
        self.made |= defined - {value.name for value in node.outputs}
        if used - defined != set(node.inputs):
            self.problems.append(f"{node.name}: uses {sorted(used - defined)}, is given {sorted(node.inputs)}")
        for value in node.outputs:
            if value.name not in defined or inner[value.name] != value.type:
                self.problems.append(f"{node.name}: {value.name} is not of its body, or of another type")

    def check_expr(self, node: Node, expr: Expr, scope: Mapping[str, Type], used: set[str]) -> None:
        if isinstance(expr, Ref):
            used.add(expr.name)
            if scope.get(expr.name) != expr.type:
                self.problems.append(f"{node.name}: {expr.name} is {scope.get(expr.name)}, used as {expr.type}")
        if not isinstance(expr, Apply):
            return
        for arg in expr.args:
            self.check_expr(node, arg, scope, used)
        try:
            axis = self.by_key[expr.axis] if expr.axis else None
            inferred = self.infer(expr.op, tuple(arg.type for arg in expr.args), axis)
        except (ValueError, KeyError) as error:
            self.problems.append(f"{node.name}: {error}")
            return
        if inferred != expr.type:
            self.problems.append(f"{node.name}: {expr.op} makes {inferred}, is marked {expr.type}")

    def check_region(self, node: Node, op: DeclaredOperation, region: Graph, scope: Mapping[str, Type]) -> None:
        count = len(region.inputs)
        if node.inputs[count:] != captured_names(region):
            self.problems.append(f"{node.name}: captures {captured_names(region)}, is given {node.inputs[count:]}")
        if len(region.outputs) != len(node.outputs):
            self.problems.append(f"{node.name}: yields {len(region.outputs)} values, makes {len(node.outputs)}")
        outer = [scope[name] for name in node.inputs[:count]]
        if [value.type for value in region.inputs] != outer:
            self.problems.append(f"{node.name}: carries {outer} into {[value.type for value in region.inputs]}")
        self.check_graph(region, scope)
        types = {**scope, **region.value_types()}
        for name, value in zip(region.outputs, node.outputs, strict=False):
            loss = op.trains and value is node.outputs[0]
            if not loss and name in types and types[name] != value.type:
                self.problems.append(f"{node.name}: {value.name} is {value.type}, its region yields {types[name]}")


def _fits(pattern: list[str], kinds: list[Type]) -> bool:
    index = 0
    for word in pattern:
        wanted = word.rstrip("*").split("|")
        if word.endswith("*"):
            while index < len(kinds) and _is(kinds[index], wanted):
                index += 1
        elif index < len(kinds) and _is(kinds[index], wanted):
            index += 1
        else:
            return False
    return index == len(kinds)


def _is(kind: Type, wanted: list[str]) -> bool:
    if wanted == ["any"]:
        return True
    kind_name = "table" if isinstance(kind, Table) else "tensor" if isinstance(kind, Tensor) else kind.kind
    return kind_name in wanted
