"""Chooses which rows are computed together."""

from __future__ import annotations

import torch
from torch import Tensor


def plan_micro_batches(
    lengths: Tensor, token_budget: int, threads: int = 1, *, packed: bool = False, ordered: bool = False
) -> list[Tensor]:
    """Cut N rows into blocks of row indices, the longest rows first, or with `ordered`, of packed rows, in their order,
    so that neighbours come together.

    lengths: int64 [N]. A block's padded size (rows times its longest row) is at most `token_budget`, but for a single
    row that is longer; of packed rows, the sum of their lengths. There are at least `threads` blocks where there are
    that many rows, of about the same size, and as far as the budget allows a multiple of `threads` of them, so that no
    thread waits at the end.
    """
    count = lengths.shape[0]
    if not count:
        return []
    order = torch.arange(count) if ordered else lengths.argsort(descending=True, stable=True)
    sizes = lengths[order].tolist()
    wanted = -(-len(_block_rows(sizes, token_budget, packed)) // threads) * threads
    # The smallest budget that makes no more blocks than wanted, so that they are of about the same size.
    low, high = 0, max(token_budget, *sizes)
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_block_rows(sizes, middle, packed)) <= wanted else (middle, high)
    cuts = _block_rows(sizes, min(high, token_budget), packed)
    if len(cuts) < min(threads, count):
        return list(order.tensor_split(min(threads, count)))
    return list(torch.split(order, cuts))


def _block_rows(sizes: list[int], budget: int, packed: bool) -> list[int]:
    """Return how many rows, one after the other, go into each block."""
    cuts: list[int] = []
    longest = rows = total = 0
    for size in sizes:
        if rows and (total + size if packed else (rows + 1) * max(longest, 1)) > budget:
            cuts.append(rows)
            rows = total = 0
        if not rows:
            longest = size
        rows, total = rows + 1, total + size
    return [*cuts, rows]
