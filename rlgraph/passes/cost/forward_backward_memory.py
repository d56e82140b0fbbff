"""Estimates how many bytes forward and backward passes and optimizer steps need on the fullest rank of a group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from rlgraph.catalog.models.families import ModelKind, parameter_shapes
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.stages import part_layer_counts
from rlgraph.ops.optimizers import UPDATED_TOGETHER_BYTES
from rlgraph.passes.cost import work
from rlgraph.passes.cost.activations import Activations, activation_bytes, forward_peak_bytes, logits_bytes
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.deployment import BLOCK_TOKENS, Deployment, ModelConfig
from rlgraph.passes.cost.memory import EARLIER, KEPT, BytesByUse, Load, MemoryModel, MemoryNeeds, larger_total
from rlgraph.passes.cost.micro_batching import micro_batching
from rlgraph.passes.cost.optimizer import WIDE, optimizer_bytes_per_weight
from rlgraph.passes.cost.weights import (
    rank_adapter_parameter_count,
    rank_parameter_count,
    rank_trained_parameter_count,
    stage_trained_count,
)
from rlgraph.passes.cost.work import Tokens


class _Fed(MemoryModel):
    """The memory of work whose rows are fed in micro-batches. A load is the rows of a micro-batch, how many
    micro-batches a replica has, and how many prefixes the rows have."""

    def __init__(
        self,
        config: ModelConfig,
        deployment: Deployment,
        batches: Sequence[Batch],
        alike: MemoryModel | None = None,
    ) -> None:
        """alike: the model of the same split with micro-batches of another size, for which the same load needs the
        same."""
        super().__init__(config, deployment, batches)
        if alike:
            self._load_totals = alike._load_totals
        budget, side = deployment.micro_tokens or BLOCK_TOKENS, max(deployment.threads, deployment.pp)
        self.feeding = micro_batching(
            tuple(batches), budget, side, deployment.row_shard_count, deployment.prefix_sharing
        )
        self.weights = rank_parameter_count(config, deployment)
        """The parameters of the fullest rank."""
        self.trained = rank_trained_parameter_count(config, deployment)
        """The parameters of this rank and its adapters that training changes."""
        self.held = (
            self.weights * config.item_bytes
            + rank_adapter_parameter_count(config, deployment) * config.trained_item_bytes
            + config.narrow_copy_bytes * self.keeps_copies
        )
        self.state = optimizer_bytes_per_weight(config.optimizer, config.trained_item_bytes)

    @property
    def keeps_copies(self) -> bool:
        """Whether copies of its matrices in the dtype of their products stay: an update makes others."""
        return True

    @property
    def replica_load_cache_key(self) -> object:
        return self.feeding

    def replica_load(self, copies: int, chunks: int = 0) -> Load:
        """Return the rows of the largest micro-batch, the number of micro-batches and the prefixes of its rows."""
        return self.feeding.largest_micro_batch_of_replica(copies)

    def micro_batch_tokens(self, rows: float, prefixes: float) -> Tokens:
        """Return what the fullest rank has of a micro-batch with so many rows."""
        return self.feeding.micro_batch_tokens(rows, prefixes).part_of_fullest_rank(self.deployment.cp)


class TrainingMemory(_Fed):
    """The memory of training a model, with its optimizer state, which replicas may shard: ZeRO's first stage (arXiv
    1910.02054). Where gradients stay, a load has the in-flight micro-batches of the first stage and of the last one, in
    place of their number; else it also has whether there is another replica to all-reduce gradients with: 1 or 2."""

    @property
    def keeps_copies(self) -> bool:
        return self.config.shape.adapters is not None

    @property
    def replica_load_cache_key(self) -> object:
        return self.feeding, self.deployment.engine_spec.memory.gradients_stay, self.deployment.chunks_per_stage

    def replica_load(self, copies: int, chunks: int = 0) -> Load:
        """Return the rows of the largest micro-batch, the number of micro-batches, the prefixes of its rows, and
        whether there is another replica; in place of number and replica what is in flight where gradients stay."""
        deployment, (rows, blocks, prefixes) = self.deployment, super().replica_load(copies)
        if not deployment.engine_spec.memory.gradients_stay:
            return rows, blocks, prefixes, min(copies, 2.0)
        # In 1F1B as many are in flight as stages follow, this one included (arXiv 2104.04473, section 2.2.1).
        # In interleaved lists there are more.
        first, last, chunks = min(deployment.pp, blocks), 1.0, chunks or deployment.chunks_per_stage
        if chunks > 1:
            first, last = self.feeding.in_flight_micro_batches(copies, chunks)
        return rows, first, prefixes, last

    @property
    def never_offloaded_bytes(self) -> float:
        return self.trained * self.config.trained_item_bytes * self.config.earlier_versions

    @property
    def stepped_weights(self) -> float:
        """The weights of which a replica keeps the optimizer's state; replicas share them where they shard it."""
        # To the optimizer, expert-parallel ranks are replicas of all but experts, and context-parallel ranks of all.
        if not self.deployment.engine_spec.shards_optimizer:
            return self.trained
        return stage_trained_count(self.config, self.deployment) / self.deployment.ep / self.deployment.cp

    def optimizer_host_bytes(self, copies: int) -> float:
        if not self.deployment.optimizer_on_host:
            return 0.0
        sharing = copies if self.deployment.engine_spec.shards_optimizer else 1
        return self.stepped_weights * self.state.host_bytes / sharing

    parted = False
    """Whether gradients are added up while the group does other work, too."""

    def memory_needs(self, load: Load) -> MemoryNeeds:
        """Return the memory of a replica whose largest micro-batch has so many rows."""
        config, deployment = self.config, self.deployment
        rows, blocks, prefixes, more = load
        weights, state = self.trained, self.state
        micro = self.micro_batch_tokens(rows, prefixes)
        resident = BytesByUse((("weights", self.held),)) + _gathered(config, deployment, micro)
        if earlier := self.never_offloaded_bytes:
            resident += BytesByUse(((EARLIER, earlier),))
        sharded = deployment.engine_spec.shards_optimizer
        stepped, on_host = self.stepped_weights, deployment.optimizer_on_host
        optimizer = BytesByUse(() if on_host else (("optimizer", stepped * (state.master + state.moments)),))
        per_block = _activations(config, deployment, micro, self.feeding.uneven)
        shared_out = BytesByUse()
        if deployment.engine_spec.memory.gradients_stay:
            wide_gradients = weights * state.gradient
            resident += BytesByUse((("gradients", wide_gradients),))
            active = _pipeline(config, deployment, per_block, blocks, more)
            # gloo all-reduces a copy of the gradients; on a GPU AdamW has the roots of its shard of the second moments.
            update = BytesByUse((("buffers", wide_gradients),))
            if sharded and not deployment.on_cpu and not on_host:
                shared_out = BytesByUse((("buffers", stepped * state.gradient),))
            else:
                active = larger_total(active, update)
        else:
            gradients = weights * config.trained_item_bytes
            gradient_sum = BytesByUse((("gradients", gradients * self.parted),))
            resident += gradient_sum
            passes = _shared_passes if deployment.fsdp > 1 else _passes
            active = passes(config, deployment, per_block, blocks, gradients, self.parted)
            active += BytesByUse((("weights", config.narrow_copy_bytes * (not self.keeps_copies)),))
            active = larger_total(active, _update(config, deployment, weights, more == 2.0) + gradient_sum.scaled(-1))
        return (
            MemoryNeeds(resident, active, optimizer, shared_out)
            if sharded
            else MemoryNeeds(resident + optimizer, active)
        )


