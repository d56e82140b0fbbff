"""A model whose parameters, gradients and moments are sharded over the ranks of a replica: torch's `fully_shard`.

Before a layer works its parameters are gathered, and after it only each rank's part is left (ZeRO's third stage, arXiv
1910.02054; PyTorch FSDP, arXiv 2304.11277); or all that were gathered stay while gradients are added up, and only these
are sharded at once (its second stage). Each rank reads its own rows, so all of them have to work on as many blocks as
the one that has most: a rank that has no rows left joins with one of another's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.micro_batches import plan_micro_batches
from rlgraph.backends.engines.transformers.meshes import device_mesh
from rlgraph.ir.mesh import Mesh

T = TypeVar("T")


class ParameterShards:
    """The ranks of this process's replica, and the model that they shard. All of them make it and call it together."""

    def __init__(self, mesh: Mesh, rank: int, device: str) -> None:
        """Called after torch's default process group has this mesh's ranks."""
        self.mesh, self.rank = mesh, rank
        self.size, self.index = mesh.axis_size("fsdp"), mesh.axis_position(rank, "fsdp")
        self._mesh = device_mesh(mesh, device)["fsdp"]
        self.group = self._mesh.get_group()
        """The ranks of this replica; where its layers are split, too, those that have the same part of them."""
        self.parameters: dict[str, Tensor] = {}
        """This rank's part of each parameter, by name; weights are written here."""
        self._dtensors: dict[str, DTensor] = {}

    def shard_by_fsdp(self, model: nn.Module) -> None:
        """Keep this rank's part of the parameters alone. Raises EngineError for a model that cannot be sharded."""
        name = type(model).__name__
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        if not layers:
            raise EngineError(f"{name} cannot be split by fsdp: transformers does not name its layers")
        self._root = _Root(model)
        narrow = any(parameter.dtype in (torch.bfloat16, torch.float16) for parameter in model.parameters())
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32 if narrow else None)
        try:
            # Layers inside a layer are wrapped before it, and all that no layer holds is one more unit.
            for module in (*reversed(layers), self._root):
                fully_shard(module, mesh=self._mesh, mp_policy=policy, reshard_after_forward=True)
            # Which experts get tokens differs among ranks: ranks whose experts have none must contribute zeros.
            cast(FSDPModule, self._root).set_reduce_scatter_unused_params(True)
            self._root(tuple)
        except (ValueError, AssertionError, NotImplementedError) as error:
            raise EngineError(f"{name} cannot be split by fsdp: {error}") from error
        self._dtensors = {key: cast(DTensor, parameter) for key, parameter in model.named_parameters()}
        with torch.no_grad():
            self.parameters = {key: parameter.to_local().detach() for key, parameter in self._dtensors.items()}

    @property
    def full_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters before they were sharded."""
        return {name: tuple(parameter.shape) for name, parameter in self._dtensors.items()}

    def run(self, work: Callable[[], T]) -> T:
        """Run `work`, in which the model can be called, whole or in parts."""
        kept_order = False
        try:
            result = self._root(work)
            kept_order = torch.is_grad_enabled()
        finally:
            if not kept_order:
                # No backward pass will come that resets the order in which layers were gathered.
                cast(FSDPModule, self._root).reset_iter_state()
        return cast(T, result)

    @contextmanager
    def keep_gathered(self) -> Iterator[None]:
        """Keep what was gathered meanwhile, whatever micro-batches come. Nobody may write into the parameters."""
        root = cast(FSDPModule, self._root)
        self._keep_gathered(True)
        try:
            yield
        finally:
            self._keep_gathered(False)
            for module in root.modules():  # type: ignore[attr-defined]
                if isinstance(module, FSDPModule):
                    module.reshard()

    def _keep_gathered(self, stays: bool) -> None:
        root = cast(FSDPModule, self._root)
        root.set_reshard_after_forward(not stays)
        root.set_reshard_after_backward(not stays)

    def local_gradients(self, loss: Tensor) -> list[Tensor | None]:
        """Return this rank's part of the sum over all ranks of the gradients of `loss`, for the parameters that are
        trained, in their order."""
        finished, trained = False, [parameter for parameter in self._dtensors.values() if parameter.requires_grad]
        try:
            # `fully_shard` averages the ranks' gradients.
            (loss * self.size).backward()
            finished = True
        finally:
            gradients = [parameter.grad for parameter in trained]
            for parameter in trained:
                parameter.grad = None
            if not finished:
                cast(FSDPModule, self._root).reset_iter_state()
        return [None if gradient is None else cast(DTensor, gradient).to_local() for gradient in gradients]

    def plan_micro_batches(self, lengths: Tensor, budget: int, packed: bool) -> list[tuple[Tensor, bool]]:
        """Return blocks of rows of these lengths for this rank, as many as for every other, and whether they are its
        own. packed: rows lie one behind the other.

        With gradients it is one: the caller has chosen how many rows go together.
        """
        largest = int(lengths.sum()) if torch.is_grad_enabled() else budget
        plan = plan_micro_batches(lengths, largest, self.size, packed=packed)
        return [
            (plan[start + self.index], True) if start + self.index < len(plan) else (plan[start][:1], False)
            for start in range(0, len(plan), self.size)
        ]

    def exchange_results(self, places: Tensor, values: Sequence[Tensor], total: int) -> list[Tensor]:
        """Return all ranks' results, [total] each, of which this one has those at some places, int64 [M]; gradients go
        to its own."""
        summed = torch.stack([column.new_zeros(total).index_copy_(0, places, column.detach()) for column in values])
        dist.all_reduce(summed, group=self.group)
        return [combined.index_copy(0, places, local) for combined, local in zip(summed, values, strict=True)]


class _Root(nn.Module):
    """A wrapper of a model, so that backbone and head can be called separately: what no layer holds is gathered while
    it works."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], T]) -> T:
        return work()
