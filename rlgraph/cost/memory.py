"""How many bytes a model needs on the fullest rank of a group: what stays, and what each kind of work needs for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlgraph.cost import work
from rlgraph.cost.spot import BLOCK_TOKENS, Spot, Subject
from rlgraph.cost.time import Batch, slots
from rlgraph.cost.work import Tokens

BUCKET = 256 << 20
"""Most bytes of messages that a rank has while weights travel."""

PREFILL_TOKENS = 8192
"""Of the prompts that a generating engine reads at a time."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Of one rank, by what they are: `weights`, `gradients`, `optimizer`, `activations`, `logits`, `cache`, `buffers`."""

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
class Need:
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


def training(subject: Subject, spot: Spot, batches: Sequence[Batch]) -> Need:
    """Of a model that is trained: mixed precision keeps wide weights and moments; Megatron's copies share them out, which is
    ZeRO's first stage (arXiv 1910.02054)."""
    weights = work.stage_parameters(subject.shape, subject.kind, spot.pp) / spot.tp
    wide = 0 if subject.item >= 4 else 4
    own = Bytes((("weights", weights * subject.item),))
    optimizer = Bytes((("optimizer", weights * (wide + 2 * max(4, subject.item))),))
    active = _activations(subject, spot, batches)
    if spot.engine == "megatron":
        # It adds up in buffers that stay.
        return Need(own + Bytes((("gradients", weights * max(4, subject.item)),)), active, optimizer)
    # Beside their sum there are the gradients of each micro-batch that is computed.
    gradients = Bytes((("gradients", weights * subject.item * (1 + spot.threads)),))
    return Need(own + optimizer, active + gradients)


def reading(subject: Subject, spot: Spot, batches: Sequence[Batch]) -> Need:
    """Of a forward pass."""
    weights = work.stage_parameters(subject.shape, subject.kind, spot.pp) / spot.tp
    micro = _micro(subject, spot, batches)
    layer = work.activation_bytes(
        subject.shape, subject.kind, micro, itemsize=subject.item, tp=spot.tp, flash=spot.engine != "megatron"
    )
    logits = work.logits_bytes(subject.shape, subject.kind, micro, spot.tp)
    active = Bytes((("activations", layer.layer + layer.working), ("logits", logits)))
    return Need(Bytes((("weights", weights * subject.item),)), active)


def drawing(subject: Subject, spot: Spot, batches: Sequence[Batch]) -> Need:
    """Of a model that generates: its weights, the cache of keys and values, and what the reading of prompts needs."""
    shape, item = subject.shape, subject.item
    weights = work.stage_parameters(shape, subject.kind, 1) * item / spot.tp
    width = max((batch.prompt.longest + batch.response.longest for batch in batches), default=0.0)
    rows = max((min(slots(subject, spot, batch), batch.share(spot.dp)) for batch in batches), default=0.0)
    own = work.kv_bytes(shape, item) / min(spot.tp, shape.kv_heads)
    cache = spot.kv_bytes or own * rows * width
    logits = 3 * 4.0 * rows * shape.vocab / spot.tp
    if spot.engine == "transformers":
        return Need(Bytes((("weights", weights),)), Bytes((("cache", cache), ("logits", logits))))
    read = PREFILL_TOKENS * item * (2 * shape.hidden + 3 * shape.ffn / spot.tp)
    held = Bytes((("weights", weights), ("cache", cache), ("buffers", min(BUCKET, weights))))
    return Need(held, Bytes((("activations", read), ("logits", logits))))


def _activations(subject: Subject, spot: Spot, batches: Sequence[Batch]) -> Bytes:
    """Of as many micro-batches as are under way on the first stage of a pipeline that runs one forward, one backward."""
    micro = _micro(subject, spot, batches)
    found = work.activation_bytes(
        subject.shape,
        subject.kind,
        micro,
        itemsize=subject.item,
        tp=spot.tp,
        recompute=spot.recompute,
        flash=spot.engine != "megatron" or subject.item < 4,
        fused_norms=True,
    )
    layers = subject.shape.layers / spot.pp
    side_by_side = spot.pp if spot.pp > 1 else spot.threads
    kept = (layers * found.layer + found.ends) * side_by_side + found.working
    return Bytes((("activations", kept), ("logits", found.head * (1 if spot.pp > 1 else spot.threads))))


def _micro(subject: Subject, spot: Spot, batches: Sequence[Batch]) -> Tokens:
    """The largest micro-batch: the longest rows, as many as its budget takes."""
    budget = spot.micro_tokens or BLOCK_TOKENS
    width = max((batch.prompt.longest + batch.response.longest for batch in batches), default=1.0)
    scored = max((batch.response.longest for batch in batches), default=1.0)
    available = max((batch.share(spot.dp * spot.threads) for batch in batches), default=1.0)
    rows = max(1.0, min(available, budget // max(1.0, width)))
    return Tokens(rows, rows * width, rows * width * width, rows * scored, width)
