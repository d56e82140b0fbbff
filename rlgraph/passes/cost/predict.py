"""Predicts the cost of each piece of a plan's work: search, simulator and explanations all ask here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from rlgraph.backends.enginespec.layout_checks import adapter_choices
from rlgraph.backends.enginespec.registry import engine
from rlgraph.catalog.clusters.cluster import Cluster, NodeGroup
from rlgraph.ir.layout import even_range
from rlgraph.ir.plan import Group, Plan
from rlgraph.ops.nodes import NODES, placement_operation
from rlgraph.passes.cost import caches, decoding
from rlgraph.passes.cost.batch import ROW_BYTES, Batch, total_rows
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.forward_backward_memory import AccumulatingTrainingMemory, ForwardMemory, TrainingMemory
from rlgraph.passes.cost.fused_pipelines import FusedPipeline, PipelineTraining, fused_pipeline
from rlgraph.passes.cost.latency import LatencyModel, latency_model
from rlgraph.passes.cost.memory import NEVER_OFFLOADED, Footprint, MemoryModel
from rlgraph.passes.cost.optimizer_step import optimizer_step_cost_model
from rlgraph.passes.cost.sampling import EpisodeRows, SamplingResult, predict_sampling
from rlgraph.passes.cost.transitions import offload_round_trip_cost
from rlgraph.passes.cost.weights import weight_sync_cost
from rlgraph.passes.memo import get_or_compute


class TaskCostModel:
    """The cost of a task with a model on a split, by the number of replicas: log-probabilities, values or scores of
    some rows, an optimizer step on them, or rows that are sampled. What does not depend on this number is computed
    once."""

    __slots__ = (
        *("_common", "_each_rank", "_each_token", "_fixed", "_reads", "batches", "constants", "deployment"),
        *("generation", "one", "passes", "rows", "tokens", "update"),
    )

    passes: LatencyModel | None
    """The passes of one replica, computed when they are asked for: of splits that have no room nothing else is. None
    if it samples, or only takes a step."""

    def __init__(
        self,
        operation: str,
        config: ModelConfig,
        deployment: Deployment,
        constants: Constants,
        batches: Sequence[Batch],
        alike: TaskCostModel | None = None,
    ) -> None:
        """alike: the model of the same task on the same split with another size of micro-batches or cache."""
        self.deployment, self.constants, self.batches = deployment, constants, batches
        op = NODES[operation]
        kind: Literal["forward", "train"] = "train" if op.trains else "forward"
        reads, self._reads = op.scores or op.has_region, (kind, config)
        if not reads:
            self.passes = None
        self.generation: decoding.GenerationCostModel | None = None
        """The generation; None if it samples nothing."""
        if not reads and batches:
            similar = alike.generation if alike else None
            self.generation = decoding.GenerationCostModel(config, deployment, constants, batches[0], similar)
        if alike:
            for name in ("_common", "_each_rank", "_each_token", "_fixed", "one", "rows", "tokens", "update"):
                setattr(self, name, getattr(alike, name))
            return
        self._common: dict[int, tuple[float, float, float]] = {}
        """By the number of replicas: seconds until the work begins, rows of a replica, and seconds of the optimizer
        step."""
        self.one = deployment.mesh.replica_size
        # In rows' tokens: what is kept beside them counts as more of them.
        self.tokens = sum(batch.sent_bytes for batch in batches) / ROW_BYTES
        self.rows = total_rows(batches)
        # Requests and rows on their way have a fixed cost, and a cost for each process and each token.
        ordered, sent = request_cost(0, constants).seconds, rows_arrival_cost(0.0, deployment.island, constants).seconds
        self._fixed = ordered + sent
        self._each_rank = request_cost(1, constants).seconds - ordered
        self._each_token = rows_arrival_cost(1.0, deployment.island, constants).seconds - sent
        self.update = optimizer_step_cost_model(config, deployment, constants) if op.updates else None

    def __getattr__(self, name: str) -> object:
        # Reached where a slot is still empty.
        if name != "passes":
            raise AttributeError(name)
        kind, config = self._reads
        self.passes = latency_model(kind, config, self.deployment, self.constants, self.batches)
        return self.passes

    def work_cost(self, copies: int) -> Cost:
        """Return the cost of the work alone, of all replicas."""
        rows = self.rows_of_fullest_replica(copies)
        cost = self.passes.cost(rows) if self.passes else self._sample(copies)
        return cost + self.update.cost(copies) if self.update else cost

    def request_to_answer_cost(self, copies: int) -> Cost:
        """Return the cost from the request to the answer, with the model in place."""
        return self.work_cost(copies) + self._order(copies) + self._rows(copies)

    def seconds(self, copies: int) -> float:
        """Return the seconds of `cost`, to rounding: the search asks for nothing else, and often."""
        begins, rows, updates = get_or_compute(self._common, copies, lambda: self._begin(copies))
        return begins + (self.passes.seconds(rows) if self.passes else self._sample(copies).seconds) + updates

    def seconds_with_chunks(self, copies: int, chunks: int) -> float:
        """Return the seconds if each stage had so many chunks of the layers."""
        begins, rows, updates = get_or_compute(self._common, copies, lambda: self._begin(copies))
        return begins + (self.passes.seconds_with_chunks(rows, chunks) if self.passes else 0.0) + updates

    def least_seconds(self, copies: int, waits: bool) -> float:
        """Return seconds that no number of replicas up to this one takes less than: what these exchange is not counted,
        nor what is sampled. waits: whether the stages of a pipeline wait for each other, with one chunk on each."""
        return self.passes.least_seconds(self.rows_of_fullest_replica(copies), waits) if self.passes else 0.0

    def _begin(self, copies: int) -> tuple[float, float, float]:
        """Return the values that `_common` has for so many replicas."""
        rows = self.rows_of_fullest_replica(copies)
        thread_rows = rows if self.deployment.threads == 1 else self.rows_of_fullest_replica(copies, 1)
        seconds = self._fixed + self._each_rank * self.one * copies
        if self.rows:
            seconds += self._each_token * self.tokens * thread_rows / self.rows
        return seconds, rows, self.update.seconds(copies) if self.update else 0.0

    def least_pipeline_seconds(self, copies: int) -> tuple[float, float, float, float]:
        """Return the least seconds that the task adds to a pipeline whose stages do other work while they wait, and
        with which it shares a request; and then what may be added to them: seconds by which its longest micro-batch
        takes longer, seconds of a forward and of a backward."""
        total = self.seconds(copies) - self._order(copies).seconds
        waits, late, turn = self.passes.wait_seconds(self._common[copies][1]) if self.passes else (0.0, 0.0, 0.0)
        forward = turn / (4 if self.deployment.recompute else 3)
        return total - waits, late, forward, turn - forward

    def request_and_arrival_seconds(self, copies: int) -> tuple[float, float]:
        """Return the seconds of its request, and those until its rows arrive."""
        return self._order(copies).seconds, self._rows(copies).seconds

    def pipeline_training(self, config: ModelConfig, copies: int, turned: bool) -> PipelineTraining:
        """Return the task as one of the trainings that share a pipeline."""
        assert self.passes and self.update
        rows, update = self.rows_of_fullest_replica(copies), self.update.cost(copies)
        return PipelineTraining(config.name, config, self.deployment, self.passes, rows, update, turned)

    def rows_of_fullest_replica(self, copies: int, threads: int = 0) -> float:
        """Return the rows of the replica, and the thread, that has most of them. threads: 0: as many as the deployment
        has."""
        parts, fullest = copies * (threads or self.deployment.threads), 0.0
        for batch in self.batches:
            fullest += batch.rows_of_fullest_replica(parts)
        return fullest

    def _sample(self, copies: int) -> Cost:
        return self.generation.cost(copies) if self.generation else Cost()

    def _order(self, copies: int) -> Cost:
        return request_cost(self.one * copies, self.constants)

    def _rows(self, copies: int) -> Cost:
        thread_rows = self.rows_of_fullest_replica(copies, 1)
        return rows_arrival_cost(
            self.tokens * thread_rows / self.rows if self.rows else 0.0, self.deployment.island, self.constants
        )


class NodeGroupsTaskCostModel(TaskCostModel):
    """A task whose replicas lie on several node groups: rows are sharded evenly, so that all take as long as the
    slowest replica. Replicas that are trained communicate across node groups."""

    __slots__ = ("parts",)

    def __init__(
        self,
        operation: str,
        config: ModelConfig,
        deployment: Deployment,
        constants: Constants,
        batches: Sequence[Batch],
        alike: TaskCostModel | None = None,
    ) -> None:
        similar: Sequence[TaskCostModel | None] = (None,) * len(deployment.island.parts)
        if isinstance(alike, NodeGroupsTaskCostModel):
            similar = alike.parts
        deployments = [replace(deployment, island=part) for part in deployment.island.parts]
        self.parts: tuple[TaskCostModel, ...] = tuple(
            TaskCostModel(operation, config, part_deployment, constants, batches, part_alike)
            for part_deployment, part_alike in zip(deployments, similar, strict=True)
        )
        for part in self.parts:
            if part.update:
                part.update = replace(part.update, island=deployment.island)
        first, *_ = self.parts
        self.deployment, self.constants, self.batches = deployment, constants, batches
        self.one, self.tokens, self.rows = first.one, first.tokens, first.rows
        self.generation, self.update = first.generation, first.update

    def __getattr__(self, name: str) -> object:
        if name != "passes":
            raise AttributeError(name)
        self.passes = self.parts[0].passes
        return self.passes

    def slowest_node_group_task(self, copies: int) -> TaskCostModel:
        """Return the task on the node group whose replicas take the longest."""
        return max(self.parts, key=lambda part: part.seconds(copies))

    def work_cost(self, copies: int) -> Cost:
        return max((part.work_cost(copies) for part in self.parts), key=lambda cost: cost.seconds)

    def request_to_answer_cost(self, copies: int) -> Cost:
        return self.slowest_node_group_task(copies).request_to_answer_cost(copies)

    def seconds(self, copies: int) -> float:
        return max([part.seconds(copies) for part in self.parts])

    def least_seconds(self, copies: int, waits: bool) -> float:
        return max([part.least_seconds(copies, waits) for part in self.parts])

    def seconds_with_chunks(self, copies: int, chunks: int) -> float:
        return max([part.seconds_with_chunks(copies, chunks) for part in self.parts])

    def least_pipeline_seconds(self, copies: int) -> tuple[float, float, float, float]:
        return self.slowest_node_group_task(copies).least_pipeline_seconds(copies)

    def pipeline_training(self, config: ModelConfig, copies: int, turned: bool) -> PipelineTraining:
        return self.slowest_node_group_task(copies).pipeline_training(config, copies, turned)


def task_cost_model(
    operation: str,
    config: ModelConfig,
    deployment: Deployment,
    constants: Constants,
    batches: Sequence[Batch],
    alike: TaskCostModel | None = None,
) -> TaskCostModel:
    """Return the task model on one node group or on several. Arguments are as for `TaskCostModel`."""
    kind = NodeGroupsTaskCostModel if deployment.island.parts else TaskCostModel
    return kind(operation, config, deployment, constants, batches, alike)


def memory_footprint(
    operation: str, config: ModelConfig, deployment: Deployment, batches: Sequence[Batch]
) -> Footprint:
    """Return the memory of the work on the fullest rank."""
    return memory_model(operation, config, deployment, batches).replica_footprint(deployment.dp)


def memory_model(
    operation: str,
    config: ModelConfig,
    deployment: Deployment,
    batches: Sequence[Batch],
    alike: MemoryModel | None = None,
) -> MemoryModel:
    """Return the memory model of the work on a split, by the number of replicas. alike: the model of the same work on
    the same split with another size of micro-batches or cache."""
    op = NODES[operation]
    if op.generates:
        return caches.generation_memory_model(config, deployment, batches)
    model_class = ForwardMemory if not op.trains else AccumulatingTrainingMemory if op.part_of else TrainingMemory
    return model_class(config, deployment, batches, alike)


def request_cost(ranks: int, constants: Constants, apart: tuple[float, float] | None = None) -> Cost:
    """Return the cost until a group of so many processes has its request and has answered, beside the work. apart:
    bandwidth and latency of the link between the controller's node group and that of the group."""
    both_ways = 2 * apart[1] if apart else 0.0
    return Cost(overhead=constants.host.order + constants.host.order_rank * ranks, communication=both_ways)


