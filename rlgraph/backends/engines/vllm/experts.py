"""Experts' weights as others read and write them, where vLLM computes with another order of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn

from rlgraph.backends.engines.vllm.environment import has_no_gpu

_NAMES = ("w13_weight", "w2_weight")


def use_local_experts() -> None:
    """Let ranks of this process have some of a layer's experts entire from now on.

    vLLM's kernel for a CPU uses the number of an expert among all as its number here. So each token is passed to it as
    often as experts that it chose are here, by their numbers here and with one expert each. The ranks' outputs for a
    token are added up where their columns are, by the layer.
    """
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    experts_of_vllm: Any = CPUUnquantizedExperts
    kernel = experts_of_vllm.apply
    if hasattr(kernel, "__wrapped__"):
        return

    @wraps(kernel)
    def compute_local_experts(experts: Any, **arguments: Any) -> None:
        _apply_local(partial(kernel, experts), **arguments)

    experts_of_vllm.apply = compute_local_experts


def _apply_local(kernel: Callable[..., None], output: Tensor, hidden_states: Tensor, **arguments: Any) -> None:
    """Compute output from hidden_states, both [tokens, hidden]. `kernel` adds up the outputs of each token's
    experts."""
    expert_map: Tensor | None = arguments["expert_map"]
    if expert_map is None:
        kernel(output=output, hidden_states=hidden_states, **arguments)
        return
    chosen = expert_map[arguments["topk_ids"].long()]  # [tokens, experts of a token]; -1 where at another rank.
    token, place = (chosen >= 0).nonzero(as_tuple=True)
    output.zero_()
    if not len(token):
        return
    selected = {name: arguments[name][token, place, None] for name in ("topk_ids", "topk_weights")}
    selected["topk_ids"].copy_(chosen[token, place, None])
    inputs = hidden_states[token]
    outputs = torch.empty_like(inputs)
    kernel(output=outputs, hidden_states=inputs, **arguments | selected)
    output.index_add_(0, token, outputs)


class UnpackedExperts:
    """Experts' weights without vLLM's packing. Its kernel for a CPU packs experts: its tensors have the names and often
    the shapes that they had before, and their numbers in another order, with columns of zeros where there are not
    enough. So this object has those that are not packed, and `repack` packs what is written into them. On a GPU it has
    none: the kernels that are asked for at the start compute with the weights as they lie."""

    def __init__(self, model: nn.Module) -> None:
        from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

        layers = model.named_modules() if has_no_gpu() else ()
        self._layers: list[tuple[str, Any]] = [
            (name, layer) for name, layer in layers if isinstance(layer, RoutedExperts)
        ]
        self.tensors: Mapping[str, Tensor] = {
            f"{name}.{field}": _unpacked(layer, field) for name, layer in self._layers for field in _NAMES
        }
        """Unpacked tensors by the names of vLLM's own, which hold them packed."""

    @torch.no_grad()
    def repack(self) -> None:
        """Make the model compute with what `tensors` are now."""
        for name, layer in self._layers:
            packed = nn.Module()
            for field in _NAMES:
                packed.register_parameter(field, nn.Parameter(self.tensors[f"{name}.{field}"], requires_grad=False))
            layer.quant_method.moe_kernel.fused_experts.process_weights_after_loading(packed)
            for field in _NAMES:
                getattr(layer, field).copy_(getattr(packed, field))


def _unpacked(layer: Any, field: str) -> Tensor:
    """Return zeros in the shape without padding: [experts, 2 * columns, hidden], or [experts, hidden, columns]."""
    packed: Tensor = getattr(layer, field)
    experts, rows, columns = packed.shape
    size = layer.moe_config.intermediate_size_per_partition
    return packed.new_zeros((experts, 2 * size, columns) if field == "w13_weight" else (experts, rows, size))
