"""This module works on states that have a number for each key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.worker.columns import column_tensor
from rlgraph.backends.worker.session import Session
from rlgraph.columns import NO_KEYS, WORDS, value_kind
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Node
from rlgraph.ir.types import axis_of


def run_state_lookup(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Return the number that a state has for each key."""
    entries, keys = (frame.values[name] for name in node.inputs)
    kind: Any = frame.types[node.inputs[0]]
    initial = session.initial[kind.name]
    numbers = [entries.get(key, initial) for key in checked_keys(entries, keys, node, frame)]
    return NodeOutput({node.outputs[0].name: torch.tensor(numbers, dtype=session.dtype)})


def run_state_assign(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Write into a state, for each key, the mean of its values."""
    entries, keys, values = (frame.values[name] for name in node.inputs)
    sums: dict[Any, list[float]] = {}
    if isinstance(values, list):
        axis = axis_of(frame.types[node.inputs[2]])
        assert axis
        values = column_tensor(values, node.inputs[2], frame.rows[axis.key].row_name, node.span, session.dtype)
    numbers = [float(value) for value in values.tolist()]
    for key, value in zip(checked_keys(entries, keys, node, frame), numbers, strict=True):
        sums.setdefault(key, []).append(value)
    return NodeOutput(
        {
            node.outputs[0].name: {
                **entries,
                **{key: sum(key_values) / len(key_values) for key, key_values in sums.items()},
            }
        }
    )


def checked_keys(entries: Iterable[Any], column: Any, node: Node, frame: Frame) -> list[Any]:
    """Return the keys, which are all texts or all numbers, those that are there, too: "4" is another key than 4."""
    keys: list[Any] = column.tolist() if isinstance(column, Tensor) else column
    first = next(iter(entries), keys[0] if keys else None)
    for place, key in enumerate(keys):
        kind = value_kind(key)
        if kind not in NO_KEYS and isinstance(key, str) == isinstance(first, str):
            continue
        axis = axis_of(frame.types[node.inputs[1]])
        assert axis
        others = f"other keys are {'texts' if isinstance(first, str) else 'numbers'}"
        problem = f"is {WORDS[kind]}, and {'no key' if kind in NO_KEYS else others}"
        message = f"`{node.inputs[1]}` of {frame.rows[axis.key].row_name(place)} {problem}"
        raise RunError(Diagnostic("E0735", message, node.span, "write a text or a whole number in every row"))
    return keys
