"""The work of a model, from its shape alone: FLOPs, and the bytes that it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from rlgraph.models.families import ModelKind, count, tensors
from rlgraph.models.shape import Shape


@dataclass(frozen=True, slots=True)
class Tokens:
    """Rows that a model reads together, by what its work depends on. Sums, so that those of parts add up."""

    rows: float
    tokens: float
    """Of all rows together, prompts included, padding not."""
    squares: float
    """Of the rows' lengths, added up."""
    scored: float
    """Tokens for which the head is computed."""
    longest: float = 0.0
    """Tokens of the longest row."""

    def share(self, parts: float) -> Tokens:
        """One of so many equal parts."""
        return Tokens(self.rows / parts, self.tokens / parts, self.squares / parts, self.scored / parts, self.longest)

    def padded(self) -> Tokens:
        """With all rows as long as the longest, as engines compute them that have no packed rows."""
        width = self.longest
        return Tokens(self.rows, self.rows * width, self.rows * width * width, self.scored, width)


# Parameters


@cache
def layer_parameters(shape: Shape) -> int:
    """Of one layer, all its experts included."""
    body = count(shape, "reward_lm") - (shape.vocab + 2) * shape.hidden
    return body // shape.layers


@cache
def tensor_count(shape: Shape, kind: ModelKind) -> int:
    """How many tensors its parameters are, in all layers."""
    return sum(1 for _ in tensors(shape, kind))


def expert_parameters(shape: Shape) -> int:
    """Of the experts of all layers together, without those that every token takes."""
    return shape.layers * shape.experts * 3 * shape.hidden * shape.ffn


@cache
def active_parameters(shape: Shape, kind: ModelKind = "causal_lm") -> int:
    """Those that one token takes part in: of the experts, its own."""
    idle = expert_parameters(shape) // max(1, shape.experts) * (shape.experts - shape.experts_per_token)
    return count(shape, kind) - idle


