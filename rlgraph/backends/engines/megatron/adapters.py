"""Low-rank adapters of Megatron's linear layers: those that `rlgraph.backends.engines.adapters` gives the layers of
transformers that are fused in them, so that both engines have the same numbers, names and files.

Ranks that split a model by columns have tokens of their own between layers. A layer whose outputs they split multiplies
these with A, gathers what is between A and B, a few numbers a token, and multiplies it with its rows of B. One whose
inputs they split multiplies its columns of A and all of B with its part of the inputs, before ranks add up their
outputs. Either product is added within that of the layer, so that both are rounded once (`add_in_product`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    gather_from_sequence_parallel_region,
    set_tensor_model_parallel_attributes,
)
from torch import Tensor, nn

from rlgraph.backends.engines.adapters import adapter_dtype, add_in_product, check_start, initial_lora_a, load_adapter
from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.megatron.layout import SplitLinear, adapted_linears, layers_without_adapters
from rlgraph.backends.engines.weights import WeightSource
from rlgraph.catalog.models.adapters import ALL, Adapters
from rlgraph.catalog.models.families import ModelKind, linear_layers, trainable_parameter_shapes
from rlgraph.catalog.models.rank_slices import RankSlicer
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import Box, box_slices, layer_tensor_name, shape_of_box
from rlgraph.ir.mesh import Mesh


def attach_adapters(model: GPTModel, shape: Shape, mesh: Mesh, rank: int, kind: ModelKind) -> None:
    """Give this rank's part of a model the adapters of `shape`, all zeros: they are all that is trained from then on,
    beside the head of a value or reward model. Raises EngineError where they do not fit it."""
    assert shape.adapters is not None
    _check_targets(shape, shape.adapters)
    model.requires_grad_(False)
    for linear in adapted_linears(shape, RankSlicer.for_rank(shape, mesh, rank, kind)):
        for layer in range(len(model.decoder.layers)):
            _attach(model.get_submodule(layer_tensor_name(linear.name, layer)), linear, shape.adapters)
    if kind != "causal_lm" and model.post_process:
        model.output_layer.requires_grad_(True)
    if model.pre_process and model.config.recompute_granularity:
        # Layers that are computed again have gradients only where their input has one.
        model.embedding.register_forward_hook(_with_gradient)


def _check_targets(shape: Shape, adapters: Adapters) -> None:
    names = linear_layers(shape)
    for target in adapters.unmatched_targets(names):
        endings = ", ".join(sorted({name.rpartition(".")[2] for name in names}))
        raise EngineError(
            f"no linear layer of {shape.family} models is called `{target}`: there are {endings}, or `{ALL}`"
        )
    if missing := layers_without_adapters(shape):
        raise EngineError(f"megatron has no adapters of {', '.join(missing)} here yet")


def _attach(layer: Any, linear: SplitLinear, adapters: Adapters) -> None:
    """Give one layer its adapters."""
    adapted = adapters.adapted_layers(linear.modules)
    kind = _InputSplitAdapters if linear.splits_inputs else _OutputSplitAdapters
    layer.adapters = kind(layer, linear, adapted, adapters)
    layer.__class__ = _InputSplitLinear if linear.splits_inputs else _OutputSplitLinear


class _OutputSplitLinear(ColumnParallelLinear):  # type: ignore[misc]
    def _forward_impl(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, sequence_parallel: bool, tp_group: Any, **_: Any
    ) -> Tensor:
        """Return what Megatron's own does for a weight that is not trained, with the adapters' products."""
        x = input
        if sequence_parallel:
            x = gather_from_sequence_parallel_region(x, tensor_parallel_output_grad=True, group=tp_group)
        output = add_in_product(self.adapters(input), x, weight)
        return output if bias is None else output + bias


class _InputSplitLinear(RowParallelLinear):  # type: ignore[misc]
    def _forward_impl(self, input: Tensor, weight: Tensor, **_: Any) -> Tensor:
        """Return this rank's part of the sum, with the adapter's product of its inputs."""
        return add_in_product(self.adapters(input), input, weight)


def _with_gradient(embedding: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return output.requires_grad_() if torch.is_grad_enabled() and not output.requires_grad else output


class _Factors(nn.Module):
    """The two matrices of an adapter, or a rank's parts of them."""

    def __init__(self, outputs: int, inputs: int, rank: int, like: Tensor, split: Any, splits_inputs: bool) -> None:
        super().__init__()
        dtype, device = adapter_dtype(like.dtype), like.device
        self.lora_A = nn.Parameter(torch.zeros(rank, inputs, dtype=dtype, device=device))
        # A rank may have no rows of B, and nothing to train of it.
        self.lora_B = nn.Parameter(torch.zeros(outputs, rank, dtype=dtype, device=device), requires_grad=outputs > 0)
        whole, part = (self.lora_B, self.lora_A) if splits_inputs else (self.lora_A, self.lora_B)
        # Each rank has gradients of its own tokens, or of its own inputs: they are added up in the end.
        whole.sequence_parallel = split  # type: ignore[attr-defined]
        set_tensor_model_parallel_attributes(part, True, int(splits_inputs), 1)


