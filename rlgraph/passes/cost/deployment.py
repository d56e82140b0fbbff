"""Describes where and how a model's work is done: what its time and memory depend on beside the model and the rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from rlgraph.backends.enginespec.registry import engine
from rlgraph.backends.enginespec.spec import EngineSpec, PrefixSharing
from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.dtypes import ITEM_BYTES
from rlgraph.ir.mesh import Mesh
from rlgraph.ops.optimizers import ADAMW, OptimizerSpec
from rlgraph.passes.cost import work
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.links import Link, cross_node_link, node_link

BLOCK_TOKENS = 2048
"""Padded tokens of a micro-batch where the user sets none: the default of the engines."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model with its shape, dtype and optimizer."""

    name: str
    shape: Shape
    kind: ModelKind
    dtype: str = "float32"
    optimizer: OptimizerSpec = ADAMW
    """The optimizer that trains it, if it is trained."""
    base: str = ""
    """The first model with the same weights, where these are frozen but for adapters; empty where the weights
    change."""
    autocast: str | None = None
    """What products before the head are computed in; None: the dtype of the weights."""
    earlier_versions: int = 0
    """How many earlier versions of its weights there are where it is trained, while a step trains it."""

    @property
    def product_dtype(self) -> str:
        """Return the dtype of products before the head."""
        return self.autocast or self.dtype

    @property
    def attention_dtype(self) -> str:
        """Return the dtype of attention: that of products, but no narrower than the weights' where that is float8."""
        return self.dtype if self.product_dtype == "float8" else self.product_dtype

    @property
    def narrow_copy_bytes(self) -> int:
        """Return the bytes of the copies of its matrices in the dtype of their products."""
        return work.layer_matrix_parameters(self.shape) * ITEM_BYTES[self.autocast] if self.autocast else 0

    @property
    def item_bytes(self) -> int:
        """Return the bytes of one of its numbers."""
        return ITEM_BYTES[self.dtype]

    @property
    def trained_item_bytes(self) -> int:
        """Return the bytes of one trained number: adapters of narrow weights are float32."""
        return self.item_bytes if self.shape.adapters is None else max(4, self.item_bytes)

    @property
    def adapter_bytes(self) -> int:
        """Return the bytes of its adapters."""
        return work.adapter_parameter_count(self.shape) * self.trained_item_bytes


