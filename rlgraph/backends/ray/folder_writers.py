"""Writes Hugging Face folders part by part, so that no process ever holds all of a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from rlgraph.backends.engines.sources import (
    ModelSpec,
    allow_save_on_any_rank,
    load,
    load_codec,
    model_without_weights,
    quiet_transformers,
    save_config,
)
from rlgraph.backends.engines.weights import tensors_for_file
from rlgraph.backends.ray.transfer_ends import WeightsReport
from rlgraph.catalog.models.adapters import Adapters
from rlgraph.catalog.models.configs import find_config
from rlgraph.ir.layout import LocalTensor, TensorPiece, full_box, layer_tensor_name


def split_parameters(held: Sequence[WeightsReport], itemsize: int, most: int) -> Iterator[tuple[LocalTensor, ...]]:
    """Yield a model's parameters in parts of at most `most` bytes, unless a single tensor is larger."""
    sizes: dict[str, tuple[int, ...]] = {}
    for holding in held:
        for local in holding.layout:
            for piece in local.pieces:
                extent = tuple(stop for _, stop in piece.box)
                sizes[piece.name] = tuple(map(max, extent, sizes.get(piece.name, extent)))
    bucket: list[LocalTensor] = []
    bucket_bytes = 0
    for name, shape in sizes.items():
        layers = range(shape[0]) if "*" in name else (None,)
        for layer in layers:
            box = full_box(shape) if layer is None else ((layer, layer + 1), *full_box(shape[1:]))
            tensor_name = name if layer is None else layer_tensor_name(name, layer)
            # The tensor of one layer has no dimension for the layers, but its box has one.
            piece = TensorPiece(name, box, (0,) * len(shape))
            local = LocalTensor(tensor_name, tuple(stop - start for start, stop in box), (piece,))
            size = itemsize * torch.Size(local.shape).numel()
            if bucket and bucket_bytes + size > most:
                yield tuple(bucket)
                bucket, bucket_bytes = [], 0
            bucket.append(local)
            bucket_bytes += size
    if bucket:
        yield tuple(bucket)


def empty_tensors(part: Sequence[LocalTensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return uninitialized tensors for a part."""
    return {local.name: torch.empty(local.shape, dtype=dtype) for local in part}


def open_folder(spec: ModelSpec, folder: Path) -> ModelFolder | AdapterFolder:
    """Return a folder that a model source can name once it is closed; for a model with adapters, a folder of these."""
    return ModelFolder(spec, folder) if spec.adapters is None else AdapterFolder(spec, spec.adapters, folder)


class AdapterFolder:
    """Writes adapters, which are small, and the path of their base model, as PEFT files."""

    def __init__(self, spec: ModelSpec, adapters: Adapters, folder: Path) -> None:
        self._spec, self._adapters, self._folder = spec, adapters, folder
        self._tensors: dict[str, Tensor] = {}

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Collect more of the adapters' tensors."""
        self._tensors |= _by_layer(tensors)

    def close(self) -> None:
        """Write the adapters, and the base model if only this run has it."""
        # Imported late: it imports transformers' models, which takes seconds, and every process imports this file.
        from rlgraph.backends.engines.adapters import base_location, save

        base, made = base_location(self._spec.source, self._folder)
        with quiet_transformers():
            if made:
                loaded = load(replace(self._spec, adapters=None))
                with allow_save_on_any_rank(loaded.model):
                    loaded.model.save_pretrained(base)
                loaded.codec.save(base)
            save(model_without_weights(self._spec), self._tensors, self._adapters, self._spec.kind, base, self._folder)
        load_codec(self._spec).save(self._folder)


class ModelFolder:
    """Writes all weights of a model."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        """Create the folder. The tensors of an unknown model family are saved under the names that they have."""
        self._spec, self._folder = spec, folder
        self._files: dict[str, str] = {}
        self._size = 0
        folder.mkdir(parents=True, exist_ok=True)
        save_config(spec, folder)
        self._family = str((find_config(str(folder)) or {}).get("model_type", ""))

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Write one more file."""
        name = f"model-{len(set(self._files.values())) + 1:05d}.safetensors"
        files = {
            file: part
            for key, tensor in _by_layer(tensors).items()
            for file, part in tensors_for_file(self._family, key, tensor)
        }
        save_file({key: tensor.contiguous() for key, tensor in files.items()}, self._folder / name, {"format": "pt"})
        self._files |= dict.fromkeys(files, name)
        self._size += sum(tensor.nbytes for tensor in tensors.values())

    def close(self) -> None:
        """Write the index of the files, and the tokenizer."""
        index = {"metadata": {"total_size": self._size}, "weight_map": self._files}
        (self._folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
        load_codec(self._spec).save(self._folder)


def _by_layer(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Remove the layer dimension, of size 1, from tensors of a single layer."""
    return {key: tensor.squeeze(0) if ".layers." in key else tensor for key, tensor in tensors.items()}
