"""The plan: where a program's work runs. It is a versioned document with all that a backend needs besides the graph."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from rlgraph.errors.lookups import thing_of_name
from rlgraph.ir.mesh import Mesh, make_mesh

VERSION = 2

LARGEST = 1 << 20
"""The limit of counts of devices, cpus, rows and the like: a larger one is a typing error."""

HOST = "host"
"""The name of the pool and the group that do what needs no model: data, functions, mathematics, states. It is one
process without a device, or several for the cpus that a schedule gives it, which share mathematics on rows."""


CODE = "python"
"""The engine of a group that runs the user's functions and environments: it has no model, and a cpu for each rank."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Devices that are used together, so that work on one pool takes turns; or cpus, each of which is a worker of its
    own."""

    name: str
    devices: int
    first: int = 0
    """The number of its first device in the cluster; the others follow."""
    cpus: int = 0
    """The cpus of a pool for functions and environments, or of the host, which has no devices."""

    @property
    def concurrent_requests(self) -> int:
        """How many requests it can work on at the same time."""
        return self.cpus or 1


@dataclass(frozen=True, slots=True)
class Group:
    """Processes of one engine that work together, one for each rank of the mesh; they may hold several models."""

    name: str
    pool: str
    engine: str
    """Its name in `rlgraph.backends.enginespec`; `host` for the group that does what needs no model, `python` for one
    that runs the user's code."""
    mesh: Mesh
    devices: tuple[int, ...]
    """For each rank the device, or cpu, of the pool that it runs on."""
    models: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    """The user's functions and environments that it runs: each rank takes rows as it becomes free."""

    def result_ranks(self, turned: bool = False) -> tuple[int, ...]:
        """Return for each data-parallel replica the rank that has the results: the first of the last stage. turned:
        for a model whose pipeline stages are in reverse order."""
        return tuple(self.result_rank(copy, turned) for copy in range(self.mesh.axis_size("dp")))

    def result_rank(self, copy: int, turned: bool = False) -> int:
        """Return that rank of one replica."""
        return self.mesh.rank_at(dp=copy, pp=0 if turned else self.mesh.axis_size("pp") - 1)

    def replica_ranks(self) -> tuple[tuple[int, ...], ...]:
        """Return the ranks of each data-parallel replica."""
        return tuple(tuple(self.mesh.ranks_at(dp=copy)) for copy in range(self.mesh.axis_size("dp")))


@dataclass(frozen=True, slots=True)
class Role:
    """One kind of work with a model's weights, and the group that does it."""

    model: str
    operation: str
    group: str


@dataclass(frozen=True, slots=True)
class ModelHolding:
    """How a group holds a model and works with it: settings that change time and memory, but no result."""

    model: str
    group: str
    micro_tokens: int = 0
    """The limit of padded tokens in a micro-batch; 0: the engine's default."""
    recompute: bool = False
    """Whether training recomputes activations, keeping only each layer's input."""
    attention: str = ""
    """The engine's way of computing attention; empty: its default."""
    adapters: str = ""
    """The engine's way of holding adapters; empty: its default."""
    gather: str = ""
    """How long the ranks of a sharded model keep gathered parameters in training, one of the engine's ways; empty: its
    default."""
    optimizer: str = ""
    """Where training keeps the optimizer's state, one of the engine's places; empty: on the device."""
    offload: bool = False
    """Whether it is in the host's memory while the group does not use it."""
    kv_bytes: int = 0
    """Bytes of each rank's KV cache for generation; 0: as the engine chooses."""
    share: float = 0.0
    """The share of a device's memory for weights and cache, where nobody says how large the cache is; 0: as the engine
    chooses."""
    max_len: int = 0
    """The most tokens of a row, prompt and response together; 0: as many as the cache has room for, and positions
    reach."""
    delta: bool = False
    """Whether a sync of its weights sends only the elements that changed."""
    reread: bool = False
    """Whether it takes new weights while it samples, where the program lets rows span versions, and reads the prefixes
    of the rows again with them."""
    keep: bool = False
    """Whether it takes new weights while it samples and keeps what it computed with the older ones. Without `reread`
    and `keep`, the rows end first."""
    replica: bool = False
    """Whether its data-parallel replicas take new weights one by one, and not together."""

    @property
    def refreshes_while_sampling(self) -> bool:
        """Whether it takes new weights while it samples."""
        return self.reread or self.keep


@dataclass(frozen=True, slots=True)
class TailMove:
    """Moves the last rows of a table that a model samples to few of its data-parallel replicas, so that the devices of
    the others can do what comes next."""

    table: str
    under: float
    """The tail begins when fewer rows than this are in unfinished blocks; below 1, a share of the sampled rows."""
    on: int
    """The number of replicas that go on."""

    def row_limit(self, asked: int) -> float:
        """Return `under` as a number of rows, where `asked` are sampled."""
        return self.under * asked if self.under < 1 else self.under


By = Literal["longest", "column", "function"]
"""What predicts a row's length: earlier rows of its prompt, a column of the data, or a function of the user's."""


@dataclass(frozen=True, slots=True)
class AdmissionOrder:
    """Starts the sampled rows of a table in the order of their expected length, the longest first, and balances the
    model's replicas by it."""

    table: str
    by: By
    name: str = ""
    """The name of the column or the function."""


