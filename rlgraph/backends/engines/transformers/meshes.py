"""The process groups of a mesh, made once for all models of a process."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rlgraph.ir.mesh import Mesh


def device_mesh(mesh: Mesh, device: str) -> DeviceMesh:
    """Return torch's device mesh with the axes of this one, over the default process group, which has its ranks."""
    return _cached_mesh(torch.device(device).type, mesh.axes, dist.group.WORLD)


@lru_cache(1)
def _cached_mesh(device: str, axes: tuple[tuple[str, int], ...], world: dist.ProcessGroup) -> DeviceMesh:
    # Groups cost memory: with one cached mesh, those of an earlier default group are dropped.
    return init_device_mesh(device, tuple(size for _, size in axes), mesh_dim_names=tuple(name for name, _ in axes))
