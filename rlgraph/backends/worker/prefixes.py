"""Cuts rows behind so many of their tokens with loss."""

from __future__ import annotations

import numpy as np
import torch

from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.rows import TableData
from rlgraph.backends.worker.columns import column_tensor
from rlgraph.backends.worker.piece_columns import prefix_columns
from rlgraph.backends.worker.sampling import rows_of_inner_axes, table_type
from rlgraph.backends.worker.session import Session
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Node
from rlgraph.ir.types import Table, axis_of
from rlgraph.ops import attribute_value


def cut_rows(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Return the rows of a table up to their k-th token with loss: no id is made again, and what was sampled keeps its
    log-probabilities. Raises RunError for a k that is no count."""
    table: TableData = frame.values[node.inputs[0]]
    kind, old = table_type(node), frame.types[node.inputs[0]]
    assert isinstance(old, Table) and table.sequences is not None
    places = frame.ancestor_rows(kind.axis.key, old.axis.key)
    kept = np.minimum(_wanted(node, frame, kind), table.sequences.scored_counts().numpy()[places])
    sequences = table.sequences.take(torch.from_numpy(places))
    ends = [_end(scored, int(count)) for scored, count in zip(sequences.scored_by_row(), kept, strict=True)]
    indices = places.tolist()
    made = TableData(
        tuple(table.data[place] for place in indices),
        tuple(table.prompts[place] for place in indices),
        sequences.truncate(torch.tensor(ends, dtype=torch.long)),
        prefix_columns(kind, old, table, places, kept),
        table.owner,
    )
    return NodeOutput({node.outputs[0].name: made}, rows_of_inner_axes(kind, made))


def _end(scored: list[bool], count: int) -> int:
    """Return how many tokens a row has up to its `count`-th with loss, that one included; of none of them, how many
    stand before the first."""
    where = np.flatnonzero(scored)
    if count:
        return int(where[count - 1]) + 1
    return int(where[0]) if where.size else len(scored)


def _wanted(node: Node, frame: Frame, kind: Table) -> np.ndarray:
    """Return how many tokens are to stay of each row that is made, int64."""
    constant = attribute_value(node, "tokens")
    size = frame.rows[kind.axis.key].size
    if constant is not None:
        return np.full(size, constant, dtype=np.int64)
    name = node.inputs[1]
    value, axis = frame.values[name], axis_of(frame.types[name])
    if axis is None:
        value, who = [int(value)] * size, kind.axis.key
    else:
        who = axis.key
    rows = frame.rows[who]
    if isinstance(value, list):
        value = column_tensor(value, name, rows.row_name, node.span, torch.float64)
    numbers = np.asarray(value, dtype=np.float64)
    wrong = np.flatnonzero((numbers < 0) | (numbers != np.floor(numbers)))
    if wrong.size:
        message = f"`tokens` is {numbers[wrong[0]]:g} for {rows.row_name(int(wrong[0]))}, and no count of tokens"
        raise RunError(Diagnostic("E0313", message, node.span, "`max(floor(x), 0)` is one"))
    counts = np.minimum(numbers, 2.0**62).astype(np.int64)
    return counts if axis is None else counts[frame.ancestor_rows(kind.axis.key, axis.key)]
