"""Adapters of an engine that computes with whole matrices: they are merged into its tensors, W + alpha / rank * B A,
from a copy of W that stays. So new adapters leave nothing of the old ones, to the bit.

The sum is float32. Weights of bfloat16 lie on its places, and what an update of a usual size adds is mostly less than
half of one: rounded to the nearest, all of that is lost. It is rounded up or down by chance instead, in proportion to
how near the two places are (stochastic rounding, arXiv 1502.02551), so that the mean is the sum. Chance is the same
each time and for each copy of a part, and leaves W itself as it is where nothing is added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from zlib import crc32

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
        self._parts: list[tuple[Tensor, Tensor, Tensor, Tensor, int]] = []
        """For each part of a matrix of the engine that has an adapter: the live part, the base's values of it, its
        rows of B and columns of A, and the seed of its chance."""
        for local in (local for stacked in layout for local in unstack_layers(stacked)):
            for piece in local.pieces:
                a, b = adapter_matrix_names(piece.name.removesuffix(".weight"))
                if a in self.tensors and piece.name.endswith(".weight"):
                    (top, bottom), (left, right) = piece.box
                    row, column = piece.at
                    live = own[local.name][row : row + bottom - top, column : column + right - left]
                    parts = self.tensors[b][top:bottom], self.tensors[a][:, left:right]
                    self._parts.append((live, live.clone(), *parts, crc32(f"{piece.name} {piece.box}".encode())))
        self.apply_new_adapters()

    def all_tensors(self) -> Iterator[Tensor]:
        """Yield the adapters, and the copies of the base."""
        yield from self.tensors.values()
        yield from (base for _, base, _, _, _ in self._parts)

    @torch.no_grad()
    def apply_new_adapters(self) -> None:
        """Merge the adapters into the matrices again after new ones came."""
        for live, base, b, a, seed in self._parts:
            total = base.to(b.dtype).addmm(b, a, alpha=self.scale)
            live.copy_(rounded_by_chance(total, seed) if live.dtype == torch.bfloat16 else total)


def rounded_by_chance(wide: Tensor, seed: int) -> Tensor:
    """Return float32 numbers that bfloat16 holds, each one of its two neighbours there. Overwrites `wide`."""
    bits = wide.view(torch.int32)
    chance = torch.Generator(bits.device).manual_seed(seed)
    # bfloat16 is the upper half of a float32: what the lower half carries over takes it to the next number from 0.
    bits += torch.randint(1 << 16, bits.shape, generator=chance, dtype=torch.int32, device=bits.device)
    return bits.bitwise_and_(-1 << 16).view(torch.float32)


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
