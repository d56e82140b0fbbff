"""Context parallelism: ranks along cp shard the tokens of packed rows, and attend to keys and values of all.

A row of L tokens is cut into twice as many stretches as there are ranks, n, and each rank has one from the front and
one from the back, the i-th and the (2n - 1 - i)-th: so each has as many tokens, and as many that they see (as in
Megatron-LM, and in arXiv 2407.21783, section 3.3.2). Keys and values are gathered; no scores travel, and none are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import pad, scaled_dot_product_attention

from rlgraph.backends.engines.likeliest import KeptTokens
from rlgraph.backends.engines.megatron.batches import CallRows
from rlgraph.backends.engines.megatron.shim import model_device
from rlgraph.backends.engines.ragged import ragged_positions
from rlgraph.backends.engines.varlen import AttentionOptions, repeat_kv_heads


@dataclass(frozen=True)
class TokenShard:
    """A rank's part of T tokens: S of them, the same number on each rank, of which the last ones may be padding."""

    tokens_per_rank: int
    """The number S of tokens of each rank."""
    group: dist.ProcessGroup
    token_indices: Tensor
    """int64 [S at most]: its tokens among the T, in its order."""
    gathered_positions: Tensor
    """int64 [T]: where each token is among those of all ranks, which lie one rank behind the other, S each."""
    lengths: Sequence[int]
    """Tokens of each row."""
    row_ranges: Sequence[Sequence[tuple[int, int]]]
    """For each row its stretches here, from one token to before another, none of them empty."""
    _masks: list[Tensor] = field(default_factory=list)
    """On a CPU, one mask for each piece that does not begin its row: all layers use the same."""

    def shard_tokens(self, whole: Tensor, fill: int = 0) -> Tensor:
        """Return this rank's part, [S, ...], of [T, ...]."""
        padding = self.tokens_per_rank - len(self.token_indices)
        return pad(whole[self.token_indices], (*(0, 0) * (whole.dim() - 1), 0, padding), value=fill)

    def to(self, device: torch.device) -> TokenShard:
        """Return this shard with the tensors that attention reads on a device."""
        return replace(self, gathered_positions=self.gathered_positions.to(device))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, how: AttentionOptions) -> Tensor:
        """Return the causal attention of this rank's tokens to all of their rows', [S, heads, size].

        query: [S, heads, size]. key, value: [S, groups, size]; heads of a group lie next to each other. how: without a
        window or a cap.
        """
        keys_values = torch.cat([key, value], -1)
        # The backward pass sums over the ranks, and each gets its tokens' part.
        keys_values = gather_from_sequence_parallel_region(keys_values, group=self.group).index_select(
            0, self.gathered_positions
        )
        keys, values = (repeat_kv_heads(query, states) for states in keys_values.chunk(2, -1))
        rows = zip(
            *(states.transpose(0, 1)[None].split(list(self.lengths), 2) for states in (keys, values)), strict=True
        )
        piece_lengths = [stop - start for pieces in self.row_ranges for start, stop in pieces]
        # Padding needs some output: its queries are returned as they are.
        *queries, padding = query.transpose(0, 1)[None].split(
            [*piece_lengths, self.tokens_per_rank - sum(piece_lengths)], 2
        )
        remaining, masks = iter(queries), self._masks_of(query)
        outputs = []
        for (k, v), pieces in zip(rows, self.row_ranges, strict=True):
            for start, stop in pieces:
                mask = {"attn_mask": next(masks)} if start else {"is_causal": True}
                visible = k[:, :, :stop], v[:, :, :stop]
                outputs.append(
                    scaled_dot_product_attention(next(remaining), *visible, **mask, scale=how.scale, enable_gqa=True)
                )
        if not outputs:
            # Other ranks wait for this one's part of their gradients, even if it is 0.
            padding = padding + 0 * keys_values[0, 0, 0]
        return torch.cat([*outputs, padding], 2)[0].transpose(0, 1)

    def _masks_of(self, query: Tensor) -> Iterator[Tensor]:
        """Return for each piece that does not begin its row which tokens each one sees."""
        later = [(start, stop) for pieces in self.row_ranges for start, stop in pieces if start]
        if query.is_cuda:
            # CUDA's kernels need no mask in memory.
            return (causal_lower_right(stop - start, stop) for start, stop in later)
        if not self._masks:
            for start, stop in later:
                none = query.new_full((stop - start, stop), -torch.inf)
                self._masks.append(none.triu_(start + 1))
        return iter(self._masks)


