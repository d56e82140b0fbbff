"""How a model of transformers is laid out: whole, or with each parameter's first dimension shared out among the ranks
of a copy (`torch.distributed.fsdp.fully_shard`)."""

from __future__ import annotations

from functools import partial

from rlgraph.enginespec.spec import entire
from rlgraph.ir.layout import Local, Piece, Range, chunk, whole
from rlgraph.ir.mesh import Mesh
from rlgraph.models.cuts import Cuts
from rlgraph.models.families import ModelKind
from rlgraph.models.shape import Shape


def layout(shape: Shape, mesh: Mesh, rank: int, kind: ModelKind = "causal_lm") -> tuple[Local, ...]:
    """The tensors of a rank, under their own names; of a model with adapters these."""
    if mesh.length("fsdp") == 1:
        return entire(shape, mesh, rank, kind)
    cuts, part = Cuts.of(shape, mesh, rank, kind), partial(own, mesh, rank)
    return tuple(cuts.within(name, part) for name in cuts.shapes)


def own(mesh: Mesh, rank: int, size: int) -> Range:
    """A rank's part of so many rows of a parameter."""
    return chunk(size, mesh.length("fsdp"), mesh.at(rank, "fsdp"))


def local(name: str, shape: tuple[int, ...], rows: Range | None) -> Local:
    """These rows of a tensor of which only the name and the shape are known; None: all of it."""
    box = whole(shape) if rows is None else (rows, *whole(shape[1:]))
    sizes = tuple(stop - start for start, stop in box)
    return Local(name, sizes, (Piece(name, box, (0,) * len(shape)),) if all(sizes) else ())
