"""Declares the operations of tensor mathematics (`tensor`) and of nodes (`nodes`): types, traits and reference
implementations by name."""

from rlgraph.ops.node_op import NodeOp
from rlgraph.ops.nodes import (
    MODEL_OPERATIONS,
    NODES,
    attribute_value,
    inputs_chosen_from,
    model_of,
    model_work_of,
    models_beside,
    placement_operation,
    table_of,
    user_code_of,
)
from rlgraph.ops.tensor import TENSOR, TensorOp, infer_type

__all__ = [
    "MODEL_OPERATIONS",
    "NODES",
    "TENSOR",
    "NodeOp",
    "TensorOp",
    "attribute_value",
    "inputs_chosen_from",
    "user_code_of",
    "infer_type",
    "model_of",
    "placement_operation",
    "table_of",
    "model_work_of",
    "models_beside",
]
