"""Megatron's process groups: those of one mesh in each process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.megatron.shim import model_device
from rlgraph.ir.mesh import Mesh


def initialize_groups(mesh: Mesh) -> int:
    """Lay torch's default process group out as the mesh, and return this process's rank on it. All ranks call it.

    Models of one process share the mesh. Raises EngineError where the process has joined no group or one of another
    size, or has settled on another mesh.
    """
    if not dist.is_initialized() or dist.get_world_size() != mesh.rank_count:
        present = dist.get_world_size() if dist.is_initialized() else "no"
        raise EngineError(
            f"a mesh of {mesh} needs a process group of {mesh.rank_count} ranks: there are {present} ranks"
        )
    if not parallel_state.model_parallel_is_initialized():
        _initialize(mesh)
        _open_lanes(mesh)
        # Megatron asks for its generators, though only dropout, which is off, uses them.
        with torch.random.fork_rng(devices=[]):
            model_parallel_cuda_manual_seed(1)
    rank = dist.get_rank()
    place = {
        "dp": parallel_state.get_data_parallel_rank() // mesh.axis_size("ep"),
        "cp": parallel_state.get_context_parallel_rank(),
        "ep": parallel_state.get_expert_model_parallel_rank(),
        "pp": parallel_state.get_pipeline_model_parallel_rank(),
        "tp": parallel_state.get_tensor_model_parallel_rank(),
    }
    split = {
        "tp": parallel_state.get_tensor_model_parallel_world_size(),
        "pp": parallel_state.get_pipeline_model_parallel_world_size(),
        "cp": parallel_state.get_context_parallel_world_size(),
        "ep": parallel_state.get_expert_model_parallel_world_size(),
    }
    if any(mesh.axis_size(axis) != size for axis, size in split.items()):
        current = ", ".join(f"{axis}={size}" for axis, size in split.items())
        raise EngineError(f"this process has a model split over {current}: one over {mesh} needs processes of its own")
    assert all(mesh.axis_position(rank, axis) == at for axis, at in place.items()), (
        f"Megatron counts ranks otherwise: {place}"
    )
    return rank


class Stages:
    """A model's pipeline stages on the ranks of this process's pipeline: one behind the other, or in reverse."""

    def __init__(self, turned: bool = False) -> None:
        """turned: the last rank has the first stage."""
        self._group: dist.ProcessGroup = parallel_state.get_pipeline_model_parallel_group()
        ranks = dist.get_process_group_ranks(self._group)
        self.turned, self._ranks = turned, ranks[::-1] if turned else ranks
        self.place = dist.get_rank(self._group)
        """The place of this process among those of the pipeline, whichever way the stages lie."""

    def rank(self) -> int:
        """Return the stage of this process. Megatron asks a process group for it, and for the next one."""
        return self._ranks.index(dist.get_rank())

    def size(self) -> int:
        """Return the number of stages."""
        return len(self._ranks)

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks that have the stages, among all, the first stage first."""
        return self._ranks

    def neighbour_rank(self, by: int) -> int | None:
        """Return the rank, among all, with the stage that is so many further; None where there is none."""
        at = self.rank() + by
        return self._ranks[at] if 0 <= at < len(self._ranks) else None

    def process_groups(self) -> ProcessGroupCollection:
        """Return Megatron's groups, with this object as the pipeline's if the stages are reversed."""
        collection = ProcessGroupCollection.use_mpu_process_groups()
        if self.turned:
            collection.pp = self
        return collection

    def message_group(self, sender: int, receiver: int) -> dist.ProcessGroup:
        """Return the group that carries messages from one rank to another for
        `rlgraph.backends.engines.pipelined`."""
        forth, back = _lanes.get(self._group, (self._group, self._group))
        return forth if sender < receiver else back


def warm_up_dp_groups() -> None:
    """Make the communicators in which replicas add up gradients, so that none is made in the midst of a schedule. All
    ranks call it."""
    for group in (
        parallel_state.get_data_parallel_group(with_context_parallel=True),
        parallel_state.get_expert_data_parallel_group(),
    ):
        if dist.get_world_size(group) > 1:
            dist.all_reduce(torch.zeros(1, device=model_device()), group=group)


