"""Estimates how long a replica takes to generate: prompts are read, then the rows that fit are decoded together, one
token of each in a step. A step is bound by the memory's bandwidth, or by its fixed overhead."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

from rlgraph.backends.enginespec.memory import ReservedCache
from rlgraph.catalog.models.families import linear_layers
from rlgraph.ir.dtypes import ITEM_BYTES
from rlgraph.passes.cost import latent_attention, work
from rlgraph.passes.cost.activations import saved_layer_bytes_per_token
from rlgraph.passes.cost.batch import POINTS, Batch
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.latency import contention_slowdown
from rlgraph.passes.cost.weights import received_adapter_bytes
from rlgraph.passes.cost.work import Tokens
from rlgraph.passes.memo import get_or_compute

SLOTS = 256
"""The most rows that an engine decodes together which states no number of its own."""


def generation_cost(config: ModelConfig, deployment: Deployment, constants: Constants, batch: Batch) -> Cost:
    """Return the cost of rows that are sampled: the part of a prompt that samples share is read once, then all rows
    that fit are decoded together."""
    return GenerationCostModel(config, deployment, constants, batch).cost(deployment.dp)


class GenerationCostModel:
    """The cost of `generate` by the number of replicas; `deployment` is that of one. What does not depend on this
    number is computed once."""

    __slots__ = ("_costs", "batch", "config", "constants", "deployment", "rates", "slots", "step")

    def __init__(
        self,
        config: ModelConfig,
        deployment: Deployment,
        constants: Constants,
        batch: Batch,
        alike: GenerationCostModel | None = None,
    ) -> None:
        """alike: the model of the same work with another cache size; rows that fit into both take the same time."""
        self.config, self.deployment, self.constants, self.batch = config, deployment, constants, batch
        self.rates = constants.rates[deployment.engine, "generate"]
        self.slots = decoding_slots(config, deployment, batch)
        self.step: DecodeStepCost = alike.step if alike else DecodeStepCost(config, deployment, constants, batch)
        self._costs: dict[tuple[float, float, bool], Cost] = alike._costs if alike else {}
        """The costs by the rows of a replica, the rows that it decodes together, and whether it is the only one."""

    def cost(self, copies: int) -> Cost:
        """Return the cost with so many replicas."""
        rows = self.batch.rows_of_fullest_replica(copies * self.deployment.threads)
        key = (rows, min(rows, self.slots), copies == 1)
        return get_or_compute(
            self._costs,
            key,
            lambda: self._cost(rows, contention_slowdown(self.deployment.with_replicas(copies), self.rates)),
        )

    def _cost(self, rows: float, slower: float) -> Cost:
        batch, call = self.batch, Cost(overhead=self.rates.call)
        if rows == 0:
            return call
        prompts = prefill_cost(self.config, self.deployment, self.constants, batch, rows / batch.samples)
        cost = prompts + _decode(self.step, batch, rows, self.slots)
        cost = cost.scaled(slower) + call
        if batch.answers:
            busiest, host = batch.answers * math.ceil(rows / batch.workers), self.constants.host
            cost += Cost(overhead=host.node + host.function_row * busiest)
        return cost


def prefill_cost(
    config: ModelConfig, deployment: Deployment, constants: Constants, batch: Batch, prompts: float
) -> Cost:
    """Return the cost of reading the prompts of one replica before decoding begins."""
    shape, rates = config.shape, constants.rates[deployment.engine, "generate"]
    reserved, repeats = deployment.engine_spec.memory.cache, prompts * (batch.samples - 1)
    at_once, read = math.inf, Tokens(prompts, prompts * batch.prompt.mean, prompts * batch.prompt.mean_square, prompts)
    if isinstance(reserved, ReservedCache):
        on_cpu = deployment.on_cpu
        at_once = reserved.cpu_prompt_tokens if on_cpu else reserved.prompt_tokens
        tokens, squares = batch.unshared_prompt_tokens(reserved.cpu_block if on_cpu else reserved.block)
        read = Tokens(
            prompts + repeats, read.tokens + repeats * tokens, read.squares + repeats * squares, prompts + repeats
        )
    device = deployment.island.device
    peak = device.matmul_flops(config.product_dtype) * rates.compute
    inner, _ = deployment.tp_and_pp_links(constants)
    size = read.tokens * shape.hidden * config.item_bytes
    calls = max(1.0, read.tokens / at_once)
    flops = work.weight_flops(shape, read) + work.head_flops(shape, config.kind, read)
    # Kernels skip the half that a causal mask hides.
    attended = rates.attention * work.attention_flops(shape, read) / 2 / deployment.attention_rate
    kernels = device.matmul_flops(config.attention_dtype) * rates.compute
    adapted = _adapted_matrices(config, deployment)
    if adapted:
        flops += work.adapter_flops(shape, read)
    # The traffic between kernels, as a share of what training would keep of each layer.
    moved = (
        min(1.0, constants.traffic)
        * shape.layers
        * read.tokens
        * saved_layer_bytes_per_token(shape, config.item_bytes, deployment.tp)
    )
    # Few tokens of a chunk go to one expert, whose weights take as long to read as its products.
    ranks = max(deployment.tp, deployment.whole_expert_rank_count)
    moved += calls * work.expert_parameter_count(shape) * config.item_bytes / ranks
    return Cost(
        compute=(flops / peak + attended / kernels) / deployment.tp,
        memory=moved / (device.stream_bandwidth * rates.memory),
        communication=2
        * shape.layers
        * (inner.all_reduce_seconds(size, deployment.tp) + (rates.reduce if deployment.tp > 1 else 0.0)),
        overhead=rates.token * read.tokens * shape.layers
        + rates.begin * prompts * batch.samples
        + calls
        * (
            rates.block
            + rates.layer * shape.layers
            + rates.experts * shape.expert_layer_count
            + rates.adapted * adapted
        ),
    )


def _adapted_matrices(config: ModelConfig, deployment: Deployment) -> int:
    """Return how many matrices have an adapter that is not merged into them."""
    adapters = config.shape.adapters
    return (
        len(adapters.adapted_layers(linear_layers(config.shape))) * config.shape.layers
        if adapters and not deployment.merges_adapters
        else 0
    )


def decoding_slots(config: ModelConfig, deployment: Deployment, batch: Batch) -> float:
    """Return how many rows a replica decodes together: as many as its cache holds at their full length."""
    reserved = deployment.engine_spec.memory.cache
    if not isinstance(reserved, ReservedCache):
        return SLOTS
    device = deployment.island.device
    if deployment.on_cpu and not deployment.kv_bytes:
        return reserved.cpu_rows
    weights = work.model_parallel_parameter_count(config.shape, config.kind, 1, deployment.tp) * config.item_bytes
    weights += received_adapter_bytes(config, deployment, config.item_bytes)
    room = deployment.kv_bytes or reserved.share * device.memory - weights
    row_bytes = cache_bytes_per_token(config, deployment) * (batch.prompt.mean + batch.response.mean)
    return max(1.0, min(max_decoding_slots(deployment), room / row_bytes))


def max_decoding_slots(deployment: Deployment) -> float:
    """Return the most rows that a replica decodes together, however large its cache is."""
    reserved = deployment.engine_spec.memory.cache
    if not isinstance(reserved, ReservedCache):
        return SLOTS
    return reserved.cpu_rows if deployment.on_cpu else reserved.rows


def cache_bytes_per_token(config: ModelConfig, deployment: Deployment) -> float:
    """Return the bytes of a token in each rank's cache."""
    cpu_dtype = deployment.engine_spec.memory.cpu_dtype
    item = ITEM_BYTES[cpu_dtype] if cpu_dtype and deployment.on_cpu else config.item_bytes
    return work.rank_kv_bytes_per_token(config.shape, deployment.tp, item)


