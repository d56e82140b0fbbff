"""Adapters that vLLM computes beside the weights: its own LoRA, with one adapter that all rows have. Nothing is merged,
so that there is no copy of the base; each layer that has one does two small products more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from rlgraph.backends.engines.vllm.spec import SPEC
from rlgraph.catalog.models.adapters import CONFIG, PREFIX, WEIGHTS, Adapters, adapter_matrix_names
from rlgraph.catalog.models.families import linear_layers
from rlgraph.catalog.models.shape import Shape

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

_ADAPTER_ID = 1
"""vLLM's id of the adapter: it counts from 1."""


def lora_options(adapters: Adapters, shape: Shape) -> dict[str, Any]:
    """Return the options that vLLM is started with."""
    chosen = adapters.adapted_layers(linear_layers(shape))
    return {
        "enable_lora": True,
        "max_loras": 1,
        "max_cpu_loras": 1,
        "max_lora_rank": SPEC.allocated_adapter_rank(adapters.rank),
        "lora_target_modules": sorted({name.rpartition(".")[2] for name in chosen}),
    }


class NativeLora:
    """The adapters of a rank, and vLLM's slots for them."""

    def __init__(self, engine: Any, adapters: Adapters, tensors: dict[str, Tensor]) -> None:
        """engine: vLLM's own, started with `lora_options`. tensors: all of each adapter, by name."""
        self.tensors, self._scale = tensors, adapters.scale
        self.request: LoRARequest = _add_adapter(engine, adapters, tensors)
        [manager] = engine.collective_rpc(lambda worker: worker.model_runner.lora_manager._adapter_manager)
        self._slot: int = manager.lora_index_to_id.index(_ADAPTER_ID)
        self._layers: list[tuple[Any, list[str]]] = [
            (layer, manager.packed_modules.get(name, [name])) for name, layer in manager.modules.items()
        ]
        self.apply_new_adapters()

    def all_tensors(self) -> Iterator[Tensor]:
        """Yield all tensors that sampling needs."""
        yield from self.tensors.values()
        for layer, _ in self._layers:
            yield from (*layer.lora_a_stacked, *layer.lora_b_stacked)

    @torch.no_grad()
    def apply_new_adapters(self) -> None:
        """Give vLLM the adapters again after new ones came."""
        for layer, parts in self._layers:
            pairs = [(self.tensors.get(a), self.tensors.get(b)) for a, b in map(adapter_matrix_names, parts)]
            first = [a for a, _ in pairs]
            second = [None if b is None else b * self._scale for _, b in pairs]
            # For fused matrices vLLM expects a list of their parts. It cuts out a rank's part by itself.
            layer.set_lora(self._slot, *((first, second) if len(parts) > 1 else (first[0], second[0])))


def _add_adapter(engine: Any, adapters: Adapters, tensors: Mapping[str, Tensor]) -> LoRARequest:
    """Hand the adapter to vLLM, which takes it from files, once."""
    from vllm.lora.request import LoRARequest

    modules = {name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")}
    config = {
        "peft_type": "LORA",
        "r": adapters.rank,
        "lora_alpha": adapters.alpha,
        "bias": "none",
        "target_modules": sorted({name.rpartition(".")[2] for name in modules}),
    }
    with TemporaryDirectory() as folder:
        # Distinct storages: those of a sleeping model may lie in one.
        save_file({f"{PREFIX}{name}": tensor.cpu().clone() for name, tensor in tensors.items()}, Path(folder) / WEIGHTS)
        (Path(folder) / CONFIG).write_text(json.dumps(config), "utf-8")
        request = LoRARequest("adapter", _ADAPTER_ID, folder)
        assert engine.add_lora(request), "vLLM does not take the adapter"
    assert engine.pin_lora(_ADAPTER_ID), "vLLM does not keep the adapter"
    return request
