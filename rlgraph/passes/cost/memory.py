"""Estimates how many bytes a model needs on the fullest rank of a group: what stays, and what each kind of work needs
for a while.

What a rank needs depends on the number of data-parallel replicas: replicas shard the rows, and the optimizer state
where the engine does that.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from rlgraph.backends.enginespec.spec import PrefixSharing
from rlgraph.catalog.models.families import matrices
from rlgraph.passes.cost import work
from rlgraph.passes.cost.activations import QUERIES, Activations, activation_bytes, forward_bytes, logits_bytes
from rlgraph.passes.cost.deployment import BLOCK_TOKENS, Deployment, ModelConfig
from rlgraph.passes.cost.optimizer import WIDE, optimizer_bytes
from rlgraph.passes.cost.time import Batch, held, held_adapter_numbers, trained_numbers
from rlgraph.passes.cost.work import Tokens
from rlgraph.passes.pipelines.published import micro_batches_in_flight

KEPT = ("weights", "optimizer")
"""What the host keeps of an off-loaded model; of one whose gradients are added up while others work, it keeps these
too."""

BUCKET = 256 << 20
"""The most bytes of messages that a rank has while weights travel."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """The bytes of one rank by what they hold: `weights`, `gradients`, `optimizer`, `activations`, `logits`, `cache`,
    `buffers`, and `messages` in which new weights arrive."""

    parts: tuple[tuple[str, float], ...] = ()

    @property
    def total(self) -> float:
        """Return the sum of all parts."""
        total = 0.0
        for _, size in self.parts:
            total += size
        return total

    def of(self, names: Collection[str]) -> float:
        """Return the sum of the parts with these names."""
        return sum(size for name, size in self.parts if name in names)

    def __add__(self, other: Bytes) -> Bytes:
        if not other.parts:
            return self
        sizes = dict(self.parts)
        for name, size in other.parts:
            sizes[name] = sizes.get(name, 0.0) + size
        return Bytes(tuple(sizes.items()))

    def times(self, factor: float) -> Bytes:
        """Return the bytes with each part multiplied by the factor."""
        return Bytes(tuple((name, size * factor) for name, size in self.parts))


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of one model on one rank of a group."""

    resident: Bytes = field(default=Bytes())
    """What the model keeps while the group does other work."""
    active: Bytes = field(default=Bytes())
    """What it needs in addition while it does this work."""


Load = tuple[float, ...]
"""How much work a replica does at a time, in numbers whose meaning depends on the kind of work. Of two loads, the one
that is smaller in no number needs at least as much memory."""


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """The memory of a replica with some load."""

    stays: Bytes
    work: Bytes
    shared: Bytes = field(default=Bytes())
    """More resident bytes, which the replicas shard."""
    update: Bytes = field(default=Bytes())
    """The bytes of an optimizer's step, which the replicas shard."""

    def at(self, copies: int) -> Footprint:
        """Return the footprint of one of so many replicas."""
        return Footprint(self.stays + self.shared.times(1 / copies), larger(self.work, self.update.times(1 / copies)))

    @property
    def totals(self) -> tuple[float, float, float, float]:
        """Return the totals of `stays`, `work`, `shared` and `update`."""
        return self.stays.total, self.work.total, self.shared.total, self.update.total


