"""This module does `expect` and `learn`: how long rows that are going to be sampled are expected to be."""

from __future__ import annotations

from typing import Any

import torch

from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.rows import TableData, row_label
from rlgraph.backends.worker.columns import column_tensor, function_columns
from rlgraph.backends.worker.sampling_inputs import data_column, rows_to_answer
from rlgraph.backends.worker.session import Session
from rlgraph.ir.graph import Node
from rlgraph.ops.nodes import attribute_value


def run_expect_lengths(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Return a length for each row: by the history of its prompt, a column of its data, or a function of the user's,
    which is called as a reward function is, with empty answers."""
    rows, data, prompts = rows_to_answer(node, frame, session, 0)
    lengths: Any
    if column := attribute_value(node, "column"):
        lengths = data_column(TableData(tuple(data)), column, rows, node)
        lengths = column_tensor(lengths, column, rows.row_name, node.span, session.dtype).tolist()
    elif func := attribute_value(node, "func"):
        columns = function_columns(data, rows, node.span, session.functions[func].accepts_column)
        count = len(prompts)
        ids = [row_label(row) for row in rows.known_ids]
        lengths = session.functions[func](list(prompts), [""] * count, [[]] * count, columns, ids)
    else:
        lengths = session.history.expected_lengths(node.attr("table"), rows.known_ids)
    return NodeOutput({node.outputs[0].name: [float(length) for length in lengths]})


def run_learn_lengths(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Add the lengths of rows to the history of their prompts."""
    lengths: torch.Tensor = frame.values[node.inputs[0]]
    kind: Any = frame.types[node.inputs[0]]
    rows = frame.rows[kind.axis.key].known_ids
    session.history.add_lengths(node.attr("table"), rows, lengths.tolist(), attribute_value(node, "samples"))
    return NodeOutput()
