"""Chooses which device of this machine an engine puts its model on."""

from __future__ import annotations

import torch

from rlgraph.backends.engines.errors import EngineError


def choose_visible_device(wanted: str | None) -> str:
    """Return `choose_device` among the devices that this process sees."""
    return choose_device(wanted, torch.cuda.device_count())


def choose_device(wanted: str | None, gpus: int) -> str:
    """Return `cpu` or `cuda:0`, as torch names devices: the wanted one, else the first of so many GPUs where there is
    one.

    Raises EngineError for a device that is not there.
    """
    devices = ["cpu", *(f"cuda:{number}" for number in range(gpus))]
    if wanted is None:
        return devices[min(gpus, 1)]
    device = "cuda:0" if wanted == "cuda" else wanted
    if device not in devices:
        raise EngineError(f"there is no device `{wanted}`: there {'are' if gpus else 'is'} {', '.join(devices)}")
    return device
