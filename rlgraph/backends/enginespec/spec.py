"""Engine specs: what an engine says of itself, which is all that checker, planner, cost model and dispatch know of it.

An engine is a module with a constant `SPEC: EngineSpec`, which loads no torch, and an implementation, which is loaded
where it runs. Ours are the folders of `rlgraph/backends/engines` that have a `spec.py`; those of other packages are
entry points of the group `rlgraph.engines`, each named as its engine is, each leading to an `EngineSpec`. Nothing
outside an engine's folder knows its name: whoever needs something of an engine asks
`rlgraph.backends.enginespec.registry` for its spec.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rlgraph.backends.enginespec.memory import EngineMemory
from rlgraph.backends.enginespec.memory import GrowingCache as GrowingCache
from rlgraph.backends.enginespec.memory import ReservedCache as ReservedCache
from rlgraph.backends.enginespec.offload_overheads import OffloadOverheads
from rlgraph.backends.enginespec.rates import PLAIN, Rates, WorkKind
from rlgraph.catalog.clusters.cluster import DeviceKind
from rlgraph.catalog.models.families import ModelKind, trainable_parameter_shapes
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import LocalTensor, TensorPiece, full_box
from rlgraph.ir.mesh import Mesh

Setting = Literal["micro_tokens", "recompute", "kv_bytes"]
"""The name of a field of `rlgraph.ir.plan.ModelHolding`."""

Adapting = Literal["apart", "merged"]
Gathering = Literal["layer", "update"]
OptimizerMemory = Literal["device", "host"]
Faults = Callable[[Shape], list[str]]
"""Returns what an engine cannot do with a model however it is split, each as it goes on after the engine's name:
`cannot rotate`."""

DeviceFaults = Callable[[Shape, DeviceKind], list[str]]
"""Returns why an engine cannot compute a model on a kind of device, each as it goes on after the engine's name there:
`has experts for hidden sizes that 32 divides`."""

Misfits = Callable[[Shape, int], list[str]]
"""Returns what is wrong with a size of an axis, each as it goes on after it: `does not divide the 4 layers`. Size 1 has
no misfits."""


class LayoutFunction(Protocol):
    """A function that lays out a model on a mesh."""

    def __call__(self, shape: Shape, mesh: Mesh, rank: int, kind: ModelKind) -> tuple[LocalTensor, ...]:
        """Return the tensors that a rank holds, for a split in which `rlgraph.backends.enginespec.layout_checks` finds
        no fault."""
        ...


def replicated_layout(shape: Shape, mesh: Mesh, rank: int, kind: ModelKind = "causal_lm") -> tuple[LocalTensor, ...]:
    """Return a layout in which each rank has all that changes in training, under the model's own names."""
    parameters = trainable_parameter_shapes(shape, kind)
    return tuple(
        LocalTensor(
            tensor.name, tensor.shape, (TensorPiece(tensor.name, full_box(tensor.shape), (0,) * len(tensor.shape)),)
        )
        for tensor in parameters
    )


def _no_faults(shape: Shape) -> list[str]:
    return []


def _no_device_faults(shape: Shape, kind: DeviceKind) -> list[str]:
    return []


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """A way to compute attention that an engine knows."""

    packs: bool = True
    """An engine that packs rows also packs them with this kind of attention."""
    scores: bool = False
    """Each pair of tokens of a row has a weight in each head, and a layer keeps them."""
    devices: frozenset[DeviceKind] = frozenset({"cpu", "gpu"})


@dataclass(frozen=True, slots=True)
class PrefixSharing:
    """The conditions under which an engine reads the common beginning of neighbouring packed rows only once."""

    min_saved_share: float
    """It does so where that leaves out at least this share of the tokens."""
    max_suffix_tokens: int
    """It does so where no row has more tokens than this beyond the common beginning."""
    devices: frozenset[DeviceKind] = frozenset({"cpu", "gpu"})


