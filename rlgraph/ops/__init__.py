"""Operations, each declared once: `tensor` mathematics, and the `nodes` that models, tables and loops are made of."""

from rlgraph.ops.nodes import NODES, NodeOp
from rlgraph.ops.tensor import TENSOR, TensorOp, infer

__all__ = ["NODES", "TENSOR", "NodeOp", "TensorOp", "infer"]
