"""Fills an engine's tensors with weights, reading no more of these than its layout asks for, and copies them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.records import State
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import find_config
from rlgraph.catalog.models.families import HEAD, parameter_shapes_by_layer, stored_tensor_names
from rlgraph.ir.layout import (
    Box,
    LocalTensor,
    TensorPiece,
    box_elements,
    box_slices,
    full_box,
    layer_tensor_name,
    shape_of_box,
)


def clone_tensors(tensors: Mapping[str, Tensor]) -> State:
    """Return a copy of some weights."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@torch.no_grad()
def overwrite_weights(own: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """Write other weights over one's own. Raises EngineError where they are of another model."""
    check_same_names(own, other)
    for name, tensor in own.items():
        tensor.copy_(other[name])


@torch.no_grad()
def blend_weights(own: Mapping[str, Tensor], other: Mapping[str, Tensor], ema: float) -> None:
    """Move one's own weights towards others: own = ema * own + (1 - ema) * other. Raises EngineError where they are of
    another model."""
    check_same_names(own, other)
    for name, tensor in own.items():
        tensor.lerp_(other[name].to(tensor), 1 - ema) if tensor.is_floating_point() else tensor.copy_(other[name])


def check_same_names(own: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """Raise EngineError where two sets of weights do not have the same names."""
    if own.keys() != other.keys():
        unmatched = sorted(own.keys() ^ other.keys())
        raise EngineError(f"these weights are another model's: {unmatched[0]!r} is in only one of the two")


class WeightSource(Protocol):
    """A source of global tensors, under Hugging Face's names with a layer's number in place of `*`."""

    def read(self, name: str, box: Box) -> Tensor:
        """Return a part of a tensor, not to be written to. Raises EngineError if there is no such tensor, or one of
        another shape."""
        ...


@torch.no_grad()
def fill_tensors(tensors: Mapping[str, Tensor], layout: Sequence[LocalTensor], source: WeightSource) -> None:
    """Write the pieces of a layout into an engine's tensors (named as in `Engine.tensors`), and zeros where there is no
    piece. Raises EngineError where the tensors are not those of the layout."""
    for local in layout:
        for layer in unstack_layers(local):
            if layer.name not in tensors:
                raise EngineError(f"the engine's model lacks the tensor {layer.name}")
            _fill(tensors[layer.name], layer, source)


class FolderWeights:
    """The weights of a model's folder with safetensors. A scalar head that it does not have is zeros, so that a value
    or reward model can begin as a language model."""

    def __init__(self, folder: str | Path) -> None:
        """Raises EngineError if the folder holds no such model, UnsupportedModel for a family that is not known."""
        self._folder = Path(folder)
        config = find_config(str(folder)) if self._folder.is_dir() else None
        if config is None:
            raise EngineError(f"the folder {str(folder)!r} holds no model: it has no config.json")
        shape = shape_of(config)
        self._family = shape.family
        self._shapes = {
            tensor.name: tensor.shape
            for kind in ("causal_lm", "value_lm", "reward_lm")
            for tensor in parameter_shapes_by_layer(shape, kind)
        }
        self._files = _files(self._folder)
        self._open: dict[str, Any] = {}

    @property
    def has_head(self) -> bool:
        """Whether it has the weights of a scalar head."""
        return self._stored_name(HEAD) is not None

    def read(self, name: str, box: Box) -> Tensor:
        """Return what `WeightSource.read` says; only this part is read from the disk."""
        shape, parts = self._shapes.get(name, ()), stored_tensor_names(self._family, name)
        if self._stored_name(name) is not None:
            return self._read(name, shape, box)
        if "#" in parts[0]:
            return self._experts(parts, shape, box)
        if name.startswith("score."):
            return torch.zeros(shape_of_box(box))
        return self._read(parts[0], shape, box)

    def _experts(self, parts: Sequence[str], shape: tuple[int, ...], box: Box) -> Tensor:
        """Read a box of the experts of a layer, [experts, rows, columns], which files have one by one."""
        experts, (start, stop), columns = box
        rows = shape[1] // len(parts)
        parts_read = []
        for expert, (above, part) in itertools.product(range(*experts), enumerate(parts)):
            low, high = max(start - above * rows, 0), min(stop - above * rows, rows)
            if low < high:
                parts_read.append(self._read(part.replace("#", str(expert)), (rows, shape[2]), ((low, high), columns)))
        return torch.cat(parts_read).view(shape_of_box(box))

    def _stored_name(self, name: str) -> str | None:
        """Return the name by which the files have a tensor: those of a bare decoder leave the prefix out."""
        return next((candidate for candidate in (name, name.removeprefix("model.")) if candidate in self._files), None)

    def _read(self, name: str, shape: tuple[int, ...], box: Box) -> Tensor:
        stored_name = self._stored_name(name)
        if stored_name is None:
            raise EngineError(f"the weights in {str(self._folder)!r} lack the tensor {name}")
        part = self._file(self._files[stored_name]).get_slice(stored_name)
        if tuple(part.get_shape()) != shape:
            raise EngineError(
                f"the tensor {stored_name} in {str(self._folder)!r} has the shape {_dims(part.get_shape())}; with the"
                f" config.json there, and one label, it should have {_dims(shape)}"
            )
        tensor: Tensor = part[box_slices(box)]
        return tensor

    def _file(self, name: str) -> Any:
        if name not in self._open:
            self._open[name] = _open_file(self._folder / name)
        return self._open[name]


class ModelWeights:
    """The weights of a Hugging Face model in memory."""

    def __init__(self, model: nn.Module) -> None:
        # A tensor that no gradient reaches may be a buffer.
        self._parameters = dict(model.named_buffers()) | dict(model.named_parameters())

    def read(self, name: str, box: Box) -> Tensor:
        """Return what `WeightSource.read` says, as a view."""
        if name not in self._parameters:
            raise EngineError(f"the model lacks the tensor {name}")
        tensor = self._parameters[name].detach()
        if tensor.dim() != len(box) or any(stop > size for (_, stop), size in zip(box, tensor.shape, strict=True)):
            raise EngineError(f"the model's tensor {name} is too small: its shape is {_dims(tensor.shape)}")
        return tensor[box_slices(box)]


def unstack_layers(local: LocalTensor) -> Iterator[LocalTensor]:
    """Yield a stacked tensor as one for each layer that the rank has; another as it is."""
    if "*" not in local.name:
        yield local
        return
    for layer in range(local.shape[0]):
        pieces = []
        for piece in local.pieces:
            (start, stop), *box = piece.box
            number = start + layer - piece.at[0]
            if start <= number < stop:
                pieces.append(TensorPiece(layer_tensor_name(piece.name, number), tuple(box), piece.at[1:]))
        yield LocalTensor(layer_tensor_name(local.name, layer), local.shape[1:], tuple(pieces))


def layout_by_layer(layout: Iterable[LocalTensor], tensors: Mapping[str, Tensor]) -> list[LocalTensor]:
    """Return a rank's tensors layer by layer; those that the layout does not have are whole, under their own names."""
    result = [layer for local in layout for layer in unstack_layers(local) if layer.name in tensors]
    names = {layer.name for layer in result}
    for name in (name for name in tensors if name not in names):
        shape = tuple(tensors[name].shape)
        result.append(LocalTensor(name, shape, (TensorPiece(name, full_box(shape), (0,) * len(shape)),)))
    return result


def _fill(target: Tensor, local: LocalTensor, source: WeightSource) -> None:
    if tuple(target.shape) != local.shape:
        raise EngineError(
            f"the engine's tensor {local.name} has the shape {_dims(target.shape)}, not {_dims(local.shape)}"
        )
    if sum(box_elements(piece.box) for piece in local.pieces) < target.numel():
        target.zero_()
    for piece in local.pieces:
        place = tuple((at, at + size) for at, size in zip(piece.at, shape_of_box(piece.box), strict=True))
        target[box_slices(place)].copy_(source.read(piece.name, piece.box))


def _files(folder: Path) -> dict[str, str]:
    """Return the file of each stored tensor."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            entries = json.loads(index.read_text("utf-8"))["weight_map"]
            # Only the file's name counts, so that no entry leads to another folder.
            return {str(name): Path(file).name for name, file in entries.items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise EngineError(f"{str(index)!r} does not say which tensor is in which file") from error
    if not (folder / "model.safetensors").exists():
        raise EngineError(f"the folder {str(folder)!r} holds no weights: it has no model.safetensors")
    return dict.fromkeys(_open_file(folder / "model.safetensors").keys(), "model.safetensors")


def _open_file(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (OSError, SafetensorError) as error:
        raise EngineError(f"cannot read the weights in {str(file)!r}: {error}") from error


def _dims(shape: Sequence[int]) -> str:
    return " x ".join(str(size) for size in shape)


def tensors_for_file(family: str, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield one layer's tensor as files have it: each expert by itself."""
    parts = stored_tensor_names(family, name)
    if "#" not in parts[0]:
        yield parts[0], tensor
        return
    for expert, stacked in enumerate(tensor):
        for part, matrix in zip(parts, stacked.chunk(len(parts)), strict=True):
            yield part.replace("#", str(expert)), matrix
