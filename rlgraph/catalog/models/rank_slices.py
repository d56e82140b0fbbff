"""Building blocks of every engine's layout: local tensors that concatenate ranges of global ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlgraph.catalog.models.families import ModelKind, parameter_shapes
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import (
    LocalTensor,
    ParameterShape,
    Range,
    TensorPiece,
    even_range,
    first_stacked_layer,
    name_with_first_layer,
)
from rlgraph.ir.mesh import Mesh
from rlgraph.ir.stages import stage_layers

Slice = tuple[str, Range]
"""A global tensor's name, and a range along one of its dimensions."""


@dataclass(frozen=True, slots=True)
class RankSlicer:
    """Cuts a model's tensors for one rank. Dimensions of a tensor that every layer has are counted without that of the
    layer."""

    shapes: Mapping[str, tuple[int, ...]]
    """The shapes of the global tensors by name."""
    layers: tuple[Range, ...]
    """The ranges of layers that the rank has."""
    tp: int
    """The number of tensor-parallel ranks."""
    index: int
    """The index of this rank among them."""
    experts: Range
    """The experts that the rank has, in tensors of all experts of a layer: [experts, rows, columns]."""

    @classmethod
    def for_rank(
        cls, shape: Shape, mesh: Mesh, rank: int, kind: ModelKind, of: Sequence[ParameterShape] | None = None
    ) -> RankSlicer:
        """Return the cuts of a rank of a mesh. of: the parameters to cut; None: all of the model."""
        shapes = {
            parameter.name: parameter.shape for parameter in (parameter_shapes(shape, kind) if of is None else of)
        }
        stages, stage = mesh.axis_size("pp"), mesh.axis_position(rank, "pp")
        layers = stage_layers(shape.layers, stages, stage, mesh.axis_size("chunks"))
        experts = even_range(shape.experts, mesh.axis_size("ep"), mesh.axis_position(rank, "ep"))
        return cls(shapes, layers, mesh.axis_size("tp"), mesh.axis_position(rank, "tp"), experts)

    def whole_tensor(self, name: str, source: str) -> LocalTensor:
        """Return a tensor that is not split over tensor-parallel ranks."""
        return self.concatenate_slices(name, [(source, (0, self._size(source, 0)))])

    def split_tensor(self, name: str, *sources: str, dim: int = 0) -> LocalTensor:
        """Return this rank's parts of some tensors along a dimension, concatenated."""
        return self.concatenate_slices(
            name, [(source, self.rank_range(self._size(source, dim))) for source in sources], dim
        )

    def split_padded_tensor(self, name: str, source: str, rows: int) -> LocalTensor:
        """Return this rank's part of a tensor that is padded to so many rows."""
        start, stop = self.rank_range(rows)
        end = min(stop, self._size(source, 0))
        return self.concatenate_slices(name, [(source, (min(start, end), end))], size=stop - start)

    def rank_range(self, size: int) -> Range:
        """Return this rank's range of so many rows or columns."""
        return even_range(size, self.tp, self.index)

    def concatenate_slices(
        self, name: str, parts: Sequence[Slice], dim: int = 0, size: int | None = None
    ) -> LocalTensor:
        """Return ranges along a dimension, concatenated. size: of that dimension with its padding."""
        pieces, offset = [], 0
        for source, (start, stop) in parts:
            box = [(0, length) for length in self.shapes[source]]
            axis = dim + _stacked(source)
            if ".experts." in source:
                box[1] = self.experts
            box[axis] = (start, stop)
            place = [offset * (number == axis) for number in range(len(box))]
            offset += stop - start
            if not _stacked(source):
                pieces.append(TensorPiece(source, tuple(box), tuple(place)))
                continue
            place[0] = 0
            for layers in self._layers_of(source):
                pieces.append(TensorPiece(source, (layers, *box[1:]), tuple(place)))
                place[0] += layers[1] - layers[0]
        shape = [high - low for low, high in box]
        shape[axis] = offset if size is None else size
        if _stacked(source):
            shape[0] = place[0]
            # Layers are numbered from 0 on each rank.
            first = first_stacked_layer(source)
            name = name_with_first_layer(
                name, sum(min(max(first - start, 0), stop - start) for start, stop in self.layers)
            )
        return LocalTensor(name, tuple(shape), tuple(piece for piece in pieces if _filled(piece)))

    def _layers_of(self, source: str) -> Iterator[Range]:
        """Return the rank's ranges of layers, counted among the layers that have such a tensor."""
        first, most = first_stacked_layer(source), self.shapes[source][0]
        for start, stop in self.layers:
            yield min(max(start - first, 0), most), min(max(stop - first, 0), most)

    def _size(self, source: str, dim: int) -> int:
        return self.shapes[source][dim + _stacked(source)]


def _stacked(source: str) -> bool:
    """Return whether every layer has such a tensor, so that the first dimension is the layer."""
    return "*" in source


def _filled(piece: TensorPiece) -> bool:
    return all(start < stop for start, stop in piece.box)
