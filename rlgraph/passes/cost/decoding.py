"""Estimates how long a replica takes to generate: prompts are read, which gives each row its first token, then the rows
that fit are decoded together, one token of each in a step. A step is bound by the memory's bandwidth, or by its fixed
overhead."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlgraph.backends.enginespec.memory import ReservedCache
from rlgraph.backends.enginespec.rates import Rates
from rlgraph.catalog.models.families import linear_layers
from rlgraph.passes.cost import latent_attention, work
from rlgraph.passes.cost.activations import saved_layer_bytes_per_token
from rlgraph.passes.cost.batch import POINTS, Batch
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.decoding_slots import (
    busy_slots,
    cache_bytes_per_token,
    cached_rows,
    decoding_slots,
    preempted_rows,
)
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.episodes import EVENTS, EpisodePlay, Episodes, TurnPace, drawn_episodes, play_episodes
from rlgraph.passes.cost.latency import contention_slowdown
from rlgraph.passes.cost.lengths import Lengths, largest_excess
from rlgraph.passes.cost.work import Tokens
from rlgraph.passes.memo import get_or_compute

if TYPE_CHECKING:
    import numpy as np


def generation_cost(config: ModelConfig, deployment: Deployment, constants: Constants, batch: Batch) -> Cost:
    """Return the cost of rows that are sampled: the part of a prompt that samples share is read once, then all rows
    that fit are decoded together."""
    return GenerationCostModel(config, deployment, constants, batch).cost(deployment.dp)


class GenerationCostModel:
    """The cost of `generate` by the number of replicas; `deployment` is that of one. What does not depend on this
    number is computed once."""

    __slots__ = ("_costs", "batch", "busy", "cached", "config", "constants", "deployment", "rates", "slots", "step")

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
        self.busy = busy_slots(config, deployment, batch)
        self.step: DecodeStepCost = alike.step if alike else DecodeStepCost(config, deployment, constants, batch)
        self.cached = 0.0
        """The episodes whose turns the cache keeps while they wait."""
        if batch.episodes and isinstance(deployment.engine_spec.memory.cache, ReservedCache):
            self.cached = cached_rows(config, deployment, batch)
        self._costs: dict[tuple[float, ...], Cost] = alike._costs if alike else {}
        """The costs by the rows of a replica, those that it decodes together, also while others wait, those that its
        cache keeps, and whether it is the only one; of episodes, how many replicas there are."""

    def cost(self, copies: int) -> Cost:
        """Return the cost with so many replicas."""
        rows = self.batch.rows_of_fullest_replica(copies * self.deployment.threads)
        alone = copies if self.batch.episodes else copies == 1
        key = (rows, min(rows, self.slots), min(rows, self.busy), min(rows, self.cached), alone)
        return get_or_compute(
            self._costs,
            key,
            lambda: self._cost(rows, contention_slowdown(self.deployment.with_replicas(copies), self.rates), copies),
        )

    def _cost(self, rows: float, slower: float, copies: int) -> Cost:
        batch, call = self.batch, Cost(overhead=self.rates.call)
        if rows == 0:
            return call
        prompts = prefill_cost(self.config, self.deployment, self.constants, batch, rows / batch.samples)
        if batch.episodes:
            return call + self._play(batch.episodes, prompts, rows, slower, copies)
        again = preempted_cost(self.config, self.deployment, self.constants, batch, rows, self.slots)
        busy = min(rows, self.busy)
        shared = mixed_steps_saving(self.deployment, batch, rows, self.slots, busy, self.step, prompts)
        if batch.requests > 1 and self.deployment.engine_spec.admits:
            decoded = _flow(self.step, batch, rows, busy)
        else:
            decoded = _decode(self.step, batch, rows, self.slots, busy)
        return (prompts + again + decoded + shared.scaled(-1)).scaled(slower) + call

    def _play(self, episodes: Episodes, prompts: Cost, rows: float, slower: float, copies: int) -> Cost:
        """Return the cost of episodes: those that are played stand for so many each, which go side by side."""
        count = max(1, min(round(rows), max(16, round(EVENTS / episodes.turns.mean))))
        each = rows / count
        processes, shared = episodes.processes(copies)
        busy = min(processes, count)
        # The busiest process answers as many in turn as it would.
        longer = shared * max(1.0, math.ceil(rows / processes) / math.ceil(count / busy))
        known = episodes.answer_s or Lengths((self.constants.host.function_row,))
        # All wait for the process, of any replica, whose episodes are the slowest.
        variance = (
            episodes.turns.mean * known.standard_deviation**2 + (known.mean * episodes.turns.standard_deviation) ** 2
        )
        apart = max(0.0, largest_excess(processes * copies) - largest_excess(busy)) * math.sqrt(
            variance * max(1.0, rows / processes)
        )
        played = drawn_episodes(count, self.batch.response, episodes.turns, known, longer)
        again = later_turn_cost(self.config, self.deployment, self.constants, self.batch, rows)
        pace = TurnPace(
            prompts.seconds / count * slower,
            again.seconds * each * slower,
            max(1, round(self.slots / each)),
            lambda together: self.step.cost(together * each).seconds * slower,
            busy,
            *turn_order(self.deployment, episodes),
        )
        play = play_episodes(played, pace)
        cost = played_cost(play, prompts, again.scaled(each), lambda rows: self.step.cost(rows * each), slower)
        return cost + Cost(environment=apart)


def turn_order(deployment: Deployment, episodes: Episodes) -> tuple[bool, bool]:
    """Return whether each turn begins when its observation comes, and whether all environments answer before the next
    turn: the processes of a replica sample the same at the same time."""
    split = deployment.mesh.replica_size > 1
    return deployment.engine_spec.admits and not split and not episodes.players, split


def played_cost(play: EpisodePlay, prompts: Cost, again: Cost, step: Callable[[int], Cost], slower: float) -> Cost:
    """Return the cost of episodes that were played: what of it is no work is spent waiting for environments. again:
    the cost of reading before one later turn. step: returns the cost of a decoding step with so many rows. slower: how
    much longer all work takes."""
    works = [(step(together), count * slower) for together, count in play.steps.items()]
    cost = Cost.weighted_sum([*works, (prompts, slower), (again, play.later_reads * slower)])
    return cost + Cost(environment=max(0.0, max(play.ends) - cost.seconds))


def later_turn_cost(
    config: ModelConfig, deployment: Deployment, constants: Constants, batch: Batch, rows: float
) -> Cost:
    """Return the cost of reading what an episode has before a later turn: what is new, if the cache has room for all
    episodes of the replica, and so keeps what they have while they wait; else all of it."""
    assert batch.episodes
    if batch.episodes.turns.longest <= 1:
        return Cost()
    # The middle of an episode stands for all its turns.
    context = (batch.prompt.mean + batch.ended_row_tokens) / 2
    reserved = deployment.engine_spec.memory.cache
    tokens = context
    if isinstance(reserved, ReservedCache) and rows <= cached_rows(config, deployment, batch):
        # Of what it has said, what does not fill a block is read once more.
        block = reserved.cpu_block if deployment.on_cpu else reserved.block
        tokens = min(context, batch.episodes.observation + block / 2)
    cost = reading_cost(config, deployment, constants, Tokens(rows, rows * tokens, rows * tokens * context, rows), rows)
    return cost.scaled(1 / rows)


def prefill_cost(
    config: ModelConfig, deployment: Deployment, constants: Constants, batch: Batch, prompts: float
) -> Cost:
    """Return the cost of reading the prompts of one replica before decoding begins."""
    reserved, repeats = deployment.engine_spec.memory.cache, prompts * (batch.samples - 1)
    read = Tokens(prompts, prompts * batch.prompt.mean, prompts * batch.prompt.mean_square, prompts)
    if isinstance(reserved, ReservedCache):
        tokens, squares = batch.unshared_prompt_tokens(reserved.cpu_block if deployment.on_cpu else reserved.block)
        read = Tokens(
            prompts + repeats, read.tokens + repeats * tokens, read.squares + repeats * squares, prompts + repeats
        )
    return reading_cost(config, deployment, constants, read, prompts * batch.samples)


def reading_cost(config: ModelConfig, deployment: Deployment, constants: Constants, read: Tokens, begun: float) -> Cost:
    """Return the cost of reading tokens from which one replica goes on, and of sampling the first token of each row.
    begun: the rows that begin so."""
    shape, rates = config.shape, constants.rates[deployment.engine, "generate"]
    reserved, at_once = deployment.engine_spec.memory.cache, math.inf
    if isinstance(reserved, ReservedCache):
        at_once = reserved.cpu_prompt_tokens if deployment.on_cpu else reserved.prompt_tokens
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
    # Products of few tokens wait for their weights, which each pass reads.
    products = flops / peak / deployment.tp
    dense = work.step_parameter_count(shape) - shape.expert_layer_count * work.chosen_parameter_count(shape)
    weights = calls * dense * config.item_bytes / deployment.tp / device.weight_bandwidth / rates.memory
    sampled = begun * rates.logit * shape.vocab / device.weight_bandwidth / rates.memory
    done = Cost(
        compute=products + attended / kernels / deployment.tp,
        memory=moved / (device.stream_bandwidth * rates.memory) + max(0.0, weights - products) + sampled,
        communication=2
        * shape.layers
        * (inner.all_reduce_seconds(size, deployment.tp) + (rates.reduce if deployment.tp > 1 else 0.0)),
    )
    launched = (
        rates.token * read.tokens * shape.layers
        + (rates.begin + rates.row) * begun
        + calls * (_pass_overhead(config, deployment, rates) + rates.adapted * adapted)
    )
    host = calls * (rates.host + rates.host_layer * shape.layers) + rates.host_row * begun
    return done + Cost(overhead=max(launched, host - done.seconds))


def _pass_overhead(config: ModelConfig, deployment: Deployment, rates: Rates, decodes: bool = False) -> float:
    """Return the seconds of a pass over prompts, or of a decoding step, beside its bytes and products: what the engine
    does, and what kernels take to begin."""
    device, shape = deployment.island.device, config.shape
    layer = rates.layer + rates.products * device.product_latency
    if decodes and rates.products:
        layer += device.attention_latency
    return rates.block + layer * shape.layers + rates.experts * shape.expert_layer_count


def _adapted_matrices(config: ModelConfig, deployment: Deployment) -> int:
    """Return how many matrices have an adapter that is not merged into them."""
    adapters = config.shape.adapters
    return (
        len(adapters.adapted_layers(linear_layers(config.shape))) * config.shape.layers
        if adapters and not deployment.merges_adapters
        else 0
    )


def preempted_cost(
    config: ModelConfig, deployment: Deployment, constants: Constants, batch: Batch, rows: float, slots: float
) -> Cost:
    """Return the cost of reading again what a replica has of preempted rows."""
    count, tokens = preempted_rows(deployment, batch, rows, slots)
    read = Tokens(count, count * tokens, count * tokens**2, count)
    return reading_cost(config, deployment, constants, read, 0.0) if count else Cost()


def mixed_steps_saving(
    deployment: Deployment, batch: Batch, rows: float, slots: float, busy: float, step: DecodeStepCost, prompts: Cost
) -> Cost:
    """Return what decoding steps spare that read prompts of rows which waited, too, as an engine with a reserved cache
    mixes them: these read the weights while they compute, and begin their kernels once. prompts: the cost of reading
    all prompts."""
    reserved = deployment.engine_spec.memory.cache
    if not isinstance(reserved, ReservedCache) or rows <= slots:
        return Cost()
    at_once = reserved.cpu_prompt_tokens if deployment.on_cpu else reserved.prompt_tokens
    waited = 1 - slots / rows
    steps = waited * rows / batch.samples * batch.prompt.mean / max(1.0, at_once - busy)
    steps = min(steps, waited * rows * batch.decoded.mean / busy)
    weights = min(steps * step.cost(busy).memory - steps * busy * step.cache, waited * prompts.compute)
    return Cost(memory=max(0.0, weights), overhead=steps * step.overhead)


def _decode(step: DecodeStepCost, batch: Batch, rows: float, most: float, busy: float) -> Cost:
    """Return the cost of the decoding steps of one replica: the one with most tokens, which is assumed to have the
    longest row of all; the others wait for it.

    While rows wait, all slots are busy. From then on rows end one after the other, and the last ones are decoded alone.
    most, busy: rows at their full length that the cache holds, and rows that are decoded together while others wait.
    """
    together, crowd = min(rows, most), max(1.0, min(rows, busy))
    total = step.cost(crowd).scaled(max(0.0, rows - together) * batch.decoded.mean / crowd)
    points = min(POINTS, max(1, round(together)))
    ended = [
        (length, together * (points - index) / points)
        for index, length in enumerate(batch.decoded.quantile_points(points))
    ]
    # The last row to end is the longest of all rows, not only of these.
    ended.append((batch.decoded.quantile(1 - 0.5 / max(batch.rows, 1.0)), 1.0))
    before = 0.0
    for length, active in ended:
        if length > before:
            total = total + step.cost(max(1.0, active)).scaled(length - before)
            before = length
    excess = largest_excess(max(1.0, batch.rows / rows)) * batch.decoded.standard_deviation * math.sqrt(rows)
    return total + (
        step.cost(together).scaled(excess / together) if rows > together else step.cost_per_row.scaled(excess)
    )


def _flow(step: DecodeStepCost, batch: Batch, rows: float, most: float) -> Cost:
    """Return the cost of the decoding steps of one replica for each of several requests that follow each other without
    a break. Its slots are always busy; but there are no more rows than those of so many requests, each of which is
    there until its longest row has ended."""
    tokens, longest = rows * batch.decoded.mean, batch.decoded.quantile(1 - 0.5 / max(batch.rows, 1.0))
    together = min(rows, most, max(1.0, tokens * batch.requests / max(longest, 1.0)))
    return step.cost(together).scaled(tokens / together)


class DecodeStepCost:
    """The cost of one decoding step, by the number of rows in it."""

    def __init__(self, config: ModelConfig, deployment: Deployment, constants: Constants, batch: Batch) -> None:
        shape, device = config.shape, deployment.island.device
        rates = constants.rates[deployment.engine, "generate"]
        bandwidth, cache_bandwidth = device.weight_bandwidth * rates.memory, device.cache_bandwidth * rates.memory
        context = work.attended_tokens(shape, (batch.prompt.mean + batch.ended_row_tokens) / 2)
        self.weights = work.step_parameter_count(shape) * config.item_bytes / deployment.tp / bandwidth
        others = work.expert_parameter_count(shape) - shape.expert_layer_count * work.chosen_parameter_count(shape)
        self.others = others * config.item_bytes / deployment.tp / bandwidth
        """Seconds to read the experts that one row alone does not need."""
        ranks, self.per_rank = deployment.whole_expert_rank_count, shape.experts / deployment.whole_expert_rank_count
        self.above = largest_excess(ranks)
        self.experts = work.expert_parameter_count(shape) * config.item_bytes / ranks / bandwidth
        """Seconds to read all experts of a rank, where ranks have whole experts."""
        token_bytes = cache_bytes_per_token(config, deployment)
        if shape.latent and not deployment.engine_spec.absorbs_latent:
            # Keys and values are made from the cache: they are written, and read.
            numbers = latent_attention.rebuilt_elements_per_token(
                shape, shape.latent, deployment.on_cpu and config.dtype != "bfloat16"
            )
            token_bytes += 2 * shape.layers * numbers * config.item_bytes / deployment.tp
        # Each rank has the logits of the whole vocabulary.
        self.cache = rates.cached * token_bytes * context / cache_bandwidth + rates.logit * shape.vocab / bandwidth
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
        self.overhead = _pass_overhead(config, deployment, rates, decodes=True)
        if adapted := _adapted_matrices(config, deployment):
            self.weights += work.adapter_parameter_count(shape) * config.item_bytes / bandwidth
            self.compute += work.adapter_flops(shape, Tokens(1, 1, context, 1, 1)) / (
                device.matmul_flops(config.product_dtype) * rates.compute
            )
            self.overhead += rates.adapted * adapted
        self.row = rates.row + rates.hidden * shape.layers * shape.hidden
        self.host, self.host_row = rates.host + rates.host_layer * shape.layers, rates.host_row
        self.missed = 1 - shape.experts_per_token / shape.experts if shape.experts else 0.0

    @property
    def cost_per_row(self) -> Cost:
        """Return what one more row adds, where the memory's bandwidth bounds the step."""
        return Cost(memory=self.cache, communication=self.sent, overhead=self.row)

    def cost(self, rows: float) -> Cost:
        """Return the cost of a step with so many rows."""
        compute, memory, sent, launched = self._parts(rows, max, min)
        return Cost(compute, memory, sent, overhead=launched)

    def costs(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the parts of `cost` of steps with so many rows each: compute, memory, communication, overhead."""
        import numpy as np  # What draws a plan loads this module, and needs no numbers.

        compute, memory, sent, launched = self._parts(rows, np.maximum, np.minimum)
        return compute, memory, sent, launched

    def _parts(self, rows: Any, larger: Callable[..., Any], smaller: Callable[..., Any]) -> tuple[Any, Any, Any, Any]:
        # Only those experts are read to which some row is routed.
        weights = self.weights + self.others * (1 - self.missed**rows) if self.missed else self.weights
        if self.above:
            # How many more of its experts the fullest rank reads than a rank does on average, as a share of a rank's
            # experts. The number read is about normal, where routers choose at random.
            read = 1 - self.missed ** (rows + 1)
            weights += self.experts * smaller(1 - read, self.above * (read * (1 - read) / self.per_rank) ** 0.5)
        memory = weights + rows * self.cache
        compute, sent = larger(0.0, rows * self.compute - memory), self.rounds + rows * self.sent
        host = self.host + rows * self.host_row - compute - memory - sent
        return compute, memory, sent, larger(self.overhead + rows * self.row, host)