GROWING_SEGMENTS = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
"""The variable by which torch's allocator takes segments of a GPU's memory that can grow: what sizes that vary leave
over between them can be used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """A description of an engine: what it can do, how it splits and holds models, and how fast it works."""

    name: str
    """The engine's name, as `engine=NAME` in a schedule."""
    opens: str
    """`module:function`, which is imported where the engine runs: from a `rlgraph.backends.engines.sources.ModelSpec`
    and a `rlgraph.backends.engines.base.Rank` to what implements the roles of `rlgraph.backends.engines.base` that its
    operations need."""
    operations: frozenset[str]
    """What it can do with a model's weights: `train`, `generate`, `interact`, `logprobs`, `entropy`, `distribution`,
    `values`, `score`.
    A program with a model of which it can do nothing is refused."""

    gpu_environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its processes begin with on a GPU, where the user has not set them."""

    start_check: str = ""
    """The `module:function` that says of a `StartDemand`, a `StartDevice` and where ranks meet whether the engine would
    start on a GPU, and how many bytes it would hold; empty: it demands nothing."""

    # How it splits models

    axes: tuple[str, ...] = ("dp",)
    """The axes of `rlgraph.ir.mesh` along which it can spread a model, outer ones first."""
    columns: tuple[str, ...] = ("tp",)
    """The axes along which each rank has some columns of every layer, and takes part in all tokens of its replica's
    rows; a replica is split along one of them. Where experts are split so, too, a rank has some of them entire."""
    joint_axes: tuple[str, ...] | None = None
    """The axes along which models may be spread that a sum over the vocabulary reads together; None: it reads none
    together."""
    mixes: bool = False
    """It samples from mixtures of several models in its process, which are spread along `joint_axes`."""
    unsplit_operations: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By axis those of its operations for which no replica can be split along it."""
    misfits: Mapping[str, Misfits] = field(default_factory=dict)
    """What is wrong with a size, for axes whose size depends on the model."""
    faults: Faults = _no_faults
    device_faults: DeviceFaults = _no_device_faults
    """Why it lacks what computes some models on a kind of device: defaults and searches take another engine there, and
    a run with it begins no process."""
    experts: bool = False
    """It can hold models whose layers have experts."""
    replays_routes: bool = False
    """Where it samples it says which experts routers chose for each token, and where it reads rows that have them it
    computes with these (`Sequences.routes`)."""
    keeps_support: bool = False
    """Where it samples it can say from which tokens each one was (`Generation.support`)."""
    ends_at_texts: bool = False
    """It ends answers at texts of several tokens, `stop_texts` of its `Sampling`; else at single tokens."""
    every_model: bool = False
    """It takes architectures of which no shape is known; what it cannot compute it refuses when it loads it."""
    adapters: tuple[Adapting, ...] = ()
    """How it holds models with adapters, as `adapters=WAY` in a schedule: apart from the weights, or merged into them,
    with a copy of the matrices as they are without. The first one is taken where neither a schedule nor a search says
    another."""
    separate_adapter_faults: Faults = _no_faults
    """Why it cannot hold the adapters of some models apart."""
    adapter_dtypes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For a way, the dtypes of weights in which it is not exact, each with what is lost, as it goes on after them:
    `which round all of a step away`. Only who asks for such a way gets it, with a warning (W0518)."""
    adapter_ranks: tuple[int, ...] = ()
    """Adapters beside the weights have room of one of these ranks, the lowest that is enough; empty: of their own
    rank."""
    lays_out_adapters: bool = False
    """Its layout says which part of each adapter a rank has, and models of one base and process share that base. Else
    each rank has all of all adapters, and each model its own base."""
    gather: tuple[Gathering, ...] = ()
    """For how long ranks that shard a model's parameters (`fsdp`) keep those that they gather in training, as
    `gather=WAY` in a schedule: while a layer works, and once more for its backward pass (ZeRO's third stage, arXiv
    1910.02054), or while all micro-batches of an update are differentiated (the second one). The first one is taken
    where neither a schedule nor a search says another."""
    layout: LayoutFunction = replicated_layout
    dtypes: Mapping[DeviceKind, frozenset[str]] | None = None
    """The dtypes in which it computes, by kind of device; None: any."""

    autocast: bool = False
    """It has products of float32 weights in bfloat16, where a model asks for that."""

    # How it works

    packs: bool = False
    """Rows of a micro-batch lie one behind the other; else they are padded to the longest of them."""
    prefix_sharing: PrefixSharing | None = None
    """When it reads common beginnings of packed rows once, where it trains and where it reads tokens; None: each row is
    read by itself."""
    attention: Mapping[str, AttentionKind] = field(default_factory=dict)
    """Ways to compute attention, as `attention=NAME` in a schedule; the first one is taken where none is named."""
    threads: bool = False
    """It computes micro-batches side by side in one process, as many as there are threads."""
    streams: bool = False
    """Generated rows leave it as soon as they end: it has `parts` (`rlgraph.backends.engines.base.StreamsRows`)."""
    admits: bool = False
    """It takes the rows of another call while it samples those of one, with the same weights: a thread other than the
    callers' samples for all of them (`rlgraph.backends.engines.base.AdmitsCalls`)."""
    longest_first: bool = False
    """It begins with the rows of a call that are expected to be the longest, where it is told (`expected` of
    `rlgraph.backends.engines.base.Generates.generate`)."""
    rereads: bool = False
    """New weights can come while it samples: it asks for them before each token, and reads what it has of the rows
    again (`rlgraph.backends.engines.base.WeightRefresh`)."""
    keeps: bool = False
    """New weights can come while it samples, and it can go on with what it computed of the rows with older ones (`keep`
    of a `ModelHolding`)."""
    accumulates: bool = False
    """It adds up gradients over several calls: see `rlgraph.backends.engines.base.AccumulatesGradients`."""
    fuses: bool = False
    """Trainings of several models share the stages of its pipeline (`rlgraph.backends.engines.pipelined`)."""
    sleeps: bool = False
    """A model of it can be offloaded to the host's memory while others work on its devices: it has `sleep` and `wake`
    (`rlgraph.backends.engines.base.Offloads`)."""
    offload_overheads: OffloadOverheads = OffloadOverheads()
    """Its seconds on a GPU of going to sleep and of waking up, beside those of bytes."""
    saves: bool = False
    """A rank that has all of a model can write it: it has `save` (`rlgraph.backends.engines.base.Saves`)."""
    keeps_moments: bool = False
    """It tells what its optimizer keeps, and goes on with that (`rlgraph.backends.engines.base.KeepsMoments`): runs in
    which it trains can be saved on the way."""
    optimizers: frozenset[str] = frozenset({"adamw"})
    """The optimizers of `rlgraph.ops.optimizers` that it can step with."""
    optimizer: tuple[OptimizerMemory, ...] = ()
    """Where it can keep moments and wide weights of what it trains, as `optimizer=WHERE` in a schedule: on the device,
    or in the host's memory, where processors then make the update (ZeRO-Offload, arXiv 2101.06840). The first one is
    taken where neither a schedule nor a search says another."""
    shards_optimizer: bool = False
    """Data-parallel replicas shard the optimizer's state among them (ZeRO's first stage, arXiv 1910.02054); else they
    add gradients up and each takes the whole step."""
    gathers_later: frozenset[DeviceKind] = frozenset()
    """Devices on which replicas that shard the optimizer's state get the weights that others have updated while the
    next pass is computed, of which as much is hidden as of gradients; else an update waits for them."""
    memory: EngineMemory = field(default=EngineMemory())
    rates: Mapping[DeviceKind, Mapping[WorkKind, Rates]] = field(default_factory=lambda: PLAIN)
    """Its rates by kind of device and of work, where none were measured."""
    plain_attention: bool = False
    """Its attention is computed by kernels that run on every GPU (FlashAttention 2), not by the fastest for each."""
    absorbs_latent: bool = False
    """Where keys and values are made of a few numbers a token, generated tokens attend to these numbers, and no keys or
    values of earlier tokens are made again."""
    settings: frozenset[Setting] = frozenset()
    """Fields of the way a group holds a model of which a search tries several values."""

    # Who takes it

    preference: int = 0
    """Where a schedule names no engine, the installed one that can do the work and has the highest preference is taken;
    0: never."""
    embedded: bool = False
    """It is the one of the local backend and of `--debug`, where models are in the user's own process. There is one, it
    can do everything, and it is always there."""
    requires: tuple[str, ...] = ()
    """Modules that have to be installed."""
    install: str = ""
    """What `pip install` takes to install them."""

    @property
    def axes_inner_first(self) -> tuple[str, ...]:
        """The axes as a schedule lists them, inner ones first."""
        return self.axes[::-1]

    def transferred_tensors(self, shape: Shape, mesh: Mesh, rank: int, kind: ModelKind) -> tuple[LocalTensor, ...]:
        """Return what travels when the weights have changed: a rank's tensors; for models with adapters only these, all
        of them unless the engine lays them out."""
        complete = shape.adapters is not None and not self.lays_out_adapters
        return (replicated_layout if complete else self.layout)(shape, mesh, rank, kind)

    def allocated_adapter_rank(self, rank: int) -> int:
        """Return the rank for which adapters of a rank have room."""
        return min((room for room in self.adapter_ranks if room >= rank), default=rank)

    def adapter_ways(self, shape: Shape, dtype: str, kind: DeviceKind) -> tuple[Adapting, ...]:
        """Return the ways in which it can hold a model's adapters exactly, beside weights of a dtype on a kind of
        device."""
        if shape.adapters is None:
            return ()
        return tuple(way for way in self.adapters if not self.adapter_problems(way, shape, dtype, kind))

    def adapter_problems(self, way: str, shape: Shape, dtype: str, kind: DeviceKind) -> Sequence[str]:
        """Return why it does not hold a model's adapters exactly in a way; empty where it does."""
        rounding = self.adapter_rounding(way, dtype, kind)
        return self.adapter_faults(way, shape) or ((rounding,) if rounding else ())

    def adapter_faults(self, way: str, shape: Shape) -> Sequence[str]:
        """Return why it cannot hold a model's adapters in a way that a schedule names; empty where it can."""
        if shape.adapters is None:
            return (f"holds no adapters {way}: the model has none",)
        return self.separate_adapter_faults(shape) if way == "apart" else ()

    def adapter_rounding(self, way: str, dtype: str, kind: DeviceKind) -> str:
        """Return what is lost of adapters that are held in a way beside weights of a dtype; empty where it is exact."""
        stored = self.memory.cpu_dtype if kind == "cpu" and self.memory.cpu_dtype else dtype
        lost = self.adapter_dtypes.get(way, {}).get(stored)
        return f"has adapters {way} in weights of {stored}, {lost}" if lost else ""

    def gather_choices(self, split: Mesh, chosen: str = "") -> Sequence[str]:
        """Return the ways among which there is a choice on a mesh, the first one empty. chosen: the way that a
        schedule names; there is no choice where nothing is sharded."""
        if split.axis_size("fsdp") == 1:
            return () if chosen else ("",)
        return (chosen,) if chosen else ("", *self.gather[1:])

    def optimizer_choices(self, chosen: str = "", host: bool = False) -> Sequence[str]:
        """Return the places of an optimizer's state among which there is a choice, the first one empty. chosen: the
        place that a schedule names. host: whether others than the first one are to be tried."""
        if chosen:
            return (chosen,) if chosen in self.optimizer else ()
        return ("", *self.optimizer[1:]) if host else ("",)

    def shares_base(self, split: Mesh) -> bool:
        """Return whether models of a process that begin with one base have it once. Ranks that shard a model's
        parameters gather those of one model at a time."""
        return self.lays_out_adapters and split.axis_size("fsdp") == 1

    def column_rank_count(self, split: Mesh) -> int:
        """Return over how many ranks each layer is split by columns."""
        return math.prod(split.axis_size(axis) for axis in self.columns)

    def packs_rows(self, attention: str = "") -> bool:
        """Return whether rows are packed where attention is computed in a way that it knows; empty: its default."""
        return self.packs and (not attention or self.attention[attention].packs)

    def keeps_attention_scores(self, attention: str) -> bool:
        """Return whether a layer keeps a weight for each pair of tokens."""
        return bool(attention) and self.attention[attention].scores

    def supports(self, operation: str, split: Iterable[str] = ()) -> bool:
        """Return whether it can do an operation, with replicas that are split along some axes."""
        excluded = any(operation in self.unsplit_operations.get(axis, ()) for axis in split)
        return operation in self.operations and not excluded

    @property
    def trains(self) -> bool:
        """Whether it can train a model."""
        return "train" in self.operations

    @property
    def generates(self) -> bool:
        """Whether it can generate with a model."""
        return "generate" in self.operations

    def reads_jointly(self, axes: Iterable[str], mixes: bool = False) -> bool:
        """Return whether it has sums over the vocabulary of several models that are split along these axes, and samples
        from mixtures of them where these are asked for."""
        return self.joint_axes is not None and set(axes) <= set(self.joint_axes) and (self.mixes or not mixes)

    def can_compute(self, dtype: str, device: DeviceKind | None = None) -> bool:
        """Return whether it computes in a dtype, on a kind of device or on any."""
        if self.dtypes is None:
            return True
        return any(dtype in dtypes for kind, dtypes in self.dtypes.items() if device in (None, kind))

    def accepts_kind(self, kind: ModelKind) -> bool:
        """Return whether it can do anything with models of a kind."""
        return bool(self.operations & _ONLY_KIND[kind])


_ONLY_KIND = {
    "causal_lm": {"generate", "interact", "logprobs", "entropy", "distribution", "likeliest"},
    "value_lm": {"values"},
    "reward_lm": {"score"},
}
"""The operations that only models of a kind do."""
