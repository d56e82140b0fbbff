"""What each piece of a plan's work takes: the one place where search, simulator and explanations ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from rlgraph.backends.enginespec.legal import adapted
from rlgraph.backends.enginespec.registry import engine
from rlgraph.catalog.clusters.cluster import Cluster, Island
from rlgraph.ir.layout import share
from rlgraph.ir.plan import Group, Plan
from rlgraph.ops.nodes import NODES, planned_as
from rlgraph.passes.cost import caches, decoding, memory, time
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.fusing import Fusion, Training, fusion
from rlgraph.passes.cost.memory import Footprint
from rlgraph.passes.cost.sampled import Sampled, sampled
from rlgraph.passes.cost.time import Batch, Cost

ROW_BYTES = 20
"""That travel for each token of a row: the token itself, log-probabilities, what is computed for it."""


class TaskModel:
    """What a task with a model takes on a split, by the number of copies: log-probabilities, values or scores of some
    rows, an optimizer step on them, or rows that are sampled. What does not depend on the copies is worked out once."""

    __slots__ = (
        *("_common", "_each_rank", "_each_token", "_fixed", "batches", "constants", "deployment", "generation", "one"),
        *("passes", "rows", "tokens", "update"),
    )

    def __init__(
        self,
        operation: str,
        config: ModelConfig,
        deployment: Deployment,
        constants: Constants,
        batches: Sequence[Batch],
        alike: TaskModel | None = None,
    ) -> None:
        """alike: of the same task on the same split, whose micro-batches or cache are of another size."""
        self.deployment, self.constants, self.batches = deployment, constants, batches
        op = NODES[operation]
        kind: Literal["forward", "train"] = "train" if op.trains else "forward"
        reads = op.scores or op.region
        self.passes = time.latency(kind, config, deployment, constants, batches) if reads else None
        """Of a copy; None: it samples, or only takes a step."""
        self.generation: decoding.Generation | None = None
        """None: it samples nothing."""
        if self.passes is None and batches:
            known = alike.generation if alike else None
            self.generation = decoding.Generation(config, deployment, constants, batches[0], known)
        if alike:
            for name in ("_common", "_each_rank", "_each_token", "_fixed", "one", "rows", "tokens", "update"):
                setattr(self, name, getattr(alike, name))
            return
        self._common: dict[int, tuple[float, float, float]] = {}
        """By the copies: seconds until the work begins, rows of a copy, seconds of the optimizer's step."""
        self.one = deployment.mesh.copy_size
        self.tokens = sum(batch.tokens().tokens for batch in batches)
        self.rows = sum(batch.rows for batch in batches)
        # Orders, and rows on their way, take so much, and so much more for each process, and each token.
        ordered, sent = order(0, constants).seconds, rows(0.0, deployment.island, constants).seconds
        self._fixed = ordered + sent
        self._each_rank = order(1, constants).seconds - ordered
        self._each_token = rows(1.0, deployment.island, constants).seconds - sent
        self.update = time.update(config, deployment, constants) if op.updates else None

    def work(self, copies: int) -> Cost:
        """The work alone, of all copies."""
        rows = self.share(copies)
        found = self.passes.cost(rows) if self.passes else self._sample(copies)
        return found + self.update.cost(copies) if self.update else found

    def cost(self, copies: int) -> Cost:
        """From its order to its answer, the model being there."""
        return self.work(copies) + self._order(copies) + self._rows(copies)

    def seconds(self, copies: int) -> float:
        """Those of `cost`, to rounding: the search asks for nothing else, and often."""
        if copies not in self._common:
            self._common[copies] = self._beside(copies)
        begins, rows, updates = self._common[copies]
        return begins + (self.passes.seconds(rows) if self.passes else self._sample(copies).seconds) + updates

    def in_parts(self, copies: int, chunks: int) -> float:
        """Seconds, if each stage had so many parts of the layers."""
        if copies not in self._common:
            self._common[copies] = self._beside(copies)
        begins, rows, updates = self._common[copies]
        return begins + (self.passes.in_parts(rows, chunks) if self.passes else 0.0) + updates

    def _beside(self, copies: int) -> tuple[float, float, float]:
        rows = self.share(copies)
        mine = rows if self.deployment.threads == 1 else self.share(copies, 1)
        found = self._fixed + self._each_rank * self.one * copies
        if self.rows:
            found += self._each_token * self.tokens * mine / self.rows
        return found, rows, self.update.seconds(copies) if self.update else 0.0

    def filled(self, copies: int) -> tuple[float, float, float, float]:
        """The least seconds that it adds to a pipeline in which others work while its stages wait, and with which it
        has one order. And what more may be of it: seconds by which its longest micro-batch takes longer, seconds of a
        forward and of a backward."""
        found = self.seconds(copies) - self._order(copies).seconds
        waits, late, turn = self.passes.waits(self._common[copies][1]) if self.passes else (0.0, 0.0, 0.0)
        forward = turn / (4 if self.deployment.recompute else 3)
        return found - waits, late, forward, turn - forward

    def beside(self, copies: int) -> tuple[float, float]:
        """Seconds of its order, and until its rows are there."""
        return self._order(copies).seconds, self._rows(copies).seconds

    def training(self, config: ModelConfig, copies: int, turned: bool) -> Training:
        """What it is to those that it shares a pipeline with."""
        assert self.passes and self.update
        rows, update = self.share(copies), self.update.cost(copies)
        return Training(config.name, config, self.deployment, self.passes, rows, update, turned)

    def share(self, copies: int, threads: int = 0) -> float:
        """The rows of the copy, and the thread, that has most of them. threads: 0: as many as there are."""
        parts, found = copies * (threads or self.deployment.threads), 0.0
        for batch in self.batches:
            found += batch.share(parts)
        return found

    def _sample(self, copies: int) -> Cost:
        return self.generation.cost(copies) if self.generation else Cost()

    def _order(self, copies: int) -> Cost:
        return order(self.one * copies, self.constants)

    def _rows(self, copies: int) -> Cost:
        mine = self.share(copies, 1)
        return rows(self.tokens * mine / self.rows if self.rows else 0.0, self.deployment.island, self.constants)


