"""Log-probabilities and entropies of a linear head from the hidden states before it: its logits exist for one tile of
tokens and of the vocabulary at a time, and are read and written there while they are in a processor's cache.

Of a tile there are exponentials, which need no pass of their own to become a gradient: d log p(token) / dx_j is
[j is the token] - exp(x_j) / s with s = sum exp x, so that a row's factor goes into one side of the products with the
weights and the hidden states. Those of the first tiles stay for the backward pass, as many as `HeadTiles` says; the
others are computed again. Where the weights are not trained, only the products of their exponentials with the weights
stay, and nothing is computed again.

`torch.nn.functional.linear_cross_entropy` gives no entropies, makes no use of logits that are split by vocabulary, and
adds exponentials up as `log_softmax` does (see `rlgraph.backends.engines.logprobs`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from rlgraph.backends.engines.head_sums import HeadSums, LogitGradient, LogitReference
from rlgraph.backends.enginespec.memory import HeadTiles

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
"""What hidden states and weights can be; an exponential of a logit has no room in float16."""

_PLAIN = (-10.0, 25.0)
"""Where the largest of a few logits of a row lies here, exponentials are of the logits themselves; else it is taken off
first."""
_LEAST_ROWS = 16
"""Products of fewer rows are computed in another way, with other last digits, on most processors."""
_FEW = 256
"""So many tokens' logits tell about where the others lie."""
_LEAST, _MOST = 1e-12, 1e18
"""Between these a sum of exponentials lacks no token that counts: its own is neither too small nor too large for a
float32."""


@dataclass(frozen=True)
class VocabularyPart:
    """The part of the vocabulary whose weights a rank has."""

    first: int
    """The number of its first token."""
    group: dist.ProcessGroup | None
    """The ranks that have the other parts."""


@dataclass(frozen=True)
class Products:
    """How matrices are multiplied where it is not by torch.mm."""

    product: Callable[[Tensor, Tensor], Tensor] | None = None
    """Logits: from [M, K] and [K, N] to [M, N]."""
    back: Callable[[Tensor, Tensor], Tensor] | None = None
    """Gradients of hidden states: the same."""
    outer: Callable[[Tensor, Tensor], Tensor] | None = None
    """Gradients of weights: from [M, K] and [M, N] to [K, N]."""


PLAIN_PRODUCTS = Products()


def linear_logprobs(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    temperature: float,
    tiles: HeadTiles,
    entropy: bool = False,
    part: VocabularyPart | None = None,
    products: Products = PLAIN_PRODUCTS,
) -> tuple[Tensor, Tensor]:
    """Return log softmax(hidden weight' / temperature) of each row's token, and where it is asked for the entropy of
    its distribution in nats, else zeros; [M] each, in float64 or float32.

    hidden: [M, H]. weight: [V, H], in the same dtype, one of `DTYPES`. tokens: int64 [M]. part: the logits are those of
    a part of the vocabulary; each rank has all results.
    """
    rows, missing = hidden.shape[0], _LEAST_ROWS - hidden.shape[0]
    if missing > 0:
        hidden, tokens = functional.pad(hidden, (0, 0, 0, missing)), functional.pad(tokens, (0, missing))
    scale = 1.0 if temperature in (0, 1) else 1 / temperature
    head = _Head(scale, tiles, part, products)
    logprobs, entropies = _LinearLogProbs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, tokens, head, entropy, torch.is_grad_enabled()
    )
    return logprobs[:rows], entropies[:rows]


class _Head(NamedTuple):
    """What is the same for all rows."""

    scale: float
    """Logits are multiplied by it."""
    tiles: HeadTiles
    part: VocabularyPart | None
    products: Products