class MemoryModel(ABC):
    """The memory of one kind of work with a model on a split, by the number of replicas. What does not depend on this
    number is computed once."""

    def __init__(self, config: ModelConfig, deployment: Deployment, batches: Sequence[Batch]) -> None:
        self.config, self.deployment, self.batches = config, deployment, batches
        self._load_totals: dict[tuple[bool, Load], tuple[float, float, float, float]] = {}
        """The cached values of `Needs.totals` by recomputation and load."""

    keeps: Sequence[str] = KEPT
    """What the host keeps of the model while it is off-loaded."""

    @property
    @abstractmethod
    def loads(self) -> object:
        """Return a key of all that loads depend on beside the number of replicas."""

    @abstractmethod
    def load(self, copies: int, chunks: int = 0) -> Load:
        """Return the load of one of so many replicas. chunks: the parts of the layers on each stage; 0: as in the
        deployment."""

    @abstractmethod
    def needs(self, load: Load) -> MemoryNeeds:
        """Return the memory of a replica with this load."""

    def at(self, copies: int) -> Footprint:
        """Return the footprint of one of so many replicas."""
        return self.needs(self.load(copies)).at(copies)

    def totals(self, copies: int) -> tuple[float, float]:
        """Return the resident bytes, and those that the work needs in addition: the totals of `at`, to rounding. The
        search asks for nothing else, and often."""
        stays, work, shared, update = self._totals(self.load(copies))
        return stays + shared / copies, max(work, update / copies)

    def floor(self, copies: int) -> tuple[float, float]:
        """Return a lower bound of `totals` for any rows."""
        stays, work, shared, update = self._least
        return stays + shared / copies, max(work, update / copies)

    def kept(self, copies: int) -> float:
        """Return the resident bytes that the host keeps while the model is off-loaded, for one of so many replicas.
        They do not depend on rows."""
        stays, shared = self._kept
        return stays + shared / copies

    @cached_property
    def _kept(self) -> tuple[float, float]:
        needs = self.needs(tuple(min(1.0, number) for number in self.load(1)))
        return needs.stays.of(self.keeps), needs.shared.of(self.keeps)

    @cached_property
    def _least(self) -> tuple[float, float, float, float]:
        """Return the totals with the smallest load of a replica that has any work."""
        return self._totals(tuple(min(1.0, number) for number in self.load(1)))

    def _totals(self, load: Load) -> tuple[float, float, float, float]:
        """Return `Needs.totals` of a load, from the cache."""
        key = (self.deployment.recompute, load)
        if key not in self._load_totals:
            self._load_totals[key] = self.needs(load).totals
        return self._load_totals[key]