class AccumulatingTrainingMemory(TrainingMemory):
    """The memory of training where a step's rows come while the group does other work: the sum of the gradients stays
    meanwhile."""

    parted = True
    keeps = (*KEPT, "gradients")


class ForwardMemory(_Fed):
    """The memory of a forward pass: one layer at a time, and then the head."""

    def memory_needs(self, load: Load) -> MemoryNeeds:
        """Return the memory of a replica whose largest micro-batch has so many rows."""
        rows, blocks, prefixes = load
        config, deployment = self.config, self.deployment
        shape, item, spec = config.shape, config.item_bytes, deployment.engine_spec
        resident = BytesByUse((("weights", self.held),))
        micro = self.micro_batch_tokens(rows, prefixes)
        layer = forward_peak_bytes(
            shape,
            micro,
            itemsize=item,
            tp=deployment.tp,
            packed=_packed(deployment, micro, self.feeding.uneven),
            splits_tokens=spec.memory.splits_tokens,
            cp=deployment.cp,
            masked=deployment.on_cpu,
            scores=spec.keeps_attention_scores(deployment.attention),
        )
        tiles, on_cpu = spec.memory.head_tiles, deployment.on_cpu
        split = _split_head(deployment)
        logits = logits_bytes(shape, config.kind, micro, deployment.tp, split, tiles, item, on_cpu)
        chosen = micro.scored * shape.hidden * item
        active = larger_total(
            BytesByUse((("activations", layer),)), BytesByUse((("activations", min(chosen, layer)), ("logits", logits)))
        )
        if deployment.fsdp > 1:
            layer, rest = _units(config, deployment)
            # A layer's parameters, their message, and the parameters outside of layers; before the layer begins also
            # the message before that.
            begins = BytesByUse((("activations", 2 * micro.tokens * shape.hidden * item), ("buffers", layer * item)))
            active = larger_total(active, begins) + BytesByUse((("buffers", (2 * layer + rest) * item),))
        return MemoryNeeds(
            resident + _gathered(config, deployment, micro), active.scaled(min(deployment.threads, blocks))
        )


