"""Estimates how long the work of a model takes on a group of devices: rooflines, alpha-beta collectives, pipelines, and
overheads.

Training and reading are bound by matrix products, decoding by the memory's bandwidth. Pipelines run
one-forward-one-backward: with m micro-batches and p stages a step has m + p - 1 turns (arXiv 2104.04473).
`rlgraph.passes.cost.constants` defines each constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from rlgraph.backends.enginespec.memory import HeadTiles
from rlgraph.backends.enginespec.rates import Rates
from rlgraph.backends.enginespec.spec import PrefixSharing
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.stages import stage_layer_counts
from rlgraph.passes.cost import work
from rlgraph.passes.cost.activations import (
    chosen_expert_bytes_per_token,
    recomputed_head_share,
    saved_layer_bytes_per_token,
)
from rlgraph.passes.cost.batch import Batch, total_rows
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.deployment import BLOCK_TOKENS, Deployment, ModelConfig
from rlgraph.passes.cost.lengths import largest_excess
from rlgraph.passes.cost.optimizer import WIDE
from rlgraph.passes.cost.weights import rank_trained_parameter_count


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

    def rows_of_fullest_rank(self, rows: float) -> float:
        """Return the rows of the rank that has most of the rows of a replica."""
        return max(min(rows, 1.0), rows / self.ranks)

    def micro_batch_count(self, rows: float) -> float:
        """Return the micro-batches of so many rows; of a pipeline at least one for each stage, where there are as many
        rows."""
        return max(1.0, math.ceil(rows * self.blocks), min(self.stages, rows))

    def seconds(self, rows: float) -> float:
        """Return the seconds of so many rows."""
        return self.seconds_with_chunks(rows, self.chunks)

    def seconds_with_chunks(self, rows: float, chunks: int) -> float:
        """Return the seconds of so many rows, if each stage had so many chunks of the layers."""
        if rows == 0:
            return self.call
        more, (row, block) = chunks - self.chunks, self.passing
        rows, row, block = self.rows_of_fullest_rank(rows), self.row_s + more * row, self.block_s + more * block
        turns = self.micro_batch_count(rows)
        busy = row * rows + block * turns
        return self.call + busy + _before(self.stages, chunks, turns) * max(busy / turns, row * self.longest + block)

    def least_seconds(self, rows: float, waits: bool) -> float:
        """Return seconds that no passes over so many rows or more take less than, however many chunks a stage has.
        waits: whether its stages wait for each other, with one chunk on each."""
        if rows == 0:
            return self.call
        rows = self.rows_of_fullest_rank(rows)
        bubbles = (self.stages - 1) * (self.row_s * self.longest + self.block_s) if waits else 0.0
        return self.call + self.row_s * rows + self.block_s * self.micro_batch_count(rows) + bubbles

    def bubble_seconds(self, turns: float, turn: float) -> float:
        """Return the seconds in which stages wait: as long as the longest micro-batch takes to pass all of them (a
        flow shop whose machines are alike: Pinedo, Scheduling, section 6.1), or with several chunks of the layers on a
        stage to pass one chunk of each (arXiv 2104.04473, section 2.2.2). turn: seconds of a micro-batch, on
        average."""
        return self.bubble_in_micro_batches(turns) * max(turn, self.row_s * self.longest + self.block_s)

    def bubble_in_micro_batches(self, turns: float) -> float:
        """Return how many micro-batches take as long on a stage as the stage waits. With fewer micro-batches than
        stages the first one returns to a stage for its next chunk of the layers when it has passed all stages, however
        many chunks there are: nothing fills the time until then."""
        return _before(self.stages, self.chunks, turns)

    def wait_seconds(self, rows: float) -> tuple[float, float, float]:
        """Return the seconds in which stages wait for each other; the part of these that is due to the longest
        micro-batch being longer than others; and the seconds of one micro-batch."""
        if rows == 0:
            return 0.0, 0.0, 0.0
        rows = self.rows_of_fullest_rank(rows)
        turns = self.micro_batch_count(rows)
        turn = (self.row_s * rows + self.block_s * turns) / turns
        waiting = self.bubble_seconds(turns, turn)
        return waiting, waiting - self.bubble_in_micro_batches(turns) * turn, turn

    def cost(self, rows: float) -> Cost:
        """Return the cost of so many rows."""
        if rows == 0:
            return Cost(overhead=self.call)
        rows = self.rows_of_fullest_rank(rows)
        turns = self.micro_batch_count(rows)
        busy = self.row.scaled(rows) + self.block.scaled(turns)
        bubble, rest = self.bubble_seconds(turns, busy.seconds / turns), self.call - self.gathered
        return busy + Cost(communication=self.gathered, bubble=bubble, overhead=rest)


def _before(stages: int, chunks: int, turns: float) -> float:
    """Return `LatencyModel.bubble_in_micro_batches` for so many stages and chunks."""
    if chunks == 1:
        return stages - 1
    return max(0.0, stages - turns) + (min(turns, stages) - 1) / chunks


def contention_slowdown(deployment: Deployment, rates: Rates) -> float:
    """Return by what factor work is slower that other ranks or threads do at the same time."""
    return (1 + rates.crowd * (deployment.rank_count > 1)) * (1 + rates.lock * (deployment.threads > 1))


@dataclass(frozen=True, slots=True)
class _Row:
    """What a row of some batches takes, on average."""

    weight_flops: float
    attention_flops: float
    """Those that a causal mask hides counted as well."""
    head_flops: float
    tokens: float
    scored: float
    """Tokens whose logits are computed."""
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
    tiles: HeadTiles | None,
    batches: tuple[Batch, ...],
) -> _Row:
    """Return what an average row takes: cached because many splits are fed the same."""
    rows_of_all = total_rows(batches) or 1.0
    layers = attention = heads = tokens = scored = squares = blocks = longest = 0.0
    for batch in batches:
        part = batch.rows / rows_of_all
        row_blocks, row = batch.micro_batches_per_row(budget, packs, shares)
        # The backward pass recomputes the layers, and of a head the logits that are not kept.
        again = recomputed_head_share(shape, model, row.scored / row_blocks, tp, tiles)
        head_once = work.head_flops(shape, model, row)
        weight_flops, head_flops = work.weight_flops(shape, row) + work.adapter_flops(shape, row), head_once
        attention_flops = work.attention_flops(shape, row)
        if kind == "train":
            weight_flops, attention_flops, head_flops = work.training_flops(shape, model, row, recompute)
            head_flops += again * head_once
        layers += part * weight_flops
        attention += part * attention_flops
        heads += part * head_flops
        tokens += part * row.tokens
        scored += part * row.scored
        squares += part * row.squares
        blocks += part * row_blocks
        if packs:
            longest = max(longest, batch.prompt.mean + batch.response.quantile(1 - 0.5 / max(batch.rows, 1.0)))
    return _Row(layers, attention, heads, tokens, scored, squares, blocks, max(1.0, longest / max(tokens, 1.0)))


def latency_model(
    kind: Literal["forward", "train"],
    config: ModelConfig,
    deployment: Deployment,
    constants: Constants,
    batches: Sequence[Batch],
) -> LatencyModel:
    """Return the time of one replica's forward pass, or of its forward and backward passes; it does not depend on the
    number of replicas. Where stages have unlike numbers of layers, each takes as long as the slowest."""
    budget, again = deployment.micro_tokens or BLOCK_TOKENS, kind == "train" and deployment.recompute
    fed, tiles = (deployment.packs_rows, deployment.prefix_sharing), deployment.engine_spec.memory.head_tiles
    row = _row(kind, config.shape, config.kind, deployment.tp, budget, *fed, again, tiles, tuple(batches))
    counts = stage_layer_counts(config.shape.layers, deployment.pp, deployment.chunks_per_stage)
    # The last stage has the head; one before it may have more layers.
    slowest = {counts[-1]: True, max(counts): max(counts) == counts[-1]}
    models = (_stage_latency(kind, config, deployment, constants, row, *stage) for stage in slowest.items())
    return max(models, key=lambda model: model.row_s + model.block_s * model.blocks)


def _stage_latency(
    kind: Literal["forward", "train"],
    config: ModelConfig,
    deployment: Deployment,
    constants: Constants,
    row: _Row,
    layers: int,
    has_head: bool,
) -> LatencyModel:
    """Return the time of a replica all of whose stages have so many layers, and whether they have the head, too."""
    shape, rates = config.shape, constants.rates[deployment.engine, kind]
    passes, reduces = (1.0, 2) if kind == "forward" else (4.0, 6) if deployment.recompute else (3.0, 4)
    tokens, blocks, device = row.tokens, row.blocks, deployment.island.device
    stages = shape.layers / layers
    inner, stage_link = deployment.tp_and_pp_links(constants)
    tokens /= deployment.cp
    size = tokens * shape.hidden * config.item_bytes
    routed, sparse = 0.0, layers * shape.expert_layer_count / shape.layers
    # Of experts on other ranks what arrives is gathered, and not all tokens, but for experts that all of them take.
    gathers_all = layers - (sparse / 2 if deployment.ep > 1 and not shape.shared_ffn else 0)
    sent = gathers_all * reduces * inner.all_reduce_bandwidth_seconds(size, deployment.tp)
    # Where ranks split tokens, too, what is between A and B of adapters travels apart from inputs and outputs.
    apart = 2 if shape.adapters and deployment.engine_spec.memory.splits_tokens else 1
    rounds = (
        layers
        * reduces
        * apart
        * (inner.all_reduce_latency_seconds(deployment.tp) + (rates.reduce if deployment.tp > 1 else 0.0))
    )
    if deployment.ep > 1:
        # A token goes to each of its experts and comes back, forward and backward.
        routed = sparse * reduces * _routed_seconds(deployment, constants, size, shape, rates)
        rounds += sparse * reduces * deployment.expert_link(constants).all_to_all_latency_seconds(deployment.ep)
    if deployment.cp > 1:
        # Keys and values of all tokens arrive, and their gradients go back.
        nearby, gathers = deployment.context_link(constants), {1.0: 1, 3.0: 2, 4.0: 3}[passes]
        heads = max(1.0, shape.kv_heads / deployment.tp)
        keys = tokens * deployment.cp * 2 * heads * shape.padded_head_dim * config.item_bytes
        latency_s = nearby.all_gather_seconds(0, deployment.cp)
        sent += layers * gathers * (nearby.all_gather_seconds(keys, deployment.cp) - latency_s)
        rounds += layers * gathers * (latency_s + rates.reduce)
    # What a row and a micro-batch send to the next stage, for each chunk of a stage's layers.
    on, hop = 0.0, 0.0
    if deployment.pp > 1:
        both = 1 if kind == "forward" else 2
        on, hop = both * size / stage_link.bandwidth, both * stage_link.latency
        sent, rounds = sent + deployment.chunks_per_stage * on, rounds + deployment.chunks_per_stage * hop
    products = row.weight_flops / stages / device.matmul_flops(config.product_dtype)
    # Kernels skip the half that a causal mask hides.
    attended = rates.attention * row.attention_flops / 2 / deployment.attention_rate
    products += attended / stages / device.matmul_flops(config.attention_dtype)
    products += has_head * row.head_flops / device.matmul_flops(config.dtype)
    compute = products / deployment.tp / deployment.cp / rates.compute
    moved = (
        passes
        * constants.traffic
        * layers
        * tokens
        * saved_layer_bytes_per_token(
            shape, config.item_bytes, deployment.tp, deployment.engine_spec.memory.splits_tokens, deployment.ep
        )
    )
    if deployment.engine_spec.keeps_attention_scores(deployment.attention):
        moved += (
            passes * constants.traffic * layers * shape.heads / deployment.tp * row.squares * max(4, config.item_bytes)
        )
    if config.kind == "causal_lm" and has_head:
        moved += rates.logit * row.scored * shape.vocab / deployment.tp / deployment.cp
    memory = moved / (device.stream_bandwidth * rates.memory)
    if deployment.ep > 1:
        # Each layer waits for the rank whose experts have most tokens, which receives these, too.
        ranks = deployment.ep * (deployment.tp if rates.whole_experts else 1)
        worked_on = (_of_fullest(ranks, shape, constants) - 1) * passes * sparse * tokens
        own_flops = 2 * worked_on * work.chosen_parameter_count(shape) / deployment.tp
        compute += own_flops / device.matmul_flops(config.product_dtype) / rates.compute
        own_bytes = worked_on * chosen_expert_bytes_per_token(shape, config.item_bytes, deployment.tp)
        memory += constants.traffic * own_bytes / (device.stream_bandwidth * rates.memory)
    if rates.hides_routed:
        routed = max(0.0, routed - compute - memory)
    slower = contention_slowdown(deployment, rates)
    waits = 1 - rates.hides
    row_cost = Cost(compute, memory, sent * waits + routed, overhead=rates.row + rates.token * tokens * layers).scaled(
        slower
    )
    # Each chunk of a stage's layers is a separate pass.
    passing = rates.block * deployment.chunks_per_stage
    # Few tokens of a micro-batch go to one expert: its weights take as long to read as its products, and so do
    # gradients that are added up.
    expert_weights = work.expert_parameter_count(shape) / stages / deployment.tp / deployment.ep / deployment.fsdp
    read = expert_weights * (passes * config.item_bytes + (2 * WIDE if kind == "train" else 0))
    if kind == "train":
        read += rates.gradient * (
            rank_trained_parameter_count(config, deployment) - (0 if shape.adapters else expert_weights)
        )
    block = Cost(
        memory=read / (device.stream_bandwidth * rates.memory),
        communication=rounds,
        overhead=passing + rates.layer * layers,
    ).scaled(slower)
    once, turn = 0.0, row_cost.seconds / max(blocks, 1e-9)
    if sparse:
        # The host goes ahead of the device, and is waited for where that has less to do.
        block += Cost(overhead=max(0.0, rates.experts * sparse * slower - turn - block.memory - block.communication))
    if deployment.fsdp > 1:
        # The next layer's parameters are gathered while this one works.
        exchanged, once = _gathering(kind, config, deployment, constants)
        block += Cost(communication=exchanged - min(rates.hides * exchanged, turn))
        once -= min(rates.hides * once, turn)
    call, ranks, chunk_s = (
        rates.call + once,
        deployment.row_shard_count,
        (on * waits * slower, (hop + rates.block) * slower),
    )
    return LatencyModel(
        row_cost, block, call, blocks, deployment.pp, row.longest, ranks, once, deployment.chunks_per_stage, chunk_s
    )


def _of_fullest(parts: float, shape: Shape, constants: Constants) -> float:
    """Return how many times the average part's tokens go to the fullest of so many parts that share out the experts of
    a layer. How often those of a part are chosen is about normal; of fewer than 16 experts the fullest has more. Which
    it is differs from layer to layer, so that what a rank keeps of all layers is near the mean."""
    return 1 + largest_excess(parts) * constants.uneven * math.sqrt(parts / shape.experts)


def _routed_seconds(deployment: Deployment, constants: Constants, size: float, shape: Shape, rates: Rates) -> float:
    """Return the seconds in which tokens go to their experts, or come back. What stays on a node and what leaves it
    travel at the same time; the fullest rank of a node and the fullest node are waited for. size: bytes of the tokens
    that tensor-parallel ranks share out: each sends its part, and what arrives is gathered where they split experts."""
    near, far, ranks, tp = *deployment.expert_links(constants), deployment.ep, deployment.tp
    together, chosen = min(ranks, max(1, deployment.island.per_node // tp)), shape.experts_per_token
    nodes, size = ranks / together, size * chosen
    inner, _ = deployment.tp_and_pp_links(constants)
    gathering = 0.0 if rates.whole_experts else inner.all_to_all_bandwidth_seconds(size, tp)
    inside, outside = (together - 1) / ranks, 1 - together / ranks
    if rates.once_a_node:
        # Of as many experts at random, those on so many nodes are on fewer.
        inside, outside = inside * nodes, outside * nodes * (1 - (1 - 1 / nodes) ** chosen) / chosen
    inside *= _of_fullest(ranks, shape, constants)
    outside *= _of_fullest(nodes, shape, constants)
    return size / tp * max(inside / near.bandwidth, outside / far.bandwidth) + gathering


def _gathering(
    kind: Literal["forward", "train"], config: ModelConfig, deployment: Deployment, constants: Constants
) -> tuple[float, float]:
    """Return the seconds in which FSDP ranks communicate for one micro-batch, and for each call: all parameters are
    gathered, layer by layer, and for training once more, or once for all its micro-batches; and gradients are reduced,
    narrow ones in float32 (arXiv 2304.11277)."""
    link, ranks = deployment.fsdp_link(constants), deployment.fsdp
    weights = ranks * work.fsdp_shard_parameter_count(config.shape, config.kind, ranks) / deployment.tp
    units = config.shape.layers + 1
    gather, reduce = (
        units * link.all_gather_seconds(weights * item / units, ranks)
        for item in (config.item_bytes, max(WIDE, config.item_bytes))
    )
    if kind == "forward":
        return gather, 0.0
    return (reduce, gather) if deployment.keeps_parameters_gathered else (2 * gather + reduce, 0.0)