class _Feeding:
    """The micro-batches in which rows are fed, whatever model reads them: many splits feed the same."""

    def __init__(
        self, batches: tuple[Batch, ...], budget: int, side: int, ranks: int, shares: PrefixSharing | None = None
    ) -> None:
        """budget: padded tokens of a micro-batch. side: in-flight micro-batches. ranks: the ranks that shard the rows
        of a replica. shares: how rows with a common prefix are read together."""
        self.batches, self.budget, self.side, self.ranks, self.shares = batches, budget, side, ranks, shares
        self.widths = [batch.row.longest for batch in batches] or [1.0]
        self.uneven = any(batch.row.longest > batch.row.tokens * (1 + 1e-9) for batch in batches)
        """Whether rows of a table are of different lengths."""
        self._loads: dict[int, tuple[float, float, float]] = {}
        self._under_way: dict[tuple[int, int], tuple[float, float]] = {}
        self._micros: dict[tuple[float, float], Tokens] = {}

    def load(self, copies: int) -> tuple[float, float, float]:
        """Return the rows of the largest micro-batch of one of so many replicas, how many micro-batches this has, and
        how many prefixes its rows have. As in the engines, micro-batches are of about the same size, and here of the
        longest rows; where rows are uneven, one may fill its budget."""
        if copies not in self._loads:
            available, longest = self._available(copies), sum(self.widths)
            rows, blocks = _block(available, self.budget, longest, self.side)
            # A replica with one row less may have one micro-batch less, of more rows.
            least = max((batch.least(copies) for batch in self.batches), default=1.0) // self.ranks
            if 0 < least < available:
                rows = max(rows, _block(least, self.budget, longest, self.side)[0])
            if self.uneven:
                # The real lengths of rows decide how they are cut: a micro-batch may fill its budget.
                rows = max(rows, min(self.budget / longest, math.ceil(available / self.side)))
            # Of the micro-batches that are done only the gradients of the last one are left.
            self._loads[copies] = rows, min(blocks, self.side + 2.0), self._prefixes(rows, available, copies)
        return self._loads[copies]

    def _available(self, copies: int) -> float:
        """Return the rows of the rank that has most of them."""
        available = max((batch.share(copies) for batch in self.batches), default=1.0) or 1.0
        return math.ceil(available / self.ranks) if self.ranks > 1 else available

    def under_way(self, copies: int, chunks: int) -> tuple[float, float]:
        """Return the in-flight micro-batches of the first and of the last of `side` stages in interleaved lists. There
        are most where groups are largest. Uneven rows may make fewer micro-batches than the longest would, so that for
        these the count with the fewest possible groups is taken."""
        if (copies, chunks) not in self._under_way:
            # A replica with one row less may also have fewer groups.
            least = max((batch.least(copies) for batch in self.batches), default=1.0) // self.ranks
            counts = [self._most_at_a_time(rows) for rows in {self._available(copies), least} if rows > 0]
            first, last = (
                max(micro_batches_in_flight(self.side, count, chunks, stage) for count in counts)
                for stage in (0, self.side - 1)
            )
            self._under_way[copies, chunks] = first, last
        return self._under_way[copies, chunks]

    def _most_at_a_time(self, rows: float) -> int:
        """Return how many micro-batches so many rows may make, at the count for which most of them are in flight."""
        stages, count = self.side, math.ceil(_block(rows, self.budget, sum(self.widths), self.side)[1])
        if not self.uneven:
            return count
        few = int(rows * sum(batch.row.tokens for batch in self.batches) / self.budget)
        return min(count, (max(1, few // stages) + 1) * stages - 1)

    def _prefixes(self, rows: float, available: float, copies: int) -> float:
        """Return how many prefixes `rows` consecutive rows of a replica have: as many as rows, where each is read by
        itself. Micro-batches are aligned with prompts if they and the replicas have all rows of some prompts. Of uneven
        rows it is not known which ones a micro-batch has."""
        if self.shares is None or self.uneven or len(self.batches) != 1:
            return rows
        batch, fed = self.batches[0], max(1.0, self.widths[0] - 1)
        group, prompt = batch.together, batch.prompt.longest
        aligned = rows == batch.rows or (
            rows % group == 0 and available % group == 0 and available * copies == batch.rows
        )
        prefixes = rows / group if aligned else math.floor((rows - 2) / group) + 2
        prefixes = min(rows, math.ceil(prefixes))
        worth = (rows - prefixes) * prompt >= self.shares.worth * rows * fed and fed - prompt <= self.shares.longest
        return prefixes if worth else rows

    def micro(self, rows: float, prefixes: float) -> Tokens:
        """Return the tokens of a micro-batch with so many rows of each table, each as it is fed: without its last
        token."""
        if (rows, prefixes) not in self._micros:
            fed = [max(1.0, width - 1) for width in self.widths]
            scored = sum(batch.response.longest for batch in self.batches) or 1.0
            tokens_read = Tokens(
                math.ceil(rows * len(fed)),
                math.ceil(rows * sum(fed)),
                math.ceil(rows * sum(width * width for width in fed)),
                math.ceil(rows * scored),
                max(fed),
            )
            if prefixes < rows:
                prompt = self.batches[0].prompt.longest
                suffix = fed[0] - prompt
                tokens_read = replace(
                    tokens_read,
                    tokens=math.ceil(prefixes * prompt + rows * suffix),
                    copied=math.ceil(rows * prompt),
                    masks=min(suffix, QUERIES) * fed[0],
                )
            self._micros[rows, prefixes] = tokens_read
        return self._micros[rows, prefixes]


_feeding = lru_cache(1024)(_Feeding)


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
        self.feeding = _feeding(tuple(batches), budget, side, deployment.row_ranks, deployment.shares)
        self.weights = held(config, deployment)
        """The parameters of the fullest rank."""
        self.trained = trained_numbers(config, deployment)
        """The parameters of this rank and its adapters that training changes."""
        self.held = self.weights * config.item + held_adapter_numbers(config, deployment) * config.trained_item
        self.state = optimizer_bytes(config.optimizer, config.trained_item)

    @property
    def loads(self) -> object:
        return self.feeding

    def load(self, copies: int, chunks: int = 0) -> Load:
        return self.feeding.load(copies)

    def micro(self, rows: float, prefixes: float) -> Tokens:
        """Return what the fullest rank has of a micro-batch with so many rows."""
        return self.feeding.micro(rows, prefixes).shared_out(self.deployment.cp)


class TrainingMemory(_Fed):
    """The memory of training a model, with its optimizer state, which replicas may shard: ZeRO's first stage (arXiv
    1910.02054). Where gradients stay, a load has the in-flight micro-batches of the first stage and of the last one, in
    place of their number; else it also has whether there is another replica to all-reduce gradients with: 1 or 2."""

    @property
    def loads(self) -> object:
        return self.feeding, self.deployment.spec.memory.gradients_stay, self.deployment.chunks

    def load(self, copies: int, chunks: int = 0) -> Load:
        deployment, (rows, blocks, prefixes) = self.deployment, super().load(copies)
        if not deployment.spec.memory.gradients_stay:
            return rows, blocks, prefixes, min(copies, 2.0)
        # In 1F1B as many are in flight as stages follow, this one included (arXiv 2104.04473, section 2.2.1).
        # In interleaved lists there are more.
        first, last, chunks = min(deployment.pp, blocks), 1.0, chunks or deployment.chunks
        if chunks > 1:
            first, last = self.feeding.under_way(copies, chunks)
        return rows, first, prefixes, last

    parted = False
    """Whether gradients are added up while the group does other work, too."""

    def needs(self, load: Load) -> MemoryNeeds:
        config, deployment = self.config, self.deployment
        rows, blocks, prefixes, more = load
        weights, state = self.trained, self.state
        micro = self.micro(rows, prefixes)
        resident = Bytes((("weights", self.held),)) + _gathered(config, deployment, micro)
        sharded = deployment.spec.shards_optimizer
        # To the optimizer, expert-parallel ranks are replicas of all but experts, and context-parallel ranks of all.
        stage = work.stage_parameters(config.shape, config.kind, deployment.pp) / deployment.tp
        stepped = stage / deployment.ep / deployment.cp if sharded else weights
        optimizer = Bytes((("optimizer", stepped * (state.master + state.moments)),))
        per_block = _activations(config, deployment, micro, self.feeding.uneven)
        shared_out = Bytes()
        if deployment.spec.memory.gradients_stay:
            wide_gradients = weights * state.gradient
            resident += Bytes((("gradients", wide_gradients),))
            active = _pipeline(config, deployment, per_block, blocks, more)
            # gloo all-reduces a copy of the gradients; on a GPU AdamW has the roots of its shard of the second moments.
            update = Bytes((("buffers", wide_gradients),))
            if sharded and not deployment.on_cpu:
                shared_out = Bytes((("buffers", stepped * state.gradient),))
            else:
                active = larger(active, update)
        else:
            gradients = weights * config.trained_item
            gradient_sum = Bytes((("gradients", gradients * self.parted),))
            resident += gradient_sum
            passes = _shared_passes if deployment.fsdp > 1 else _passes
            active = passes(config, deployment, per_block, blocks, gradients, self.parted)
            active = larger(active, _update(config, deployment, weights, more == 2.0) + gradient_sum.times(-1))
        return (
            MemoryNeeds(resident, active, optimizer, shared_out)
            if sharded
            else MemoryNeeds(resident + optimizer, active)
        )


class AccumulatingMemory(TrainingMemory):
    """The memory of training where a step's rows come while the group does other work: the sum of the gradients stays
    meanwhile."""

    parted = True
    keeps = (*KEPT, "gradients")


class ForwardMemory(_Fed):
    """The memory of a forward pass: one layer at a time, and then the head."""

    def needs(self, load: Load) -> MemoryNeeds:
        rows, blocks, prefixes = load
        config, deployment = self.config, self.deployment
        shape, item, spec = config.shape, config.item, deployment.spec
        resident = Bytes((("weights", self.held),))
        micro = self.micro(rows, prefixes)
        layer = forward_bytes(
            shape,
            micro,
            itemsize=item,
            tp=deployment.tp,
            packed=_packed(deployment, micro, self.feeding.uneven),
            splits_tokens=spec.memory.splits_tokens,
            cp=deployment.cp,
            masked=deployment.on_cpu,
            scores=spec.keeps_scores(deployment.attention),
        )
        logits = logits_bytes(shape, config.kind, micro, deployment.tp, _split_head(deployment))
        chosen = micro.scored * shape.hidden * item
        active = larger(
            Bytes((("activations", layer),)), Bytes((("activations", min(chosen, layer)), ("logits", logits)))
        )
        if deployment.fsdp > 1:
            layer, rest = _units(config, deployment)
            # A layer's parameters, their message, and the parameters outside of layers; before the layer begins also
            # the message before that.
            begins = Bytes((("activations", 2 * micro.tokens * shape.hidden * item), ("buffers", layer * item)))
            active = larger(active, begins) + Bytes((("buffers", (2 * layer + rest) * item),))
        return MemoryNeeds(
            resident + _gathered(config, deployment, micro), active.times(min(deployment.threads, blocks))
        )


def _gathered(config: ModelConfig, deployment: Deployment, micro: Tokens) -> Bytes:
    """Return the buffer in which tensor-parallel ranks gather the tokens that they split, for a product; it stays."""
    if not deployment.spec.memory.splits_tokens or deployment.tp == 1:
        return Bytes()
    return Bytes((("buffers", micro.tokens * config.shape.hidden * config.item),))


def _packed(deployment: Deployment, micro: Tokens, uneven: bool) -> bool:
    """Return whether rows lie one behind the other; an engine that reads equal rows together uses memory as if it
    padded."""
    return deployment.packs and (uneven or micro.copied > 0 or deployment.spec.memory.row_by_row)


def _split_head(deployment: Deployment) -> bool:
    """Return whether logits are split by vocabulary; with tensor parallelism they always are."""
    return deployment.spec.memory.split_head or deployment.tp > 1


def _activations(config: ModelConfig, deployment: Deployment, micro: Tokens, uneven: bool) -> Activations:
    """Return the activation bytes of training with one micro-batch on a rank."""
    memory = deployment.spec.memory
    return activation_bytes(
        config.shape,
        config.kind,
        micro,
        itemsize=config.item,
        tp=deployment.tp,
        recompute=deployment.recompute,
        fused_norms=memory.fused_norms(deployment.island.device.kind, config.dtype),
        network=memory.network,
        packed=_packed(deployment, micro, uneven),
        angles=memory.angles,
        scores=deployment.spec.keeps_scores(deployment.attention),
        splits_tokens=memory.splits_tokens,
        split_head=_split_head(deployment),
        keeps_fused=memory.keeps_fused,
        wide_norms=memory.wide_norms,
        cp=deployment.cp,
        masked=deployment.on_cpu,
    )


def _pipeline(config: ModelConfig, deployment: Deployment, per_block: Activations, first: float, last: float) -> Bytes:
    """Return the bytes of the fuller one of the first and the last stage, with so many in-flight micro-batches; the
    last one has the head, and keeps its activations of one micro-batch, whose backward begins at once."""
    layers, heads = config.shape.layers / deployment.pp, 1.0
    if deployment.in_flight:
        first, last = deployment.in_flight
        heads = last
    ahead = Bytes((("activations", layers * per_block.layer * first + per_block.working),))
    return larger(ahead, _turn(last * layers * per_block.layer + heads * per_block.ends, per_block)) if last else ahead


def _turn(activations: float, per_block: Activations) -> Bytes:
    """Return the bytes when the forward pass ends: while the head is at work, or as the backward pass begins."""
    if per_block.head > per_block.working:
        return Bytes((("activations", activations), ("logits", per_block.head)))
    return Bytes((("activations", activations + per_block.working),))


def _passes(
    config: ModelConfig, deployment: Deployment, per_block: Activations, blocks: float, gradients: float, parted: bool
) -> Bytes:
    """Return the bytes of the passes where gradients do not stay: beside their sum those of the last micro-batch exist
    while the next ones are computed, and each of these has its activations at first and its gradients in the end.
    parted: the sum is counted as resident."""
    shape = config.shape
    side = min(deployment.threads, blocks)
    before = Bytes((("gradients", max(0.0, min(2.0, blocks - side) - parted) * gradients),))
    turn = _turn(shape.layers * per_block.layer + per_block.ends, per_block)
    # A tied embedding and head have two gradient matrices, and their sum is a third.
    has_head = config.kind == "causal_lm" and shape.adapters is None
    tied = 2 * shape.vocab * shape.hidden * config.item / deployment.tp if shape.tied and has_head else 0
    end = Bytes((("gradients", gradients + tied),))
    return before + larger(turn, end).times(side)


def _units(config: ModelConfig, deployment: Deployment) -> tuple[float, float]:
    """Return how many parameters FSDP ranks gather together: those of a layer, and those outside of layers."""
    shape, layer = config.shape, work.layer_parameters(config.shape)
    rest = work.stage_parameters(shape, config.kind, 1) - work.body_parameters(shape)
    return layer / deployment.tp, rest / deployment.tp


def _shared_passes(
    config: ModelConfig, deployment: Deployment, per_block: Activations, blocks: float, gradients: float, parted: bool
) -> Bytes:
    """Return the bytes of the passes where ranks shard parameters and gradients, and have a layer's in full while it
    works: the fullest moment of a layer's backward pass, or of its end, when the gradients of parameters outside of
    layers are summed up."""
    shape, item, wide = config.shape, config.item, max(WIDE, config.item)
    layer, rest = _units(config, deployment)
    # Trained parameters of a layer, counted in its dtype, and those outside of layers.
    small = deployment.fsdp * held_adapter_numbers(config, deployment) / shape.layers * config.trained_item / item
    layer_trained, rest_trained = (small, 0.0) if shape.adapters else (layer, rest)
    layer += small
    # Where the parameters of all layers stay, none arrive in the backward pass; in the first micro-batch the message
    # of the last layer remains, and narrow gradients exist beside their sums.
    gathers_once = deployment.gathers_once
    more, coming = ((shape.layers - 1) * layer, 0.0) if gathers_once else (0.0, layer)
    sums = wide * layer_trained / deployment.fsdp if gathers_once and wide > item else 0.0
    before = Bytes((("gradients", max(0.0, min(2.0 - parted, blocks - 1)) * gradients),))
    if gathers_once:
        before = larger(before, Bytes((("buffers", layer * item),)))
    begins = _turn(shape.layers * per_block.layer + per_block.ends, per_block) + Bytes(
        (("buffers", (layer + more + rest) * item),)
    )
    # A layer's parameters, those of the next as they arrive, its gradients, and those of the last as they leave.
    works = item * (layer + more + coming) + (item + wide * (shape.layers > 1)) * layer_trained + sums
    head = shape.vocab * shape.hidden / deployment.tp if config.kind == "causal_lm" and not shape.adapters else 0
    middle = Bytes(
        (
            ("activations", shape.layers * per_block.layer + per_block.working),
            ("buffers", works + (rest + head) * item),
        )
    )
    after = layer + more if gathers_once else 0.0
    end = Bytes((("gradients", gradients), ("buffers", (after + rest) * item + rest_trained * wide)))
    return before + larger(larger(begins, middle), end)


def _update(config: ModelConfig, deployment: Deployment, weights: float, several: bool) -> Bytes:
    """Return the bytes at the end of a step where gradients do not stay: the gradients, and what is made of them.
    several: there are several replicas."""
    item = config.trained_item
    narrow = item < 4
    if several:
        # Replicas all-reduce one float32 tensor that is made of all gradients.
        size = weights * (12 if narrow else 2 * item)
    elif narrow:
        size = weights * (item + 4)
    else:
        size = weights * item + (
            _laid_out(config) / deployment.tp if deployment.on_cpu and deployment.fsdp == 1 else 0.0
        )
    return Bytes((("gradients", size),))


def _laid_out(config: ModelConfig) -> float:
    """Return the bytes of transposed gradients: oneDNN transposes those of matrices with more outputs than inputs, and
    AdamW gets copies of them."""
    shape = config.shape
    if shape.adapters:
        return 0.0  # Their products are small ones, and stay with MKL.
    numbers = sum(math.prod(matrix.shape) for matrix in matrices(shape) if matrix.shape[1] > matrix.shape[2])
    if config.kind == "causal_lm" and not shape.tied and shape.vocab > shape.hidden:
        numbers += shape.vocab * shape.hidden
    return float(numbers * config.item)


def _block(available: float, budget: float, width: float, side: int) -> tuple[float, float]:
    """Return the rows of a micro-batch, and how many micro-batches there are, `side` of them at a time."""
    fit = max(1.0, budget // max(1.0, width))
    blocks = min(math.ceil(math.ceil(available / fit) / side) * side, max(1.0, available))
    return math.ceil(available / blocks), blocks


def larger(one: Bytes, other: Bytes) -> Bytes:
    """Return the one with the larger total."""
    return one if one.total >= other.total else other


def _total(sizes: Bytes) -> float:
    return sizes.total
