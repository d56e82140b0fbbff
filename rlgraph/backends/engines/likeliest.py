"""The likeliest tokens in each place with their probabilities: taken from logits, kept with the rows, and put back
among all tokens of the vocabulary where a sum is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.ragged import Entries, ragged_positions

LIKELIEST = 1024
"""So many of the largest weights are looked at first, on a CPU, where a sort of the whole vocabulary takes longer than
all else that is done for a token: SmolLM2-135M has 594 tokens with `top_p=0.95` in the mean place at temperature 1."""

NO_LOG = -1e30
"""The logarithm that a probability of 0 has here: 0 times it is 0, where 0 times infinity is no number."""


@dataclass(frozen=True)
class LikeliestTokens:
    """What an engine is asked at each scored token: its likeliest tokens, those that a sampler with these options
    keeps."""

    top_k: int
    """0: as many as the others keep."""
    top_p: float
    min_p: float


def likeliest_in_parts(
    logits: Callable[[Tensor], Tensor],
    hidden: Tensor,
    most: int,
    asked: LikeliestTokens,
    first: int = 0,
    group: dist.ProcessGroup | None = None,
) -> KeptTokens:
    """Return the likeliest tokens at some places, for at most `most` of them at a time. logits: turns what is before
    some places, [m, ...], into what `likeliest_tokens` takes."""
    # Ranked are all logits where no number says how many are kept: in several copies.
    places = max(1, most // (2 if asked.top_k else 4))
    parts = [likeliest_tokens(logits(part), asked, first, group) for part in hidden.split(places)]
    return parts[0].concat(parts[1:])


def likeliest_tokens(
    logits: Tensor, asked: LikeliestTokens, first: int = 0, group: dist.ProcessGroup | None = None
) -> KeptTokens:
    """Return the likeliest tokens at some places, in order, on the host.

    logits: [M, n], divided by the temperature; of a group of ranks the part of the vocabulary that this one has, from
    token number `first` on, and each rank has all results.
    """
    numbers = torch.arange(first, first + logits.shape[1], device=logits.device)
    count, total, log_s = asked.top_k or logits.shape[1], None, logits.logsumexp(1, keepdim=True)
    split = group is not None and dist.get_world_size(group) > 1
    if not asked.top_k and not split:
        return _until_told(logits, log_s, numbers, asked)
    if group is not None and split:
        log_s = torch.cat(_gather(log_s, group), 1).logsumexp(1, keepdim=True)
        if not asked.top_k:
            count, total = _most_kept(logits, asked, group)
    values, ids = _largest(logits, numbers, count)
    if group is not None and split:
        parts = _gather(torch.stack([values, ids.to(values.dtype)]), group)
        values, ids = torch.cat([part[0] for part in parts], 1), torch.cat([part[1] for part in parts], 1).long()
        # Of equal logits the one with the smaller number is first, as on one rank: ranks have the vocabulary in order.
        values, order = _sorted(values)
        ids = ids.gather(1, order)
        if asked.top_k:
            values, ids = values[:, :count], ids[:, :count]
    weights = without_unlikely((values - values[:, :1]).exp(), asked.min_p)
    kept = restrict_ranked(weights, asked.top_k, asked.top_p, total)
    return _kept_tokens(kept, ids, values - log_s)


def _until_told(logits: Tensor, log_s: Tensor, numbers: Tensor, asked: LikeliestTokens) -> KeptTokens:
    """Return the likeliest tokens that `top_p` and `min_p` keep: in the places where some of the largest tell which
    these are, and then in the others, by a sort of all. log_s: [M, 1]; numbers: of the tokens."""
    top, every = logits.amax(1, keepdim=True), logits.shape[1]
    total = without_unlikely((logits - top).exp_(), asked.min_p).sum(1, keepdim=True)
    few = every > LIKELIEST and (asked.top_p < 1 or asked.min_p > 0) and logits.device.type == "cpu"
    left, parts, places = torch.arange(len(logits), device=logits.device), [], []
    for count in [LIKELIEST, every] if few else [every]:
        rows = logits if len(left) == len(logits) else logits[left]
        values, columns = _sorted(rows) if count == every else largest_in_order(rows, count)
        ranked = without_unlikely((values - top[left]).exp(), asked.min_p)
        kept = restrict_ranked(ranked, 0, asked.top_p, total[left])
        told = tells_kept(kept, ranked) if count < every else torch.ones_like(left, dtype=torch.bool)
        parts.append(_kept_tokens(kept[told], numbers[columns[told]], (values - log_s[left])[told]))
        places.append(left[told])
        left = left[~told]
    return parts[0].concat(parts[1:]).pick(torch.cat(places).argsort().cpu().numpy())


def _kept_tokens(kept: Tensor, ids: Tensor, logs: Tensor) -> KeptTokens:
    """Return the tokens that have weight, [M, K], with the logarithms of their probabilities."""
    there = kept > 0
    return KeptTokens(there.sum(1).cpu(), ids[there].to("cpu", torch.int32), logs[there].cpu())


def _most_kept(logits: Tensor, asked: LikeliestTokens, group: dist.ProcessGroup) -> tuple[int, Tensor]:
    """Return how many of this rank's tokens are kept at most in a place, of any rank, and the weight of all tokens that
    `min_p` leaves, [M, 1], of which the largest has 1."""
    top = torch.cat(_gather(logits.amax(1, keepdim=True), group), 1).amax(1, keepdim=True)
    ranked = without_unlikely((logits - top).exp(), asked.min_p).sort(dim=1, descending=True)[0]
    total = torch.cat(_gather(ranked.sum(1, keepdim=True), group), 1).sum(1, keepdim=True)
    # Those of other ranks only add to what stands before a token; a little more, since the sums are rounded.
    count = (restrict_ranked(ranked, 0, asked.top_p, total * (1 + 1e-5)) > 0).sum(1).amax().clamp(min=1)
    dist.all_reduce(count, dist.ReduceOp.MAX, group=group)
    return int(count), total


def without_unlikely(weights: Tensor, min_p: float) -> Tensor:
    """Return weights, of which the largest is 1, with 0 for those below `min_p`."""
    return weights.masked_fill(weights < min_p, 0)


def restrict_ranked(ranked: Tensor, top_k: int, top_p: float, total: Tensor | None = None) -> Tensor:
    """Return weights, [N, K], that come in descending order, with 0 for those that `top_k` and `top_p` exclude, in this
    order; 0: `top_k` excludes none. total: of all weights that `top_k` leaves, [N, 1], where these are not all."""
    if top_k:
        ranked = ranked.masked_fill(torch.arange(ranked.shape[1], device=ranked.device) >= top_k, 0)
    if top_p < 1:
        before = ranked.cumsum(1) - ranked
        ranked = ranked.masked_fill(before >= top_p * (ranked.sum(1, keepdim=True) if total is None else total), 0)
    return ranked


def tells_kept(kept: Tensor, ranked: Tensor) -> Tensor:
    """Return in which rows the largest weights tell which of all are kept, bool [N]; ranked, kept: [N, K], before and
    after what is excluded of them. Of those that are equal to the least one not all are here."""
    return kept.masked_fill(kept == 0, torch.inf).amin(1) > ranked[:, -1]


def _largest(logits: Tensor, numbers: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest logits, [M, count], in order, and their tokens; of equal ones the one with the smaller number
    is first. Where there are fewer tokens, -inf and -1."""
    if count == logits.shape[1]:
        values, columns = _sorted(logits)
        return values, numbers[columns]
    values, columns = largest_in_order(logits, min(count + 1, logits.shape[1]))
    if values.shape[1] > count:
        tied = (values[:, count - 1] == values[:, count]).nonzero()[:, 0]
        if tied.numel():
            columns[tied] = _sorted(logits[tied])[1][:, : count + 1]
    values, ids = values[:, :count], numbers[columns[:, :count]]
    missing = count - values.shape[1]
    if missing > 0:
        values = torch.nn.functional.pad(values, (0, missing), value=-torch.inf)
        ids = torch.nn.functional.pad(ids, (0, missing), value=-1)
    return values, ids


