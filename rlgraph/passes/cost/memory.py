"""How many bytes a model needs on the fullest rank of a group: what stays, and what each kind of work needs for a
while.

What a rank needs depends on how many data-parallel copies there are: copies share out the rows, and the state of an
optimizer where the engine does that.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from rlgraph.backends.enginespec.spec import Shares
from rlgraph.catalog.models.families import matrices
from rlgraph.passes.cost import work
from rlgraph.passes.cost.activations import QUERIES, Activations, activation_bytes, forward_bytes, logits_bytes
from rlgraph.passes.cost.deployment import BLOCK_TOKENS, Deployment, ModelConfig
from rlgraph.passes.cost.optimizer import WIDE, optimizer_bytes
from rlgraph.passes.cost.time import Batch, adapters, held, trained
from rlgraph.passes.cost.work import Tokens
from rlgraph.passes.pipelines.published import in_flight

KEPT = ("weights", "optimizer")
"""What the host keeps of a model that sleeps; of one whose gradients are added up while others work, these too."""

BUCKET = 256 << 20
"""Most bytes of messages that a rank has while weights travel."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Of one rank, by what they are: `weights`, `gradients`, `optimizer`, `activations`, `logits`, `cache`,
    `buffers`, and `messages` in which new weights arrive."""

    parts: tuple[tuple[str, float], ...] = ()

    @property
    def total(self) -> float:
        found = 0.0
        for _, size in self.parts:
            found += size
        return found

    def of(self, names: Collection[str]) -> float:
        """Of some of them."""
        return sum(size for name, size in self.parts if name in names)

    def __add__(self, other: Bytes) -> Bytes:
        if not other.parts:
            return self
        found = dict(self.parts)
        for name, size in other.parts:
            found[name] = found.get(name, 0.0) + size
        return Bytes(tuple(found.items()))

    def times(self, factor: float) -> Bytes:
        return Bytes(tuple((name, size * factor) for name, size in self.parts))


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of one model on one group."""

    resident: Bytes = field(default=Bytes())
    """While the group does other work."""
    active: Bytes = field(default=Bytes())
    """More than that, while it does this work."""


Load = tuple[float, ...]
"""What a copy has to do at a time, in numbers of the kind of work. Of two loads the one that is the lesser in no number
needs at least as much memory."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Of a copy with some load."""

    stays: Bytes
    work: Bytes
    shared: Bytes = field(default=Bytes())
    """More that stays, of which each copy has its share."""
    update: Bytes = field(default=Bytes())
    """Of an optimizer's step, of which each copy has its share."""

    def at(self, copies: int) -> Footprint:
        """Of one of so many copies."""
        return Footprint(self.stays + self.shared.times(1 / copies), larger(self.work, self.update.times(1 / copies)))

    @property
    def totals(self) -> tuple[float, float, float, float]:
        return self.stays.total, self.work.total, self.shared.total, self.update.total


class MemoryModel(ABC):
    """What one kind of work with a model needs on a split, by the number of copies. What does not depend on the copies
    is worked out once."""

    def __init__(self, config: ModelConfig, deployment: Deployment, batches: Sequence[Batch]) -> None:
        self.config, self.deployment, self.batches = config, deployment, batches
        self._known: dict[tuple[bool, Load], tuple[float, float, float, float]] = {}
        """Totals, by recomputation and the load."""

    keeps: Sequence[str] = KEPT
    """What the host keeps of it while it sleeps."""

    @property
    @abstractmethod
    def loads(self) -> object:
        """What loads depend on, beside the copies."""

    @abstractmethod
    def load(self, copies: int, chunks: int = 0) -> Load:
        """Of one of so many copies. chunks: if stages had so many parts of the layers; 0: as they have."""

    @abstractmethod
    def needs(self, load: Load) -> Needs:
        """Of a copy with this load."""

    def at(self, copies: int) -> Footprint:
        """Of one of so many copies."""
        return self.needs(self.load(copies)).at(copies)

    def totals(self, copies: int) -> tuple[float, float]:
        """Bytes that stay, and that the work needs beside them: those of `at`, to rounding. The search asks for nothing
        else, and often."""
        stays, work, shared, update = self._totals(self.load(copies))
        return stays + shared / copies, max(work, update / copies)

    def floor(self, copies: int) -> tuple[float, float]:
        """The same at least, whatever rows they have."""
        stays, work, shared, update = self._least
        return stays + shared / copies, max(work, update / copies)

    def kept(self, copies: int) -> float:
        """Bytes of what stays that the host keeps while the model sleeps, of one of so many copies. They do not depend
        on rows."""
        stays, shared = self._kept
        return stays + shared / copies

    @cached_property
    def _kept(self) -> tuple[float, float]:
        needs = self.needs(tuple(min(1.0, each) for each in self.load(1)))
        return needs.stays.of(self.keeps), needs.shared.of(self.keeps)

    @cached_property
    def _least(self) -> tuple[float, float, float, float]:
        """With the least that a copy can have to do, as long as it has anything."""
        return self._totals(tuple(min(1.0, each) for each in self.load(1)))

    def _totals(self, load: Load) -> tuple[float, float, float, float]:
        key = (self.deployment.recompute, load)
        if key not in self._known:
            self._known[key] = self.needs(load).totals
        return self._known[key]


