"""Lays rows one behind the other: each by itself, or so that the common beginning of neighbours exists once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.ragged import ragged_positions
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.transformers.spec import SHARES


@dataclass(frozen=True)
class PackedSpan:
    """Families that are alike: rows that begin with the same tokens, or one row by itself, which is all beginning."""

    family_count: int
    prefix_tokens: int
    """Tokens that the rows of a family have in common."""
    suffixes: tuple[tuple[int, int], ...] = ()
    """How many rows of a family have so many tokens beyond the beginning, at least one; several entries only where
    there is one family."""


@dataclass(frozen=True)
class Packing:
    """An order of tokens: first the beginnings of all spans, one behind the other, then the ends."""

    spans: tuple[PackedSpan, ...]
    token_at_place: Tensor
    """int64 [places]: which of the rows' tokens lie there, in this order."""
    place_of_token: Tensor
    """int64 [tokens]: the place of each of the rows' tokens."""


def pack_separately(rows: Sequences) -> Packing:
    """Pack each row by itself."""
    return _lay_out(rows, np.arange(len(rows)), rows.lengths.numpy())


def pack_sharing_prefixes(rows: Sequences, beginnings: Tensor, worth: float = SHARES.min_saved_share) -> Packing | None:
    """Pack neighbours that begin with the same tokens as a family; None where that leaves out less than is worth it.

    beginnings: int64 [N], the tokens of each row that it may share: all of them with a neighbour, or none.
    """
    lengths, shareable = rows.lengths.numpy(), beginnings.numpy()
    shareable = np.where(lengths - shareable > SHARES.max_suffix_tokens, 0, shareable)
    continues = _same_as_before(rows.tokens.numpy(), rows.row_starts.numpy(), shareable)
    first = np.flatnonzero(~continues)
    sizes = np.diff(first, append=len(lengths))
    if int((shareable[first] * (sizes - 1)).sum()) < worth * lengths.sum():
        return None
    return _lay_out(rows, np.cumsum(~continues) - 1, np.where(sizes > 1, shareable[first], lengths[first]))


def _lay_out(rows: Sequences, family: np.ndarray, common: np.ndarray) -> Packing:
    """Pack rows of which each belongs to a family, int64 [N], that has so many tokens in common, int64 [families].
    Families that are alike lie beside each other, and so do rows of a family with equally many tokens of their own."""
    lengths, starts = rows.lengths.numpy(), rows.row_starts.numpy()
    first = np.flatnonzero(np.diff(family, prepend=-1))
    beyond = lengths - common[family]
    inside = np.lexsort((beyond, family))
    ends = [
        tuple((len(list(same)), length) for length, same in groupby(part.tolist()) if length)
        for part in np.split(beyond[inside], first[1:])
    ]
    families = list(zip(common.tolist(), ends, strict=True))
    ranked = np.array(sorted(range(len(families)), key=families.__getitem__), dtype=np.int64)
    order = np.lexsort((beyond, ranked.argsort()[family]))
    taken = [
        ragged_positions(starts[first[ranked]], common[ranked]),
        ragged_positions((starts + lengths - beyond)[order], beyond[order]),
    ]
    begin, end = np.empty_like(common), np.empty_like(lengths)
    begin[ranked] = common[ranked].cumsum() - common[ranked]
    end[order] = common.sum() + beyond[order].cumsum() - beyond[order]
    place_of = np.empty(int(lengths.sum()), dtype=np.int64)
    place_of[ragged_positions(starts, lengths - beyond)] = ragged_positions(begin[family], lengths - beyond)
    place_of[ragged_positions(starts + lengths - beyond, beyond)] = ragged_positions(end, beyond)
    spans = _spans([families[number] for number in ranked.tolist()])
    return Packing(spans, torch.from_numpy(np.concatenate(taken)), torch.from_numpy(place_of))


def _same_as_before(tokens: np.ndarray, starts: np.ndarray, beginnings: np.ndarray) -> np.ndarray:
    """Return whether each row begins with the same tokens as the one before it, bool [N]."""
    same = np.zeros(len(starts), dtype=bool)
    at = np.flatnonzero((beginnings[1:] == beginnings[:-1]) & (beginnings[1:] > 0)) + 1
    count = beginnings[at]
    differs = tokens[ragged_positions(starts[at], count)] != tokens[ragged_positions(starts[at - 1], count)]
    same[at] = np.bincount(np.repeat(np.arange(len(at)), count), differs, len(at)) == 0
    return same


def _spans(families: Sequence[tuple[int, tuple[tuple[int, int], ...]]]) -> tuple[PackedSpan, ...]:
    """Return the spans of families that lie one after the other: what their rows have in common, and how many rows have
    so many tokens beyond."""
    spans: list[PackedSpan] = []
    for (beginning, ends), same in groupby(families):
        count = len(list(same))
        spans += [PackedSpan(1, beginning, ends)] * count if len(ends) > 1 else [PackedSpan(count, beginning, ends)]
    return tuple(spans)