@dataclass(frozen=True, slots=True)
class FusedTraining:
    """Models whose trainings share the stages of one group's pipeline and fill each other's bubbles. The stages'
    timetable follows from the numbers of micro-batches."""

    models: tuple[str, ...]
    turned: tuple[str, ...] = ()
    """The models whose stages are in reverse order."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which groups of processes do a program's work, on which devices, and how."""

    program: str
    pools: tuple[Pool, ...]
    groups: tuple[Group, ...]
    roles: tuple[Role, ...]
    owners: tuple[tuple[str, str], ...]
    """For each model the group with the authoritative weights: the one that trains it, or its first."""
    blocks: tuple[tuple[str, int], ...] = ()
    """For each streamed table the number of rows of a block."""
    holdings: tuple[ModelHolding, ...] = ()
    """The holdings of models that differ from their engine's defaults."""
    cluster: str = ""
    """The text of the cluster that it was made for; empty where none was named."""
    free: tuple[str, ...] = ()
    """Streamed tables whose blocks go to whichever replica is free; of others each replica has a fixed share."""
    tails: tuple[TailMove, ...] = ()
    fused: tuple[FusedTraining, ...] = ()
    admits: tuple[AdmissionOrder, ...] = ()
    version: int = field(default=VERSION)

    def group(self, name: str) -> Group:
        """Return the group of this name. Raise UnknownName."""
        return thing_of_name("the plan", "group", name, self.groups)

    def group_of_role(self, model: str, operation: str) -> Group:
        """Return the group that does this operation with a model."""
        return self.group(next(role.group for role in self.roles if (role.model, role.operation) == (model, operation)))

    @property
    def cpus_of_code(self) -> dict[str, int]:
        """How many cpus of their own the user's functions and environments have; nothing for those without."""
        return {name: group.mesh.rank_count for group in self.groups for name in group.code}

    def group_of_code(self, code: str) -> Group | None:
        """Return the group that runs a function or an environment; None if it has no pool of its own."""
        return next((group for group in self.groups if code in group.code), None)

    def works_independently(self, pool: Pool) -> bool:
        """Return whether parts of a pool work independently: its cpus, or replicas that take blocks when they are
        free."""
        groups = [group for group in self.groups if group.pool == pool.name]
        return any(group.code or (self.free and group.models and group.mesh.axis_size("dp") > 1) for group in groups)

    def group_for(self, model: str, operation: str, code: str) -> Group:
        """Return the group that does a node's work, with a model or the user's code; the host does all else."""
        if model:
            return self.group_of_role(model, operation)
        return self.group_of_code(code) or self.group(HOST)

    def owner(self, model: str) -> Group:
        """Return the group with the authoritative weights of a model."""
        return self.group(dict(self.owners)[model])

    def gets_synced(self, model: str, group: str) -> bool:
        """Return whether a group gets a model's weights by syncs from the group that trains it."""
        trained = any((role.model, role.operation) == (model, "train") for role in self.roles)
        return trained and dict(self.owners).get(model, group) != group

    def describe_model_work(self, model: str, group: str) -> str:
        """Return what a group does with a model, for the user: `actor`, or `actor.train, logprobs` where other groups
        have the model, too."""
        roles = [role for role in self.roles if role.model == model]
        operations = [role.operation for role in roles if role.group == group]
        return model if len(operations) == len(roles) else f"{model}.{', '.join(operations)}"

    def tail_of(self, table: str) -> TailMove | None:
        """Return the tail of a table; None if it has none."""
        return next((tail for tail in self.tails if tail.table == table), None)

    def admission_of(self, table: str) -> AdmissionOrder | None:
        """Return how the rows of a table are ordered when they start; None: as in the data."""
        return next((admit for admit in self.admits if admit.table == table), None)

    def fused_with(self, model: str) -> FusedTraining | None:
        """Return the trainings that share a pipeline with a model's; None if none does."""
        return next((fused for fused in self.fused if model in fused.models), None)

    def has_reversed_stages(self, model: str, group: str) -> bool:
        """Return whether a group has a model's stages in reverse order, with the first stage on its last ranks."""
        fused = self.fused_with(model)
        return fused is not None and model in fused.turned and self.group_of_role(model, "train").name == group

    def holding(self, model: str, group: str) -> ModelHolding:
        """Return how a group holds a model."""
        holdings = (holding for holding in self.holdings if (holding.model, holding.group) == (model, group))
        return next(holdings, ModelHolding(model, group))

    def one_rank_plan(self, engine: str) -> Plan:
        """Return the plan with one rank of an engine for each group, so that it can run in one process. Processes of
        the host need nobody else, and are as many objects there."""
        groups = tuple(
            group
            if group.name == HOST
            else replace(
                group, engine=engine if group.models else group.engine, mesh=make_mesh(), devices=group.devices[:1]
            )
            for group in self.groups
        )
        pools = tuple(pool if pool.name == HOST else replace(pool, cpus=min(1, pool.cpus)) for pool in self.pools)
        return replace(self, pools=pools, groups=groups, fused=())

    def syncs(self) -> tuple[tuple[str, str, str], ...]:
        """Return each sync as a model, the group that owns its weights, and a group that needs them after a change."""
        users = dict.fromkeys((role.model, role.group) for role in self.roles)
        owners = dict(self.owners)
        return tuple((model, owners[model], group) for model, group in users if owners[model] != group)
