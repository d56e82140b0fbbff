"""Lays out a model of transformers: whole, split by heads, columns and tokens of the vocabulary, and with the first
dimension of each parameter, or of such a part, sharded over ranks (`torch.distributed.fsdp.fully_shard`)."""

from __future__ import annotations

from rlgraph.catalog.models.families import CORRECTION, EMBEDDING, ModelKind, gate_up_rows, trainable_parameter_shapes
from rlgraph.catalog.models.rank_slices import RankSlicer
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import LocalTensor, Range, TensorPiece, chunk_range, cut_tensor, full_box, shape_of_box
from rlgraph.ir.mesh import Mesh


def layout(shape: Shape, mesh: Mesh, rank: int, kind: ModelKind = "causal_lm") -> tuple[LocalTensor, ...]:
    """Return the tensors of a rank, under their own names; for a model with adapters only these."""
    cuts = RankSlicer.for_rank(shape, mesh, rank, kind, trainable_parameter_shapes(shape, kind))
    parts = (_split(shape, cuts, name) if cuts.tp > 1 else cuts.whole_tensor(name, name) for name in cuts.shapes)
    return tuple(_sharded(part, mesh, rank) if mesh.axis_size("fsdp") > 1 else part for part in parts)


_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Linear layers of which each tensor-parallel rank has some outputs: whole heads, and columns of the network."""
_COLUMNS = ("o_proj", "down_proj")
"""Linear layers of which it has the inputs that belong to these outputs."""


def _split(shape: Shape, cuts: RankSlicer, name: str) -> LocalTensor:
    """Return a tensor-parallel rank's part of a parameter."""
    module, _, field = name.rpartition(".")
    if module.endswith((".lora_A", ".lora_B")):
        # What lies between A and B is whole on each rank.
        module, _, matrix = module.rpartition(".")
        rows = module.rpartition(".")[2] in _ROWS
        if rows == (matrix == "lora_A"):
            return cuts.whole_tensor(name, name)
    layer = module.rpartition(".")[2]
    if field == "gate_up_proj":
        return cuts.concatenate_slices(name, gate_up_rows(shape, *cuts.rank_range(shape.ffn)), dim=1)
    if field == "down_proj":
        return cuts.split_tensor(name, name, dim=2)
    if layer in _ROWS or name in (EMBEDDING, "lm_head.weight"):
        return cuts.split_tensor(name, name)
    return cuts.split_tensor(name, name, dim=1) if layer in _COLUMNS else cuts.whole_tensor(name, name)


def _sharded(part: LocalTensor, mesh: Mesh, rank: int) -> LocalTensor:
    """Return what a rank has of a tensor that is sharded: some rows, of each layer's where it is stacked; they may be
    none. Only parameters are sharded, and no buffers."""
    if part.name.endswith(CORRECTION):
        return part
    box, dim = list(full_box(part.shape)), "*" in part.name
    box[dim] = shard_range(mesh, rank, part.shape[dim])
    return cut_tensor(part, tuple(box), part.name)


def shard_range(mesh: Mesh, rank: int, size: int) -> Range:
    """Return a rank's range of so many rows of a parameter."""
    return chunk_range(size, mesh.axis_size("fsdp"), mesh.axis_position(rank, "fsdp"))


def local_tensor(name: str, shape: tuple[int, ...], rows: Range | None) -> LocalTensor:
    """Return these rows of a tensor of which only the name and the shape are known; None: all of it."""
    box = full_box(shape) if rows is None else (rows, *full_box(shape[1:]))
    sizes = shape_of_box(box)
    return LocalTensor(name, sizes, (TensorPiece(name, box, (0,) * len(shape)),) if all(sizes) else ())
