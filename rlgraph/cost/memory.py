"""How many bytes a model needs on the fullest rank of a group: what stays, and what each kind of work needs for a
while."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlgraph.cost import work
from rlgraph.cost.deployment import BLOCK_TOKENS, Deployment, ModelConfig
from rlgraph.cost.optimizer import optimizer_bytes
from rlgraph.cost.time import Batch, slots
from rlgraph.cost.work import Activations, Tokens
from rlgraph.enginespec.spec import Grown
from rlgraph.ir.dtypes import ITEM_BYTES

BUCKET = 256 << 20
"""Most bytes of messages that a rank has while weights travel."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Of one rank, by what they are: `weights`, `gradients`, `optimizer`, `activations`, `logits`, `cache`,
    `buffers`, and `messages` in which new weights arrive."""

    parts: tuple[tuple[str, float], ...] = ()

    @property
    def total(self) -> float:
        return sum(size for _, size in self.parts)

    def __add__(self, other: Bytes) -> Bytes:
        found = dict(self.parts)
        for name, size in other.parts:
            found[name] = found.get(name, 0.0) + size
        return Bytes(tuple(found.items()))


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of one model on one group."""

    resident: Bytes = field(default=Bytes())
    """While the group does other work."""
    active: Bytes = field(default=Bytes())
    """More than that, while it does this work."""
    shared: Bytes = field(default=Bytes())
    """More that stays, of which each data-parallel copy has its share."""

    def held(self, copies: int) -> Bytes:
        """What stays on one of so many copies."""
        return self.resident + Bytes(tuple((name, size / copies) for name, size in self.shared.parts))


# Training


def training(config: ModelConfig, deployment: Deployment, batches: Sequence[Batch]) -> Footprint:
    """Of a model that is trained, with its optimizer's state. Copies may share that out, which is ZeRO's first stage
    (arXiv 1910.02054)."""
    weights = work.stage_parameters(config.shape, config.kind, deployment.pp) / deployment.tp
    state = optimizer_bytes(config.optimizer, config.item)
    own = Bytes((("weights", weights * config.item),))
    optimizer = Bytes((("optimizer", weights * (state.master + state.moments)),))
    sharded = deployment.spec.shards_optimizer
    micro, blocks = _micro(config, deployment, batches)
    kept = _activations(config, deployment, micro)
    scores = _scores(config, deployment, micro)
    if deployment.spec.memory.gradients_stay:
        wide_gradients = weights * state.gradient
        own += Bytes((("gradients", wide_gradients),))
        passes = _pipeline(config, deployment, kept, scores.total, blocks)
        # gloo adds up a copy of the gradients; a GPU's AdamW has the root of its share of the second moments.
        shared_out = sharded and not _on_cpu(deployment)
        update = Bytes((("buffers", wide_gradients / (deployment.dp if shared_out else 1)),))
    else:
        passes = _passes(config, deployment, kept, blocks, weights * config.item)
        update = _update(config, deployment, weights)
    own, active = own + scores, _larger(passes, update)
    return Footprint(own, active, optimizer) if sharded else Footprint(own + optimizer, active)


def _scores(config: ModelConfig, deployment: Deployment, micro: Tokens) -> Bytes:
    """The matrix of attention scores that stays, of engines that have one."""
    if deployment.spec.memory.flash:
        return Bytes()
    return Bytes((("buffers", work.scores_bytes(config.shape, micro, itemsize=config.item, tp=deployment.tp)),))


def _activations(config: ModelConfig, deployment: Deployment, micro: Tokens) -> Activations:
    return work.activation_bytes(
        config.shape,
        config.kind,
        micro,
        itemsize=config.item,
        tp=deployment.tp,
        recompute=deployment.recompute,
        flash=deployment.spec.memory.flash,
        fused_norms=deployment.spec.memory.fused_norms(deployment.island.device.kind, config.dtype),
    )


def _pipeline(config: ModelConfig, deployment: Deployment, kept: Activations, scores: float, blocks: float) -> Bytes:
    """Of the fuller one of the first and the last stage: one forward, one backward has as many micro-batches under way
    as stages follow, this one included (arXiv 2104.04473, section 2.2.1), and the last one has the head."""
    layers = config.shape.layers / deployment.pp
    first = Bytes((("activations", layers * kept.layer * min(deployment.pp, blocks) + kept.working),))
    ends = kept.ends - scores
    return _larger(first, _turn(layers * kept.layer + ends, kept))


