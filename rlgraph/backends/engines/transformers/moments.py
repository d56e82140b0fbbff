"""Tells what the optimizer of a transformers model keeps for each parameter, or for this rank's part of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from rlgraph.backends.engines.moments import Moments
from rlgraph.backends.engines.offload import Offloader
from rlgraph.backends.engines.optimizer import STEP, Optimizer
from rlgraph.backends.engines.weights import layout_by_layer
from rlgraph.ir.layout import LocalTensor


def moments(
    optimizer: Optimizer | None, layout: Iterable[LocalTensor], trained: Mapping[str, Tensor], rest: Offloader
) -> Moments:
    """Return the optimizer's moments. layout: of all the rank's tensors. rest: where these are, if the model sleeps."""
    if optimizer is None:
        return Moments()
    kinds = {kind: rest.on_device_or_host(tensors) for kind, tensors in optimizer.state_by_weight().items()}
    counts = kinds.pop(STEP, {})
    held = [local for local in layout_by_layer(layout, trained) if local.name in trained]
    return Moments(tuple(held), kinds, float(next(iter(counts.values()), 0.0)))
