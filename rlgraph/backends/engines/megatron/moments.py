"""What Megatron's AdamW keeps on a rank: of each of its parameters, or of the range that is this copy's where copies
share the optimizer out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch import Tensor

from rlgraph.backends.engines.moments import MASTER, Moments, stretches
from rlgraph.backends.engines.offload import Sleeper
from rlgraph.backends.engines.optimizer import STEP
from rlgraph.ir.layout import Local, volume, within

_KINDS = ("exp_avg", "exp_avg_sq")


def moments(adam: Any, parameters: Mapping[str, Tensor], layout: Sequence[Local], rest: Sleeper) -> Moments:
    """adam: Megatron's optimizer. layout: of the parameters, layer by layer. rest: where all that is, if the model
    sleeps."""
    names, locals_ = {id(each): name for name, each in parameters.items()}, {local.name: local for local in layout}
    own: list[Local] = []
    kinds: dict[str, dict[str, Tensor]] = {}
    steps = 0.0
    for torchs, group, parameter, target, start in _targets(adam):
        local, state = locals_[names[id(parameter)]], torchs.state.get(target, {})
        kept = {kind: state[kind] for kind in (*_KINDS, STEP) if torch.is_tensor(state.get(kind))}
        if parameter.dtype != target.dtype:
            kept[MASTER] = target
        kept = rest.here(kept)
        steps = float(kept.pop(STEP, group.get(STEP, steps)))
        at = 0
        for number, box in enumerate(stretches(local.shape, start, start + target.numel())):
            name = f"{local.name}#{number}"
            own.append(within(local, box, name))
            for kind, tensor in kept.items():
                part = tensor.detach().reshape(-1)[at : at + volume(box)]
                kinds.setdefault(kind, {})[name] = part.view(own[-1].shape)
            at += volume(box)
    return Moments(tuple(own), kinds, steps)


def begin(adam: Any, kinds: Collection[str], steps: float) -> None:
    """As after so many updates, with zeros for what these kinds had then."""
    for torchs, group, _, target, _ in _targets(adam):
        torchs.state[target] = {kind: torch.zeros_like(target.detach()) for kind in _KINDS if kind in kinds}
        if isinstance(torchs, torch.optim.AdamW):
            torchs.state[target][STEP] = torch.tensor(steps, dtype=torch.float32)
        else:
            # Transformer Engine's and Apex's count for a whole group.
            group[STEP] = int(steps)


def _targets(adam: Any) -> Iterator[tuple[Any, dict[str, Any], Tensor, Tensor, int]]:
    """What is updated here: torch's optimizer and its group, the model's parameter, the tensor that takes its place for
    the optimizer, and where in the flat parameter that begins."""
    for each in getattr(adam, "chained_optimizers", [adam]):
        if isinstance(each, DistributedOptimizer):
            for parameter, (group, place) in each.model_param_group_index_map.items():
                found = each.optimizer.param_groups[group]
                start = each._get_model_param_range_map(parameter)["param"].start
                yield each.optimizer, found, parameter, found["params"][place], start
        else:
            for found in each.optimizer.param_groups:
                yield from ((each.optimizer, found, parameter, parameter, 0) for parameter in found["params"])