def rows_arrival_cost(tokens: float, island: NodeGroup, constants: Constants) -> Cost:
    """Return the cost until a replica has the rows that it works on, while other replicas get theirs."""
    sent = tokens * ROW_BYTES
    return Cost(communication=sent / (island.network * constants.transfer) + island.network_latency)


def cross_node_group_rows_cost(tokens: float, apart: tuple[float, float], constants: Constants) -> Cost:
    """Return the cost until one replica has the rows that a replica on another node group, or the host, sends to
    it."""
    bandwidth, latency = apart
    return Cost(communication=tokens * ROW_BYTES / (bandwidth * constants.transfer) + latency)


def host_work_cost(op: str, count: float, constants: Constants) -> Cost:
    """Return the cost of work of the host on so many rows."""
    row_s = constants.host.function_row if NODES[op].foreign else constants.host.row
    return Cost(overhead=constants.host.node + row_s * count)


class Predictor:
    """Predicts the costs of the work of one plan."""

    def __init__(
        self, plan: Plan, configs: Mapping[str, ModelConfig], cluster: Cluster, constants: Constants, threads: int = 1
    ) -> None:
        """threads: of engines that compute micro-batches side by side."""
        self.plan, self.configs, self.cluster, self.constants = plan, configs, cluster, constants
        self.threads = threads
        self._pools = {pool.name: pool for pool in plan.pools}

    def pool_node_group(self, group: Group) -> NodeGroup:
        """Return the node group of a group's pool; a group without models is near the first devices."""
        if not group.models:
            return self.cluster.islands[0]
        pool = self._pools[group.pool]
        return self.cluster.node_groups_of_devices(pool.first, pool.devices)

    def node_groups_of_processes(self, group: Group, copy: int | None = None) -> NodeGroup:
        """Return the node groups where a group, or one of its replicas, has its processes: in a pool over several node
        groups it may be on fewer."""
        island = self.pool_node_group(group)
        if not island.parts:
            return island
        first, devices = self._pools[group.pool].first, group.devices
        if copy is not None:
            devices = devices[copy * group.mesh.replica_size :][: group.mesh.replica_size]
        return self.cluster.join_node_groups(
            tuple(sorted({self.cluster.node_group_number(first + device) for device in devices}))
        )

    def deployment(self, model: str, group: Group, copy: int | None = None) -> Deployment:
        """Return where and how a group, or one of its replicas, works with a model."""
        holding, config, lies = (
            self.plan.holding(model, group.name),
            self.configs[model],
            self.node_groups_of_processes(group, copy),
        )
        ways = adapter_choices(engine(group.engine), config.shape, config.dtype, lies.device.kind, holding.adapters)
        return Deployment(
            group.engine,
            lies,
            group.mesh,
            holding.micro_tokens,
            holding.recompute,
            holding.attention,
            next(iter(ways), ""),
            holding.gather,
            holding.kv_bytes,
            self.threads if engine(group.engine).threads and group.mesh.replica_size == 1 else 1,
            optimizer=holding.optimizer,
        )

    def work_cost(self, model: str, operation: str, batches: Sequence[Batch], copies: int | None = None) -> Cost:
        """Return the cost of the work alone, on all replicas of the group that does it, or on so many of them."""
        deployment = self.deployment(model, self.plan.group_of_role(model, placement_operation(operation)))
        task = task_cost_model(operation, self.configs[model], deployment, self.constants, batches)
        return task.work_cost(copies or deployment.dp)

    def fused_pipeline(self, works: Sequence[tuple[str, Sequence[Batch]]]) -> FusedPipeline:
        """Return the trainings of models, each on its rows, in one pipeline; or of one model, in a pipeline of its
        own."""
        trainings = []
        for model, batches in works:
            group, shared = self.plan.group_of_role(model, "train"), self.plan.fused_with(model)
            deployment = self.deployment(model, group)
            task = task_cost_model("train", self.configs[model], deployment, self.constants, batches)
            turned = bool(shared and model in shared.turned)
            trainings.append(
                replace(task.pipeline_training(self.configs[model], deployment.dp, turned), group=group.name)
            )
        return fused_pipeline(trainings)

    def sampling_result(
        self,
        model: str,
        operation: str,
        prompts: Sequence[float],
        answers: Sequence[float],
        samples: int,
        copy: int,
        played: EpisodeRows | None = None,
    ) -> SamplingResult:
        """Return the work of one replica that samples, on its rows alone. prompts, answers: tokens of each row; the
        `samples` rows of one prompt are adjacent. played: how they are episodes."""
        group, config = self.plan.group_of_role(model, placement_operation(operation)), self.configs[model]
        deployment = self.deployment(model, group, copy)
        results = []
        for thread in range(deployment.threads):
            start, stop = (samples * bound for bound in even_range(len(answers) // samples, deployment.threads, thread))
            rows = prompts[start:stop], answers[start:stop]
            part = played and replace(played, answers_s=played.answers_s[start:stop])
            results.append(predict_sampling(config, deployment, self.constants, *rows, samples, part))
        slowest = max((result.cost for result in results), key=lambda cost: cost.seconds)
        pace = results[0].pace if len(results) == 1 else None
        return SamplingResult(slowest, [end for result in results for end in result.end_times], pace)

    def request_cost(self, group: str, copies: int | None = None) -> Cost:
        """Return the cost until a group, or so many of its replicas, has its requests and has answered."""
        target = self.plan.group(group)
        ranks = target.mesh.rank_count if copies is None else copies * target.mesh.replica_size
        apart = self.cluster.link_between(self.cluster.islands[0], self.pool_node_group(target))
        return request_cost(1 if target.code else ranks, self.constants, apart)

    def row_transfer_cost(self, source: str, target: str, tokens: float, copies: int | None = None) -> Cost:
        """Return the cost of an edge between two groups, or to so many replicas of the second."""
        sending, receiving = self.plan.group(source), self.plan.group(target)
        if sending.pool != receiving.pool and (
            apart := self.cluster.link_between(self.pool_node_group(sending), self.pool_node_group(receiving))
        ):
            # Each replica has its own link; the host, and a process that runs a function, count as one.
            ends = [group.mesh.axis_size("dp") if group.models else 1 for group in (sending, receiving)]
            return cross_node_group_rows_cost(tokens / min(ends[0], copies or ends[1]), apart, self.constants)
        if receiving.code:
            # It is unknown where its CPUs are: assumed near the first devices, on another machine than the rows.
            return rows_arrival_cost(tokens, self.cluster.islands[0], self.constants)
        if source == target or not receiving.models:
            return Cost()
        deployment = self.deployment(receiving.models[0], receiving)
        return rows_arrival_cost(tokens / (copies or deployment.dp), deployment.island, self.constants)

    def offload_round_trip_cost(self, model: str, group: str, operation: str, batches: Sequence[Batch]) -> Cost:
        """Return the cost to load an off-loaded model and to off-load it again after the work; nothing for a model
        that stays."""
        holder = self.plan.group(group)
        if not self.plan.holding(model, group).offload:
            return Cost()
        deployment = self.deployment(model, holder)
        trains = any((role.model, role.operation, role.group) == (model, "train", group) for role in self.plan.roles)
        kind = "train" if trains else operation
        resident = memory_footprint(kind, self.configs[model], replace(deployment, kv_bytes=1), batches).resident
        moved = resident.total - resident.total_of(NEVER_OFFLOADED)
        return offload_round_trip_cost(kind, moved, deployment, self.plan.gets_synced(model, group), self.constants)

    def weight_sync_cost(self, model: str, source: str, target: str, copies: int | None = None) -> Cost:
        """Return the cost of new weights from one group to another, or to so many of its replicas."""
        from_, to = self.plan.group(source), self.plan.group(target)
        receiving = self.deployment(model, to)
        ends = self.deployment(model, from_), receiving if copies is None else receiving.with_replicas(copies)
        apart = self.cluster.link_between(ends[0].island, ends[1].island)
        return weight_sync_cost(self.configs[model], *ends, from_.pool == to.pool, self.constants, apart)

    def host_work_cost(self, op: str, count: float) -> Cost:
        """Return the cost of work of the host on so many rows."""
        return host_work_cost(op, count, self.constants)


class OneProcessPredictor(Predictor):
    """Predicts costs where all work is done in one process, which needs no requests and sends nothing."""

    def request_cost(self, group: str, copies: int | None = None) -> Cost:
        return Cost()

    def row_transfer_cost(self, source: str, target: str, tokens: float, copies: int | None = None) -> Cost:
        return Cost()

    def weight_sync_cost(self, model: str, source: str, target: str, copies: int | None = None) -> Cost:
        return Cost()