def _decode(step: DecodeStepCost, batch: Batch, rows: float, most: float) -> Cost:
    """Return the cost of the decoding steps of one replica: the one with most tokens, which is assumed to have the
    longest row of all; the others wait for it.

    While rows wait, all slots are busy. From then on rows end one after the other, and the last ones are decoded alone.
    """
    together = min(rows, most)
    total = step.cost(together).scaled(max(0.0, rows - together) * batch.response.mean / together)
    points = min(POINTS, max(1, round(together)))
    ended = [
        (length, together * (points - index) / points)
        for index, length in enumerate(batch.response.quantile_points(points))
    ]
    # The last row to end is the longest of all rows, not only of these.
    ended.append((batch.response.quantile(1 - 0.5 / max(batch.rows, 1.0)), 1.0))
    before = 0.0
    for length, active in ended:
        if length > before:
            total = total + step.cost(max(1.0, active)).scaled(length - before)
            before = length
    excess = _excess(max(1.0, batch.rows / rows)) * batch.response.standard_deviation * math.sqrt(rows)
    return total + (
        step.cost(together).scaled(excess / together) if rows > together else step.cost_per_row.scaled(excess)
    )


@lru_cache(1024)
def _excess(replicas: float) -> float:
    """Return by how many standard deviations the largest of so many normal sums lies above their mean, to 2% (Blom,
    Statistical Estimates and Transformed Beta-Variables, 1958). `replicas` counts those that have as many rows as the
    fullest one, so that more replicas with as many rows each are not slower."""
    return NormalDist().inv_cdf((replicas - 0.375) / (replicas + 0.25))


