"""The ranks of a replica of which no rank has all: each has a part of every layer, or a shard of the parameters, or a
shard of its part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from rlgraph.backends.engines.adapters import trained_parameters
from rlgraph.backends.engines.transformers.fsdp import ParameterShards
from rlgraph.backends.engines.transformers.meshes import device_mesh
from rlgraph.backends.engines.transformers.tensor_parallel import TensorParallel
from rlgraph.catalog.models.families import ModelKind
from rlgraph.ir.mesh import Mesh


class SplitReplica:
    """The ranks of this process's replica. All of them make it and call it together."""

    def __init__(self, mesh: Mesh, rank: int, device: str) -> None:
        """Called after torch's default process group has this mesh's ranks."""
        self.mesh, self.rank = mesh, rank
        self.tensors = TensorParallel(mesh, rank, device) if mesh.axis_size("tp") > 1 else None
        self.shards = ParameterShards(mesh, rank, device) if mesh.axis_size("fsdp") > 1 else None
        self._device = device

    @property
    def is_first_rank(self) -> bool:
        """Whether this is the replica's first rank."""
        return self.rank % self.mesh.replica_size == 0

    @property
    def same_part_group(self) -> dist.ProcessGroup:
        """The ranks that have the same part of the other replicas."""
        return device_mesh(self.mesh, self._device)["dp"].get_group()

    def split_model(self, model: PreTrainedModel, kind: ModelKind, lent: bool) -> None:
        """Keep this rank's part of a model that is on the host. Raises EngineError for one that cannot be split.

        lent: its base is split already, and on the device; what is trained of it is not.
        """
        if self.tensors is not None:
            if lent:
                self.tensors.split_trained_parameters(model)
            else:
                self.tensors.split_model(model, kind)
        if self.shards is not None:
            self.shards.shard_by_fsdp(model)
        else:
            model.to(self._device)  # type: ignore[arg-type]

    def local_gradients(self, loss: Tensor, parameters: Mapping[str, Tensor]) -> Sequence[Tensor | None]:
        """Return this rank's part of the gradients of the trained parameters, summed over ranks that shard the rows."""
        if self.shards is not None:
            gradients = self.shards.local_gradients(loss)
        else:
            gradients = list(torch.autograd.grad(loss, list(parameters.values()), allow_unused=True))
        if self.tensors is not None:
            self.tensors.sum_partial_gradients(dict(zip(parameters, gradients, strict=True)))
        return gradients

    def local_trained_parameters(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """Return this rank's part of the parameters that training changes, by name."""
        parameters = trained_parameters(model)
        return parameters if self.shards is None else {name: self.shards.parameters[name] for name in parameters}

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """Return the sum over the ranks, each of which has other parts of the parameters."""
        for part in (self.shards, self.tensors):
            if part is not None:
                dist.all_reduce(values, group=part.group)
        return values