class Spread(TaskModel):
    """The same where copies lie on several islands: rows are dealt evenly, so that what the slowest copy takes is what
    all take. Those that are trained exchange with each other from island to island."""

    __slots__ = ("parts",)

    def __init__(
        self,
        operation: str,
        config: ModelConfig,
        deployment: Deployment,
        constants: Constants,
        batches: Sequence[Batch],
        alike: TaskModel | None = None,
    ) -> None:
        known: Sequence[TaskModel | None] = (None,) * len(deployment.island.parts)
        if isinstance(alike, Spread):
            known = alike.parts
        own = [replace(deployment, island=part) for part in deployment.island.parts]
        self.parts: tuple[TaskModel, ...] = tuple(
            TaskModel(operation, config, each, constants, batches, other)
            for each, other in zip(own, known, strict=True)
        )
        for each in self.parts:
            if each.update:
                each.update = replace(each.update, island=deployment.island)
        first, *_ = self.parts
        self.deployment, self.constants, self.batches = deployment, constants, batches
        self.one, self.tokens, self.rows = first.one, first.tokens, first.rows
        self.passes, self.generation, self.update = first.passes, first.generation, first.update

    def slowest(self, copies: int) -> TaskModel:
        """On the island whose copies take the longest."""
        return max(self.parts, key=lambda each: each.seconds(copies))

    def work(self, copies: int) -> Cost:
        return max((each.work(copies) for each in self.parts), key=lambda cost: cost.seconds)

    def cost(self, copies: int) -> Cost:
        return self.slowest(copies).cost(copies)

    def seconds(self, copies: int) -> float:
        return max([each.seconds(copies) for each in self.parts])

    def in_parts(self, copies: int, chunks: int) -> float:
        return max([each.in_parts(copies, chunks) for each in self.parts])

    def filled(self, copies: int) -> tuple[float, float, float, float]:
        return self.slowest(copies).filled(copies)

    def training(self, config: ModelConfig, copies: int, turned: bool) -> Training:
        return self.slowest(copies).training(config, copies, turned)


def task_model(
    operation: str,
    config: ModelConfig,
    deployment: Deployment,
    constants: Constants,
    batches: Sequence[Batch],
    alike: TaskModel | None = None,
) -> TaskModel:
    """On one island or on several. Arguments as `TaskModel` has them."""
    kind = Spread if deployment.island.parts else TaskModel
    return kind(operation, config, deployment, constants, batches, alike)


def footprint(operation: str, config: ModelConfig, deployment: Deployment, batches: Sequence[Batch]) -> Footprint:
    """The memory of the work on the fullest rank."""
    return memory_model(operation, config, deployment, batches).at(deployment.dp)


