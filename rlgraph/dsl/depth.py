"""Limits the depth of a syntax tree: what reads trees may call itself for each level."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from rlgraph.dsl import tree
from rlgraph.errors import Diagnostic

MAX_DEPTH = 200


def depth_errors(root: tree.File | tree.Expr) -> list[Diagnostic]:
    """Return a diagnostic for each statement in which an expression is too deep."""
    hint = "give a part of it a name on a line of its own"
    message = f"this expression has more than {MAX_DEPTH} levels"
    return [Diagnostic("E0120", message, node.span, hint) for node in _deep(root)]


def _deep(root: Any) -> Iterator[Any]:
    pending = [(root, root, 0)]
    while pending:
        node, statement, depth = pending.pop()
        if depth > MAX_DEPTH:
            yield statement
            continue
        for child in _children(node):
            is_expression = isinstance(child, tree.Expr)
            pending.append((child, statement if is_expression else child, depth + 1 if is_expression else 0))


def _children(node: Any) -> Iterator[Any]:
    for field in fields(node):
        value = getattr(node, field.name)
        for child in value if isinstance(value, tuple) else (value,):
            if is_dataclass(child) and field.compare:
                yield child
