"""How much memory a process has used at most."""

from __future__ import annotations

import resource
import sys

import torch

_UNIT = 1 if sys.platform == "darwin" else 1024
"""The bytes of a unit in which the system tells it."""


def peak_memory_bytes() -> int:
    """Return the most bytes that this process has had on its device since it began, by torch's allocator; of a process
    without a device in the host's memory, by the system."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_reserved())
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * _UNIT