def _gathered(config: ModelConfig, deployment: Deployment, micro: Tokens) -> BytesByUse:
    """Return the buffer in which tensor-parallel ranks gather the tokens that they split, for a product; it stays. The
    products of weights that are not trained have none."""
    if not deployment.engine_spec.memory.splits_tokens or deployment.tp == 1 or config.shape.adapters:
        return BytesByUse()
    return BytesByUse((("buffers", micro.tokens * config.shape.hidden * config.item_bytes),))


def _packed(deployment: Deployment, micro: Tokens, uneven: bool) -> bool:
    """Return whether rows lie one behind the other; an engine that reads equal rows together uses memory as if it
    padded."""
    return deployment.packs_rows and (uneven or micro.copied > 0 or deployment.engine_spec.memory.row_by_row)


def _split_head(deployment: Deployment) -> bool:
    """Return whether logits are split by vocabulary; with tensor parallelism they always are."""
    return deployment.engine_spec.memory.split_head or deployment.tp > 1


def _activations(config: ModelConfig, deployment: Deployment, micro: Tokens, uneven: bool) -> Activations:
    """Return the activation bytes of training with one micro-batch on a rank."""
    memory = deployment.engine_spec.memory
    return activation_bytes(
        config.shape,
        config.kind,
        micro,
        itemsize=config.item_bytes,
        tp=deployment.tp,
        recompute=deployment.recompute,
        fused_norms=memory.fused_norms(deployment.island.device.kind, config.dtype),
        network=memory.network_columns,
        packed=_packed(deployment, micro, uneven),
        angles=memory.angle_numbers,
        scores=deployment.engine_spec.keeps_attention_scores(deployment.attention),
        splits_tokens=memory.splits_tokens,
        split_head=_split_head(deployment),
        keeps_fused=memory.keeps_fused,
        wide_norms=memory.wide_norm_bytes,
        ep=deployment.ep,
        cp=deployment.cp,
        masked=deployment.on_cpu,
        tiles=memory.head_tiles,
    )


def _pipeline(
    config: ModelConfig, deployment: Deployment, per_block: Activations, first: float, last: float
) -> BytesByUse:
    """Return the bytes of the fullest stage, with so many in-flight micro-batches on the first and on the last one; the
    last one has the head, and keeps its activations of one micro-batch, whose backward begins at once."""
    chunks, heads = deployment.chunks_per_stage, 1.0
    # Where parts of a stage are unlike, what is in flight counts as if all were as the longest.
    layers = [
        chunks * max(part_layer_counts(config.shape.layers, deployment.pp, stage, chunks))
        for stage in range(deployment.pp)
    ]
    # A later stage may have more layers, and under 1F1B has one micro-batch fewer in flight than the one before.
    kept = max(layers[0] * first, *(size * min(first, deployment.pp - stage) for stage, size in enumerate(layers)))
    if deployment.in_flight:
        first, last = deployment.in_flight
        kept, heads = max(layers) * first, last
    ahead = BytesByUse((("activations", kept * per_block.layer + per_block.working),))
    return (
        larger_total(ahead, _turn(last * layers[-1] * per_block.layer + heads * per_block.ends, per_block))
        if last
        else ahead
    )


def _turn(activations: float, per_block: Activations) -> BytesByUse:
    """Return the bytes when the forward pass ends: while the head is at work, or as the backward pass begins."""
    if per_block.head > per_block.working:
        return BytesByUse((("activations", activations), ("logits", per_block.head)))
    return BytesByUse((("activations", activations + per_block.working),))