def _turn(activations: float, kept: Activations) -> Bytes:
    """When the forward pass ends: while the head is at work, or as the backward pass begins."""
    if kept.head > kept.working:
        return Bytes((("activations", activations), ("logits", kept.head)))
    return Bytes((("activations", activations + kept.working),))


def _passes(config: ModelConfig, deployment: Deployment, kept: Activations, blocks: float, gradients: float) -> Bytes:
    """Where gradients do not stay: beside their sum those of the last micro-batch are there while the next
    ones are computed, and each of these has its activations at first and its gradients in the end."""
    shape = config.shape
    side = min(deployment.threads, blocks)
    before = Bytes((("gradients", min(2.0, blocks - side) * gradients),))
    turn = _turn(shape.layers * kept.layer + kept.ends, kept)
    # The gradients of a tied embedding and head are two matrices, and their sum a third.
    tied = 2 * shape.vocab * shape.hidden * config.item if shape.tied and config.kind == "causal_lm" else 0
    end = Bytes((("gradients", gradients + tied),))
    return before + _times(_larger(turn, end), side)


def _update(config: ModelConfig, deployment: Deployment, weights: float) -> Bytes:
    """Where gradients do not stay, at the end of a step: they, and what becomes of them."""
    narrow = config.item < 4
    if deployment.dp > 1:
        # Copies add up one float32 tensor that is made of all gradients.
        found = weights * (12 if narrow else 2 * config.item)
    elif narrow:
        found = weights * (config.item + 4)
    else:
        found = weights * config.item + (_laid_out(config) if _on_cpu(deployment) else 0.0)
    return Bytes((("gradients", found),))


def _laid_out(config: ModelConfig) -> float:
    """oneDNN gives the gradients of matrices with more outputs than inputs transposed: AdamW gets copies of them."""
    shape = config.shape
    queries = shape.heads * shape.head_dim
    found = 0
    if not shape.experts and shape.ffn > shape.hidden:
        found += 2 * shape.layers * shape.ffn * shape.hidden
    if queries > shape.hidden:
        found += shape.layers * queries * shape.hidden
    if config.kind == "causal_lm" and not shape.tied and shape.vocab > shape.hidden:
        found += shape.vocab * shape.hidden
    return float(found * config.item)


# Reading


def reading(config: ModelConfig, deployment: Deployment, batches: Sequence[Batch]) -> Footprint:
    """Of a forward pass: one layer at a time, and then the head."""
    shape, item, flash = config.shape, config.item, deployment.spec.memory.flash
    weights = work.stage_parameters(shape, config.kind, deployment.pp) / deployment.tp
    own = Bytes((("weights", weights * item),))
    micro, blocks = _micro(config, deployment, batches)
    layer = work.forward_bytes(shape, micro, itemsize=item, tp=deployment.tp, flash=flash)
    logits = work.logits_bytes(shape, config.kind, micro, item, deployment.tp, flash)
    chosen = micro.scored * shape.hidden * item
    active = _larger(Bytes((("activations", layer),)), Bytes((("activations", min(chosen, layer)), ("logits", logits))))
    return Footprint(own + _scores(config, deployment, micro), _times(active, min(deployment.threads, blocks)))


# Generation


def generating(config: ModelConfig, deployment: Deployment, batches: Sequence[Batch]) -> Footprint:
    """Of a model that generates: its weights, the cache of keys and values, and what the reading of prompts needs."""
    traits, reserved = deployment.spec.memory, deployment.spec.memory.cache
    if isinstance(reserved, Grown):
        return _decoding(config, deployment, batches, reserved)
    shape = config.shape
    item = ITEM_BYTES[traits.cpu_dtype] if traits.cpu_dtype and _on_cpu(deployment) else config.item
    weights = work.stage_parameters(shape, config.kind, 1) * item / deployment.tp
    width = max((batch.prompt.longest + batch.response.longest for batch in batches), default=0.0)
    rows = max((min(slots(config, deployment, batch), batch.share(deployment.dp)) for batch in batches), default=0.0)
    own = work.kv_bytes(shape, item) / min(deployment.tp, shape.kv_heads)
    cache = deployment.kv_bytes or (max(reserved.cpu_bytes, own * width) if _on_cpu(deployment) else own * rows * width)
    queries, keys = shape.heads * shape.head_dim / deployment.tp, shape.kv_heads * shape.head_dim / deployment.tp
    ffn = (shape.ffn * max(1, shape.experts_per_token) + shape.shared_ffn) / deployment.tp
    most = reserved.cpu_prompt_tokens if _on_cpu(deployment) else reserved.prompt_tokens
    fed = min(most, rows * width)
    read = fed * item * (2 * shape.hidden + max(4 * queries + 6 * keys, 2 * shape.hidden + 4 * ffn))
    buffers = reserved.tables + most * shape.hidden * item
    # Each rank has the logits of the whole vocabulary: as they are, less the largest, and added up.
    logits = (12.0 + item * (item < 4)) * rows * shape.vocab
    held = Bytes((("weights", weights), ("cache", cache), ("buffers", buffers), ("messages", min(BUCKET, weights))))
    return Footprint(held, _larger(Bytes((("activations", read),)), Bytes((("logits", logits),))))