class DecodeStepCost:
    """The cost of one decoding step, by the number of rows in it."""

    def __init__(self, config: ModelConfig, deployment: Deployment, constants: Constants, batch: Batch) -> None:
        shape, device = config.shape, deployment.island.device
        rates = constants.rates[deployment.engine, "generate"]
        bandwidth = device.stream_bandwidth * rates.memory
        context = work.attended_tokens(shape, batch.prompt.mean + batch.response.mean / 2)
        self.weights = work.active_parameter_count(shape) * config.item_bytes / deployment.tp / bandwidth
        self.others = (
            work.stage_parameter_count(shape, config.kind, 1) * config.item_bytes / deployment.tp / bandwidth
            - self.weights
        )
        """Seconds to read the experts that one row alone does not need."""
        ranks, self.per_rank = deployment.whole_expert_rank_count, shape.experts / deployment.whole_expert_rank_count
        self.above = _excess(ranks) if ranks > 1 else 0.0
        self.experts = work.expert_parameter_count(shape) * config.item_bytes / ranks / bandwidth
        """Seconds to read all experts of a rank, where ranks have whole experts."""
        token_bytes = cache_bytes_per_token(config, deployment)
        if shape.latent and not deployment.engine_spec.absorbs_latent:
            # Keys and values are made from the cache: they are written, and read.
            numbers = latent_attention.rebuilt_elements_per_token(
                shape, shape.latent, deployment.on_cpu and config.dtype != "bfloat16"
            )
            token_bytes += 2 * shape.layers * numbers * config.item_bytes / deployment.tp
        self.cache = token_bytes * context / bandwidth
        flops = work.decode_flops_per_token(shape, context, deployment.engine_spec.absorbs_latent)
        self.compute = flops / deployment.tp / (device.matmul_flops(config.product_dtype) * rates.compute)
        inner, _ = deployment.tp_and_pp_links(constants)
        self.sent = (
            2 * shape.layers * inner.all_reduce_bandwidth_seconds(shape.hidden * config.item_bytes, deployment.tp)
        )
        self.rounds = (
            2
            * shape.layers
            * (inner.all_reduce_latency_seconds(deployment.tp) + (rates.reduce if deployment.tp > 1 else 0.0))
        )
        self.overhead = rates.block + rates.layer * shape.layers + rates.experts * shape.expert_layer_count
        if adapted := _adapted_matrices(config, deployment):
            self.weights += work.adapter_parameter_count(shape) * config.item_bytes / bandwidth
            self.compute += work.adapter_flops(shape, Tokens(1, 1, context, 1, 1)) / (
                device.matmul_flops(config.product_dtype) * rates.compute
            )
            self.overhead += rates.adapted * adapted
        self.row = rates.row + rates.hidden * shape.layers * shape.hidden
        self.missed = 1 - shape.experts_per_token / shape.experts if shape.experts else 0.0

    @property
    def cost_per_row(self) -> Cost:
        """Return what one more row adds, where the memory's bandwidth bounds the step."""
        return Cost(memory=self.cache, communication=self.sent, overhead=self.row)

    def cost(self, rows: float) -> Cost:
        """Return the cost of a step with so many rows."""
        # Only those experts are read to which some row is routed.
        weights = self.weights + self.others * (1 - self.missed**rows) if self.missed else self.weights
        if self.above:
            weights += self.experts * self._uneven(rows)
        memory = weights + rows * self.cache
        return Cost(
            compute=max(0.0, rows * self.compute - memory),
            memory=memory,
            communication=self.rounds + rows * self.sent,
            overhead=self.overhead + rows * self.row,
        )

    def _uneven(self, rows: float) -> float:
        """Return how many more of its experts the fullest rank reads than a rank does on average, as a share of a
        rank's experts. The number read is about normal, where routers choose at random."""
        read: float = 1 - self.missed ** (rows + 1)  # As `cost` counts them.
        return min(1 - read, self.above * math.sqrt(read * (1 - read) / self.per_rank))
