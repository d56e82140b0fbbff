"""Where and how a model's work is done: what its time and memory depend on beside the model and the rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from rlgraph.backends.enginespec.registry import engine
from rlgraph.backends.enginespec.spec import EngineSpec, Shares
from rlgraph.catalog.clusters.cluster import Island
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.dtypes import ITEM_BYTES
from rlgraph.ir.mesh import Mesh
from rlgraph.ops.optimizers import ADAMW, Optimizer
from rlgraph.passes.cost import work
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.links import Link, across, link

BLOCK_TOKENS = 2048
"""Padded tokens of a micro-batch where nobody says how many: what the engines take by themselves."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model as it is worked with."""

    name: str
    shape: Shape
    kind: ModelKind
    dtype: str = "float32"
    optimizer: Optimizer = ADAMW
    """Where it is trained."""
    base: str = ""
    """The first model with the same weights, where these never change but for adapters; empty: they change."""

    @property
    def item(self) -> int:
        """Bytes of one of its numbers."""
        return ITEM_BYTES[self.dtype]

    @property
    def trained_item(self) -> int:
        """Bytes of one of those that are trained: adapters of narrow weights are float32."""
        return self.item if self.shape.adapters is None else max(4, self.item)

    @property
    def adapter_bytes(self) -> int:
        """Of its adapters."""
        return work.adapter_parameters(self.shape) * self.trained_item


@dataclass(frozen=True)
class Deployment:
    """A group of equal devices, and how a model is split over them."""

    engine: str
    island: Island
    mesh: Mesh = field(default=Mesh())
    micro_tokens: int = 0
    """Padded tokens of a micro-batch; 0: as many as the engine takes by itself."""
    recompute: bool = False
    attention: str = ""
    """One of the ways that the engine knows; empty: as it does by itself."""
    adapters: str = ""
    """One of the ways to hold them that the engine knows; empty: the first one."""
    gather: str = ""
    """One of the ways to have what ranks gather in training that the engine knows; empty: the first one."""
    kv_bytes: int = 0
    """Of each rank's cache of keys and values; 0: as the engine chooses."""
    threads: int = 1
    """Of an engine that computes micro-batches side by side in one process."""
    in_flight: tuple[float, float] | None = None
    """Micro-batches of a training on its first stage, and on its last one, none where another stage is meant; None: as
    1F1B has them on the fuller one of both, interleaved where stages have several parts of the layers."""

    @cached_property
    def spec(self) -> EngineSpec:
        return engine(self.engine)

    @cached_property
    def packs(self) -> bool:
        """Whether rows of a micro-batch lie one behind the other."""
        return self.spec.packed(self.attention)

    @cached_property
    def shares(self) -> Shares | None:
        """How rows are read that begin alike; None: each by itself. Ranks that share rows out get them by their
        lengths."""
        found = self.spec.shares if self.packs and self.row_ranks == 1 else None
        return found if found and self.island.device.kind in found.devices else None

    @cached_property
    def merges(self) -> bool:
        """Whether adapters are merged into its weights."""
        return (self.adapters or next(iter(self.spec.adapters), "")) == "merged"

    @property
    def gathers_once(self) -> bool:
        """Whether ranks that share parameters out have all of them while gradients of an update are added up."""
        return self.gather == "update" and self.fsdp > 1

    @property
    def on_cpu(self) -> bool:
        return self.island.device.kind == "cpu"

    @cached_property
    def tp(self) -> int:
        """Ranks over which each layer is split by columns."""
        return self.spec.width(self.mesh)

    @cached_property
    def pp(self) -> int:
        return self.mesh.length("pp")

    @cached_property
    def chunks(self) -> int:
        """Parts of the layers that each stage has."""
        return self.mesh.length("chunks")

    @cached_property
    def ep(self) -> int:
        """Ranks that share experts out and are copies of all else, each with rows of its own."""
        return 1 if "ep" in self.spec.columns else self.mesh.length("ep")

    @cached_property
    def entire(self) -> int:
        """Ranks that have whole experts and some columns of all else."""
        return self.mesh.length("ep") if "ep" in self.spec.columns else 1

    @property
    def cp(self) -> int:
        return self.mesh.length("cp")

    @property
    def parts(self) -> int:
        """Over how many ranks of a copy its weights are split: those that share tokens out have the same."""
        return self.mesh.copy_size // self.cp

    @property
    def row_ranks(self) -> int:
        """Ranks of a copy that share out its rows."""
        return self.fsdp * self.ep

    @property
    def dp(self) -> int:
        return self.mesh.length("dp")

    @property
    def fsdp(self) -> int:
        return self.mesh.length("fsdp")

    @property
    def size(self) -> int:
        return self.mesh.size

    def copied(self, copies: int) -> Deployment:
        """So many data-parallel copies of it."""
        return replace(self, mesh=self.mesh.copied(copies))

    def gathering(self, constants: Constants) -> Link:
        """Between ranks that share out parameters: where they reach over nodes each of these has one ring of those
        of its devices that have the same part of each layer."""
        near, share = self.island.near(self.tp * self.fsdp), constants.collective
        return link(self.island, True, share) if near else across(self.island, self.tp, share)

    def process(self, constants: Constants) -> int:
        """Bytes of a device that one of its processes has beside tensors: the runtime's, and those of a communicator
        for each axis along which ranks exchange something. Copies do where they are trained."""
        if self.on_cpu:
            return 0
        exchanging = sum(size > 1 and (name != "dp" or self.spec.trains) for name, size in self.mesh.spread)
        return constants.process.get(self.engine, 0) + exchanging * constants.communicator

    def links(self, constants: Constants) -> tuple[Link, Link]:
        """Between tensor-parallel ranks, and between neighbouring stages: the innermost lie next to each other."""
        share = constants.collective
        inner = link(self.island, self.tp <= self.island.per_node, share)
        return inner, link(self.island, self.island.beside(self.tp * self.ep * self.cp, self.pp), share)

    def among_experts(self, constants: Constants) -> Link:
        """Between ranks that share experts out."""
        return link(self.island, self.tp * self.ep <= self.island.per_node, constants.collective)

    def among_tokens(self, constants: Constants) -> Link:
        """Between ranks that share tokens out."""
        inner, share = self.tp * self.ep, constants.collective
        near = self.island.near(inner * self.cp)
        return link(self.island, True, share) if near else across(self.island, inner, share)
