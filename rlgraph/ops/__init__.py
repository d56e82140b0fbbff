"""Operations, each declared once: `tensor` mathematics, and the `nodes` that models, tables and loops are made of."""

from rlgraph.ops.nodes import MODEL_OPERATIONS, NODES, NodeOp, attr, model_of, table_of
from rlgraph.ops.tensor import TENSOR, TensorOp, infer

__all__ = ["MODEL_OPERATIONS", "NODES", "TENSOR", "NodeOp", "TensorOp", "attr", "infer", "model_of", "table_of"]
