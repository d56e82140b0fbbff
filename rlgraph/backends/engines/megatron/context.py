"""Context parallelism: ranks along cp share out the tokens of packed rows, and attend to keys and values of all.

A row of L tokens is cut into twice as many stretches as there are ranks, n, and each rank has one from the front and
one from the back, the i-th and the (2n - 1 - i)-th: so each has as many tokens, and as many that they see (as in
Megatron-LM, and in arXiv 2407.21783, section 3.3.2). Keys and values are gathered; no scores travel, and none are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import pad, scaled_dot_product_attention

from rlgraph.backends.engines.megatron.batches import Batch
from rlgraph.backends.engines.ragged import ragged_places
from rlgraph.backends.engines.varlen import How, shared_heads


@dataclass(frozen=True)
class Share:
    """A rank's part of T tokens: S of them, as each rank has, of which the last ones may only fill it up."""

    size: int
    """S."""
    group: dist.ProcessGroup
    own: Tensor
    """int64 [S at most]: its tokens among the T, in its order."""
    order: Tensor
    """int64 [T]: where each token is among those of all ranks, one rank's behind the other's, S each."""
    lengths: Sequence[int]
    """Tokens of each row."""
    pieces: Sequence[Sequence[tuple[int, int]]]
    """Of each row its stretches here, from one token to before another, none of them empty."""
    _masks: list[Tensor] = field(default_factory=list)
    """On a CPU, one for each piece that does not begin its row: all layers use the same."""

    def part(self, whole: Tensor, fill: int = 0) -> Tensor:
        """What is here of [T]: [S]."""
        return pad(whole[self.own], (0, self.size - len(self.own)), value=fill)

    def to(self, device: torch.device) -> Share:
        """With what attention reads on a device."""
        return replace(self, order=self.order.to(device))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, how: How) -> Tensor:
        """Causal attention of this rank's tokens to all of their rows', [S, heads, size].

        query: [S, heads, size]. key, value: [S, groups, size]; heads of a group lie next to each other. how: without a
        window or a cap.
        """
        both = torch.cat([key, value], -1)
        # Backward it is a sum over the ranks, of which each gets its tokens' part.
        both = gather_from_sequence_parallel_region(both, group=self.group).index_select(0, self.order)
        keys, values = (shared_heads(query, each) for each in both.chunk(2, -1))
        rows = zip(*(each.transpose(0, 1)[None].split(list(self.lengths), 2) for each in (keys, values)), strict=True)
        own = [stop - start for pieces in self.pieces for start, stop in pieces]
        # What fills up has to come out as something: as what went in.
        *queries, rest = query.transpose(0, 1)[None].split([*own, self.size - sum(own)], 2)
        left, masks = iter(queries), self._masks_of(query)
        done = []
        for (k, v), pieces in zip(rows, self.pieces, strict=True):
            for start, stop in pieces:
                mask = {"attn_mask": next(masks)} if start else {"is_causal": True}
                seen = k[:, :, :stop], v[:, :, :stop]
                done.append(scaled_dot_product_attention(next(left), *seen, **mask, scale=how.scale, enable_gqa=True))
        if not done:
            # Other ranks wait for its part of their gradients, even if it is 0.
            rest = rest + 0 * both[0, 0, 0]
        return torch.cat([*done, rest], 2)[0].transpose(0, 1)

    def _masks_of(self, query: Tensor) -> Iterator[Tensor]:
        """Of each piece that does not begin its row: which tokens each one sees."""
        later = [(start, stop) for pieces in self.pieces for start, stop in pieces if start]
        if query.is_cuda:
            # Its kernels need no mask in memory.
            return (causal_lower_right(stop - start, stop) for start, stop in later)
        if not self._masks:
            for start, stop in later:
                none = query.new_full((stop - start, stop), -torch.inf)
                self._masks.append(none.triu_(start + 1))
        return iter(self._masks)


