"""What every engine's layout is made of: local tensors that join ranges of global ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlgraph.catalog.models.families import ModelKind, parameters
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import Local, Parameter, Piece, Range, first_layer, from_layer, share
from rlgraph.ir.mesh import Mesh

Slice = tuple[str, Range]
"""A global tensor's name, and a range along one of its dimensions."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """One rank's cuts of a model. Where there is a tensor for each layer, the dimensions below are those of one
    layer's."""

    shapes: Mapping[str, tuple[int, ...]]
    """Of the global tensors."""
    layers: tuple[Range, ...]
    """Those that the rank has, one range after the other."""
    tp: int
    """How many tensor-parallel ranks there are."""
    index: int
    """Which one of them this is."""
    experts: Range
    """Those that the rank has, where tensors are of all experts of a layer: [experts, rows, columns]."""

    @classmethod
    def of(cls, shape: Shape, mesh: Mesh, rank: int, kind: ModelKind, of: Sequence[Parameter] | None = None) -> Cuts:
        """of: those parameters that are cut; None: all of the model."""
        shapes = {parameter.name: parameter.shape for parameter in (parameters(shape, kind) if of is None else of)}
        # A stage has some layers of each round over all stages.
        stages, stage, rounds = mesh.length("pp"), mesh.at(rank, "pp"), mesh.length("chunks")
        layers = tuple(share(shape.layers, rounds * stages, each * stages + stage) for each in range(rounds))
        experts = share(shape.experts, mesh.length("ep"), mesh.at(rank, "ep"))
        return cls(shapes, layers, mesh.length("tp"), mesh.at(rank, "tp"), experts)

    def entire(self, name: str, source: str) -> Local:
        """A tensor that no tensor-parallel rank splits."""
        return self.join(name, [(source, (0, self._size(source, 0)))])

    def split(self, name: str, *sources: str, dim: int = 0) -> Local:
        """This rank's part of each of some tensors along a dimension, one after the other."""
        return self.join(name, [(source, self.part(self._size(source, dim))) for source in sources], dim)

    def split_padded(self, name: str, source: str, rows: int) -> Local:
        """This rank's part of a tensor that padding lengthens to so many rows."""
        start, stop = self.part(rows)
        end = min(stop, self._size(source, 0))
        return self.join(name, [(source, (min(start, end), end))], size=stop - start)

    def part(self, size: int) -> Range:
        """This rank's part of so many rows or columns."""
        return share(size, self.tp, self.index)

    def join(self, name: str, parts: Sequence[Slice], dim: int = 0, size: int | None = None) -> Local:
        """Ranges along a dimension, one after the other; `size`: of that dimension with its padding."""
        pieces, at = [], 0
        for source, (start, stop) in parts:
            box = [(0, length) for length in self.shapes[source]]
            axis = dim + _stacked(source)
            if ".experts." in source:
                box[1] = self.experts
            box[axis] = (start, stop)
            place = [at * (number == axis) for number in range(len(box))]
            at += stop - start
            if not _stacked(source):
                pieces.append(Piece(source, tuple(box), tuple(place)))
                continue
            place[0] = 0
            for layers in self._layers_of(source):
                pieces.append(Piece(source, (layers, *box[1:]), tuple(place)))
                place[0] += layers[1] - layers[0]
        shape = [high - low for low, high in box]
        shape[axis] = at if size is None else size
        if _stacked(source):
            shape[0] = place[0]
            # Layers count from 0 on each rank.
            first = first_layer(source)
            name = from_layer(name, sum(min(max(first - start, 0), stop - start) for start, stop in self.layers))
        return Local(name, tuple(shape), tuple(piece for piece in pieces if _filled(piece)))

    def _layers_of(self, source: str) -> Iterator[Range]:
        """Those that the rank has of the layers that have such a tensor."""
        first, most = first_layer(source), self.shapes[source][0]
        for start, stop in self.layers:
            yield min(max(start - first, 0), most), min(max(stop - first, 0), most)

    def _size(self, source: str, dim: int) -> int:
        return self.shapes[source][dim + _stacked(source)]


def _stacked(source: str) -> bool:
    """Whether there is one for each layer, and the first dimension is the layer."""
    return "*" in source


def _filled(piece: Piece) -> bool:
    return all(start < stop for start, stop in piece.box)
