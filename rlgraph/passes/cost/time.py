"""Estimates how long the work of a model takes on a group of devices: rooflines, alpha-beta collectives, pipelines, and
overheads.

Training and reading are bound by matrix products, decoding by the memory's bandwidth. Pipelines run
one-forward-one-backward: with m micro-batches and p stages a step has m + p - 1 turns (arXiv 2104.04473).
`rlgraph.passes.cost.constants` defines each constant.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Literal

from rlgraph.backends.enginespec.rates import Rates
from rlgraph.backends.enginespec.registry import engine
from rlgraph.backends.enginespec.spec import PrefixSharing
from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.mesh import Mesh
from rlgraph.passes.cost import work
from rlgraph.passes.cost.activations import in_parts, layer_bytes
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.deployment import BLOCK_TOKENS, Deployment, ModelConfig
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.links import replicas_link
from rlgraph.passes.cost.optimizer import WIDE, optimizer_bytes
from rlgraph.passes.cost.work import Tokens

POINTS = 24
"""The number of lengths that represent all rows which are decoded together."""


@dataclass(frozen=True)
class Batch:
    """The rows of one table that a node works on."""

    rows: float
    prompt: Lengths
    response: Lengths
    """Lengths of what carries loss: a sampled or an encoded answer."""
    samples: int = 1
    """Rows for each prompt, where the node samples them."""
    answers: float = 0.0
    """How often the process that samples a row has an environment answer it; 0 where another process does."""
    workers: int = 1
    """Processes of each replica that answer its rows in parallel."""
    together: float = 1.0
    """How many adjacent rows begin with the same prompt, on average, where the node reads their tokens."""

    @cached_property
    def row(self) -> Tokens:
        """Return what a model reads of one row, on average."""
        length = self.prompt.mean + self.response.mean
        spread = self.prompt.square + 2 * self.prompt.mean * self.response.mean + self.response.square
        return Tokens(1.0, length, spread, self.response.mean, self.prompt.longest + self.response.longest)

    def tokens(self) -> Tokens:
        """Return what a model reads of all rows."""
        row = self.row
        return Tokens(self.rows, self.rows * row.tokens, self.rows * row.squares, self.rows * row.scored, row.longest)

    def share(self, parts: int) -> float:
        """Return the rows of the replica that gets most of them; samples of one prompt stay together."""
        shares = self._shares
        if parts not in shares:
            shares[parts] = min(self.rows, math.ceil(self.rows / parts / self.samples) * self.samples)
        return shares[parts]

    def least(self, parts: int) -> float:
        """Return the rows of the replica that gets fewest of them."""
        return self.rows / self.samples // parts * self.samples

    def blocks(self, budget: float, packed: bool = False, shares: PrefixSharing | None = None) -> tuple[float, Tokens]:
        """Return how many micro-batches of at most so many padded tokens a row makes, and the tokens of a row with its
        padding: the longest rows come first, and the rows of a micro-batch are padded to its longest. packed: rows have
        no padding, and a row longer than the budget is a micro-batch by itself. shares: how packed rows with a common
        prefix are read together."""
        if packed:
            return self._packed(budget), self.read(shares)
        if budget not in self._blocks:
            self._blocks[budget] = self._cut(budget)
        return self._blocks[budget]

    def read(self, shares: PrefixSharing | None) -> Tokens:
        """Return what a model reads of one row, on average, where neighbours that begin with the same prompt may share
        it."""
        if shares is None or self.together <= 1:
            return self.row
        short = sum(length <= shares.longest for length in self.response.values) / len(self.response.values)
        left_out = short * (1 - 1 / self.together)
        if left_out * self.prompt.mean < shares.worth * self.row.tokens:
            return self.row
        # The tokens behind a prompt attend to all of it.
        tokens = self.row.tokens - left_out * self.prompt.mean
        return replace(self.row, tokens=tokens, squares=self.row.squares - left_out * self.prompt.square)

    def unshared(self, block: int) -> tuple[float, float]:
        """Return the tokens of a prompt, and the pairs of them in attention, that each sample after the first reads,
        on average: those behind the last full block, and always the last token."""
        if block not in self._unshared:
            prompts = [(length, block * math.floor(max(length - 1, 0) / block)) for length in self.prompt.values]
            tokens, pairs = (
                sum(length - cached for length, cached in prompts),
                sum(length * (length - cached) for length, cached in prompts),
            )
            self._unshared[block] = tokens / len(prompts), pairs / len(prompts)
        return self._unshared[block]

    @cached_property
    def _unshared(self) -> dict[int, tuple[float, float]]:
        """Cache `unshared` by the block."""
        return {}

    @cached_property
    def _blocks(self) -> dict[float, tuple[float, Tokens]]:
        """Cache `blocks` by the budget: a search asks for the same few with every split."""
        return {}

    def _packed(self, budget: float) -> float:
        """Return how many packed micro-batches a row makes."""
        if self.row.longest <= budget:
            return max(1 / max(self.rows, 1.0), self.row.tokens / budget)
        if budget not in self._parts:
            prompt, values = self.prompt.mean, self.response.values
            self._parts[budget] = sum(min(1.0, (prompt + length) / budget) for length in values) / len(values)
        return max(1 / max(self.rows, 1.0), self._parts[budget])

    @cached_property
    def _parts(self) -> dict[float, float]:
        """Cache how many packed micro-batches a row makes, by the budget."""
        return {}

    @cached_property
    def _shares(self) -> dict[int, float]:
        """Cache `share` by the parts."""
        return {}

    def _cut(self, budget: float) -> tuple[float, Tokens]:
        """Return `blocks` of rows that are padded."""
        blocks, padded, done = 0.0, Tokens(0.0, 0.0, 0.0, self.row.scored, self.row.longest), 0.0
        while done < 1 - 1e-9:
            longest = max(1.0, self.prompt.mean + self.response.at(1 - done))
            together = max(1.0, budget // longest)
            part = min(1 - done, max(together / max(self.rows, 1.0), 1 / POINTS))
            if part * self.rows > together:
                # These are several micro-batches, and this is the mean length of their longest rows.
                longest = max(1.0, self.prompt.mean + self.response.at(1 - done - part / 2))
                blocks += part / max(1.0, budget // longest)
            else:
                blocks += 1 / max(self.rows, 1.0)
            padded = replace(
                padded,
                rows=1.0,
                tokens=padded.tokens + part * longest,
                squares=padded.squares + part * longest * longest,
            )
            done += part
        return blocks, padded


@dataclass(frozen=True, slots=True)
class Cost:
    """The seconds of some work, by what they are spent on."""

    compute: float = 0.0
    memory: float = 0.0
    """Seconds of waiting for the device's own memory."""
    communication: float = 0.0
    bubble: float = 0.0
    """Seconds in which the stages of a pipeline wait for each other."""
    overhead: float = 0.0
    """Seconds of calls, launches, and work for each row."""

    @property
    def seconds(self) -> float:
        """Return the sum of all parts."""
        return self.compute + self.memory + self.communication + self.bubble + self.overhead

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.compute + other.compute,
            self.memory + other.memory,
            self.communication + other.communication,
            self.bubble + other.bubble,
            self.overhead + other.overhead,
        )

    def times(self, factor: float) -> Cost:
        """Return the cost multiplied by the factor."""
        return Cost(
            self.compute * factor,
            self.memory * factor,
            self.communication * factor,
            self.bubble * factor,
            self.overhead * factor,
        )

    @classmethod
    def total(cls, parts: Collection[tuple[Cost, float]]) -> Cost:
        """Return the sum of costs, each multiplied by its factor."""
        return cls(
            sum(cost.compute * factor for cost, factor in parts),
            sum(cost.memory * factor for cost, factor in parts),
            sum(cost.communication * factor for cost, factor in parts),
            sum(cost.bubble * factor for cost, factor in parts),
            sum(cost.overhead * factor for cost, factor in parts),
        )


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """The time of passes over rows on one replica: seconds for each row, each micro-batch, and each call."""

    row: Cost
    block: Cost
    call: float
    blocks: float
    """Micro-batches that a row makes."""
    stages: int
    longest: float = 1.0
    """How many average rows take as long as the longest row: a row that is packed with no other is a micro-batch."""
    ranks: int = 1
    """The ranks that shard the rows of a replica."""
    gathered: float = 0.0
    """Those seconds of a call in which parameters are gathered from other ranks."""
    chunks: int = 1
    """The parts of the layers on each stage."""
    passing: tuple[float, float] = (0.0, 0.0)
    """Seconds that one more chunk adds to a row, and to a micro-batch."""
    row_s: float = field(init=False)
    """Seconds of a row."""
    block_s: float = field(init=False)
    """Seconds of a micro-batch."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_s", self.row.seconds)
        object.__setattr__(self, "block_s", self.block.seconds)

    def own(self, rows: float) -> float:
        """Return the rows of the rank that has most of the rows of a replica."""
        return max(min(rows, 1.0), rows / self.ranks)

    def turns(self, rows: float) -> float:
        """Return the micro-batches of so many rows; of a pipeline at least one for each stage, where there are as many
        rows."""
        return max(1.0, math.ceil(rows * self.blocks), min(self.stages, rows))

    def seconds(self, rows: float) -> float:
        """Return the seconds of so many rows."""
        return self.in_parts(rows, self.chunks)

    def in_parts(self, rows: float, chunks: int) -> float:
        """Return the seconds of so many rows, if each stage had so many chunks of the layers."""
        if rows == 0:
            return self.call
        more, (row, block) = chunks - self.chunks, self.passing
        rows, row, block = self.own(rows), self.row_s + more * row, self.block_s + more * block
        turns = self.turns(rows)
        busy = row * rows + block * turns
        return self.call + busy + _before(self.stages, chunks, turns) * max(busy / turns, row * self.longest + block)

    def bubble(self, turns: float, turn: float) -> float:
        """Return the seconds in which stages wait: as long as the longest micro-batch takes to pass all of them (a
        flow shop whose machines are alike: Pinedo, Scheduling, section 6.1), or with several chunks of the layers on a
        stage to pass one chunk of each (arXiv 2104.04473, section 2.2.2). turn: seconds of a micro-batch, on
        average."""
        return self.before(turns) * max(turn, self.row_s * self.longest + self.block_s)

    def before(self, turns: float) -> float:
        """Return how many micro-batches take as long on a stage as the stage waits. With fewer micro-batches than
        stages the first one returns to a stage for its next chunk of the layers when it has passed all stages, however
        many chunks there are: nothing fills the time until then."""
        return _before(self.stages, self.chunks, turns)

    def waits(self, rows: float) -> tuple[float, float, float]:
        """Return the seconds in which stages wait for each other; the part of these that is due to the longest
        micro-batch being longer than others; and the seconds of one micro-batch."""
        if rows == 0:
            return 0.0, 0.0, 0.0
        rows = self.own(rows)
        turns = self.turns(rows)
        turn = (self.row_s * rows + self.block_s * turns) / turns
        waiting = self.bubble(turns, turn)
        return waiting, waiting - self.before(turns) * turn, turn

    def cost(self, rows: float) -> Cost:
        """Return the cost of so many rows."""
        if rows == 0:
            return Cost(overhead=self.call)
        rows = self.own(rows)
        turns = self.turns(rows)
        busy = self.row.times(rows) + self.block.times(turns)
        bubble, rest = self.bubble(turns, busy.seconds / turns), self.call - self.gathered
        return busy + Cost(communication=self.gathered, bubble=bubble, overhead=rest)


def _before(stages: int, chunks: int, turns: float) -> float:
    """Return `LatencyModel.before` for so many stages and chunks."""
    if chunks == 1:
        return stages - 1
    return max(0.0, stages - turns) + (min(turns, stages) - 1) / chunks


def slowdown(deployment: Deployment, rates: Rates) -> float:
    """Return by what factor work is slower that other ranks or threads do at the same time."""
    return (1 + rates.crowd * (deployment.size > 1)) * (1 + rates.lock * (deployment.threads > 1))


@dataclass(frozen=True, slots=True)
class _Row:
    """What a row of some batches takes, on average."""

    layers_flops: float
    head_flops: float
    tokens: float
    squares: float
    blocks: float
    """Micro-batches that a row makes."""
    longest: float
    """How many average rows take as long as the longest row."""


@lru_cache(4096)
def _row(
    kind: Literal["forward", "train"],
    shape: Shape,
    model: ModelKind,
    tp: int,
    budget: int,
    packs: bool,
    shares: PrefixSharing | None,
    recompute: bool,
    batches: tuple[Batch, ...],
) -> _Row:
    """Return what an average row takes: cached because many splits are fed the same."""
    total_rows = sum(batch.rows for batch in batches) or 1.0
    layers = heads = tokens = squares = blocks = longest = 0.0
    for batch in batches:
        part = batch.rows / total_rows
        row_blocks, row = batch.blocks(budget, packs, shares)
        # The backward pass recomputes the layers, and a head with more logits than are kept.
        parts = in_parts(shape, model, row.scored / row_blocks, tp)
        head_once = work.head_flops(shape, model, row)
        layers_flops, head_flops = work.layers_flops(shape, row) + work.adapter_flops(shape, row), head_once
        if kind == "train":
            layers_flops, head_flops = work.training_flops(shape, model, row, recompute)
            head_flops += parts * head_once
        layers += part * layers_flops
        heads += part * head_flops
        tokens += part * row.tokens
        squares += part * row.squares
        blocks += part * row_blocks
        if packs:
            longest = max(longest, batch.prompt.mean + batch.response.at(1 - 0.5 / max(batch.rows, 1.0)))
    return _Row(layers, heads, tokens, squares, blocks, max(1.0, longest / max(tokens, 1.0)))


def latency(
    kind: Literal["forward", "train"],
    config: ModelConfig,
    deployment: Deployment,
    constants: Constants,
    batches: Sequence[Batch],
) -> LatencyModel:
    """Return the time of one replica's forward pass, or of its forward and backward passes; it does not depend on the
    number of replicas."""
    shape, rates = config.shape, constants.rates[deployment.engine, kind]
    passes, reduces = (1.0, 2) if kind == "forward" else (4.0, 6) if deployment.recompute else (3.0, 4)
    budget, again = deployment.micro_tokens or BLOCK_TOKENS, kind == "train" and deployment.recompute
    fed = deployment.packs, deployment.shares
    row = _row(kind, shape, config.kind, deployment.tp, budget, *fed, again, tuple(batches))
    flops, tokens, blocks = row.layers_flops / deployment.pp + row.head_flops, row.tokens, row.blocks
    layers = shape.layers / deployment.pp
    inner, stage_link = deployment.links(constants)
    tokens /= deployment.cp
    size = tokens * shape.hidden * config.item
    sent = layers * reduces * inner.all_reduce_bytes(size, deployment.tp)
    rounds = layers * reduces * (inner.all_reduce_latency(deployment.tp) + (rates.reduce if deployment.tp > 1 else 0.0))
    if deployment.ep > 1:
        # A token goes to each of its experts and comes back, forward and backward.
        among = deployment.among_experts(constants)
        sparse = layers * shape.sparse / shape.layers
        sent += sparse * reduces * among.all_to_all_bytes(size * shape.experts_per_token, deployment.ep)
        rounds += sparse * reduces * among.all_to_all_latency(deployment.ep)
    if deployment.cp > 1:
        # Keys and values of all tokens arrive, and their gradients go back.
        nearby, gathers = deployment.among_tokens(constants), {1.0: 1, 3.0: 2, 4.0: 3}[passes]
        heads = max(1.0, shape.kv_heads / deployment.tp)
        keys = tokens * deployment.cp * 2 * heads * shape.widest * config.item
        latency_s = nearby.all_gather(0, deployment.cp)
        sent += layers * gathers * (nearby.all_gather(keys, deployment.cp) - latency_s)
        rounds += layers * gathers * (latency_s + rates.reduce)
    # What a row and a micro-batch send to the next stage, for each chunk of a stage's layers.
    on, hop = 0.0, 0.0
    if deployment.pp > 1:
        both = 1 if kind == "forward" else 2
        on, hop = both * size / stage_link.bandwidth, both * stage_link.latency
        sent, rounds = sent + deployment.chunks * on, rounds + deployment.chunks * hop
    device = deployment.island.device
    compute = flops / deployment.tp / deployment.cp / (device.products(config.dtype) * rates.compute)
    moved = passes * constants.traffic * layers * tokens * layer_bytes(shape, config.item, deployment.tp)
    if deployment.spec.keeps_scores(deployment.attention):
        moved += passes * constants.traffic * layers * shape.heads / deployment.tp * row.squares * max(4, config.item)
    memory = moved / (device.streamed * rates.memory)
    slower = slowdown(deployment, rates)
    waits = 1 - rates.hides
    row_cost = Cost(compute, memory, sent * waits, overhead=rates.row + rates.token * tokens * layers).times(slower)
    # Each chunk of a stage's layers is a separate pass.
    passing = rates.block * deployment.chunks
    block = Cost(communication=rounds, overhead=passing + rates.layer * layers).times(slower)
    once = 0.0
    if deployment.fsdp > 1:
        # The next layer's parameters are gathered while this one works.
        turn, (exchanged, once) = row_cost.seconds / max(blocks, 1e-9), _gathering(kind, config, deployment, constants)
        block += Cost(communication=exchanged - min(rates.hides * exchanged, turn))
        once -= min(rates.hides * once, turn)
    call, ranks, chunk_s = rates.call + once, deployment.row_ranks, (on * waits * slower, (hop + rates.block) * slower)
    return LatencyModel(
        row_cost, block, call, blocks, deployment.pp, row.longest, ranks, once, deployment.chunks, chunk_s
    )


def _gathering(
    kind: Literal["forward", "train"], config: ModelConfig, deployment: Deployment, constants: Constants
) -> tuple[float, float]:
    """Return the seconds in which FSDP ranks communicate for one micro-batch, and for each call: all parameters are
    gathered, layer by layer, and for training once more, or once for all its micro-batches; and gradients are reduced,
    narrow ones in float32 (arXiv 2304.11277)."""
    link, ranks = deployment.gathering(constants), deployment.fsdp
    weights = ranks * work.shard_parameters(config.shape, config.kind, ranks) / deployment.tp
    units = config.shape.layers + 1
    gather, reduce = (
        units * link.all_gather(weights * item / units, ranks) for item in (config.item, max(WIDE, config.item))
    )
    if kind == "forward":
        return gather, 0.0
    return (reduce, gather) if deployment.gathers_once else (2 * gather + reduce, 0.0)


def held(config: ModelConfig, deployment: Deployment) -> float:
    """Return how many parameters the fullest rank keeps."""
    if deployment.fsdp > 1:
        return work.shard_parameters(config.shape, config.kind, deployment.fsdp) / deployment.tp
    return work.rank_parameters(config.shape, config.kind, deployment.pp, deployment.tp, deployment.ep)


def trained_numbers(config: ModelConfig, deployment: Deployment) -> float:
    """Return how many of these parameters, and of its adapters, training changes."""
    return held(config, deployment) if config.shape.adapters is None else _carried(config, deployment, config.kind)


def held_adapter_numbers(config: ModelConfig, deployment: Deployment) -> float:
    """Return how many numbers of adapters the fullest rank keeps."""
    return _carried(config, deployment, "causal_lm") if config.shape.adapters else 0


def _carried(config: ModelConfig, deployment: Deployment, kind: ModelKind) -> float:
    """Return how many numbers travel of a model with adapters."""
    if deployment.parts == 1:
        return work.trained_parameters(config.shape, kind)
    return _laid_out(deployment.engine, config.shape, deployment.mesh.copied(1), kind)


@cache
def _laid_out(name: str, shape: Shape, split: Mesh, kind: ModelKind) -> int:
    """Return how many numbers travel from the first rank of a split."""
    return sum(math.prod(tensor.shape) for tensor in engine(name).carried(shape, split, 0, kind))


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """The end of an optimizer step, by the number of replicas: they all-reduce their gradients and change the
    weights."""

    island: NodeGroup
    one: int
    """Devices of a replica."""
    sent: float
    """Bytes of gradients and weights that replicas exchange in one pass around their ring."""
    common: float
    """The same bytes for what expert-parallel ranks have in common, which they exchange, too."""
    sharing: int
    """The number of expert-parallel ranks."""
    alike: int
    """The context-parallel ranks of a replica, which are replicas of each other here."""
    whole: float
    """Bytes that each replica reads and writes."""
    shared: float
    """More of these bytes, which replicas shard: with a sharded optimizer each updates its shard."""
    bandwidth: float
    share: float
    """The share of a link's bandwidth that is reached."""
    overhead: float

    def communication(self, copies: int) -> float:
        """Return the seconds in which replicas communicate."""
        copies *= self.alike
        one = self.one // self.alike
        between = replicas_link(self.island, one, copies, self.share)
        seconds = 2 * between.all_gather(self.sent / 2, copies)
        if not self.common:
            return seconds
        ranks = copies * self.sharing
        wider = replicas_link(self.island, one // self.sharing, ranks, self.share)
        return seconds + 2 * wider.all_gather(self.common / 2, ranks)

    def memory(self, copies: int) -> float:
        """Return the seconds that a replica waits for its memory."""
        return (self.whole + self.shared / copies) / self.bandwidth

    def cost(self, copies: int) -> Cost:
        """Return the cost of a step of so many replicas."""
        return Cost(memory=self.memory(copies), communication=self.communication(copies), overhead=self.overhead)

    def seconds(self, copies: int) -> float:
        """Return the seconds of `cost`."""
        return self.memory(copies) + self.communication(copies) + self.overhead


def optimizer_step(config: ModelConfig, deployment: Deployment, constants: Constants) -> OptimizerStep:
    """Return the end of an optimizer step of a model that is trained on such a split."""
    rates = constants.rates[deployment.engine, "train"]
    weights = trained_numbers(config, deployment)
    stage = work.stage_parameters(config.shape, config.kind, deployment.pp) / deployment.tp
    device = deployment.island.device
    # Replicas that shard the optimizer reduce-scatter float32 gradients and all-gather new weights; else they
    # all-reduce all gradients.
    split = deployment.spec.shards_optimizer
    step = optimizer_bytes(config.optimizer)
    waits = 1 - rates.hides
    # Weights travel while the next pass is computed, as gradients do during the last one.
    gathered = config.item * (waits if device.kind in deployment.spec.gathers_later else 1)
    sent_bytes = waits * step.gradient + gathered if split else 2 * waits * step.gradient
    # A rank has one of `ep` parts of the weights of all experts.
    experts = (stage - weights) / (deployment.ep - 1) if deployment.ep > 1 else weights
    whole = weights * (step.gradient + (config.item if split else step.moved))
    shared = stage / deployment.ep / deployment.cp * step.moved if split else 0.0
    reached = device.streamed * rates.memory
    return OptimizerStep(
        deployment.island,
        deployment.mesh.copy_size,
        experts * sent_bytes,
        (weights - experts) * sent_bytes,
        deployment.ep,
        deployment.cp,
        whole,
        shared,
        reached,
        constants.collective,
        rates.update,
    )


def sync_cost(
    config: ModelConfig,
    source: Deployment,
    target: Deployment,
    together: bool,
    constants: Constants,
    apart: tuple[float, float] | None = None,
) -> Cost:
    """Return the cost of new weights from the group that trains to a group that generates.

    together: both are on the same devices, and each keeps what it already holds of them; what moves then is its shard
    less the overlap (HybridFlow, arXiv 2409.19256, table 2). Where tensors are split finer than in training, some
    device holds nothing of its part. Otherwise, and where one of them has replicas in a node group in which the other
    has none, all nodes of the target get the weights once over the network, as fast as a node of the source sends or
    one of the target receives, each passing on what it got; replicas on a node get them from each other.

    apart: bytes a second of a device and seconds of a message between node groups, where the two are in different ones.
    """
    size = work.trained_parameters(config.shape, config.kind) * config.trained_item
    overhead = constants.sync + constants.tensor * work.tensor_count(config.shape, config.kind)
    one, merged = target.parts, merging_cost(config, target, constants)
    if together and source.island != target.island:
        # In a pool over several node groups, one has replicas where the other has none.
        wider = max(source.island, target.island, key=lambda island: len(island.parts))
        together, apart = False, (wider.between, wider.between_latency)
    if together:
        held = size / source.parts if target.tp <= source.tp else 0.0
        near = transfer_bandwidth(source, max(source.mesh.copy_size, target.mesh.copy_size), constants)
        return Cost(communication=max(0.0, size / one - held) / near, overhead=overhead) + merged
    bandwidth, latency = apart or (math.inf, 0.0)
    network = min(source.island.network, target.island.network, bandwidth) * constants.transfer
    least = min(source.size, target.size, source.island.per_node, target.island.per_node)
    passed = size / one / transfer_bandwidth(target, target.mesh.copy_size, constants)
    return Cost(communication=size / least / network + passed + latency, overhead=overhead) + merged


def held_adapter_bytes(config: ModelConfig, deployment: Deployment, item: int) -> float:
    """Return the bytes of adapters that an engine receives, and of what it keeps to compute with them; 0 without
    adapters. item: bytes of a number of the weights."""
    shape, spec = config.shape, deployment.spec
    if shape.adapters is None:
        return 0.0
    room, wide = spec.adapter_rank(shape.adapters.rank), max(item, config.trained_item)
    return work.adapters_held(shape, deployment.merges, item, wide, room, deployment.tp, deployment.on_cpu)


def merging_cost(config: ModelConfig, target: Deployment, constants: Constants) -> Cost:
    """Return the cost of merging received adapters into the weights of an engine: for each matrix the copy without
    adapters is read, their product is added in the adapters' dtype, and the sum is written to the weights."""
    if config.shape.adapters is None or not target.merges:
        return Cost()
    device, rates = target.island.device, constants.rates[target.engine, "generate"]
    numbers = work.adapted_parameters(config.shape) / target.tp
    widened = 2 * config.trained_item if config.item < config.trained_item else 0
    moved = numbers * (2 * config.item + 2 * config.trained_item + widened)
    products = 2.0 * config.shape.adapters.rank * numbers / (device.products("float32") * rates.compute)
    return Cost(compute=products, memory=moved / (device.streamed * rates.memory))


def transfer_bandwidth(deployment: Deployment, reach: int, constants: Constants) -> float:
    """Return the bytes a second of planned transfers among so many devices in a row."""
    island = deployment.island
    return (island.device.link if island.near(reach) else island.network) * constants.transfer