def _passes(
    config: ModelConfig, deployment: Deployment, per_block: Activations, blocks: float, gradients: float, parted: bool
) -> BytesByUse:
    """Return the bytes of the passes where gradients do not stay: their sum exists while the next micro-batches are
    computed, and each of these has its activations at first and its gradients in the end. parted: the sum is counted
    as resident."""
    shape = config.shape
    side = min(deployment.threads, blocks)
    before = BytesByUse((("gradients", max(0.0, min(1.0, blocks - side) - parted) * gradients),))
    turn = _turn(shape.layers * per_block.layer + per_block.ends, per_block)
    # A tied embedding and head have two gradient matrices, and their sum is a third.
    has_head = config.kind == "causal_lm" and shape.adapters is None
    tied = 2 * shape.vocab * shape.hidden * config.item_bytes / deployment.tp if shape.tied and has_head else 0
    end = BytesByUse((("gradients", gradients + tied),))
    return before + larger_total(turn, end).scaled(side)


def _units(config: ModelConfig, deployment: Deployment) -> tuple[float, float]:
    """Return how many parameters FSDP ranks gather together: those of a layer, and those outside of layers."""
    shape, layer = config.shape, work.layer_parameter_count(config.shape)
    rest = work.stage_parameter_count(shape, config.kind, 1) - work.body_parameter_count(shape)
    return layer / deployment.tp, rest / deployment.tp


def _shared_passes(
    config: ModelConfig, deployment: Deployment, per_block: Activations, blocks: float, gradients: float, parted: bool
) -> BytesByUse:
    """Return the bytes of the passes where ranks shard parameters and gradients, and have a layer's in full while it
    works: the fullest moment of a layer's backward pass, or of its end, when the gradients of parameters outside of
    layers are summed up."""
    shape, item, wide = config.shape, config.item_bytes, max(WIDE, config.item_bytes)
    layer, rest = _units(config, deployment)
    # Trained parameters of a layer, counted in its dtype, and those outside of layers.
    small = (
        deployment.fsdp
        * rank_adapter_parameter_count(config, deployment)
        / shape.layers
        * config.trained_item_bytes
        / item
    )
    layer_trained, rest_trained = (small, 0.0) if shape.adapters else (layer, rest)
    layer += small
    # Where the parameters of all layers stay, none arrive in the backward pass; in the first micro-batch the message
    # of the last layer remains, and narrow gradients exist beside their sums.
    gathers_once = deployment.keeps_parameters_gathered
    more, coming = ((shape.layers - 1) * layer, 0.0) if gathers_once else (0.0, layer)
    sums = wide * layer_trained / deployment.fsdp if gathers_once and wide > item else 0.0
    before = BytesByUse((("gradients", max(0.0, min(1.0 - parted, blocks - 1)) * gradients),))
    if gathers_once:
        before = larger_total(before, BytesByUse((("buffers", layer * item),)))
    begins = _turn(shape.layers * per_block.layer + per_block.ends, per_block) + BytesByUse(
        (("buffers", (layer + more + rest) * item),)
    )
    # A layer's parameters, those of the next as they arrive, its gradients, and those of the last as they leave.
    works = item * (layer + more + coming) + (item + wide * (shape.layers > 1)) * layer_trained + sums
    head = shape.vocab * shape.hidden / deployment.tp if config.kind == "causal_lm" and not shape.adapters else 0
    middle = BytesByUse(
        (
            ("activations", shape.layers * per_block.layer + per_block.working),
            ("buffers", works + (rest + head) * item),
        )
    )
    after = layer + more if gathers_once else 0.0
    end = BytesByUse((("gradients", gradients), ("buffers", (after + rest) * item + rest_trained * wide)))
    return before + larger_total(larger_total(begins, middle), end)


def _update(config: ModelConfig, deployment: Deployment, weights: float, several: bool) -> BytesByUse:
    """Return the bytes at the end of a step where gradients do not stay: the gradients, and what is made of them.
    several: there are several replicas."""
    item = config.trained_item_bytes
    narrow = item < 4
    if several:
        # Replicas all-reduce one float32 tensor that is made of all gradients.
        size = weights * (12 if narrow else 2 * item)
    elif deployment.optimizer_on_host:
        size = weights * item
    elif narrow:
        # Wide gradients are made of some weights at a time, and of each at once.
        largest = WIDE * _largest_parameter(config.shape, config.kind) / deployment.tp / deployment.fsdp
        size = weights * item + min(WIDE * weights, max(UPDATED_TOGETHER_BYTES, largest))
    else:
        size = weights * item
    return BytesByUse((("gradients", size),))


@cache
def _largest_parameter(shape: Shape, kind: ModelKind) -> int:
    """Return the numbers of the largest parameter of a model."""
    return max(math.prod(parameter.shape["*" in parameter.name :]) for parameter in parameter_shapes(shape, kind))
