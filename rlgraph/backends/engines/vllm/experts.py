"""Experts' weights as others read and write them, where vLLM computes with another order of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn

from rlgraph.backends.engines.vllm.environment import on_cpu

_NAMES = ("w13_weight", "w2_weight")


def own_experts() -> None:
    """From now on ranks of this process may have some of a layer's experts entire.

    vLLM's kernel for a CPU takes the number of an expert among all for that of one here. So it is given each token as
    often as experts that it chose are here, by their numbers here and with one expert each. What the ranks make of a
    token is added up where their columns are, by the layer.
    """
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    experts_of_vllm: Any = CPUUnquantizedExperts
    kernel = experts_of_vllm.apply
    if hasattr(kernel, "__wrapped__"):
        return

    @wraps(kernel)
    def of_this_rank(experts: Any, **given: Any) -> None:
        _of_this_rank(partial(kernel, experts), **given)

    experts_of_vllm.apply = of_this_rank


def _of_this_rank(kernel: Callable[..., None], output: Tensor, hidden_states: Tensor, **given: Any) -> None:
    """output, hidden_states: [tokens, hidden]. `kernel` adds up what the experts of each token make of it."""
    here: Tensor | None = given["expert_map"]
    if here is None:
        kernel(output=output, hidden_states=hidden_states, **given)
        return
    chosen = here[given["topk_ids"].long()]  # [tokens, experts of a token]; -1: it is at another rank.
    token, place = (chosen >= 0).nonzero(as_tuple=True)
    output.zero_()
    if not len(token):
        return
    own = {name: given[name][token, place, None] for name in ("topk_ids", "topk_weights")}
    own["topk_ids"].copy_(chosen[token, place, None])
    read = hidden_states[token]
    made = torch.empty_like(read)
    kernel(output=made, hidden_states=read, **given | own)
    output.index_add_(0, token, made)


class Experts:
    """vLLM's kernel for a CPU packs experts: its tensors have the names and often the shapes that they had before, and
    their numbers in another order, with columns of zeros where there are not enough. So here are those that are not
    packed, and what is written into them is packed by `pack`. On a GPU there are none: the kernels that are asked for
    at the start compute with the weights as they lie."""

    def __init__(self, model: nn.Module) -> None:
        from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

        layers = model.named_modules() if on_cpu() else ()
        self._layers: list[tuple[str, Any]] = [
            (name, layer) for name, layer in layers if isinstance(layer, RoutedExperts)
        ]
        self.tensors: Mapping[str, Tensor] = {
            f"{name}.{field}": _plain(layer, field) for name, layer in self._layers for field in _NAMES
        }
        """By the names of vLLM's own, which hold them packed."""

    @torch.no_grad()
    def pack(self) -> None:
        """The model computes with what `tensors` are now."""
        for name, layer in self._layers:
            packed = nn.Module()
            for field in _NAMES:
                packed.register_parameter(field, nn.Parameter(self.tensors[f"{name}.{field}"], requires_grad=False))
            layer.quant_method.moe_kernel.fused_experts.process_weights_after_loading(packed)
            for field in _NAMES:
                getattr(layer, field).copy_(getattr(packed, field))


def _plain(layer: Any, field: str) -> Tensor:
    """[experts, 2 * columns, hidden], or [experts, hidden, columns]: without those that pad it."""
    packed: Tensor = getattr(layer, field)
    experts, rows, columns = packed.shape
    own = layer.moe_config.intermediate_size_per_partition
    return packed.new_zeros((experts, 2 * own, columns) if field == "w13_weight" else (experts, rows, own))
