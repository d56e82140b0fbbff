"""Tells what Megatron's AdamW keeps on a rank: for each of its parameters, or for this replica's range of it where
replicas shard the optimizer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch import Tensor

from rlgraph.backends.engines.moments import MASTER, Moments, flat_range_boxes
from rlgraph.backends.engines.offload import Offloader
from rlgraph.backends.engines.optimizer import STEP
from rlgraph.ir.layout import LocalTensor, box_elements, cut_tensor

_KINDS = ("exp_avg", "exp_avg_sq")


def moments(adam: Any, parameters: Mapping[str, Tensor], layout: Sequence[LocalTensor], rest: Offloader) -> Moments:
    """Return the moments of a rank. adam: Megatron's optimizer. layout: of the parameters, layer by layer. rest: where
    these tensors are, if the model sleeps."""
    names, locals_ = {id(tensor): name for name, tensor in parameters.items()}, {local.name: local for local in layout}
    parts: list[LocalTensor] = []
    kinds: dict[str, dict[str, Tensor]] = {}
    steps = 0.0
    for torch_optimizer, group, parameter, target, start in _targets(adam):
        local, state = locals_[names[id(parameter)]], torch_optimizer.state.get(target, {})
        state_tensors = {kind: state[kind] for kind in (*_KINDS, STEP) if torch.is_tensor(state.get(kind))}
        if parameter.dtype != target.dtype:
            state_tensors[MASTER] = target
        state_tensors = rest.on_device_or_host(state_tensors)
        steps = float(state_tensors.pop(STEP, group.get(STEP, steps)))
        offset = 0
        for number, box in enumerate(flat_range_boxes(local.shape, start, start + target.numel())):
            name = f"{local.name}#{number}"
            parts.append(cut_tensor(local, box, name))
            for kind, tensor in state_tensors.items():
                part = tensor.detach().reshape(-1)[offset : offset + box_elements(box)]
                kinds.setdefault(kind, {})[name] = part.view(parts[-1].shape)
            offset += box_elements(box)
    return Moments(tuple(parts), kinds, steps)


def resume_optimizer(adam: Any, kinds: Collection[str], steps: float) -> None:
    """Put the optimizer in its state after so many updates, with zeros for what these kinds had then."""
    for torch_optimizer, group, _, target, _ in _targets(adam):
        torch_optimizer.state[target] = {kind: torch.zeros_like(target.detach()) for kind in _KINDS if kind in kinds}
        if isinstance(torch_optimizer, torch.optim.AdamW):
            torch_optimizer.state[target][STEP] = torch.tensor(steps, dtype=torch.float32, device=target.device)
        else:
            # Transformer Engine's and Apex's optimizers count the updates of a whole group.
            group[STEP] = int(steps)


def _targets(adam: Any) -> Iterator[tuple[Any, dict[str, Any], Tensor, Tensor, int]]:
    """Yield what is updated here: torch's optimizer and its group, the model's parameter, the tensor that takes its
    place for the optimizer, and where in the flat parameter that begins."""
    for optimizer in getattr(adam, "chained_optimizers", [adam]):
        if isinstance(optimizer, DistributedOptimizer):
            for parameter, (group, place) in optimizer.model_param_group_index_map.items():
                param_group = optimizer.optimizer.param_groups[group]
                start = optimizer._get_model_param_range_map(parameter)["param"].start
                yield optimizer.optimizer, param_group, parameter, param_group["params"][place], start
        else:
            for param_group in optimizer.optimizer.param_groups:
                yield from (
                    (optimizer.optimizer, param_group, parameter, parameter, 0) for parameter in param_group["params"]
                )
