"""How long rows are expected to be that are going to be sampled."""

from __future__ import annotations

from typing import Any

import torch

from rlgraph.backends.executor import Made
from rlgraph.backends.frame import Frame
from rlgraph.backends.rows import TableData, show_id
from rlgraph.backends.worker.columns import arguments, numbers_of
from rlgraph.backends.worker.sampling import asked_rows, data_column
from rlgraph.backends.worker.session import Session
from rlgraph.ir.graph import Node
from rlgraph.ops.nodes import attr


def expect(node: Node, frame: Frame, session: Session) -> Made:
    """A number for each row: by the history of its prompt, a column of its data, or a function of the user's, which is
    called as one that rewards is, with empty answers."""
    rows, data, prompts = asked_rows(node, frame, 0)
    found: Any
    if column := attr(node, "column"):
        found = data_column(TableData(tuple(data)), column, rows, node)
        found = numbers_of(found, column, rows.who, node.span, session.dtype).tolist()
    elif func := attr(node, "func"):
        columns = arguments(data, rows, node.span, session.functions[func].takes)
        count = len(prompts)
        ids = [show_id(row) for row in rows.known]
        found = session.functions[func](list(prompts), [""] * count, [[]] * count, columns, ids)
    else:
        found = session.history.expected(node.attr("table"), rows.known)
    return Made({node.outputs[0].name: [float(each) for each in found]})


def learn(node: Node, frame: Frame, session: Session) -> Made:
    lengths: torch.Tensor = frame.values[node.inputs[0]]
    kind: Any = frame.types[node.inputs[0]]
    rows = frame.rows[kind.axis.key].known
    session.history.learn(node.attr("table"), rows, lengths.tolist(), attr(node, "samples"))
    return Made()
