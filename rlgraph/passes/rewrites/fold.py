"""Constant folding: computes operations on constants, and removes operations that change nothing."""

from __future__ import annotations

import math
from dataclasses import replace

from rlgraph.ir.graph import Apply, Const, Expr, Graph, Program
from rlgraph.ir.types import Tensor
from rlgraph.ops import TENSOR
from rlgraph.ops.tensor import LARGEST


def fold_constants(program: Program) -> Program:
    """Return the program with constants folded in all expressions."""
    return program.with_graphs({phase.name: _graph(phase.graph) for phase in program.phases})


def _graph(graph: Graph) -> Graph:
    nodes = tuple(
        replace(
            node,
            body=tuple(replace(let, expr=fold_expr(let.expr)) for let in node.body),
            regions=tuple(map(_graph, node.regions)),
        )
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def fold_expr(expr: Expr) -> Expr:
    """Return the expression with constant parts computed; all types stay the same."""
    if not isinstance(expr, Apply):
        return expr
    args = tuple(fold_expr(arg) for arg in expr.args)
    expr, python = replace(expr, args=args), TENSOR[expr.op].python
    if python and all(isinstance(arg, Const) for arg in args) and expr.type.axis is None:
        values = [arg.value for arg in args if isinstance(arg, Const) and not isinstance(arg.value, str)]
        # As a run computes it: a power of integers is a float, which also keeps the result small enough.
        kind = {"float": float, "bool": bool}.get(expr.type.dtype, int)
        try:
            value = python(*map(float, values)) if kind is float else python(*values)
        except (ArithmeticError, TypeError, ValueError):
            return expr
        if isinstance(value, float) and math.isfinite(value) or isinstance(value, int) and abs(value) < LARGEST:
            return Const(kind(value), Tensor(expr.type.dtype), expr.span)
        return expr
    simplified = _neutral(expr)
    return simplified if simplified is not None and simplified.type == expr.type else expr


def _neutral(expr: Apply) -> Expr | None:
    """Return `x` for `x + 0`, `x - 0`, `x * 1`, `x / 1` and `--x`. (`x * 0` is not 0 where `x` is not finite.)"""
    op, args = TENSOR[expr.op], expr.args
    last = args[-1].value if isinstance(args[-1], Const) else None
    first = args[0].value if isinstance(args[0], Const) else None
    if isinstance(last, bool) or isinstance(first, bool):
        return None
    if op.neutral is not None and last == op.neutral:
        return args[0]
    if op.neutral is not None and op.commutes and first == op.neutral:
        return args[1]
    if op.inverse and isinstance(args[0], Apply) and args[0].op == expr.op:
        return args[0].args[0]
    return None
