"""Bytes of a model's activations on a rank, from its shape alone: in training, and in a pass that keeps nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from rlgraph.catalog.models.families import ModelKind, linear
from rlgraph.catalog.models.shape import Shape
from rlgraph.passes.cost import latent
from rlgraph.passes.cost.work import Tokens, adapter_parameters

LOGITS = 1 << 25
"""Of which a rank computes at most so many at a time."""

QUERIES = 512
"""Of a row, whose scores are there at a time where they are written out."""

NETWORK = 4
"""Columns that a layer keeps for each one of its feed-forward network: gate, up, SiLU of the gate, and product."""


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


@lru_cache(4096)
def activation_bytes(
    shape: Shape,
    kind: ModelKind,
    micro: Tokens,
    *,
    itemsize: int,
    tp: int = 1,
    recompute: bool = False,
    fused_norms: bool = True,
    network: int = NETWORK,
    packed: bool = False,
    angles: int = 2,
    scores: bool = False,
    splits_tokens: bool = False,
    split_head: bool = False,
    keeps_fused: bool = True,
    wide_norms: int = 8,
    cp: int = 1,
    masked: bool = False,
    entropy: bool = False,
    logits: int = LOGITS,
) -> Activations:
    """What autograd keeps, counted operator by operator as Korthikanti et al. do (arXiv 2205.05198, section 4.1), for
    RMS norms, grouped queries and gated networks; without sequence parallelism the residual stream is whole on each
    tensor-parallel rank.

    micro: as the engine computes it, `Tokens.padded` where it pads. recompute: a layer keeps its input alone.
    fused_norms: norms keep what they read or its normal form; without it they are written out and compute in float32.
    network, angles, splits_tokens, split_head, keeps_fused, wide_norms: as `rlgraph.backends.enginespec.spec.Memory`
    has them.
    packed: rows lie one behind the other. scores: attention is written out, and keeps a weight for each pair of tokens.
    cp: ranks that share the rows' tokens out; micro is then what one has (`Tokens.shared_out`), and keys and values are
    there of all. masked: these keep masks, which layers have in common. entropy: the loss asks for it, too. logits:
    those that are there at a time.
    """
    layer = _LayerShard(shape, micro, itemsize, tp, fused_norms, network, packed, splits_tokens, keeps_fused, cp)
    layer = replace(layer, angles=angles, scores=scores, wide_norms=wide_norms)
    kept, working = layer.kept(), layer.working()
    stream = micro.tokens * shape.hidden * itemsize / layer.token_ranks
    if recompute:
        kept, working = stream, layer.again()
    head = _head(shape, kind, micro, itemsize, tp, logits, split_head, entropy)
    return Activations(kept, working, layer.ends() + masked * layer.masks(), head)


def layer_bytes(shape: Shape, itemsize: int, tp: int = 1) -> float:
    """What one layer keeps of one token on a rank, with fused norms."""
    token = Tokens(1.0, 1.0, 1.0, 0.0)
    return activation_bytes(shape, "causal_lm", token, itemsize=itemsize, tp=tp).layer


def forward_bytes(
    shape: Shape,
    micro: Tokens,
    *,
    itemsize: int,
    tp: int = 1,
    packed: bool = False,
    splits_tokens: bool = False,
    cp: int = 1,
    masked: bool = False,
    scores: bool = False,
) -> float:
    """What a layer needs at most where no gradient is kept, beside what enters the first layer, this one, and its
    parts. packed, splits_tokens, cp, masked, scores: as in `activation_bytes`."""
    layer = _LayerShard(shape, micro, itemsize, tp, False, NETWORK, packed, splits_tokens, True, cp, scores=scores)
    return layer.forward() + masked * layer.masks()


def logits_bytes(shape: Shape, kind: ModelKind, micro: Tokens, tp: int = 1, split: bool = False) -> float:
    """What the head has at its peak where no gradient is kept, in float32: logits and their softmax,
    of at most `LOGITS` numbers at a time; a softmax that is split by vocabulary has four such matrices."""
    if kind != "causal_lm":
        return 0.0
    numbers = micro.scored * shape.vocab / tp
    return (16.0 if split else 8.0) * min(numbers, LOGITS)


def in_parts(shape: Shape, kind: ModelKind, scored: float, tp: int = 1) -> bool:
    """Whether a head with so many places to score is computed in parts."""
    return kind == "causal_lm" and scored * shape.vocab / tp > LOGITS


def _head(
    shape: Shape, kind: ModelKind, micro: Tokens, itemsize: int, tp: int, most: int, split: bool, entropy: bool
) -> float:
    """Three float32 matrices of a loss over the whole vocabulary: log-softmax, and the gradients behind and before it;
    with the entropy, which has a log-softmax of its own, six. Four of a loss that is split by vocabulary, whatever it
    asks for: logits, those less the largest, their exponentials and a product. A cap in float32 keeps what it gives.
    Of more than `most` logits so many at a
    time are computed again, beside the gradients so far of the head and of what it reads."""
    if kind != "causal_lm":
        return 0.0
    numbers = micro.scored * shape.vocab / tp
    so_far = (shape.vocab / tp + micro.scored) * shape.hidden * itemsize if numbers > most else 0
    capped = 4 if shape.logits_cap and itemsize == 4 else 0
    return ((16 if split else 12 * (1 + entropy)) + capped) * min(numbers, most) + so_far


@dataclass(frozen=True, slots=True)
class _LayerShard:
    """One rank's share of a layer."""

    shape: Shape
    micro: Tokens
    itemsize: int
    tp: int
    fused_norms: bool
    network: int
    packed: bool
    splits_tokens: bool
    keeps_fused: bool = True
    cp: int = 1
    angles: int = 2
    scores: bool = False
    wide_norms: int = 8

    @property
    def token_ranks(self) -> int:
        """Over which tokens are split outside of products and attention."""
        return self.tp if self.splits_tokens else 1

    def kept(self) -> float:
        more = len(self.shape.norms) - 2
        norms = 2 * self._norm() + more * (self._inner() * self.shape.hidden + 4)
        each = norms / self.token_ranks + self._network() + self._attention() + self._adapters()
        # Adapters of narrow models are float32, and computed with in the model's dtype.
        copies = adapter_parameters(self.shape) / self.shape.layers * self.itemsize if self.itemsize < 4 else 0.0
        return self.micro.tokens * each + copies + self._weights() + self._copied()

    def working(self) -> float:
        """The backward pass of the feed-forward network, or of a norm that is written out."""
        stream = self.shape.hidden * self.itemsize
        # What a network did not keep is computed again.
        network = stream + self._networks((2 + NETWORK - self.network) * self.itemsize / self.tp)
        # Of a norm that is not trained there is no product for the gradient of its weight.
        products = 20 if self.shape.adapters is None else 20 - 2 * self.itemsize
        norm = 0 if self.fused_norms else (products * self.shape.hidden + stream) / self.token_ranks
        tokens = self.micro.tokens
        return max(tokens * max(network, norm, self._attending()), self._scores(), self._sharing())

    def _networks(self, column: float) -> float:
        """For each token the gradients in the largest feed-forward network, with so many bytes for each column. Experts
        compute theirs one after the other; what they read and make has gradients for each expert of a token."""
        shape = self.shape
        if not shape.experts:
            return shape.ffn * column
        streams = 2 * shape.experts_per_token * shape.hidden * self.itemsize
        own = shape.ffn * shape.experts_per_token / shape.experts * column + streams
        return max(shape.shared_ffn * column, shape.dense_ffn * column, own)

    def _attending(self) -> float:
        """For each token the backward pass of attention to other ranks' keys and values, whose gradients are there of
        all tokens; what the network kept is gone then."""
        if self.cp == 1:
            return 0.0
        queries, keys, _ = self._sizes()
        return 2 * (queries + keys * self.cp) * self.itemsize - self._network()

    def _copied(self) -> float:
        """Keys and values of what rows begin with, for each of them."""
        return 2 * self._sizes()[1] * self.micro.copied * self.itemsize

    def _sharing(self) -> float:
        """The backward pass of attention to such copies, whose gradients are there before they are added up; what the
        network kept is gone then."""
        if not self.micro.copied:
            return 0.0
        queries, keys, _ = self._sizes()
        return self._copied() + self.micro.tokens * (2 * (queries + keys) * self.itemsize - self._network())

    def masks(self) -> float:
        """Of two stretches of each row which tokens each of theirs sees, but of the stretch that begins it."""
        ranks = self.cp
        return self.micro.squares * (2 * ranks + 1 - 1 / ranks) / (4 * ranks**2) * self.itemsize if ranks > 1 else 0.0

    def _weights(self) -> float:
        """Where attention is written out: a float32 for each head and pair of tokens, and what it is in another
        dtype."""
        if not self.scores:
            return 0.0
        return self._sizes()[2] * self.micro.squares * (4 + (self.itemsize if self.itemsize != 4 else 0))

    def _scores(self) -> float:
        """Of some queries at a time, where a cap has to be written out: capped, and their softmax. Of all, where
        attention is: two gradients, when those of the network are done."""
        if self.scores:
            pairs = 2 * self._sizes()[2] * self.micro.squares * max(4, self.itemsize)
            return pairs - self.micro.tokens * self._network()
        if not self.shape.score_cap:
            return 0.0
        seen = min(self.micro.squares, QUERIES * self.micro.tokens)
        return 2 * self.shape.heads / self.tp * seen * self.itemsize

    def again(self) -> float:
        """Where it keeps its input alone: all that it would have kept, and its backward pass. A norm that is written
        out goes back when the network has given back what it kept."""
        network = replace(self, fused_norms=True).working()
        return self.kept() + max(network, self.working() - self.micro.tokens * self._network())

    def forward(self) -> float:
        """The feed-forward network, the rotation of queries and keys, or a norm that is written out, beside the
        residual stream, what entered this layer and the first, and what came out of a norm."""
        queries, keys, _ = self._sizes()
        item, hidden = self.itemsize, self.shape.hidden
        experts, shape = self.shape.experts_per_token, self.shape
        columns = max(shape.ffn * max(1, experts), shape.shared_ffn, shape.dense_ffn)
        # Ranks that share a layer add up what comes out of it in one more.
        streams = (4 + experts) / self.token_ranks
        network = (streams + (self.tp > 1)) * hidden + (4 if experts else 3) * columns / self.tp
        attention = 3 * hidden / self.token_ranks + max(4 * queries + 2 * keys, 2 * queries + 5 * keys)
        if self.cp > 1:
            # Keys and values of all ranks, as they came and in the rows' order.
            seen = 2 * keys * self.cp
            most = max(4 * queries + 3 * keys + seen, 2 * queries + 5 * keys + 2 * seen)
            # Those that are normed are there as they came, too.
            most += self.shape.qk_norm * (queries + keys)
            attention = 3 * hidden / self.token_ranks + most
        if shape.latent:
            seen = 2 * keys * (self.cp - 1)
            attention = (
                3 * hidden / self.token_ranks + latent.forward(shape, shape.latent, shape.heads / self.tp) + seen
            )
        wide = 0 if item >= 4 else 8
        norm = (3 if wide else 5) * hidden * item + wide * hidden
        normed = self.shape.qk_norm * ((3 * hidden + queries) * item + wide * queries)
        found = self.micro.tokens * max(network * item, attention * item, norm, normed)
        # Beside queries, keys, values, and what comes out, which is put together.
        sharing = self.micro.tokens * (3 * hidden + 3 * queries + 4 * keys) * item + self._copied()
        found = max(found, sharing if self.micro.copied else 0.0) + self.micro.masks * item
        if not self.scores:
            return found
        # Two of them, the mask, and what enters beside keys and values for each head.
        pairs = self.micro.squares * (2 * self._sizes()[2] * max(4, item) + item + 1)
        return max(found, pairs + self.micro.tokens * (3 * hidden + 3 * queries + 2 * keys) * item)

    def ends(self) -> float:
        last = (self._norm() - self.shape.hidden * self.itemsize) / self.token_ranks
        found = self.micro.tokens * last + self.micro.scored * self.shape.hidden * self.itemsize
        if self.token_ranks > 1:
            # Put together for the head.
            found += self.micro.tokens * self.shape.hidden * self.itemsize
        # Of all places of a row; of all rows, where these are packed.
        angles = self.angles * (self.micro.tokens if self.packed else self.micro.longest)
        mask = (self.micro.squares * self.scores + self.micro.masks) * self.itemsize
        turned = self.shape.latent.turned if self.shape.latent else self.shape.head_dim
        return found + angles * turned * self.itemsize + mask

    def _norm(self) -> float:
        """For each token: what a norm keeps, what comes out, and a float32 scale."""
        return self.shape.hidden * (self._inner() + self.itemsize) + 4

    def _inner(self) -> int:
        """For each column: what comes in; where the norm is written out its normal form, too, which one that is not
        trained keeps in float32 alone."""
        if self.shape.wide_norms:
            return self.wide_norms
        return self.itemsize if self.fused_norms else 4 + self.itemsize * (self.shape.adapters is None)

    def _adapters(self) -> float:
        """For each token what lies between A and B."""
        adapters = self.shape.adapters
        return adapters.rank * len(adapters.chosen(linear(self.shape))) * self.itemsize if adapters else 0.0

    def _network(self) -> float:
        """For each token what a feed-forward network keeps. Experts also keep a token's copy for each of them, and what
        they make of it."""
        copies = 2 * self.shape.experts_per_token * self.shape.hidden * self.shape.sparse / self.shape.layers
        if self.shape.experts and self.token_ranks > 1:
            # All tokens, put together for the router.
            copies += self.shape.hidden
        # Routers that are to be exact read a wide copy.
        wide = 4 * self.shape.hidden * self.shape.sparse / self.shape.layers if self.shape.routing else 0
        found = (self.network * _ffn(self.shape) / self.tp + copies) * self.itemsize
        return found + (wide if self.itemsize < 4 else 0)

    def _attention(self) -> float:
        """For each token: queries, keys, values, what comes out, and a float32 for each head. What comes out of packed
        rows is there for each row, or stretch, and put together. Keys and values are there of all ranks' tokens."""
        queries, keys, heads = self._sizes()
        several = self.packed and (self.micro.rows > 1 or self.cp > 1)
        if self.shape.latent:
            size, inner, ranks = self.itemsize, self._inner(), self.token_ranks
            return latent.kept(self.shape, self.shape.latent, size, inner, heads, self.cp, self.scores, ranks)
        if self.scores:
            # Heads of a group have each a copy of its keys and values.
            keys = queries
        # Of layers that are computed again in parts neither what comes out of a row nor the float32 is kept.
        kernels = 1 - self._in_parts()
        found = ((2 + several * kernels) * queries + 2 * keys * self.cp) * self.itemsize + 4 * heads * kernels
        if self.shape.fused and self.keeps_fused:
            # Values are a view of all three; rotated queries are there twice.
            found += (2 * queries + keys) * self.itemsize
        if self.shape.qk_norm:
            # As `_norm`, but what goes out is not kept.
            found += (queries + keys) * (self._inner() + 4 / self.shape.head_dim)
        return found

    def _in_parts(self) -> float:
        """The share of layers whose attention is computed for some queries at a time."""
        if self.shape.score_cap:
            return 1.0
        longer = max(self.micro.longest, 1.0) > self.shape.window
        return self.shape.windowed / self.shape.layers if longer and not self.scores else 0.0

    def _sizes(self) -> tuple[float, float, float]:
        """Columns of the queries and of the keys, and heads, of this rank."""
        heads, kv_heads = self.shape.heads / self.tp, self.shape.kv_heads / self.tp
        return heads * self.shape.widest, kv_heads * self.shape.widest, heads


def _ffn(shape: Shape) -> float:
    """Columns of the feed-forward networks that one token takes, in the mean of all layers."""
    each = shape.ffn * max(1, shape.experts_per_token) + shape.shared_ffn
    return each + shape.dense / shape.layers * (shape.dense_ffn - each)