def carries_both_directions(group: dist.ProcessGroup) -> bool:
    """Return whether messages from one rank to another do not wait for those that go back: gloo has a connection for
    each direction, NCCL one communicator for both."""
    return bool(dist.get_backend(group) == "gloo")


def _open_lanes(mesh: Mesh) -> None:
    """Make the communicators for messages between stages, two for a pair of neighbours, one for each direction, so that
    neither waits for the other. All ranks call it.

    NCCL makes a communicator of two ranks when both are at their first message, and would hold both up in the midst of
    a schedule, where they may be at different ones: here all come to them in one order.
    """
    group = parallel_state.get_pipeline_model_parallel_group()
    ranks = dist.get_process_group_ranks(group)
    if len(ranks) == 1:
        return
    if not carries_both_directions(group):
        # All ranks make the groups of all pipelines. If those alone did that are in it, its name would count the groups
        # that each of them has, and be another on each.
        for pipeline in _MeshRanks(mesh, ep=mesh.axis_size("ep"), cp=mesh.axis_size("cp")).get_ranks("pp"):
            forth, back = (dist.new_group(pipeline) for _ in range(2))
            if pipeline == ranks:
                _lanes[group] = forth, back
    here, word = dist.get_rank(), torch.zeros(1, device=model_device())
    pairs = [*pairwise(ranks), *([(ranks[0], ranks[-1])] if len(ranks) > 2 else [])]
    for low, high in pairs:
        for sender, receiver, lane in ((low, high, 0), (high, low, 1)):
            carrier = _lanes.get(group, (group, group))[lane]
            if here == sender:
                dist.send(word, receiver, carrier)
            elif here == receiver:
                dist.recv(word, sender, carrier)


_lanes: WeakKeyDictionary[dist.ProcessGroup, tuple[dist.ProcessGroup, dist.ProcessGroup]] = WeakKeyDictionary()
"""For a pipeline's group the two that carry its messages, to ranks with larger and with smaller numbers. Models of one
process share them, as they share Megatron's groups."""


def _initialize(mesh: Mesh) -> None:
    """Initialize Megatron's groups for a mesh. Megatron's own orders of ranks have stages outermost where experts are
    split; the mesh has replicas there."""
    original = parallel_state.RankGenerator
    parallel_state.RankGenerator = partial(_MeshRanks, mesh)
    try:
        parallel_state.initialize_model_parallel(
            mesh.axis_size("tp"),
            mesh.axis_size("pp"),
            context_parallel_size=mesh.axis_size("cp"),
            expert_model_parallel_size=mesh.axis_size("ep"),
            order="tp-cp-ep-dp-pp",
            # Only Megatron's own checkpoints need gloo groups beside those for computing.
            create_gloo_process_groups=False,
        )
    finally:
        parallel_state.RankGenerator = original


class _MeshRanks:
    """A mesh's ranks in groups, as Megatron asks for them. Parameters outside experts are the same along ep as along
    dp: for them both are replicas. For experts dp and cp are."""

    def __init__(self, mesh: Mesh, *, ep: int, cp: int, **_: Any) -> None:
        """Take the sizes of the axes for experts, which have cp=1, or for everything else, which has ep=1."""
        self._mesh = mesh
        self._copies = {"dp"} | {axis for axis, size in (("ep", ep), ("cp", cp)) if mesh.axis_size(axis) != size}
        self.world_size = mesh.rank_count

    def get_ranks(self, token: str) -> list[list[int]]:
        """Return groups of those ranks that differ along some axes only: `tp-dp`."""
        along = {*token.split("-")}
        if "dp" in along:
            along |= self._copies
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self._mesh.rank_count):
            place = self._mesh.coordinates(rank)
            groups.setdefault(tuple(at for axis, at in place.items() if axis not in along), []).append(rank)
        return list(groups.values())
