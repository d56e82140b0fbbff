"""Reads rows with a model: what its head gives at each scored token, or at the last one, block by block and in the
order of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import torch
from torch import Tensor

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.likeliest import KeptTokens, join, put_numbers
from rlgraph.backends.engines.meter import WorkMeter
from rlgraph.backends.engines.micro_batches import plan_micro_batches
from rlgraph.backends.engines.sequences import Sequences, ragged_index
from rlgraph.backends.engines.transformers.fsdp import ParameterShards
from rlgraph.backends.engines.transformers.head import wide, wide_dtype
from rlgraph.backends.engines.transformers.network import Network

Read = Callable[..., Sequence[Any]]
"""Turns what the network gives to its head at some places, [M, ...], the tokens that follow, [M], and what networks
beside it give, into results of M entries each: tensors, or `KeptTokens`."""


class ForwardPasses:
    """Reads blocks of rows with a network, in threads or on ranks that shard the model."""

    def __init__(
        self,
        network: Network,
        block_tokens: int,
        threads: int = 1,
        pool: Executor | None = None,
        shards: ParameterShards | None = None,
        meter: WorkMeter | None = None,
    ) -> None:
        """block_tokens: tokens in a block, padded ones where rows are padded. pool: has so many threads, each of which
        computes a block. shards: the ranks that shard the model. meter: counts the rows that are read."""
        self._network, self._block_tokens = network, block_tokens
        self._threads, self._pool, self._shards = threads, pool, shards
        self._meter = meter or WorkMeter()

    def scored_token_outputs(
        self, sequences: Sequences, read: Read, results: int, others: Sequence[tuple[Any, Any]] = ()
    ) -> list[Any]:
        """Return `read` of what is before each scored token: `results` of [total scored]. others: models that are
        read beside this one, without gradients, with as many scored tokens in each row; `read` is given what theirs
        give to their heads, too. Likeliest tokens come as a `KeptReader` and `KeptRows`."""
        if bool(((sequences.token_positions == 0) & sequences.scored).any()):
            raise EngineError("a row's first token cannot be scored: there is nothing before it to predict it from")
        counts = sequences.scored_counts()

        def block_outputs(rows: Tensor) -> Sequence[Any]:
            part = sequences.take(rows)
            with torch.no_grad():
                beside = [other.hidden_before_scored(of_other.take(rows)) for other, of_other in others]
            hidden = self.hidden_before_scored(part)
            return read(hidden, part.tokens[part.scored].to(hidden.device), *beside)

        return self._in_blocks(sequences.lengths, counts, block_outputs, results)

    def hidden_before_scored(self, rows: Sequences) -> Tensor:
        """Return what the network gives to its head before each scored token, [total scored, ...]; each row has one."""
        positions = rows.scored.nonzero()[:, 0]
        # The last scored token of a row, and what follows it, need not be read.
        inputs = rows.truncate(rows.token_positions[positions[rows.scored_counts().cumsum(0) - 1]])
        before = inputs.row_starts[rows.row_of_token[positions]] + rows.token_positions[positions] - 1
        # The rows of a group have in common what stands before a row's first scored token.
        ends = rows.scored_counts().cumsum(0)
        prompts = rows.token_positions[positions[ends - rows.scored_counts()]]
        return self._network.hidden_at(inputs, before, prompts)

    @property
    def is_sharded(self) -> bool:
        """Whether ranks shard the model, and compute together."""
        return self._shards is not None

    def last_token_outputs(self, sequences: Sequences) -> Tensor:
        """Return the head's output at each row's last token, float [N]."""

        def block_outputs(rows: Tensor) -> Sequence[Any]:
            part = sequences.take(rows)
            hidden = self._network.hidden_at(part, part.lengths.cumsum(0) - 1)
            return (wide(self._network.apply_head(hidden))[:, 0],)

        [last] = self._in_blocks(sequences.lengths, torch.ones(len(sequences), dtype=torch.long), block_outputs, 1)
        outputs: Tensor = last
        return outputs

    def _in_blocks(
        self, lengths: Tensor, counts: Tensor, block: Callable[[Tensor], Sequence[Any]], results: int
    ) -> list[Any]:
        """Return the results of blocks of rows, counts[i] entries for row i, put in the order of the rows."""
        device = self._network.device
        used = counts.nonzero()[:, 0]
        if not used.shape[0]:
            return [torch.zeros(0, dtype=wide_dtype(self._network.model.dtype), device=device) for _ in range(results)]
        if self._shards is not None:
            return self._in_shards(self._shards, lengths[used], used, counts, block)
        if torch.is_grad_enabled():
            # With gradients the caller has already chosen the rows of the block.
            entire = used.shape[0] == lengths.shape[0]
            return list(block(torch.arange(lengths.shape[0]) if entire else used))
        plan = [used[rows] for rows in self._plan(lengths[used])]
        outputs = self._map(block, plan)
        order = torch.cat(plan)
        starts = counts.cumsum(0) - counts
        places, total = ragged_index(starts[order], counts[order]), int(counts.sum())
        joined = [join(parts) for parts in zip(*outputs, strict=True)]
        return [
            values.spread(places, total, put_numbers)
            if isinstance(values, KeptTokens)
            else put_numbers(values, places.to(device), total)
            for values in joined
        ]

    def _plan(self, lengths: Tensor) -> list[Tensor]:
        packed, ordered = self._network.can_pack, self._network.can_share_prefixes
        return plan_micro_batches(lengths, self._block_tokens, self._threads, packed=packed, ordered=ordered)

    def _in_shards(
        self,
        shards: ParameterShards,
        lengths: Tensor,
        used: Tensor,
        counts: Tensor,
        block: Callable[[Tensor], Sequence[Any]],
    ) -> list[Any]:
        """Return the results where ranks shard the model: each computes with its rows, and has the results of all."""
        starts = counts.cumsum(0) - counts

        device, total = self._network.device, int(counts.sum())

        def put(values: Tensor, places: Tensor, of_all: int) -> Tensor:
            return shards.exchange_results(places.to(device), [values.to(device)], of_all)[0].cpu()

        def compute_own_rows() -> list[Any]:
            places, outputs = [torch.zeros(0, dtype=torch.long)], []
            for rows, is_own in shards.plan_micro_batches(lengths, self._block_tokens, self._network.can_pack):
                values, at = block(used[rows]), used[rows]
                places.append(ragged_index(starts[at], counts[at])[: None if is_own else 0])
                outputs.append([column if is_own else column[:0] for column in values])
            joined, own = [join(parts) for parts in zip(*outputs, strict=True)], torch.cat(places)
            if any(isinstance(values, KeptTokens) for values in joined):
                return [values.spread(own, total, put) for values in joined]
            return shards.exchange_results(own.to(device), joined, total)

        return shards.run(compute_own_rows)

    def _map(self, work: Callable[[Tensor], Sequence[Any]], plan: list[Tensor]) -> list[Sequence[Any]]:
        """Call `work` on each block without gradients, side by side where the engine has threads."""
        self._meter.begin_call(sum(rows.shape[0] for rows in plan))

        def compute_and_count(rows: Tensor) -> Sequence[Any]:
            made = work(rows)
            self._meter.add(rows.shape[0])
            return made

        if self._pool is None or len(plan) == 1:
            return [compute_and_count(rows) for rows in plan]

        def compute_without_gradient(rows: Tensor) -> Sequence[Any]:
            with torch.no_grad():
                return compute_and_count(rows)

        return list(self._pool.map(compute_without_gradient, plan))