def memory_model(
    operation: str,
    config: ModelConfig,
    deployment: Deployment,
    batches: Sequence[Batch],
    alike: memory.MemoryModel | None = None,
) -> memory.MemoryModel:
    """The memory of the work on a split, by the number of copies. alike: of the same work on the same split, whose
    micro-batches or cache are of another size."""
    op = NODES[operation]
    if op.generates:
        return caches.generating(config, deployment, batches)
    fed = memory.Reading if not op.trains else memory.Accumulating if op.part_of else memory.Training
    return fed(config, deployment, batches, alike)


def onload(operation: str, held: float, deployment: Deployment, synced: bool) -> Cost:
    """A model that is off-loaded comes from the host's memory, and goes back if it changed. Weights that are brought
    from where they are trained need not come."""
    trips = 2 if NODES[operation].trains else 0 if synced else 1
    return Cost(memory=trips * held / deployment.island.device.host)


def order(ranks: int, constants: Constants, apart: tuple[float, float] | None = None) -> Cost:
    """Until a group of so many processes has its orders and has answered, beside the work. apart: of the link to its
    island, from that of the process that gives orders."""
    both_ways = 2 * apart[1] if apart else 0.0
    return Cost(overhead=constants.host.order + constants.host.order_rank * ranks, communication=both_ways)


def rows(tokens: float, island: Island, constants: Constants) -> Cost:
    """Until the rows are there that a copy works on, which get to it while others get theirs."""
    sent = tokens * ROW_BYTES
    return Cost(communication=sent / (island.network * constants.transfer) + island.network_latency)


def sent_apart(tokens: float, apart: tuple[float, float], constants: Constants) -> Cost:
    """Until the rows are there that one copy, or the host, sends to one on another island."""
    bandwidth, latency = apart
    return Cost(communication=tokens * ROW_BYTES / (bandwidth * constants.transfer) + latency)


def host(op: str, count: float, constants: Constants) -> Cost:
    """What the host does with so many rows."""
    each = constants.host.function_row if NODES[op].foreign else constants.host.row
    return Cost(overhead=constants.host.node + each * count)


