"""The plan: where a program's work runs. All that a backend needs beside the graph, as a plain, versioned document."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from rlgraph.ir.mesh import Mesh, mesh

VERSION = 2

LARGEST = 1 << 20
"""Of devices, cpus, rows and the like: who wants a larger number has mistyped."""

HOST = "host"
"""The pool, and the group, that does what needs no model: data, functions, mathematics, states. One process, no
device."""


CODE = "python"
"""The engine of a group that runs the user's functions and environments: no model, a cpu for each rank."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Devices that are used together; what runs on one pool takes turns. Or cpus, each of which is a worker by
    itself."""

    name: str
    devices: int
    first: int = 0
    """Number of its first device in the cluster; its others follow."""
    cpus: int = 0
    """Of a pool on which functions and environments run, which has no devices."""

    @property
    def places(self) -> int:
        """How many pieces of work it can do at the same time."""
        return self.cpus or 1


@dataclass(frozen=True, slots=True)
class Group:
    """Processes of one engine that work together, one for each rank of the mesh. They may hold several models."""

    name: str
    pool: str
    engine: str
    """As `rlgraph.backends.enginespec` calls it; `host` for the group that does what needs no model, `python` for one
    that runs the user's code."""
    mesh: Mesh
    devices: tuple[int, ...]
    """For each rank the pool's device, or cpu, that it runs on."""
    models: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    """The user's functions and environments that it runs: each rank takes rows by itself, as it becomes free."""

    def speakers(self, turned: bool = False) -> tuple[int, ...]:
        """For each data-parallel copy, the rank that has the results: the last stage's first. turned: of a model whose
        stages lie the other way round."""
        return tuple(self.speaker(copy, turned) for copy in range(self.mesh.length("dp")))

    def speaker(self, copy: int, turned: bool = False) -> int:
        """Of one copy."""
        return self.mesh.rank(dp=copy, pp=0 if turned else self.mesh.length("pp") - 1)

    def copies(self) -> tuple[tuple[int, ...], ...]:
        """For each data-parallel copy its ranks."""
        return tuple(tuple(self.mesh.ranks(dp=copy)) for copy in range(self.mesh.length("dp")))


@dataclass(frozen=True, slots=True)
class Role:
    """One kind of work with a model's weights, and the group that does it."""

    model: str
    operation: str
    group: str


@dataclass(frozen=True, slots=True)
class Holding:
    """How a group holds a model and works with it: what changes time and memory, and no result."""

    model: str
    group: str
    micro_tokens: int = 0
    """Padded tokens of a micro-batch at most; 0: as many as the engine takes by itself."""
    recompute: bool = False
    """Training keeps each layer's input only, and computes what is inside again."""
    attention: str = ""
    """How attention is computed, of the ways that the engine knows; empty: as it does by itself."""
    adapters: str = ""
    """How adapters are held, of the ways that the engine knows; empty: as it does by itself."""
    gather: str = ""
    """For how long ranks that share its parameters out have what they gather in training, of the ways that the engine
    knows; empty: as it does by itself."""
    offload: bool = False
    """It is in the host's memory while the group does nothing with it."""
    kv_bytes: int = 0
    """Of each rank's cache of keys and values while it generates; 0: as the engine chooses."""
    delta: bool = False
    """Of new weights that come to it only the elements travel that changed."""
    reread: bool = False
    """New weights come to it while it samples, where the program lets rows span versions: what it has of the rows is
    read again with them."""
    keep: bool = False
    """The same, and what it computed of the rows with older weights stays. Where it does neither, the rows end first.
    """
    replica: bool = False
    """Its data-parallel copies take new weights one after the other, not together."""

    @property
    def refreshes(self) -> bool:
        """New weights come to it while it samples."""
        return self.reread or self.keep


@dataclass(frozen=True, slots=True)
class Tail:
    """The last rows of a table that a model samples go on on few of its data-parallel copies. The devices of the others
    serve what comes next."""

    table: str
    under: float
    """When fewer rows than this are in blocks that have not ended; below 1 a share of those that are sampled."""
    on: int
    """Copies."""

    def rows(self, asked: int) -> float:
        """How many rows that is, of so many."""
        return self.under * asked if self.under < 1 else self.under


By = Literal["longest", "column", "function"]
"""What says how long a row will be: what its prompt gave before, a column of the data, or a function of the user's."""


@dataclass(frozen=True, slots=True)
class Admit:
    """The rows of a table that are sampled begin in the order of how long they are expected to be, the longest first,
    and copies of the model get as much of them as the others, by that."""

    table: str
    by: By
    name: str = ""
    """Of the column, or the function."""