class ContextParallel:
    """This process's place among the ranks that shard tokens."""

    def __init__(self) -> None:
        self._ranks = parallel_state.get_context_parallel_world_size()
        self._rank = parallel_state.get_context_parallel_rank()
        self._tp = parallel_state.get_tensor_model_parallel_world_size()

    def shard_batch(self, batch: CallRows, pad_id: int) -> tuple[CallRows, TokenShard | None]:
        """Return this rank's part of a batch: its answers are those of all ranks, in the batch's order, and in the
        backward pass each rank takes its own of the gradients that all of them have. Where ranks also split tokens
        among tensor-parallel ones, each has as many: padding behind the last row changes nothing in it."""
        if self._ranks == 1:
            padding = -batch.ids.shape[1] % self._tp
            ids, lengths = (
                pad(batch.ids, (0, padding), value=pad_id),
                [*batch.lengths[:-1], batch.lengths[-1] + padding],
            )
            routes = None if batch.routes is None else pad(batch.routes, (0, 0, 0, 0, 0, padding), value=-1)
            return replace(batch, ids=ids, lengths=lengths, routes=routes), None
        share = self._make_share(batch.lengths)
        at = share.gathered_positions[batch.output_positions]
        ranks, is_own = at // share.tokens_per_rank, at // share.tokens_per_rank == self._rank
        places = at[is_own] % share.tokens_per_rank
        spans: dict[int, slice] = {}
        combine: dict[int, Callable[[Any], Any]] = {}
        own = {table: is_own[span] for table, span in batch.table_spans.items()}
        for table, span in batch.table_spans.items():
            first = int(is_own[: span.start].sum())
            spans[table] = slice(first, first + int(is_own[span].sum()))
            combine[table] = _combiner(ranks[span], self._ranks, share.group)
        part = replace(
            batch,
            ids=share.shard_tokens(batch.ids[0], pad_id)[None],
            routes=None if batch.routes is None else share.shard_tokens(batch.routes, -1),
            output_positions=places if len(places) else torch.zeros(1, dtype=torch.long),
            next_tokens=batch.next_tokens[is_own[: len(batch.next_tokens)]],
            table_spans=spans,
            merge_ranks=lambda table, values: combine[table](values),
            own_entries=lambda table, values: values[own[table]],
        )
        return part, share

    def _make_share(self, lengths: Sequence[int]) -> TokenShard:
        sizes = np.array(lengths)
        stretches = [_bounds(sizes, self._ranks, rank) for rank in range(self._ranks)]
        starts = (sizes.cumsum() - sizes)[:, None]
        parts = [ragged_positions((starts + a).ravel(), (b - a).ravel()) for a, b in stretches]
        most = max(map(len, parts))
        size = most + -most % self._tp
        order = np.empty(int(sizes.sum()), np.int64)
        for rank, part in enumerate(parts):
            order[part] = rank * size + np.arange(len(part))
        pieces = [
            [(start, stop) for start, stop in zip(*row, strict=True) if start < stop]
            for row in zip(*(bounds.tolist() for bounds in stretches[self._rank]), strict=True)
        ]
        tokens = torch.from_numpy(parts[self._rank])
        group = parallel_state.get_context_parallel_group()
        return TokenShard(size, group, tokens, torch.from_numpy(order), lengths, pieces)


def _bounds(lengths: np.ndarray, ranks: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where a rank's two stretches of each row begin and end, int64 [rows, 2] each. Which rank has which pair
    changes from row to row, so that no rank has the longer stretches of all of them."""
    first = (rank - np.arange(len(lengths))) % ranks
    which = np.stack([first, 2 * ranks - 1 - first], 1)
    return lengths[:, None] * which // (2 * ranks), lengths[:, None] * (which + 1) // (2 * ranks)


def _combiner(owners: Tensor, ranks: int, group: dist.ProcessGroup) -> Callable[[Any], Any]:
    """Return a function from this rank's results at its places, numbers or kept tokens, to the results of all ranks.
    owners: int64 [M]: the rank of each place."""
    gather_numbers = _number_combiner(owners, ranks, group)

    def gather_results(values: Any) -> Any:
        if not isinstance(values, KeptTokens):
            return gather_numbers(values)
        counts = gather_numbers(values.counts.to(model_device())).cpu()
        gather_kept = _number_combiner(owners.repeat_interleave(counts), ranks, group)
        ids, logs = (gather_kept(of_tokens.to(model_device())).cpu() for of_tokens in (values.ids, values.logs))
        return KeptTokens(counts, ids, logs)

    return gather_results


def _number_combiner(owners: Tensor, ranks: int, group: dist.ProcessGroup) -> Callable[[Tensor], Tensor]:
    counts = owners.bincount(minlength=ranks)
    most = int(counts.max())
    order = torch.empty_like(owners)
    for rank, count in enumerate(counts.tolist()):
        order[owners == rank] = rank * most + torch.arange(count)

    def gather_results(values: Tensor) -> Tensor:
        if not most:
            return values
        padded = pad(values, (0, most - len(values)))
        # All ranks compute the same with it: each has the gradient of its own part.
        gathered: Tensor = gather_from_sequence_parallel_region(padded, tensor_parallel_output_grad=False, group=group)
        return gathered[order.to(gathered.device)]

    return gather_results