class Predictor:
    """The costs of one plan."""

    def __init__(
        self, plan: Plan, configs: Mapping[str, ModelConfig], cluster: Cluster, constants: Constants, threads: int = 1
    ) -> None:
        """threads: of engines that compute micro-batches side by side."""
        self.plan, self.configs, self.cluster, self.constants = plan, configs, cluster, constants
        self.threads = threads
        self._pools = {pool.name: pool for pool in plan.pools}

    def island(self, group: Group) -> Island:
        """Where a group's pool is: what needs no devices is beside the first ones."""
        if not group.models:
            return self.cluster.islands[0]
        pool = self._pools[group.pool]
        return self.cluster.over(pool.first, pool.devices)

    def lies(self, group: Group, copy: int | None = None) -> Island:
        """Where a group has its processes, or those of one of its copies: of a pool over several islands it may be on
        fewer."""
        found = self.island(group)
        if not found.parts:
            return found
        first, devices = self._pools[group.pool].first, group.devices
        if copy is not None:
            devices = devices[copy * group.mesh.copy_size :][: group.mesh.copy_size]
        return self.cluster.joined(tuple(sorted({self.cluster.island(first + device) for device in devices})))

    def deployment(self, model: str, group: Group, copy: int | None = None) -> Deployment:
        """Where and how a group, or one of its copies, works with a model."""
        how, config, lies = self.plan.holding(model, group.name), self.configs[model], self.lies(group, copy)
        ways = adapted(engine(group.engine), config.shape, config.dtype, lies.device.kind, how.adapters)
        return Deployment(
            group.engine,
            lies,
            group.mesh,
            how.micro_tokens,
            how.recompute,
            how.attention,
            next(iter(ways), ""),
            how.gather,
            how.kv_bytes,
            self.threads if engine(group.engine).threads and group.mesh.copy_size == 1 else 1,
        )

    def work(self, model: str, operation: str, batches: Sequence[Batch], copies: int | None = None) -> Cost:
        """The work alone, on all copies of the group that does it, or on so many of them."""
        deployment = self.deployment(model, self.plan.role(model, planned_as(operation)))
        found = task_model(operation, self.configs[model], deployment, self.constants, batches)
        return found.work(copies or deployment.dp)

    def fused(self, works: Sequence[tuple[str, Sequence[Batch]]]) -> Fusion:
        """Trainings of models, each on its rows, in one pipeline; or of one, in a pipeline of its own."""
        found = []
        for model, batches in works:
            group, shared = self.plan.role(model, "train"), self.plan.fused_with(model)
            deployment = self.deployment(model, group)
            task = task_model("train", self.configs[model], deployment, self.constants, batches)
            turned = bool(shared and model in shared.turned)
            found.append(replace(task.training(self.configs[model], deployment.dp, turned), group=group.name))
        return fusion(found)

    def sampled(
        self, model: str, operation: str, prompts: Sequence[float], answers: Sequence[float], samples: int, copy: int
    ) -> Sampled:
        """The work of one copy that samples, on its rows alone: tokens of each, so many samples of a prompt behind each
        other."""
        group, config = self.plan.role(model, planned_as(operation)), self.configs[model]
        deployment = self.deployment(model, group, copy)
        found = []
        for thread in range(deployment.threads):
            start, stop = (samples * each for each in share(len(answers) // samples, deployment.threads, thread))
            rows = prompts[start:stop], answers[start:stop]
            found.append(sampled(config, deployment, self.constants, *rows, samples))
        slowest = max((each.cost for each in found), key=lambda cost: cost.seconds)
        pace = found[0].pace if len(found) == 1 else None
        return Sampled(slowest, [end for each in found for end in each.ends], pace)

    def order(self, group: str, copies: int | None = None) -> Cost:
        """Until a group, or so many of its copies, has its orders and has answered."""
        found = self.plan.group(group)
        ranks = found.mesh.size if copies is None else copies * found.mesh.copy_size
        apart = self.cluster.apart(self.cluster.islands[0], self.island(found))
        return order(1 if found.code else ranks, self.constants, apart)

    def rows(self, source: str, target: str, tokens: float, copies: int | None = None) -> Cost:
        """An edge between two groups, or to so many copies of the second."""
        sending, found = self.plan.group(source), self.plan.group(target)
        if sending.pool != found.pool and (apart := self.cluster.apart(self.island(sending), self.island(found))):
            # Each copy has a link of its own; the host, and a process that runs a function, is one.
            ends = [group.mesh.length("dp") if group.models else 1 for group in (sending, found)]
            return sent_apart(tokens / min(ends[0], copies or ends[1]), apart, self.constants)
        if found.code:
            # Nobody says where its cpus are: beside the first devices, and another machine than the rows'.
            return rows(tokens, self.cluster.islands[0], self.constants)
        if source == target or not found.models:
            return Cost()
        deployment = self.deployment(found.models[0], found)
        return rows(tokens / (copies or deployment.dp), deployment.island, self.constants)

    def onload(self, model: str, group: str, operation: str, batches: Sequence[Batch]) -> Cost:
        """Until a model that is off-loaded is there, and after it until it is away again; nothing where it stays."""
        held = self.plan.group(group)
        if not self.plan.holding(model, group).offload:
            return Cost()
        deployment = self.deployment(model, held)
        trains = any((role.model, role.operation, role.group) == (model, "train", group) for role in self.plan.roles)
        kind = "train" if trains else operation
        kept = footprint(kind, self.configs[model], replace(deployment, kv_bytes=1), batches).resident
        return onload(kind, kept.total, deployment, self.plan.brought(model, group))

    def sync(self, model: str, source: str, target: str, copies: int | None = None) -> Cost:
        """New weights from one group to another, or to so many of its copies."""
        from_, to = self.plan.group(source), self.plan.group(target)
        receiving = self.deployment(model, to)
        ends = self.deployment(model, from_), receiving if copies is None else receiving.copied(copies)
        apart = self.cluster.apart(ends[0].island, ends[1].island)
        return time.sync(self.configs[model], *ends, from_.pool == to.pool, self.constants, apart)

    def host(self, op: str, count: float) -> Cost:
        """What the host does with so many rows."""
        return host(op, count, self.constants)


class Here(Predictor):
    """The same where all work is done in one process, which needs no orders and sends nothing."""

    def order(self, group: str, copies: int | None = None) -> Cost:
        return Cost()

    def rows(self, source: str, target: str, tokens: float, copies: int | None = None) -> Cost:
        return Cost()

    def sync(self, model: str, source: str, target: str, copies: int | None = None) -> Cost:
        return Cost()
