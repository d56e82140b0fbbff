"""The parts in which a model's folder is written, so that no process ever holds all of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rlgraph.backends.ray.transfer_ends import WeightsReport
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