class _Feeding:
    """Rows that are fed in micro-batches, whatever model reads them: many splits feed the same."""

    def __init__(
        self, batches: tuple[Batch, ...], budget: int, side: int, ranks: int, shares: Shares | None = None
    ) -> None:
        """budget: padded tokens of a micro-batch. side: how many are under way at a time. ranks: that share out the
        rows of a copy. shares: how rows are read that begin alike."""
        self.batches, self.budget, self.side, self.ranks, self.shares = batches, budget, side, ranks, shares
        self.widths = [batch.row.longest for batch in batches] or [1.0]
        self.uneven = any(batch.row.longest > batch.row.tokens * (1 + 1e-9) for batch in batches)
        """Rows of a table are of different lengths."""
        self._known: dict[int, tuple[float, float, float]] = {}
        self._under_way: dict[tuple[int, int], tuple[float, float]] = {}
        self._micros: dict[tuple[float, float], Tokens] = {}

    def load(self, copies: int) -> tuple[float, float, float]:
        """Rows of the largest micro-batch of one of so many copies, how many of these it has, and beginnings that its
        rows have. As the engines do it, blocks are of about the same size, of the longest rows; of uneven ones a block
        may be as large as its budget."""
        if copies not in self._known:
            available, longest = self._available(copies), sum(self.widths)
            rows, blocks = _block(available, self.budget, longest, self.side)
            # A copy with a row less may have a block less, of more rows.
            least = max((batch.least(copies) for batch in self.batches), default=1.0) // self.ranks
            if 0 < least < available:
                rows = max(rows, _block(least, self.budget, longest, self.side)[0])
            if self.uneven:
                # How long rows turn out decides how they are cut: a micro-batch may fill its budget.
                rows = max(rows, min(self.budget / longest, math.ceil(available / self.side)))
            # Of more micro-batches than are under way at a time only the last one's gradients are left.
            self._known[copies] = rows, min(blocks, self.side + 2.0), self._beginnings(rows, available, copies)
        return self._known[copies]

    def _available(self, copies: int) -> float:
        """Rows of the rank that has most of them."""
        available = max((batch.share(copies) for batch in self.batches), default=1.0) or 1.0
        return math.ceil(available / self.ranks) if self.ranks > 1 else available

    def under_way(self, copies: int, chunks: int) -> tuple[float, float]:
        """Micro-batches that the first and the last of `side` stages have at a time in interleaved lists. These have
        most where groups are largest, so that of uneven rows, which may make fewer micro-batches than the longest,
        those numbers count that there can be with the fewest groups."""
        if (copies, chunks) not in self._under_way:
            # A copy with a row less may have fewer groups, too.
            least = max((batch.least(copies) for batch in self.batches), default=1.0) // self.ranks
            counts = [self._most_at_a_time(rows) for rows in {self._available(copies), least} if rows > 0]
            first, last = (
                max(in_flight(self.side, count, chunks, stage) for count in counts) for stage in (0, self.side - 1)
            )
            self._under_way[copies, chunks] = first, last
        return self._under_way[copies, chunks]

    def _most_at_a_time(self, rows: float) -> int:
        """How many micro-batches so many rows may make, where most of them are under way at a time."""
        stages, count = self.side, math.ceil(_block(rows, self.budget, sum(self.widths), self.side)[1])
        if not self.uneven:
            return count
        few = int(rows * sum(batch.row.tokens for batch in self.batches) / self.budget)
        return min(count, (max(1, few // stages) + 1) * stages - 1)

    def _beginnings(self, rows: float, available: float, copies: int) -> float:
        """Of so many rows in turn of those that a copy has: as many as rows, where each is read by itself.
        Micro-batches begin where a prompt's rows do, if they and the copies have all rows of some prompts. Of uneven
        rows it is not known which ones a micro-batch has."""
        if self.shares is None or self.uneven or len(self.batches) != 1:
            return rows
        batch, fed = self.batches[0], max(1.0, self.widths[0] - 1)
        each, prompt = batch.together, batch.prompt.longest
        aligned = rows == batch.rows or (
            rows % each == 0 and available % each == 0 and available * copies == batch.rows
        )
        found = rows / each if aligned else math.floor((rows - 2) / each) + 2
        found = min(rows, math.ceil(found))
        worth = (rows - found) * prompt >= self.shares.worth * rows * fed and fed - prompt <= self.shares.longest
        return found if worth else rows

    def micro(self, rows: float, beginnings: float) -> Tokens:
        """So many rows of each table, which go together, each as it is fed: without its last token."""
        if (rows, beginnings) not in self._micros:
            fed = [max(1.0, width - 1) for width in self.widths]
            scored = sum(batch.response.longest for batch in self.batches) or 1.0
            found = Tokens(
                math.ceil(rows * len(fed)),
                math.ceil(rows * sum(fed)),
                math.ceil(rows * sum(width * width for width in fed)),
                math.ceil(rows * scored),
                max(fed),
            )
            if beginnings < rows:
                prompt = self.batches[0].prompt.longest
                own = fed[0] - prompt
                found = replace(
                    found,
                    tokens=math.ceil(beginnings * prompt + rows * own),
                    copied=math.ceil(rows * prompt),
                    masks=min(own, QUERIES) * fed[0],
                )
            self._micros[rows, beginnings] = found
        return self._micros[rows, beginnings]


_feeding = lru_cache(1024)(_Feeding)


class _Fed(MemoryModel):
    """Rows are fed in micro-batches. A load is the rows of a micro-batch, how many of these a copy has, and beginnings
    that the rows have."""

    def __init__(
        self,
        config: ModelConfig,
        deployment: Deployment,
        batches: Sequence[Batch],
        alike: MemoryModel | None = None,
    ) -> None:
        """alike: of the same split, whose micro-batches are of another size, so that the same load needs the same."""
        super().__init__(config, deployment, batches)
        if alike:
            self._known = alike._known
        budget, side = deployment.micro_tokens or BLOCK_TOKENS, max(deployment.threads, deployment.pp)
        self.feeding = _feeding(tuple(batches), budget, side, deployment.row_ranks, deployment.shares)
        self.weights = held(config, deployment)
        """Numbers of the fullest rank."""
        self.trained = trained(config, deployment)
        """Those of them, and of adapters, that training changes."""
        self.held = self.weights * config.item + adapters(config, deployment) * config.trained_item
        self.state = optimizer_bytes(config.optimizer, config.trained_item)

    @property
    def loads(self) -> object:
        return self.feeding

    def load(self, copies: int, chunks: int = 0) -> Load:
        return self.feeding.load(copies)

    def micro(self, rows: float, beginnings: float) -> Tokens:
        """What the fullest rank has of a micro-batch with so many rows."""
        return self.feeding.micro(rows, beginnings).shared_out(self.deployment.cp)


class Training(_Fed):
    """Of a model that is trained, with its optimizer's state. Copies may share that out, which is ZeRO's first stage
    (arXiv 1910.02054). Where gradients stay, a load says how many micro-batches are under way at a time on the first
    stage and on the last one, in place of how many there are; else also whether there is another copy to add up
    gradients with: 1 or 2."""

    @property
    def loads(self) -> object:
        return self.feeding, self.deployment.spec.memory.gradients_stay, self.deployment.chunks

    def load(self, copies: int, chunks: int = 0) -> Load:
        deployment, (rows, blocks, beginnings) = self.deployment, super().load(copies)
        if not deployment.spec.memory.gradients_stay:
            return rows, blocks, beginnings, min(copies, 2.0)
        # One forward, one backward has as many as stages follow, this one included (arXiv 2104.04473, section 2.2.1).
        # Interleaved there are more.
        first, last, chunks = min(deployment.pp, blocks), 1.0, chunks or deployment.chunks
        if chunks > 1:
            first, last = self.feeding.under_way(copies, chunks)
        return rows, first, beginnings, last

    parted = False
    """Gradients are added up while the group does other work, too."""

    def needs(self, load: Load) -> Needs:
        config, deployment = self.config, self.deployment
        rows, blocks, beginnings, more = load
        weights, state = self.trained, self.state
        micro = self.micro(rows, beginnings)
        own = Bytes((("weights", self.held),)) + _gathered(config, deployment, micro)
        sharded = deployment.spec.shards_optimizer
        # Ranks that share experts out are copies of the rest, to the optimizer, too; those that share tokens out are of
        # all.
        stage = work.stage_parameters(config.shape, config.kind, deployment.pp) / deployment.tp
        stepped = stage / deployment.ep / deployment.cp if sharded else weights
        optimizer = Bytes((("optimizer", stepped * (state.master + state.moments)),))
        kept = _activations(config, deployment, micro, self.feeding.uneven)
        shared_out = Bytes()
        if deployment.spec.memory.gradients_stay:
            wide_gradients = weights * state.gradient
            own += Bytes((("gradients", wide_gradients),))
            active = _pipeline(config, deployment, kept, blocks, more)
            # gloo adds up a copy of the gradients; a GPU's AdamW has the root of its share of the second moments.
            update = Bytes((("buffers", wide_gradients),))
            if sharded and not deployment.on_cpu:
                shared_out = Bytes((("buffers", stepped * state.gradient),))
            else:
                active = larger(active, update)
        else:
            gradients = weights * config.trained_item
            summed = Bytes((("gradients", gradients * self.parted),))
            own += summed
            passes = _shared_passes if deployment.fsdp > 1 else _passes
            active = passes(config, deployment, kept, blocks, gradients, self.parted)
            active = larger(active, _update(config, deployment, weights, more == 2.0) + summed.times(-1))
        return Needs(own, active, optimizer, shared_out) if sharded else Needs(own + optimizer, active)


class Accumulating(Training):
    """The same, where a step's rows come while the group does other work: the sum of the gradients stays meanwhile."""

    parted = True
    keeps = (*KEPT, "gradients")


class Reading(_Fed):
    """Of a forward pass: one layer at a time, and then the head."""

    def needs(self, load: Load) -> Needs:
        rows, blocks, beginnings = load
        config, deployment = self.config, self.deployment
        shape, item, spec = config.shape, config.item, deployment.spec
        own = Bytes((("weights", self.held),))
        micro = self.micro(rows, beginnings)
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
            # A layer's parameters, the message that they came in, and what no layer has; before the layer begins also
            # the message before that.
            begins = Bytes((("activations", 2 * micro.tokens * shape.hidden * item), ("buffers", layer * item)))
            active = larger(active, begins) + Bytes((("buffers", (2 * layer + rest) * item),))
        return Needs(own + _gathered(config, deployment, micro), active.times(min(deployment.threads, blocks)))


def _gathered(config: ModelConfig, deployment: Deployment, micro: Tokens) -> Bytes:
    """The buffer in which tensor-parallel ranks that split tokens put them together for a product; it stays."""
    if not deployment.spec.memory.splits_tokens or deployment.tp == 1:
        return Bytes()
    return Bytes((("buffers", micro.tokens * config.shape.hidden * config.item),))


def _packed(deployment: Deployment, micro: Tokens, uneven: bool) -> bool:
    """Whether rows lie one behind the other; an engine that takes equal ones together has them as if it padded."""
    return deployment.packs and (uneven or micro.copied > 0 or deployment.spec.memory.row_by_row)


def _split_head(deployment: Deployment) -> bool:
    """Whether logits are split by vocabulary; by tensor-parallel ranks they always are."""
    return deployment.spec.memory.split_head or deployment.tp > 1


def _activations(config: ModelConfig, deployment: Deployment, micro: Tokens, uneven: bool) -> Activations:
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


def _pipeline(config: ModelConfig, deployment: Deployment, kept: Activations, first: float, last: float) -> Bytes:
    """Of the fuller one of the first and the last stage, which have so many micro-batches under way; the last one has
    the head, and what this keeps of one micro-batch, whose backward begins at once."""
    layers, heads = config.shape.layers / deployment.pp, 1.0
    if deployment.in_flight:
        first, last = deployment.in_flight
        heads = last
    ahead = Bytes((("activations", layers * kept.layer * first + kept.working),))
    return larger(ahead, _turn(last * layers * kept.layer + heads * kept.ends, kept)) if last else ahead


def _turn(activations: float, kept: Activations) -> Bytes:
    """When the forward pass ends: while the head is at work, or as the backward pass begins."""
    if kept.head > kept.working:
        return Bytes((("activations", activations), ("logits", kept.head)))
    return Bytes((("activations", activations + kept.working),))


def _passes(
    config: ModelConfig, deployment: Deployment, kept: Activations, blocks: float, gradients: float, parted: bool
) -> Bytes:
    """Where gradients do not stay: beside their sum those of the last micro-batch are there while the next
    ones are computed, and each of these has its activations at first and its gradients in the end. parted: the sum is
    counted as what stays."""
    shape = config.shape
    side = min(deployment.threads, blocks)
    before = Bytes((("gradients", max(0.0, min(2.0, blocks - side) - parted) * gradients),))
    turn = _turn(shape.layers * kept.layer + kept.ends, kept)
    # The gradients of a tied embedding and head are two matrices, and their sum a third.
    whole = config.kind == "causal_lm" and shape.adapters is None
    tied = 2 * shape.vocab * shape.hidden * config.item / deployment.tp if shape.tied and whole else 0
    end = Bytes((("gradients", gradients + tied),))
    return before + larger(turn, end).times(side)


def _units(config: ModelConfig, deployment: Deployment) -> tuple[float, float]:
    """Parameters that are gathered together by ranks that share them out: a layer's, and those that no layer has."""
    shape, layer = config.shape, work.layer_parameters(config.shape)
    rest = work.stage_parameters(shape, config.kind, 1) - work.body_parameters(shape)
    return layer / deployment.tp, rest / deployment.tp


def _shared_passes(
    config: ModelConfig, deployment: Deployment, kept: Activations, blocks: float, gradients: float, parted: bool
) -> Bytes:
    """Where ranks share out parameters and gradients, of which a layer's are whole while it works: the fullest moment
    of a layer's backward pass, or of its end, when what no layer has is summed up."""
    shape, item, wide = config.shape, config.item, max(WIDE, config.item)
    layer, rest = _units(config, deployment)
    # What is trained of a layer, in the dtype that it has, and of what no layer has.
    small = deployment.fsdp * adapters(config, deployment) / shape.layers * config.trained_item / item
    own, others = (small, 0.0) if shape.adapters else (layer, rest)
    layer += small
    # Where all layers' parameters stay none comes in the backward pass; the last one's message is there in the first
    # micro-batch, and narrow gradients beside their sums.
    once = deployment.gathers_once
    more, coming = ((shape.layers - 1) * layer, 0.0) if once else (0.0, layer)
    summed = wide * own / deployment.fsdp if once and wide > item else 0.0
    before = Bytes((("gradients", max(0.0, min(2.0 - parted, blocks - 1)) * gradients),))
    if once:
        before = larger(before, Bytes((("buffers", layer * item),)))
    begins = _turn(shape.layers * kept.layer + kept.ends, kept) + Bytes((("buffers", (layer + more + rest) * item),))
    # A layer's parameters, those of the next as they come, its gradients, and those of the last as they go.
    works = item * (layer + more + coming) + (item + wide * (shape.layers > 1)) * own + summed
    head = shape.vocab * shape.hidden / deployment.tp if config.kind == "causal_lm" and not shape.adapters else 0
    middle = Bytes(
        (
            ("activations", shape.layers * kept.layer + kept.working),
            ("buffers", works + (rest + head) * item),
        )
    )
    after = layer + more if once else 0.0
    end = Bytes((("gradients", gradients), ("buffers", (after + rest) * item + others * wide)))
    return before + larger(larger(begins, middle), end)


def _update(config: ModelConfig, deployment: Deployment, weights: float, several: bool) -> Bytes:
    """Where gradients do not stay, at the end of a step: they, and what becomes of them. several: copies."""
    item = config.trained_item
    narrow = item < 4
    if several:
        # Copies add up one float32 tensor that is made of all gradients.
        found = weights * (12 if narrow else 2 * item)
    elif narrow:
        found = weights * (item + 4)
    else:
        found = weights * item + (
            _laid_out(config) / deployment.tp if deployment.on_cpu and deployment.fsdp == 1 else 0.0
        )
    return Bytes((("gradients", found),))


def _laid_out(config: ModelConfig) -> float:
    """oneDNN gives the gradients of matrices with more outputs than inputs transposed: AdamW gets copies of them."""
    shape = config.shape
    if shape.adapters:
        return 0.0  # Their products are small ones, and stay with MKL.
    found = sum(math.prod(each.shape) for each in matrices(shape) if each.shape[1] > each.shape[2])
    if config.kind == "causal_lm" and not shape.tied and shape.vocab > shape.hidden:
        found += shape.vocab * shape.hidden
    return float(found * config.item)


def _block(available: float, budget: float, width: float, side: int) -> tuple[float, float]:
    """Rows of a block, and blocks, `side` of them at a time."""
    fit = max(1.0, budget // max(1.0, width))
    blocks = min(math.ceil(math.ceil(available / fit) / side) * side, max(1.0, available))
    return math.ceil(available / blocks), blocks


def larger(one: Bytes, other: Bytes) -> Bytes:
    """The one with more bytes in all."""
    return one if one.total >= other.total else other


def _total(found: Bytes) -> float:
    return found.total
