"""How a model of transformers is laid out: whole, with each parameter's first dimension shared out among the ranks of a
copy (`torch.distributed.fsdp.fully_shard`), or split by heads, columns and tokens of the vocabulary."""

from __future__ import annotations

from functools import partial

from rlgraph.enginespec.spec import entire
from rlgraph.ir.layout import Local, Piece, Range, chunk, whole
from rlgraph.ir.mesh import Mesh
from rlgraph.models.cuts import Cuts
from rlgraph.models.families import EMBEDDING, ModelKind, expert_rows
from rlgraph.models.shape import Shape


def layout(shape: Shape, mesh: Mesh, rank: int, kind: ModelKind = "causal_lm") -> tuple[Local, ...]:
    """The tensors of a rank, under their own names; of a model with adapters these."""
    cuts, part = Cuts.of(shape, mesh, rank, kind), partial(own, mesh, rank)
    if mesh.length("tp") > 1:
        return tuple(_split(shape, cuts, name) for name in cuts.shapes)
    if mesh.length("fsdp") == 1:
        return entire(shape, mesh, rank, kind)
    return tuple(cuts.within(name, part) for name in cuts.shapes)


_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Linear layers of which each tensor-parallel rank has some outputs: whole heads, and columns of the network."""
_COLUMNS = ("o_proj", "down_proj")
"""Those of which it has the inputs that belong to these."""


def _split(shape: Shape, cuts: Cuts, name: str) -> Local:
    """A tensor-parallel rank's part of a parameter."""
    module, _, field = name.rpartition(".")
    layer = module.rpartition(".")[2]
    if field == "gate_up_proj":
        return cuts.join(name, expert_rows(shape, *cuts.part(shape.ffn)), dim=1)
    if field == "down_proj":
        return cuts.split(name, name, dim=2)
    if layer in _ROWS or name in (EMBEDDING, "lm_head.weight"):
        return cuts.split(name, name)
    return cuts.split(name, name, dim=1) if layer in _COLUMNS else cuts.entire(name, name)


def own(mesh: Mesh, rank: int, size: int) -> Range:
    """A rank's part of so many rows of a parameter."""
    return chunk(size, mesh.length("fsdp"), mesh.at(rank, "fsdp"))


def local(name: str, shape: tuple[int, ...], rows: Range | None) -> Local:
    """These rows of a tensor of which only the name and the shape are known; None: all of it."""
    box = whole(shape) if rows is None else (rows, *whole(shape[1:]))
    sizes = tuple(stop - start for start, stop in box)
    return Local(name, sizes, (Piece(name, box, (0,) * len(shape)),) if all(sizes) else ())