class Context:
    """This process's place among the ranks that share tokens out."""

    def __init__(self) -> None:
        self._ranks = parallel_state.get_context_parallel_world_size()
        self._rank = parallel_state.get_context_parallel_rank()
        self._tp = parallel_state.get_tensor_model_parallel_world_size()

    def part(self, batch: Batch, pad_id: int) -> tuple[Batch, Share | None]:
        """This rank's part of a batch: its answers are those of all ranks, in the batch's order, and backward each rank
        takes its own of the gradients that all of them have. Where ranks split tokens among tensor-parallel ones, too,
        each has as many: what is behind the last row changes nothing in it."""
        if self._ranks == 1:
            more = -batch.ids.shape[1] % self._tp
            ids, lengths = pad(batch.ids, (0, more), value=pad_id), [*batch.lengths[:-1], batch.lengths[-1] + more]
            return replace(batch, ids=ids, lengths=lengths), None
        share = self._share(batch.lengths)
        at = share.order[batch.places]
        ranks, mine = at // share.size, at // share.size == self._rank
        places = at[mine] % share.size
        spans, found = {}, {}
        for table, span in batch.spans.items():
            before = int(mine[: span.start].sum())
            spans[table] = slice(before, before + int(mine[span].sum()))
            found[table] = _together(ranks[span], self._ranks, share.group)
        part = replace(
            batch,
            ids=share.part(batch.ids[0], pad_id)[None],
            places=places if len(places) else torch.zeros(1, dtype=torch.long),
            tokens=batch.tokens[mine[: len(batch.tokens)]],
            spans=spans,
            together=lambda table, values: found[table](values),
        )
        return part, share

    def _share(self, lengths: Sequence[int]) -> Share:
        sizes = np.array(lengths)
        stretches = [_stretches(sizes, self._ranks, rank) for rank in range(self._ranks)]
        starts = (sizes.cumsum() - sizes)[:, None]
        parts = [ragged_places((starts + a).ravel(), (b - a).ravel()) for a, b in stretches]
        most = max(map(len, parts))
        size = most + -most % self._tp
        order = np.empty(int(sizes.sum()), np.int64)
        for rank, part in enumerate(parts):
            order[part] = rank * size + np.arange(len(part))
        pieces = [
            [(start, stop) for start, stop in zip(*row, strict=True) if start < stop]
            for row in zip(*(each.tolist() for each in stretches[self._rank]), strict=True)
        ]
        own = torch.from_numpy(parts[self._rank])
        group = parallel_state.get_context_parallel_group()
        return Share(size, group, own, torch.from_numpy(order), lengths, pieces)


def _stretches(lengths: np.ndarray, ranks: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Where a rank's two stretches of each row begin and end, int64 [rows, 2] each. Which rank has which pair changes
    from row to row, so that nobody has the longer stretches of all of them."""
    first = (rank - np.arange(len(lengths))) % ranks
    which = np.stack([first, 2 * ranks - 1 - first], 1)
    return lengths[:, None] * which // (2 * ranks), lengths[:, None] * (which + 1) // (2 * ranks)


def _together(owners: Tensor, ranks: int, group: dist.ProcessGroup) -> Callable[[Tensor], Tensor]:
    """From what this rank says at its places to what all of them say. owners: int64 [M]: the rank of each place."""
    counts = owners.bincount(minlength=ranks)
    most = int(counts.max())
    back = torch.empty_like(owners)
    for rank, count in enumerate(counts.tolist()):
        back[owners == rank] = rank * most + torch.arange(count)

    def together(values: Tensor) -> Tensor:
        if not most:
            return values
        filled = pad(values, (0, most - len(values)))
        # All ranks compute the same of it: each has the gradient of its own part.
        found: Tensor = gather_from_sequence_parallel_region(filled, tensor_parallel_output_grad=False, group=group)
        return found[back.to(found.device)]

    return together
