"""How transformers lays out a model: each rank has all of it."""

from __future__ import annotations

from rlgraph.ir.layout import Local
from rlgraph.ir.mesh import Mesh
from rlgraph.models.cuts import Cuts
from rlgraph.models.families import Kind
from rlgraph.models.shape import Shape


def layout(shape: Shape, mesh: Mesh, rank: int, kind: Kind = "causal_lm") -> tuple[Local, ...]:
    """The global tensors themselves, under their own names."""
    cuts = Cuts.of(shape, mesh, rank, kind)
    return tuple(cuts.entire(name, name) for name in cuts.shapes)
