"""Computes the smallest unit that a node can work on from the axes of its inputs, for `granularity`, `fuse` and
`split`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlgraph.ir.graph import Apply, Expr, Node, Ref, RowUnit
from rlgraph.ir.types import Axis, Table, Type, axis_of
from rlgraph.ops import NODES, TENSOR, table_of, user_code_of
from rlgraph.ops.nodes import unit_seen_by_node


def innermost_common_axis(found: list[Axis]) -> Axis | None:
    """Return the innermost axis that contains all of these; None if there is none."""
    for axis in found[0].path_to_root() if found else ():
        if all(other.is_within(axis) for other in found):
            return axis
    return None


def reductions(expr: Expr) -> Iterator[Apply]:
    """Return every operation in an expression that needs whole groups, or the whole batch."""
    if isinstance(expr, Apply):
        if TENSOR[expr.op].is_grouped:
            yield expr
        for arg in expr.args:
            yield from reductions(arg)


def smallest_splittable_unit(node: Node, types: Mapping[str, Type], known: Mapping[str, Axis]) -> RowUnit:
    """Return the unit of a node; `types` has those of the values that it uses, `known` the axes by key."""
    op = NODES[node.op]
    if node.body:
        return _tensor_unit(node, types, known)
    if op.foreign and (over := unit_seen_by_node(node)) != op.unit:
        return _called_unit(node, over, types)
    if op.unit == "batch":
        return RowUnit(None, op.reason)
    if op.unit == "group":
        axis = axis_of(node.outputs[0].type)
        assert axis
        return RowUnit(axis.key, op.reason)
    if axis := node.attr("axis"):
        return RowUnit(axis)
    rows = [axis.row_axis for name in node.inputs if (axis := axis_of(types[name])) is not None]
    table_axes = [kind.axis for name in node.inputs if isinstance(kind := types[name], Table)]
    if not rows:
        return RowUnit(None, "it has no rows")
    # A model, a function or a column works on the rows of its table.
    return RowUnit((table_axes or rows)[0].key)


def _called_unit(node: Node, over: str, types: Mapping[str, Type]) -> RowUnit:
    """Return the unit of a function that may read other rows than the one for which it returns a number."""
    if over == "batch":
        return RowUnit(None, f"`{user_code_of(node)}` may look at all rows of a batch")
    table = types[table_of(node)]
    assert isinstance(table, Table)
    # Rows without a parent are groups of their own; samples of samples also belong to one prompt.
    group = table.axis.root_axis
    if group is table.axis:
        return RowUnit(group.key)
    return RowUnit(group.key, f"`{user_code_of(node)}` may look at all rows of each group of `{group.name}`")


def _tensor_unit(node: Node, types: Mapping[str, Type], axes_by_key: Mapping[str, Axis]) -> RowUnit:
    """Return the unit of a tensor node."""
    row_axes = [axis.row_axis for name in node.inputs if (axis := axis_of(types[name])) is not None]
    if not row_axes:
        return RowUnit(None, "it is one number")
    innermost = [axis for axis in row_axes if all(axis.is_within(other) for other in row_axes)]
    unit, reason = (innermost or row_axes)[0], ""
    for let in node.body:
        for reduction in reductions(let.expr):
            if reduction.axis is None:
                return RowUnit(None, f"`{reduction.op}` is over the whole batch")
            target = axes_by_key[reduction.axis].row_axis
            if unit.is_within(target) and target.key != unit.key:
                unit, reason = target, f"`{reduction.op}` is over each group of `{target.name}`"
    if not innermost:
        shared = innermost_common_axis(row_axes)
        return RowUnit(shared.key if shared else None, "its values lie on axes that only meet there")
    return RowUnit(unit.key, reason)


def uses_any(expr: Expr, names: set[str]) -> bool:
    """Return whether an expression uses one of these values."""
    if isinstance(expr, Ref):
        return expr.name in names
    return isinstance(expr, Apply) and any(uses_any(arg, names) for arg in expr.args)
