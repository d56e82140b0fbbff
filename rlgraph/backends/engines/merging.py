"""Adapters of an engine that computes with whole matrices: they are merged into its tensors, W + alpha / rank * B A,
from a copy of W that stays. So new adapters leave nothing of the old ones, to the bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from rlgraph.backends.engines.adapters import initial, saved, wide_dtype
from rlgraph.backends.engines.weights import each_layer
from rlgraph.catalog.models.adapters import Adapters, pair
from rlgraph.ir.layout import Local


class Merged:
    """The adapters of a rank, and the parts of its matrices that have one."""

    def __init__(
        self, adapters: Adapters, carried: Sequence[Local], own: Mapping[str, Tensor], layout: Sequence[Local]
    ) -> None:
        """carried: the adapters, all of each. own: the engine's tensors with the weights of the base, as `layout` says
        where they are. Raises EngineError."""
        self.scale = adapters.scale
        some = next(iter(own.values()))
        self.tensors = begun(adapters, carried, some)
        """By name, each layer's by itself."""
        self._parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        """Of a matrix of the engine: the live part, the base there, and the rows of B and columns of A that it has."""
        for local in (one for each in layout for one in each_layer(each)):
            for piece in local.pieces:
                a, b = pair(piece.name.removesuffix(".weight"))
                if a in self.tensors and piece.name.endswith(".weight"):
                    (top, bottom), (left, right) = piece.box
                    row, column = piece.at
                    live = own[local.name][row : row + bottom - top, column : column + right - left]
                    parts = self.tensors[b][top:bottom], self.tensors[a][:, left:right]
                    self._parts.append((live, live.clone(), *parts))
        self.renew()

    def held(self) -> Iterator[Tensor]:
        """Adapters, and the copies of the base."""
        yield from self.tensors.values()
        yield from (base for _, base, _, _ in self._parts)

    @torch.no_grad()
    def renew(self) -> None:
        """After new adapters came."""
        for live, base, b, a in self._parts:
            live.copy_(base.to(b.dtype).addmm(b, a, alpha=self.scale))


def begun(adapters: Adapters, carried: Sequence[Local], like: Tensor) -> dict[str, Tensor]:
    """All of each adapter as they are at first, where a tensor of the engine is, and as wide as one beside it."""
    start, dtype = saved(adapters.start) if adapters.start else {}, wide_dtype(like.dtype)
    found = {}
    for local in (one for each in carried for one in each_layer(each)):
        begins = initial if ".lora_A." in local.name else _zeros
        tensor = start[local.name] if start else begins(local.name, local.shape, adapters.seed)
        found[local.name] = tensor.to(like.device, dtype)
    return found


def _zeros(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.zeros(shape)
