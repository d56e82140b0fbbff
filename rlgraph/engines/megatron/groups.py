"""Megatron's process groups: those of one mesh in each process."""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from rlgraph.engines.base import EngineError
from rlgraph.ir.mesh import Mesh


def settle(mesh: Mesh) -> int:
    """Lays torch's default process group out as the mesh, and returns this process's rank on it. All ranks call it.

    Models of one process share the mesh. Raises EngineError where the process has joined no group or one of another
    size, or has settled on another mesh.
    """
    if not dist.is_initialized() or dist.get_world_size() != mesh.size:
        there = dist.get_world_size() if dist.is_initialized() else "no"
        raise EngineError(f"a mesh of {mesh} needs a process group of {mesh.size} ranks: there are {there} ranks")
    tp, pp = mesh.length("tp"), mesh.length("pp")
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(tp, pp, order="tp-cp-ep-pp-dp")
        # Its generators are used at dropout only, which is off; but it asks for them.
        with torch.random.fork_rng(devices=[]):
            model_parallel_cuda_manual_seed(1)
    rank = dist.get_rank()
    here = {
        "dp": parallel_state.get_data_parallel_rank(),
        "pp": parallel_state.get_pipeline_model_parallel_rank(),
        "tp": parallel_state.get_tensor_model_parallel_rank(),
    }
    split = (
        parallel_state.get_tensor_model_parallel_world_size(),
        parallel_state.get_pipeline_model_parallel_world_size(),
    )
    if split != (tp, pp):
        raise EngineError(
            f"this process has a model split over tp={split[0]}, pp={split[1]}: one over {mesh} needs processes of its "
            "own"
        )
    assert all(mesh.at(rank, axis) == at for axis, at in here.items()), f"Megatron counts ranks otherwise: {here}"
    return rank
