"""Adapters of an engine that computes with whole matrices: they are merged into its tensors, W + alpha / rank * B A,
from a copy of W that stays. So new adapters leave nothing of the old ones, to the bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from rlgraph.backends.engines.adapters import adapter_dtype, initial_lora_a, load_adapter
from rlgraph.backends.engines.weights import unstack_layers
from rlgraph.catalog.models.adapters import Adapters, adapter_matrix_names
from rlgraph.ir.layout import LocalTensor


class MergedAdapters:
    """The adapters of a rank, and the parts of its matrices that have one."""

    def __init__(
        self,
        adapters: Adapters,
        carried: Sequence[LocalTensor],
        own: Mapping[str, Tensor],
        layout: Sequence[LocalTensor],
    ) -> None:
        """carried: the adapters, all of each. own: the engine's tensors with the weights of the base, as `layout` says
        where they are. Raises EngineError."""
        self.scale = adapters.scale
        sample = next(iter(own.values()))
        self.tensors = initial_adapters(adapters, carried, sample)
        """The adapters by name, each layer's by itself."""
        self._parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        """For each part of a matrix of the engine that has an adapter: the live part, the base's values of it, and its
        rows of B and columns of A."""
        for local in (local for stacked in layout for local in unstack_layers(stacked)):
            for piece in local.pieces:
                a, b = adapter_matrix_names(piece.name.removesuffix(".weight"))
                if a in self.tensors and piece.name.endswith(".weight"):
                    (top, bottom), (left, right) = piece.box
                    row, column = piece.at
                    live = own[local.name][row : row + bottom - top, column : column + right - left]
                    parts = self.tensors[b][top:bottom], self.tensors[a][:, left:right]
                    self._parts.append((live, live.clone(), *parts))
        self.apply_new_adapters()

    def all_tensors(self) -> Iterator[Tensor]:
        """Yield the adapters, and the copies of the base."""
        yield from self.tensors.values()
        yield from (base for _, base, _, _ in self._parts)

    @torch.no_grad()
    def apply_new_adapters(self) -> None:
        """Merge the adapters into the matrices again after new ones came."""
        for live, base, b, a in self._parts:
            live.copy_(base.to(b.dtype).addmm(b, a, alpha=self.scale))


def initial_adapters(adapters: Adapters, carried: Sequence[LocalTensor], like: Tensor) -> dict[str, Tensor]:
    """Return all of each adapter as it is at first, on the device of a tensor of the engine, as wide as an adapter
    beside it."""
    start, dtype = load_adapter(adapters.start) if adapters.start else {}, adapter_dtype(like.dtype)
    tensors = {}
    for local in (local for stacked in carried for local in unstack_layers(stacked)):
        if start:
            tensor = start[local.name]
        else:
            is_a = ".lora_A." in local.name
            tensor = initial_lora_a(local.name, local.shape, adapters.seed) if is_a else torch.zeros(local.shape)
        tensors[local.name] = tensor.to(like.device, dtype)
    return tensors