class _LinearLogProbs(torch.autograd.Function):
    """Keeps the sums of each row, and of the logits what `HeadTiles` says."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, tokens: Tensor, head: _Head, entropy: bool, differentiated: bool
    ) -> tuple[Tensor, Tensor]:
        keeps = differentiated and weight.requires_grad
        projects = differentiated and hidden.requires_grad and not keeps
        sums = _Work(hidden, weight, tokens, head).forward(entropy, keeps, projects)
        logprobs, entropies = sums.results(entropy)
        ctx.save_for_backward(hidden, weight, tokens, logprobs, entropies)
        ctx.head, ctx.sums = head, sums
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        to_logprob, to_entropy = gradients
        hidden, weight, tokens, logprobs, entropies = ctx.saved_tensors
        if to_logprob is None:
            to_logprob = torch.zeros_like(logprobs)
        work = _Work(hidden, weight, tokens, ctx.head)
        if to_entropy is None and ctx.sums.projection is not None:
            return work.projected(ctx.sums, to_logprob, logprobs), *[None] * 5
        gradient = LogitGradient.of(ctx.sums, to_logprob, to_entropy, logprobs, entropies)
        return *work.backward(ctx.sums, gradient, *ctx.needs_input_grad[:2]), *[None] * 4


class _Tile(NamedTuple):
    rows: slice
    columns: slice
    numbers: tuple[int, int]


class _Work:
    """Computes with the tiles of one head."""

    def __init__(self, hidden: Tensor, weight: Tensor, tokens: Tensor, head: _Head) -> None:
        self._narrow = hidden.dtype == torch.bfloat16
        self._dtype = torch.float32 if self._narrow else hidden.dtype
        """Of all but logits, exponentials and matrices of narrow models."""
        self._hidden, self._weight, (self._scale, self._tiles, self._part, self._products) = hidden, weight, head
        # Logits of narrow models are rounded to their dtype before they are scaled, as those that are sampled from.
        self._inputs = hidden if self._narrow or self._scale == 1 else hidden * self._scale
        self._tokens = tokens - (self._part.first if self._part else 0)
        on_cpu = hidden.device.type == "cpu"
        self._shape = self._tiles.shape(hidden.shape[0], weight.shape[0], on_cpu)
        self._together = max(1, self._tiles.cached // self._shape[1]) if on_cpu else self._shape[0]
        """So many rows of a tile are worked on until they are done: they fit a processor's cache."""
        self._buffer = None if self._products.product else hidden.new_empty(self._shape[0] * self._shape[1])
        """For the logits of a tile, which products other than torch's make room for themselves."""
        self._scratch = hidden.new_empty(2, self._together * self._shape[1], dtype=self._dtype)

    def forward(self, entropy: bool, keeps: bool, projects: bool) -> HeadSums:
        """Return the sums over the vocabulary. keeps: exponentials stay for the backward pass. projects: their products
        with the weights do."""
        few = self._largest(min(_FEW, self._shape[1]))
        taken_off = few.masked_fill((few > _PLAIN[0]) & (few < _PLAIN[1]), 0)
        sums = self._sums(LogitReference.of(few, taken_off), entropy, keeps, projects)
        has_room = (sums.s > _LEAST) & (sums.s < _MOST)
        if not bool(has_room.all()):
            del sums
            largest = self._largest()
            reference = LogitReference.of(few.where(has_room, largest), taken_off.where(has_room, largest))
            sums = self._sums(reference, entropy, keeps, projects)
        return sums

    def _sums(self, reference: LogitReference, entropy: bool, keeps: bool, projects: bool) -> HeadSums:
        rows, device = self._hidden.shape[0], self._hidden.device
        sums, room = HeadSums(reference, rows, device, self._dtype), self._tiles.kept if keeps else 0
        if projects:
            sums.projection = torch.zeros_like(self._hidden, dtype=self._dtype)
        for tile in self._each_tile():
            stays = math.prod(tile.numbers) <= room
            out = self._logits(tile, stays)
            if stays:
                room -= out.numel()
                sums.kept[tile.rows.start, tile.columns.start] = out
            column, is_here = self._column_of_token(tile)
            chosen = self._in_units(out.gather(1, column)[:, 0].to(self._dtype))
            sums.chosen[tile.rows] += chosen.masked_fill(~is_here, 0)
            self._exponentials(out, tile.rows, reference, sums, entropy)
            if sums.projection is not None:
                _put(out, column, is_here, torch.zeros_like(chosen))
                self._add_product(sums.projection[tile.rows], out, tile)
            del out
        if self._part is not None:
            whole = torch.stack([sums.s, sums.t, sums.chosen])
            dist.all_reduce(whole, group=self._part.group)
            sums.s, sums.t, sums.chosen = whole
        return sums

    def projected(self, sums: HeadSums, to_logprob: Tensor, logprobs: Tensor) -> Tensor:
        """Return the gradient of the hidden states from what the forward pass kept of them."""
        assert sums.projection is not None
        column = self._tokens.clamp(0, self._weight.shape[0] - 1)
        of_token = (-to_logprob * logprobs.expm1()).masked_fill(column != self._tokens, 0)
        factor = (-to_logprob.double() / sums.s).to(self._dtype)
        gradient: Tensor = sums.projection * factor[:, None]
        gradient += self._weight[column].to(self._dtype) * of_token[:, None]
        return gradient.mul_(self._scale).to(self._hidden.dtype)

    def backward(
        self, sums: HeadSums, gradient: LogitGradient, wants_hidden: bool, wants_weight: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of the hidden states and of the weights."""
        folded = gradient.slope is None
        to_weight = torch.empty_like(self._weight) if wants_weight else None
        inputs = self._hidden * (gradient.factor[:, None] * self._scale if folded else self._scale)
        inputs, parts = inputs.to(self._hidden.dtype), _Parts(self._hidden.shape[0], self._dtype)
        to_hidden = torch.zeros_like(self._hidden, dtype=self._dtype) if wants_hidden else None
        for tile in self._each_tile():
            out = sums.kept.pop((tile.rows.start, tile.columns.start), None)
            if out is None:
                out = self._logits(tile)
                self._exponentials(out, tile.rows, sums.reference)
            if not folded:
                self._slope(out, tile.rows, gradient)
            _put(out, *self._column_of_token(tile), gradient.of_token[tile.rows])
            if to_hidden is not None:
                self._add_product(to_hidden[tile.rows], out, tile)
            if to_weight is not None:
                place = to_weight[tile.columns]
                rows = inputs[tile.rows]
                if self._products.outer:
                    parts.add(self._products.outer(out, rows), tile.rows, place)
                elif tile.numbers[0] == self._hidden.shape[0]:
                    torch.mm(out.t(), rows, out=place)
                else:
                    parts.add(torch.mm(out.t(), rows), tile.rows, place)
            del out
        if to_hidden is not None:
            factor = gradient.factor[:, None] * self._scale if folded else self._scale
            to_hidden = to_hidden.mul_(factor).to(self._hidden.dtype)
        return to_hidden, to_weight

    def _each_tile(self, tokens: int | None = None) -> Iterator[_Tile]:
        """Yield the tiles, of all or so many first tokens of the vocabulary; those of the same columns come one after
        the other."""
        rows, vocab = self._hidden.shape[0], tokens or self._weight.shape[0]
        high, wide = self._shape
        for column in range(0, vocab, wide):
            columns = slice(column, min(column + wide, vocab))
            for row in range(0, rows, high):
                here = slice(row, min(row + high, rows))
                yield _Tile(here, columns, (here.stop - here.start, columns.stop - columns.start))

    def _logits(self, tile: _Tile, stays: bool = False) -> Tensor:
        """Return a tile's logits, which only have room until those of the next one are asked for, but if they stay."""
        rows, weight = self._inputs[tile.rows], self._weight[tile.columns].t()
        if self._products.product:
            return self._products.product(rows, weight)
        assert self._buffer is not None
        out = self._hidden.new_empty(tile.numbers) if stays else self._buffer[: math.prod(tile.numbers)]
        return torch.mm(rows, weight, out=out.view(tile.numbers))

    def _add_product(self, total: Tensor, out: Tensor, tile: _Tile) -> None:
        """Add what a tile times its weights is to a wide sum, [rows, H]."""
        weight = self._weight[tile.columns]
        if self._products.back:
            total += self._products.back(out, weight)
        elif self._narrow:
            total += torch.mm(out, weight)
        else:
            total.addmm_(out, weight)

    def _exponentials(
        self, out: Tensor, rows: slice, reference: LogitReference, sums: HeadSums | None = None, entropy: bool = False
    ) -> None:
        """Put exponentials in the place of a tile's logits, and add them to the sums."""
        for first in range(0, out.shape[0], self._together):
            part = out[first : first + self._together]
            here = slice(rows.start + first, rows.start + first + part.shape[0])
            x = self._in_units(self._scratch_like(part, 0).copy_(part) if self._narrow else part)
            if reference.taken_off is not None:
                x.sub_(reference.taken_off[here, None])
            if sums is not None and entropy:
                exp = torch.exp(x, out=self._scratch_like(part, 1))
                sums.s[here] += exp.sum(1)
                sums.t[here] += x.sub_(reference.middle[here, None]).mul_(exp).sum(1)
                part.copy_(exp)
                continue
            x.exp_()
            if sums is not None:
                sums.s[here] += x.sum(1)
            if self._narrow:
                part.copy_(x)

    def _slope(self, out: Tensor, rows: slice, gradient: LogitGradient) -> None:
        """Make gradients of exponentials in place."""
        assert gradient.slope is not None and gradient.exp_minus_mean is not None
        least = torch.finfo(self._dtype).tiny
        for first in range(0, out.shape[0], self._together):
            part = out[first : first + self._together]
            here = slice(rows.start + first, rows.start + first + part.shape[0])
            # x less its mean: where x is large, its last digits would be lost.
            x = torch.mul(part, gradient.exp_minus_mean[here, None], out=self._scratch_like(part, 0))
            x.clamp_min_(least).log_()
            part.mul_(x.mul_(gradient.slope[here, None]).add_(gradient.factor[here, None]))

    def _largest(self, tokens: int | None = None) -> Tensor:
        """Return the largest logit of each row, [M], of all or so many first tokens of the vocabulary."""
        largest = torch.full_like(self._hidden[:, 0], -math.inf, dtype=self._dtype)
        for tile in self._each_tile(tokens):
            out, here = self._logits(tile), largest[tile.rows]
            torch.maximum(here, self._in_units(out.amax(1).to(self._dtype)), out=here)
            del out
        if self._part is not None:
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._part.group)
        return largest

    def _column_of_token(self, tile: _Tile) -> tuple[Tensor, Tensor]:
        """Return for each row a column of the tile, int64 [rows, 1], and whether that is its token's, bool [rows]."""
        column = self._tokens[tile.rows] - tile.columns.start
        inside = column.clamp(0, tile.numbers[1] - 1)
        return inside[:, None], inside == column

    def _scratch_like(self, part: Tensor, number: int) -> Tensor:
        return self._scratch[number, : part.numel()].view(part.shape)

    def _in_units(self, logits: Tensor) -> Tensor:
        """Divide logits by the temperature in place where that was not done before the product."""
        return logits.mul_(self._scale) if self._narrow and self._scale != 1 else logits


class _Parts:
    """Adds up the parts of the gradient of some weights that tiles of the same columns give, in wide numbers."""

    def __init__(self, rows: int, dtype: torch.dtype) -> None:
        self._rows, self._dtype = rows, dtype
        self._so_far: Tensor | None = None

    def add(self, part: Tensor, rows: slice, into: Tensor) -> None:
        """Add the part of some rows, and write the sum when the last ones are there."""
        if self._so_far is not None:
            part = self._so_far.add_(part)
        self._so_far = None
        if rows.stop == self._rows:
            into.copy_(part)
        else:
            self._so_far = part.to(self._dtype)


def _put(out: Tensor, column: Tensor, is_here: Tensor, values: Tensor) -> None:
    """Write a row's value at its token, where that is in the tile."""
    there = out.gather(1, column)[:, 0]
    out.scatter_(1, column, values.to(out.dtype).where(is_here, there)[:, None])
