"""Which device of this machine an engine puts its model on."""

from __future__ import annotations

import torch

from rlgraph.backends.engines.base import EngineError


def device_here(wanted: str | None) -> str:
    """`choose`, of the devices that this process sees."""
    return choose(wanted, torch.cuda.device_count())


def choose(wanted: str | None, gpus: int) -> str:
    """`cpu` or `cuda:0`, as torch names devices: what was asked for, else the first of so many GPUs where there is one.

    Raises EngineError for a device that is not there.
    """
    there = ["cpu", *(f"cuda:{number}" for number in range(gpus))]
    if wanted is None:
        return there[min(gpus, 1)]
    found = "cuda:0" if wanted == "cuda" else wanted
    if found not in there:
        raise EngineError(f"there is no device `{wanted}`: there {'are' if gpus else 'is'} {', '.join(there)}")
    return found
