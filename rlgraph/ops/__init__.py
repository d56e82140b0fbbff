"""Declares the operations of tensor mathematics (`tensor`) and of nodes (`nodes`): types, traits and reference
implementations by name."""

from rlgraph.ops.node_op import NodeOp
from rlgraph.ops.nodes import (
    MODEL_OPERATIONS,
    NODES,
    attribute_value,
    chosen_from,
    code_of,
    model_of,
    planned_as,
    table_of,
    work_of,
)
from rlgraph.ops.tensor import TENSOR, TensorOp, infer

__all__ = [
    "MODEL_OPERATIONS",
    "NODES",
    "TENSOR",
    "NodeOp",
    "TensorOp",
    "attribute_value",
    "chosen_from",
    "code_of",
    "infer",
    "model_of",
    "planned_as",
    "table_of",
    "work_of",
]
