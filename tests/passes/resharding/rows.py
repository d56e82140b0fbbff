"""Layouts of rows over the ranks of a mesh: what a group needs to work, and what it has when it is done.

`rlgraph.passes.resharding.reshard` makes a transfer of any two. What other systems register as protocols, one for each way to
distribute and to collect, is what comes out for the two meshes.
"""

from __future__ import annotations

from rlgraph.ir.layout import LocalTensor, Range, TensorPiece, even_range
from rlgraph.ir.mesh import Mesh

NAME = "rows"

Side = dict[int, tuple[LocalTensor, ...]]


def needed(mesh: Mesh, rows: int) -> Side:
    """Each copy works on its part of the rows, and all of its ranks need them."""
    return {
        rank: block(even_range(rows, mesh.axis_size("dp"), mesh.axis_position(rank, "dp")))
        for rank in range(mesh.rank_count)
    }


def made(mesh: Mesh, rows: int) -> Side:
    """Results are on the first tensor-parallel rank of each copy's last stage, and nowhere else."""
    every, last = needed(mesh, rows), mesh.axis_size("pp") - 1
    return {rank: every[rank] for copy in range(mesh.axis_size("dp")) for rank in (mesh.rank_at(dp=copy, pp=last),)}


def block(ends: Range) -> tuple[LocalTensor, ...]:
    """Rows from one number to another."""
    return (LocalTensor(NAME, (ends[1] - ends[0],), (TensorPiece(NAME, (ends,), (0,)),)),)