@dataclass(frozen=True)
class Deployment:
    """A group of equal devices, and how a model is split over them."""

    engine: str
    island: NodeGroup
    mesh: Mesh = field(default=Mesh())
    micro_tokens: int = 0
    """Padded tokens of a micro-batch; 0: the default of the engine."""
    recompute: bool = False
    attention: str = ""
    """One of the engine's attention implementations; empty: its default."""
    adapters: str = ""
    """One of the engine's ways to hold adapters; empty: the first one."""
    gather: str = ""
    """One of the engine's ways to keep gathered parameters in training; empty: the first one."""
    kv_bytes: int = 0
    """Bytes of each rank's cache of keys and values; 0: as the engine chooses."""
    threads: int = 1
    """Threads of an engine that computes micro-batches side by side in one process."""
    in_flight: tuple[float, float] | None = None
    """In-flight micro-batches of a training on its first stage and on its last one, 0 where another stage is meant;
    None: those of the fuller one of both under 1F1B, which is interleaved where stages have several chunks."""
    optimizer: str = ""
    """One of the engine's places of an optimizer's state; empty: the first one, the device."""

    @cached_property
    def engine_spec(self) -> EngineSpec:
        """Return the spec of the engine."""
        return engine(self.engine)

    @cached_property
    def packs_rows(self) -> bool:
        """Return whether rows of a micro-batch lie one behind the other."""
        return self.engine_spec.packs_rows(self.attention)

    @cached_property
    def prefix_sharing(self) -> PrefixSharing | None:
        """Return how rows with a common prefix are read together; None: each by itself, as where ranks shard rows,
        which they do by length."""
        shares = self.engine_spec.prefix_sharing if self.packs_rows and self.row_shard_count == 1 else None
        return shares if shares and self.island.device.kind in shares.devices else None

    @cached_property
    def merges_adapters(self) -> bool:
        """Return whether adapters are merged into the weights."""
        return (self.adapters or next(iter(self.engine_spec.adapters), "")) == "merged"

    @property
    def keeps_parameters_gathered(self) -> bool:
        """Return whether FSDP ranks keep all parameters gathered while the gradients of an update are added up."""
        return self.gather == "update" and self.fsdp > 1

    @property
    def optimizer_on_host(self) -> bool:
        """Return whether an optimizer keeps its state in the host's memory, and not in the device's. What is called a
        CPU's device memory is the host's memory already."""
        return self.optimizer == "host" and not self.on_cpu

    @property
    def attention_rate(self) -> float:
        """Return the rate of causal attention relative to that of the largest products, what the mask hides not
        counted."""
        device = self.island.device
        return device.plain_attention if self.engine_spec.plain_attention else device.attention

    @property
    def on_cpu(self) -> bool:
        """Return whether the devices are CPUs."""
        return self.island.device.kind == "cpu"

    @cached_property
    def tp(self) -> int:
        """Return the number of ranks over which each layer is split by columns."""
        return self.engine_spec.column_rank_count(self.mesh)

    @cached_property
    def pp(self) -> int:
        """Return the number of pipeline stages."""
        return self.mesh.axis_size("pp")

    @cached_property
    def chunks_per_stage(self) -> int:
        """Return the number of parts of the layers that each stage has."""
        return self.mesh.axis_size("chunks")

    @cached_property
    def ep(self) -> int:
        """Return the number of ranks that shard experts and replicate all else, each with rows of its own."""
        return 1 if "ep" in self.engine_spec.columns else self.mesh.axis_size("ep")

    @cached_property
    def whole_expert_rank_count(self) -> int:
        """Return the number of ranks that have whole experts and some columns of all else."""
        return self.mesh.axis_size("ep") if "ep" in self.engine_spec.columns else 1

    @cached_property
    def cp(self) -> int:
        """Return the number of ranks that shard the tokens of each row."""
        return self.mesh.axis_size("cp")

    @property
    def weight_shard_count(self) -> int:
        """Return over how many ranks of a replica its weights are split: context-parallel ranks have the same."""
        return self.mesh.replica_size // self.cp

    @property
    def row_shard_count(self) -> int:
        """Return the number of ranks of a replica that shard its rows."""
        return self.fsdp * self.ep

    @property
    def dp(self) -> int:
        """Return the number of data-parallel replicas."""
        return self.mesh.axis_size("dp")

    @cached_property
    def fsdp(self) -> int:
        """Return the number of ranks that shard parameters and rows."""
        return self.mesh.axis_size("fsdp")

    @cached_property
    def rank_count(self) -> int:
        """Return the number of ranks."""
        return self.mesh.rank_count

    def with_replicas(self, copies: int) -> Deployment:
        """Return the deployment with so many data-parallel replicas."""
        return replace(self, mesh=self.mesh.with_replicas(copies))

    def fsdp_link(self, constants: Constants) -> Link:
        """Return the link between FSDP ranks. Where they reach over nodes, the devices of a node with the same part of
        each layer form one ring."""
        near, share = self.island.blocks_stay_within_nodes(self.tp * self.fsdp), constants.collective
        return node_link(self.island, True, share) if near else cross_node_link(self.island, self.tp, share)

    def process_bytes(self, constants: Constants) -> int:
        """Return the bytes of a device that one of its processes uses beside tensors: those of the runtime, and of a
        communicator for each axis along which ranks communicate. Replicas communicate where they are trained."""
        if self.on_cpu:
            return 0
        exchanging = sum(size > 1 and (name != "dp" or self.engine_spec.trains) for name, size in self.mesh.rank_axes)
        return constants.process.get(self.engine, 0) + exchanging * constants.communicator

    def tp_and_pp_links(self, constants: Constants) -> tuple[Link, Link]:
        """Return the links between tensor-parallel ranks, which are next to each other, and between neighbouring
        stages."""
        share = constants.collective
        inner = node_link(self.island, self.tp <= self.island.per_node, share)
        return inner, node_link(
            self.island, self.island.neighbour_teams_share_node(self.tp * self.ep * self.cp, self.pp), share
        )

    def expert_link(self, constants: Constants) -> Link:
        """Return the link between expert-parallel ranks that are farthest apart."""
        return self.expert_links(constants)[self.tp * self.ep > self.island.per_node]

    def expert_links(self, constants: Constants) -> tuple[Link, Link]:
        """Return the links between expert-parallel ranks of one node and of two."""
        near, far = (node_link(self.island, near, constants.collective) for near in (True, False))
        return near, far

    def context_link(self, constants: Constants) -> Link:
        """Return the link between context-parallel ranks."""
        inner, share = self.tp * self.ep, constants.collective
        near = self.island.blocks_stay_within_nodes(inner * self.cp)
        return node_link(self.island, True, share) if near else cross_node_link(self.island, inner, share)