@dataclass(frozen=True, slots=True)
class Fused:
    """Trainings that share the stages of one group's pipeline, and fill each other's bubbles. Which stage does what
    when follows from how many micro-batches there are."""

    models: tuple[str, ...]
    turned: tuple[str, ...] = ()
    """Those of them whose first stage is the last one of the others."""


@dataclass(frozen=True, slots=True)
class Plan:
    program: str
    pools: tuple[Pool, ...]
    groups: tuple[Group, ...]
    roles: tuple[Role, ...]
    owners: tuple[tuple[str, str], ...]
    """For each model the group whose weights are the truth: the one that trains it, or its first."""
    blocks: tuple[tuple[str, int], ...] = ()
    """For each streamed table how many of its rows travel together."""
    holdings: tuple[Holding, ...] = ()
    """Of models that are not held as their engine does by itself."""
    cluster: str = ""
    """The cluster that it was made for, as `rlgraph.passes.cost` reads it; empty where none was named."""
    free: tuple[str, ...] = ()
    """Streamed tables whose blocks go to the data-parallel copy that is free; of others each copy has a fixed share."""
    tails: tuple[Tail, ...] = ()
    fused: tuple[Fused, ...] = ()
    admits: tuple[Admit, ...] = ()
    version: int = field(default=VERSION)

    def group(self, name: str) -> Group:
        return next(group for group in self.groups if group.name == name)

    def role(self, model: str, operation: str) -> Group:
        """The group that does this work."""
        return self.group(next(r.group for r in self.roles if (r.model, r.operation) == (model, operation)))

    def runs(self, code: str) -> Group | None:
        """The group that runs a function or an environment of the user's; None: it has no pool of its own."""
        return next((group for group in self.groups if code in group.code), None)

    def separate(self, pool: Pool) -> bool:
        """Whether parts of a pool work each by itself: its cpus, or copies of a model that take rows when they are
        free."""
        here = [group for group in self.groups if group.pool == pool.name]
        return any(group.code or (self.free and group.mesh.length("dp") > 1) for group in here)

    def doer(self, model: str, operation: str, code: str) -> Group:
        """The group that does a node's work: with a model, or of a function; all else is the host's."""
        if model:
            return self.role(model, operation)
        return self.runs(code) or self.group(HOST)

    def owner(self, model: str) -> Group:
        return self.group(dict(self.owners)[model])

    def brought(self, model: str, group: str) -> bool:
        """Whether the weights that a group has of a model come from where it is trained, again and again."""
        trained = any((role.model, role.operation) == (model, "train") for role in self.roles)
        return trained and dict(self.owners).get(model, group) != group

    def part(self, model: str, group: str) -> str:
        """What a group does with a model, as people know it: `actor`, or `actor.train, logprobs` where others have the
        model, too."""
        own = [role for role in self.roles if role.model == model]
        here = [role.operation for role in own if role.group == group]
        return model if len(here) == len(own) else f"{model}.{', '.join(here)}"

    def tail(self, table: str) -> Tail | None:
        """What becomes of the last rows of a table."""
        return next((each for each in self.tails if each.table == table), None)

    def admit(self, table: str) -> Admit | None:
        """In what order the rows of a table begin; None: in that of the data."""
        return next((each for each in self.admits if each.table == table), None)

    def fused_with(self, model: str) -> Fused | None:
        """Those that a model is trained together with."""
        return next((each for each in self.fused if model in each.models), None)

    def turned(self, model: str, group: str) -> bool:
        """Whether a group has a model's stages the other way round: its last ranks the first stage."""
        fused = self.fused_with(model)
        return fused is not None and model in fused.turned and self.role(model, "train").name == group

    def holding(self, model: str, group: str) -> Holding:
        """How a group holds a model."""
        found = (each for each in self.holdings if (each.model, each.group) == (model, group))
        return next(found, Holding(model, group))

    def alone(self, engine: str) -> Plan:
        """The same plan with one rank of an engine for each group, as it can run in one process."""
        groups = tuple(
            replace(group, engine=engine if group.models else group.engine, mesh=mesh(), devices=group.devices[:1])
            for group in self.groups
        )
        pools = tuple(replace(pool, cpus=min(1, pool.cpus)) for pool in self.pools)
        return replace(self, pools=pools, groups=groups, fused=())

    def syncs(self) -> tuple[tuple[str, str, str], ...]:
        """Model, the group that owns its weights, and a group that needs them after they changed."""
        users = dict.fromkeys((role.model, role.group) for role in self.roles)
        owners = dict(self.owners)
        return tuple((model, owners[model], group) for model, group in users if owners[model] != group)