def _sorted(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of each row in descending order and their columns; of equal ones the smaller column is
    first."""
    values, columns = numbers.sort(dim=1, descending=True, stable=True)
    return values, columns


def largest_in_order(numbers: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest of each row and their columns, [M, count], in descending order; of equal ones that with the
    smaller column is first. Of some that are equal to the least one `topk` takes any."""
    values, columns = numbers.topk(count, dim=1)
    columns, order = columns.sort(dim=1)
    values, order = _sorted(values.gather(1, order))
    return values, columns.gather(1, order)


def _gather(value: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    parts = [torch.empty_like(value) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, value.contiguous(), group=group)
    return parts


@dataclass(frozen=True, eq=False)
class KeptTokens(Entries):
    """Tokens that are kept in some places with their probabilities, as many in each place as there are."""

    counts: Tensor
    """int64 [M]: how many are kept in each place."""
    ids: Tensor
    """int32 [total kept]: place after place."""
    logs: Tensor
    """float [total kept]: the logarithms of their probabilities under the whole distribution."""

    @classmethod
    def nothing(cls, dtype: torch.dtype = torch.float32) -> KeptTokens:
        """Return what is kept in no place."""
        return cls(torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.int32), torch.zeros(0, dtype=dtype))

    def __len__(self) -> int:
        return self.counts.shape[0]

    def pick(self, places: np.ndarray) -> KeptTokens:
        """Return those of some places, int64."""
        chosen, starts = torch.from_numpy(places), self.counts.cumsum(0) - self.counts
        counts = self.counts[chosen]
        flat = torch.from_numpy(ragged_positions(starts[chosen].numpy(), counts.numpy()))
        return KeptTokens(counts, self.ids[flat], self.logs[flat])

    def __getitem__(self, some: slice) -> KeptTokens:
        return self.pick(np.arange(len(self))[some])

    def split(self, sizes: Sequence[int]) -> list[KeptTokens]:
        """Return those of the first places, so many, of the next ones, and so on, as a tensor's `split` does."""
        counts = self.counts.split(list(sizes))
        kept = [int(part.sum()) for part in counts]
        return [KeptTokens(*part) for part in zip(counts, self.ids.split(kept), self.logs.split(kept), strict=True)]

    def concat(self, others: Sequence[KeptTokens]) -> KeptTokens:
        """Return those of these places and of the others, one after the other."""
        parts = [self, *others]
        return KeptTokens(
            torch.cat([part.counts for part in parts]),
            torch.cat([part.ids for part in parts]),
            torch.cat([part.logs for part in parts]),
        )

    def spread(self, places: Tensor, total: int, put: Callable[[Tensor, Tensor, int], Tensor]) -> KeptTokens:
        """Return those of `total` places, of which these are some, int64 [M]. put: as `put_numbers`, or with what other
        ranks have in the rest of them."""
        counts = put(self.counts, places, total)
        starts, kept = counts.cumsum(0) - counts, int(counts.sum())
        flat = torch.from_numpy(ragged_positions(starts[places].numpy(), self.counts.numpy()))
        return KeptTokens(counts, put(self.ids, flat, kept), put(self.logs, flat, kept))

    def to(self, dtype: torch.dtype) -> KeptTokens:
        """Return the same with logarithms of another dtype."""
        return KeptTokens(self.counts, self.ids, self.logs.to(dtype))

    def shares(self) -> Tensor:
        """Return the probability of all that is kept in each place, float [M]."""
        places = torch.repeat_interleave(self.counts)
        return self.logs.new_zeros(len(self)).index_add_(0, places, self.logs.exp())

    def numbers(self, dtype: torch.dtype) -> Tensor:
        """Return the numbers of each place, [M, 2 K]: as many as where most are kept, and -1 and `NO_LOG` elsewhere."""
        width = max(1, int(self.counts.max())) if len(self) else 1
        here = torch.arange(width)[None] < self.counts[:, None]
        ids, logs = (torch.full(here.shape, value, dtype=dtype) for value in (-1.0, NO_LOG))
        ids[here], logs[here] = self.ids.to(dtype), self.logs.to(dtype)
        return torch.cat([ids, logs], 1)


def join(parts: Sequence[Any]) -> Any:
    """Return the entries of tensors, or of kept tokens, one after the other."""
    return parts[0].concat(parts[1:]) if isinstance(parts[0], KeptTokens) else torch.cat(list(parts))


def put_numbers(values: Tensor, places: Tensor, total: int) -> Tensor:
    """Return `total` numbers: these at some places, int64 [M], and 0 elsewhere."""
    return values.new_zeros(total).index_copy_(0, places, values)


@dataclass(frozen=True, eq=False)
class PlacedNumbers:
    """A number in each of some places."""

    values: Tensor
    """float [M]"""

    def pick(self, places: np.ndarray) -> PlacedNumbers:
        """Return those of some places, int64."""
        return PlacedNumbers(self.values[torch.from_numpy(places)])

    def numbers(self, dtype: torch.dtype) -> Tensor:
        """Return them as columns, [M, 1]."""
        return self.values[:, None].to(dtype)


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Kept tokens of some rows, or numbers, which are read beside a model as another one would be."""

    tokens: KeptTokens | PlacedNumbers
    """Those in the place of each scored token, row after row."""
    counts: Tensor
    """int64 [N]: the scored tokens of each row."""

    def take(self, rows: Tensor) -> KeptRows:
        """Return some rows; rows: int64."""
        starts, counts = self.counts.cumsum(0) - self.counts, self.counts[rows]
        places = ragged_positions(starts[rows].numpy(), counts.numpy())
        return KeptRows(self.tokens.pick(places), counts)

    def numbers(self, dtype: torch.dtype) -> Tensor:
        """Return the numbers of all rows, [total scored, 2 K]."""
        return self.tokens.numbers(dtype)

    def check_matches(self, counts: Tensor) -> None:
        """Raise EngineError where the rows do not have so many scored tokens, int64 [N]."""
        if self.counts.tolist() != counts.tolist():
            raise EngineError("the likeliest tokens are kept of rows with other tokens")


def kept_logprobs(numbers: Tensor, columns: int, first: int) -> Tensor:
    """Return the logarithms of probabilities of tokens in order, [M, columns], from token number `first` on; `NO_LOG`
    of those that were not kept. numbers: [M, 2 top_k]."""
    ids, logs = numbers.chunk(2, dim=1)
    places = ids.long() - first
    here = (ids >= 0) & (places >= 0) & (places < columns)
    logs = logs.masked_fill(~here, NO_LOG)
    base = logs.new_full((numbers.shape[0], columns), NO_LOG)
    return base.scatter_reduce(1, places.clamp(0, columns - 1), logs, "amax")