def _decoding(config: ModelConfig, deployment: Deployment, batches: Sequence[Batch], cache: Grown) -> Footprint:
    """With a cache that each call makes: prompts are read all at once, before their rows are decoded together."""
    own = Bytes((("weights", work.stage_parameters(config.shape, config.kind, 1) * config.item),))
    active = [_decoded(config, deployment, batch, cache) for batch in batches]
    return Footprint(own, max(active, key=_total, default=Bytes()))


def _decoded(config: ModelConfig, deployment: Deployment, batch: Batch, kept: Grown) -> Bytes:
    shape, item = config.shape, config.item
    prompt, response = batch.prompt.longest, batch.response.longest
    rows = max(1.0, batch.share(deployment.dp))
    blocks = min(rows, max(deployment.threads, math.ceil(rows * (prompt + response) / kept.places)))
    side = min(deployment.threads, blocks)
    rows = math.ceil(rows / blocks) * side
    first = prompt + min(response, kept.first)
    room, before = _room(first, prompt + response)
    kv = work.kv_bytes(shape, item)
    prompts = math.ceil(rows / batch.samples)
    read = Tokens(prompts, prompts * prompt, prompts * prompt**2, prompts, prompt)
    reading_ = Bytes((("cache", kv * prompts * first), ("activations", work.forward_bytes(shape, read, itemsize=item))))
    cache = kv * rows * room
    # A layer's keys and values are there twice while they move to where there is more room.
    grown = Bytes((("cache", cache + kv / shape.layers * rows * before), ("logits", float(item) * rows * shape.vocab)))
    # Logits in float32, less the largest, and added up.
    sampled = Bytes((("cache", cache), ("logits", (12.0 + item * (item < 4)) * rows * shape.vocab)))
    return _larger(reading_, _larger(grown, sampled))


def _room(first: float, needed: float) -> tuple[float, float]:
    """Places of a row in the cache when it is full, and those that it had before it grew for the last time."""
    room, before = first, 0.0
    while room < needed:
        room, before = room + 1 + (room + 1) // 2, room
    return room, before


# Both


def _micro(config: ModelConfig, deployment: Deployment, batches: Sequence[Batch]) -> tuple[Tokens, float]:
    """The largest micro-batch as it is fed, each row without its last token, and how many of them a copy has. Rows of
    several tables go together; as the engines do it, blocks are of about the same size, of the longest rows or of usual
    ones."""
    widths = [batch.row.longest for batch in batches] or [1.0]
    usual = sum(batch.row.tokens for batch in batches) or 1.0
    available = max((batch.share(deployment.dp) for batch in batches), default=1.0) or 1.0
    budget = deployment.micro_tokens or BLOCK_TOKENS
    side = max(deployment.threads, deployment.pp)
    rows, blocks = _block(available, budget, sum(widths), side)
    fuller, _ = _block(available, budget, usual, side)
    rows = max(rows, fuller * usual / sum(widths))
    fed = [max(1.0, width - 1) for width in widths]
    return (
        Tokens(
            rows * len(widths),
            rows * sum(fed),
            rows * sum(width * width for width in fed),
            rows * (sum(batch.response.longest for batch in batches) or 1.0),
            max(fed),
        ),
        blocks,
    )


def _block(available: float, budget: float, width: float, side: int) -> tuple[float, float]:
    """Rows of a block, and blocks, `side` of them at a time."""
    fit = max(1.0, budget // max(1.0, width))
    blocks = min(math.ceil(math.ceil(available / fit) / side) * side, max(1.0, available))
    return math.ceil(available / blocks), blocks


def _on_cpu(deployment: Deployment) -> bool:
    return deployment.island.device.kind == "cpu"


def _larger(one: Bytes, other: Bytes) -> Bytes:
    return one if one.total >= other.total else other


def _times(found: Bytes, factor: float) -> Bytes:
    return Bytes(tuple((name, size * factor) for name, size in found.parts))


def _total(found: Bytes) -> float:
    return found.total