@cache
def stage_parameters(shape: Shape, kind: ModelKind, pp: int) -> int:
    """Of the fullest of equal pipeline stages. The first has the embedding, the last the last norm and the head; a tied
    head is a tensor of its own there."""
    if pp == 1:
        return count(shape, kind)
    layers = layer_parameters(shape) * -(-shape.layers // pp)
    embedding = shape.vocab * shape.hidden
    head = embedding if kind == "causal_lm" else shape.hidden + (kind == "value_lm")
    return layers + max(embedding, shape.hidden + head)


# FLOPs


def forward_flops(shape: Shape, kind: ModelKind, work: Tokens) -> float:
    """Of the matrix products of a pass over rows, a multiplication and an addition counted as two: 2 for each weight
    and token, and those of the attention. Embeddings are looked up, which is none; norms and activations are left out
    (Kaplan et al., arXiv 2001.08361, section 2.1; Narayanan et al., arXiv 2104.04473, appendix)."""
    return layers_flops(shape, work) + head_flops(shape, kind, work)


def layers_flops(shape: Shape, work: Tokens) -> float:
    """The part of all layers in `forward_flops`."""
    return 2 * shape.layers * _layer_weights(shape) * work.tokens + attention_flops(shape, work)


def attention_flops(shape: Shape, work: Tokens) -> float:
    """The part of queries with keys, and of weights with values, in `layers_flops`. Counted in full, what the causal
    mask hides included, as torch's counter does it."""
    return 4.0 * shape.layers * shape.heads * shape.head_dim * work.squares


def head_flops(shape: Shape, kind: ModelKind, work: Tokens) -> float:
    """The part of the head in `forward_flops`: at the scored tokens, of a reward model at each row's last one."""
    if kind == "reward_lm":
        return 2.0 * shape.hidden * work.rows
    return 2.0 * shape.hidden * (shape.vocab if kind == "causal_lm" else 1) * work.scored


def backward_flops(shape: Shape, kind: ModelKind, work: Tokens) -> float:
    """Twice those forward: each product has two gradients. Attention that keeps no weights computes them once more,
    which is two and a half times as much (Dao, arXiv 2307.08691, section 4.1)."""
    return 2 * forward_flops(shape, kind, work) + attention_flops(shape, work) / 2


def decode_flops(shape: Shape, context: float) -> float:
    """Of one new token that sees so many, the head included."""
    return forward_flops(shape, "causal_lm", Tokens(1, 1, context, 1, 1))


@cache
def _layer_weights(shape: Shape) -> int:
    """Of one layer, those that a token is multiplied with."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    network = 3 * shape.ffn * max(1, shape.experts_per_token) + 3 * shape.shared_ffn
    router = shape.experts + (shape.shared_ffn > 0)
    return shape.hidden * (2 * queries + 2 * keys + network + router)


# Bytes


LOGITS = 1 << 25
"""Of which engines with flash attention compute at most so many at a time."""


def kv_bytes(shape: Shape, itemsize: int) -> int:
    """Of the keys and values of one token in all layers."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * itemsize


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes of one rank in training, for one micro-batch."""

    layer: float
    """What each layer keeps from its forward to its backward pass."""
    working: float
    """What a layer's backward pass needs beside that, at most; with recomputation all that the layer would have kept,
    too."""
    ends: float
    """What the last norm, the scored hidden states and the rotary positions keep, and buffers that layers share."""
    head: float
    """What the head has at its peak: logits, their softmax and its gradient."""

    def peak(self, layers: float) -> float:
        """The most that there is at any moment, with so many layers: while the head is at work, or a backward pass
        begins."""
        return layers * self.layer + self.ends + max(self.working, self.head)


def activation_bytes(
    shape: Shape,
    kind: ModelKind,
    micro: Tokens,
    *,
    itemsize: int,
    tp: int = 1,
    recompute: bool = False,
    flash: bool = True,
    fused_norms: bool = True,
    entropy: bool = False,
    logits: int = LOGITS,
) -> Activations:
    """What autograd keeps, counted operator by operator as Korthikanti et al. do (arXiv 2205.05198, section 4.1), for
    RMS norms, grouped queries and gated networks; without sequence parallelism the residual stream is whole on each
    tensor-parallel rank.

    micro: as the engine computes it, `Tokens.padded` where it pads. recompute: a layer keeps its input alone. flash:
    layers whose attention keeps no weights; without it those of tensor-parallel layers in plain torch, which keep them.
    fused_norms: norms keep what they read or its normal form; without it they are written out and compute in float32.
    entropy: the loss asks for it, too. logits: with flash attention, those that are there at a time.
    """
    layer = _LayerShard(shape, micro, itemsize, tp, flash, fused_norms)
    kept, working = layer.kept(), layer.working()
    stream = micro.tokens * shape.hidden * itemsize
    if recompute:
        kept, working = stream, kept + working
    head = _head(shape, kind, micro, itemsize, tp, logits if flash else 0, entropy)
    return Activations(kept, working, layer.ends(), head)


def layer_bytes(shape: Shape, itemsize: int, tp: int = 1) -> float:
    """What one layer keeps of one token on a rank, with flash attention and fused norms."""
    token = Tokens(1.0, 1.0, 1.0, 0.0)
    return activation_bytes(shape, "causal_lm", token, itemsize=itemsize, tp=tp).layer


def forward_bytes(shape: Shape, micro: Tokens, *, itemsize: int, tp: int = 1, flash: bool = True) -> float:
    """What a layer needs at most where no gradient is kept, beside what enters the first layer, this one, and its
    parts. flash: as in `activation_bytes`."""
    return _LayerShard(shape, micro, itemsize, tp, flash, False).forward()


def logits_bytes(
    shape: Shape, kind: ModelKind, micro: Tokens, itemsize: int = 4, tp: int = 1, flash: bool = True
) -> float:
    """What the head has at its peak where no gradient is kept, in float32: logits and their softmax,
    of at most `LOGITS` numbers at a time; a softmax that is split by vocabulary has four such matrices, and narrow
    logits."""
    if kind != "causal_lm":
        return 0.0
    numbers = micro.scored * shape.vocab / tp
    return 8.0 * min(numbers, LOGITS) if flash else (16.0 + itemsize * (itemsize < 4)) * numbers


def in_parts(shape: Shape, kind: ModelKind, scored: float) -> bool:
    """Whether a head with so many places to score is computed in parts."""
    return kind == "causal_lm" and scored * shape.vocab > LOGITS


def scores_bytes(shape: Shape, micro: Tokens, *, itemsize: int, tp: int = 1) -> float:
    """Of the one matrix of attention scores that all layers write to, and that stays."""
    return shape.heads / tp * micro.squares * itemsize


def _head(shape: Shape, kind: ModelKind, micro: Tokens, itemsize: int, tp: int, most: int, entropy: bool) -> float:
    """Three float32 matrices of a loss over the whole vocabulary: log-softmax, and the gradients behind and before it;
    with the entropy, which has a log-softmax of its own, six. Of more than `most` logits so many at a time are computed
    again, beside the gradients so far of the head and of what it reads.

    most: 0 for a loss that is split by vocabulary, which has four matrices, whatever it asks for: logits, those less
    the largest, their exponentials and a product; and narrow logits.
    """
    if kind != "causal_lm":
        return 0.0
    numbers = micro.scored * shape.vocab / tp
    if not most:
        return (16 + itemsize * (itemsize < 4)) * numbers
    so_far = (shape.vocab / tp + micro.scored) * shape.hidden * itemsize if numbers > most else 0
    return 12 * (1 + entropy) * min(numbers, most) + so_far


@dataclass(frozen=True, slots=True)
class _LayerShard:
    """One rank's share of a layer."""

    shape: Shape
    micro: Tokens
    itemsize: int
    tp: int
    flash: bool
    fused_norms: bool

    def kept(self) -> float:
        token = 2 * self._norm() + self._network()
        if self.flash:
            return self.micro.tokens * (token + self._flash_attention())
        return self.micro.tokens * (token + self._attention()) + self._weights() + 2 * self._angles()

    def working(self) -> float:
        """The backward pass of the feed-forward network, of a norm that is written out, or of attention that keeps
        weights; before the last the layer has given back what its network and a norm had kept."""
        stream = self.shape.hidden * self.itemsize
        network = stream + 2 * _ffn(self.shape) / self.tp * self.itemsize
        norm = 0 if self.fused_norms else 20 * self.shape.hidden + stream
        found = self.micro.tokens * max(network, norm)
        if self.flash:
            return found
        back = self.micro.tokens * (self._network() + self._norm() - stream)
        return max(found, self._scores() * (12 + self.itemsize) - self._weights() - back)

    def forward(self) -> float:
        """The feed-forward network, the rotation of queries and keys, scores and their softmax, or a norm that is
        written out, beside the residual stream, what entered this layer and the first, and what came out of a norm."""
        queries, keys, _ = self._sizes()
        item, hidden = self.itemsize, self.shape.hidden
        experts = self.shape.experts_per_token
        each = 4 if experts else 3 if self.flash else 5
        # Ranks that share a layer add up what comes out of it in one more.
        network = (4 + experts + (self.tp > 1)) * hidden + each * _ffn(self.shape) / self.tp
        if not self.flash:
            attention = (4 * hidden + 7 * queries + 2 * keys) * item
            scores = self._scores() * (8 if item >= 4 else 12)
            return max(self.micro.tokens * network * item, self.micro.tokens * attention + scores)
        attention = 3 * hidden + max(4 * queries + 2 * keys, 2 * queries + 5 * keys)
        wide = 0 if item >= 4 else 8
        norm = (3 if wide else 5) * hidden * item + wide * hidden
        normed = self.shape.qk_norm * ((3 * hidden + queries) * item + wide * queries)
        return self.micro.tokens * max(network * item, attention * item, norm, normed)

    def ends(self) -> float:
        last = self._norm() - self.shape.hidden * self.itemsize
        found = self.micro.tokens * last + self.micro.scored * self.shape.hidden * self.itemsize
        # Without flash attention there is one matrix of scores that all layers write to.
        return found + (self._angles() if self.flash else self._scores() * self.itemsize)

    def _norm(self) -> float:
        """For each token: what comes in, its normal form where the norm is written out, what goes out, and a float32
        scale."""
        wide = 0 if self.fused_norms else 4
        return self.shape.hidden * (wide + 2 * self.itemsize) + 4

    def _network(self) -> float:
        """For each token: gate, up, SiLU of the gate, and product; without flash attention 0 is added to `up`, and the
        sum kept, too. Experts also keep a token's copy for each of them, and what they make of it."""
        each = 4 if self.flash else 5
        copies = 2 * self.shape.experts_per_token * self.shape.hidden
        return (each * _ffn(self.shape) / self.tp + copies) * self.itemsize

    def _flash_attention(self) -> float:
        """For each token: queries, keys, values, what comes out, and a float32 for each head."""
        queries, keys, heads = self._sizes()
        found = (2 * queries + 2 * keys) * self.itemsize + 4 * heads
        if self.shape.qk_norm:
            # As `_norm`, but what goes out is not kept.
            wide = 0 if self.fused_norms else 4
            found += (queries + keys) * (wide + self.itemsize + 4 / self.shape.head_dim)
        return found

    def _attention(self) -> float:
        """For each token beside the weights: queries, what comes out, and keys and values, repeated for each query of a
        group. The fused projection stays where one of its parts is used as it is: values of ungrouped queries, or keys
        that are normalized."""
        queries, keys, _ = self._sizes()
        grouped = self.shape.heads != self.shape.kv_heads
        found = queries * (4 if grouped else 3)
        if self.shape.qk_norm or not grouped:
            found += queries + 2 * keys
        norms = 0.0
        if self.shape.qk_norm:
            # Keys are normalized as they lie in the fused projection; queries of several groups are copied for it.
            found += queries * (self.shape.kv_heads > self.tp)
            found += 0 if self.fused_norms else queries + keys
            norms = 4 * (queries + keys) / self.shape.head_dim
        return found * self.itemsize + norms

    def _weights(self) -> float:
        """Softmax in float32, and narrow as the values are multiplied with it."""
        return self._scores() * (4 + self.itemsize * (self.itemsize < 4))

    def _scores(self) -> float:
        """How many pairs of a query and a key there are, in all heads of this rank."""
        return self.shape.heads / self.tp * self.micro.squares

    def _angles(self) -> float:
        """Sines and cosines of all places of a row."""
        return 2 * self.micro.longest * self.shape.head_dim * self.itemsize

    def _sizes(self) -> tuple[float, float, float]:
        """Columns of the queries and of the keys, and heads, of this rank."""
        heads, kv_heads = self.shape.heads / self.tp, self.shape.kv_heads / self.tp
        return heads * self.shape.head_dim, kv_heads * self.shape.head_dim, heads


def _ffn(shape: Shape) -> int:
    """Columns of the feed-forward networks that one token takes."""
    return shape.ffn * max(1, shape.experts_per_token) + shape.shared_ffn