class _OutputSplitAdapters(nn.ModuleDict):
    """The adapters of a layer whose outputs ranks split; several layers of transformers may be fused in it."""

    def __init__(self, layer: Any, linear: SplitLinear, adapted: Sequence[str], adapters: Adapters) -> None:
        rows = {
            module: sum(stop - start for name, (start, stop) in linear.parts if name == module) for module in adapted
        }
        factors = {
            module.rpartition(".")[2]: _Factors(
                rows[module], layer.weight.shape[1], adapters.rank, layer.weight, layer.sequence_parallel, False
            )
            for module in adapted
        }
        super().__init__(factors)
        self._scale, self._split, self._group = adapters.scale, layer.sequence_parallel, layer.tp_group
        self._parts: list[tuple[str, int, int]] = []
        """For each part of the output, one behind the other, the layer that has it, and the range of its rows there."""
        used = dict.fromkeys(linear.modules, 0)
        for module, (start, stop) in linear.parts:
            first, used[module] = used[module], used[module] + stop - start
            self._parts.append((module.rpartition(".")[2], first, used[module]))

    def forward(self, x: Tensor) -> Tensor:
        """Return [tokens, 1, rows]. x: [tokens of this rank, 1, inputs]."""
        factors = cast(dict[str, _Factors], dict(self.items()))
        first = torch.cat([pair.lora_A for pair in factors.values()]).to(x.dtype)
        between = nn.functional.linear(x, first) * self._scale
        if self._split:
            between = gather_from_sequence_parallel_region(between, group=self._group)
        products = {
            name: nn.functional.linear(narrow, pair.lora_B.to(x.dtype))
            for (name, pair), narrow in zip(factors.items(), between.chunk(len(factors), -1), strict=True)
        }
        # Those of which this rank has no rows take part in the gradient of what was gathered.
        parts = [product for product in products.values() if not product.shape[-1]]
        for name, start, stop in self._parts:
            rows = products[name][..., start:stop] if name in products else None
            parts.append(between.new_zeros(*between.shape[:-1], stop - start) if rows is None else rows)
        return torch.cat(parts, -1)


class _InputSplitAdapters(nn.ModuleDict):
    """The adapter of a layer whose inputs ranks split."""

    def __init__(self, layer: Any, linear: SplitLinear, adapted: Sequence[str], adapters: Adapters) -> None:
        outputs, inputs = layer.weight.shape
        (module,) = adapted
        split = layer.sequence_parallel
        super().__init__(
            {module.rpartition(".")[2]: _Factors(outputs, inputs, adapters.rank, layer.weight, split, True)}
        )
        self._scale = adapters.scale

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's part of the sum, [tokens, 1, outputs]. x: [tokens, 1, inputs of this rank]."""
        (factors,) = cast(Sequence[_Factors], list(self.values()))
        between = nn.functional.linear(x, factors.lora_A.to(x.dtype)) * self._scale
        return nn.functional.linear(between, factors.lora_B.to(x.dtype))


class InitialAdapters:
    """A source of adapters as they are at first, and of everything else that another source has."""

    def __init__(self, shape: Shape, kind: ModelKind, base: WeightSource) -> None:
        """Raises EngineError for a folder that does not hold the adapters of `shape`."""
        assert shape.adapters is not None
        self._adapters, self._base = shape.adapters, base
        self._shapes = {
            layer_tensor_name(tensor.name, layer): tensor.shape[1:] if "*" in tensor.name else tensor.shape
            for tensor in trainable_parameter_shapes(shape, kind)
            for layer in range(tensor.shape[0] if "*" in tensor.name else 1)
        }
        self._start = load_adapter(self._adapters.start) if self._adapters.start else {}
        if self._start:
            check_start(self._shapes, self._start, str(self._adapters.start))

    def read(self, name: str, box: Box) -> Tensor:
        """Return what `WeightSource.read` says."""
        if name in self._start:
            return self._start[name][box_slices(box)]
        if ".lora_A." in name:
            return initial_lora_a(name, self._shapes[name], self._adapters.seed)[box_slices(box)]
        return torch.zeros(shape_of_box(box)) if ".lora_B." in name else self._base.read(name, box)
