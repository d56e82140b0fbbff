"""Generation: a batched decoding loop over a key-value cache, for any causal language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.likeliest import KeptTokens
from rlgraph.backends.engines.meter import WorkMeter
from rlgraph.backends.engines.records import Generation, Sampling
from rlgraph.backends.engines.roles import WeightRefresh
from rlgraph.backends.engines.sampling import check_row_keys, key_bits, with_start_token
from rlgraph.backends.engines.sequences import Sequences, ragged_index
from rlgraph.backends.engines.transformers.decode_block import DecodeBlock
from rlgraph.backends.engines.transformers.head import wide_dtype
from rlgraph.backends.engines.transformers.mixture import Decodes
from rlgraph.backends.engines.transformers.pace import CAPTURED, EACH_TOKEN, FIXED, Pace, StepRunner
from rlgraph.backends.engines.transformers.pause import RefreshBarrier
from rlgraph.backends.engines.transformers.routing import LastRoutes
from rlgraph.backends.engines.transformers.spec import SHARES


@dataclass(frozen=True)
class SpecialTokens:
    """The tokens that begin and end rows."""

    eos_ids: tuple[int, ...]
    """The model's own end-of-sequence tokens."""
    pad_id: int
    start_id: int | None
    """The token that replaces an empty prompt; None: an empty prompt is an error."""


@dataclass(frozen=True)
class _Rows:
    """The responses of some rows."""

    tokens: Tensor
    """int64 [R, longest]"""
    logprobs: Tensor
    """float [R, longest]"""
    lengths: Tensor
    """int64 [R]"""
    finished: Tensor
    """bool [R]"""
    versions: Tensor | None
    """int64 [R, longest]: the version of the weights that sampled each token, where new ones can come."""
    routes: Tensor | None = None
    """int16 [R, prompt and response, layers, k]: the experts of each token, in `Sequences.routes`, where they are kept;
    prompts end in one column."""
    support: list[KeptTokens] = field(default_factory=list)
    """For each token that the batch was asked for those that it was sampled from, where they are kept."""
    support_place: Tensor | None = None
    """int64 [R, longest]: which of these are a token's."""


def generate(
    network: Decodes,
    prompts: Sequences,
    n: int,
    sampling: Sampling,
    row_keys: np.ndarray,
    ends: SpecialTokens,
    *,
    pool: Executor | None = None,
    threads: int = 1,
    block_tokens: int = 1 << 18,
    refresh: WeightRefresh | None = None,
    agreed: Callable[[bool], bool] = bool,
    expected: Sequence[float] | None = None,
    meter: WorkMeter | None = None,
    pace: Pace | None = None,
) -> Generation:
    """Sample `n` responses for each prompt; `Engine.generate` says what is promised.

    Rows are decoded in blocks of similar prompt length of at most `block_tokens` places, and in at least `threads`
    blocks, which `pool` runs side by side. An empty prompt becomes the single token `ends.start_id`. agreed: as
    `RefreshBarrier` has it. expected: the tokens that the responses to each prompt are expected to have: a block has
    rows with equally many, and those with most come first. meter: counts what is done. pace: None: that of the
    device.
    """
    keys = np.ascontiguousarray(row_keys, dtype=np.uint64)
    check_row_keys(keys, prompts, n)
    prompts = with_start_token(prompts, ends.start_id)
    lengths = torch.repeat_interleave(prompts.lengths, n)
    together = n if sampling.samples_wanted else 1
    blocks = _blocks(_order(lengths, n, expected), lengths, sampling.max_tokens, threads, block_tokens, together)
    if any(_is_ragged(lengths[rows]) for rows in blocks) and not network.can_pad_left:
        blocks = [part for rows in blocks for part in _split_by_length(rows, lengths)]
    stops = torch.tensor(sorted({*ends.eos_ids, *sampling.stop_ids}), dtype=torch.long)

    bits, pace = key_bits(keys), pace or _pace(network, sampling)
    meter = meter or WorkMeter()
    meter.begin_call(keys.shape[0])
    pause = None if refresh is None else RefreshBarrier(refresh, agreed)

    def decode_block(rows: Tensor) -> _Rows:
        routing = network.routing if sampling.keeps_routes else None
        recording: AbstractContextManager[LastRoutes | None] = nullcontext() if routing is None else routing.recording()
        with nullcontext() if pause is None else pause.count_as_decoding(), recording as routes:
            own = bits[rows]
            return _decode(network, prompts, rows, n, sampling, own, stops, ends.pad_id, pause, meter, routes, pace)

    # Each thread has a block, and operators have one thread: several would wait for one another hundreds of times a
    # token, which on a machine that has other work to do takes tens of times as long.
    parts = list(map(decode_block, blocks) if pool is None else pool.map(decode_block, blocks))
    return _assemble(prompts, n, blocks, parts, sampling.max_tokens)


def _order(lengths: Tensor, n: int, expected: Sequence[float] | None) -> Tensor:
    """Return rows in the order in which they are decoded, int64: by the lengths of their prompts, int64, and before
    that by what is expected of their responses."""
    order = lengths.argsort(stable=True)
    if expected is None:
        return order
    tokens = torch.tensor(list(expected), dtype=torch.float64).repeat_interleave(n)
    return order[tokens[order].argsort(stable=True, descending=True)]


def _blocks(
    order: Tensor, lengths: Tensor, max_tokens: int, threads: int, block_tokens: int, together: int
) -> list[Tensor]:
    """Cut row indices in an order into blocks; so many rows, one behind the other, stay together."""
    if not lengths.shape[0]:
        return []
    places = int(lengths.max()) + max_tokens
    blocks = max(threads, -(-order.shape[0] * places // block_tokens))
    groups = order.view(-1, together)
    return [part.reshape(-1) for part in groups.tensor_split(min(blocks, groups.shape[0]))]


def _is_ragged(lengths: Tensor) -> bool:
    return bool((lengths != lengths[0]).any())


def _split_by_length(rows: Tensor, lengths: Tensor) -> list[Tensor]:
    """Cut `rows`, sorted by length, where the length changes."""
    _, sizes = torch.unique_consecutive(lengths[rows], return_counts=True)
    return list(rows.split(sizes.tolist()))


def _pace(network: Decodes, sampling: Sampling) -> Pace:
    """Return the pace on this network's device. What is kept beside tokens has as many numbers as there happen to be,
    or is fetched for each token."""
    keeps = sampling.keeps_routes or sampling.keeps_support
    if network.device.type != "cuda" or keeps or not network.can_fix_spans:
        return EACH_TOKEN
    return CAPTURED if network.can_capture else FIXED


@torch.inference_mode()
def _decode(
    network: Decodes,
    prompts: Sequences,
    rows: Tensor,
    n: int,
    sampling: Sampling,
    keys: Tensor,
    stops: Tensor,
    pad_id: int,
    pause: RefreshBarrier | None,
    meter: WorkMeter,
    last_routes: LastRoutes | None,
    pace: Pace,
) -> _Rows:
    """Return the responses of `rows` (row i * n + k is sample k of prompt i), in their order."""
    count, limit, device = rows.shape[0], sampling.max_tokens, network.device
    versions = None if pause is None else torch.zeros(count, limit, dtype=torch.long)
    if not limit:
        none = torch.zeros(count, 0, dtype=torch.long)
        ended = torch.zeros(count, dtype=torch.bool)
        return _Rows(none, none.to(wide_dtype(network.model.dtype)), ended.long(), ended, versions)
    picked, local = torch.unique_consecutive(rows // n, return_inverse=True)
    if picked.unique().shape[0] != picked.shape[0]:
        picked, local = torch.unique(rows // n, return_inverse=True)
    own = prompts.take(picked)
    # Routes of a row lie one behind the other, which padding in its midst would part.
    common = _common_tokens(own) if last_routes is None and network.can_read_on else 0
    ids, mask = _padded(own, pad_id, common)
    width = ids.shape[1]
    version = None if pause is None else pause.wait_for_version()
    logits, cache = _read(network, ids, mask, limit, common)
    routes = None
    if last_routes is not None:
        read = last_routes().unflatten(0, ids.shape)[local]
        routes = torch.cat([read, read.new_full((count, limit, *read.shape[2:]), -1)], 1)
    if picked.shape[0] != count:
        logits = logits.index_select(0, local.to(device))
        cache.batch_select_indices(local.to(device))
        mask = mask[local]
    block = DecodeBlock(network, sampling, pace, keys, mask, local, stops, pad_id, logits, cache)
    del logits, cache
    # From here on batch row i is row `active[i]`: those that run, and a few that finished since the last compaction.
    active = torch.arange(count)
    runner, support = StepRunner(pace.captured), list[KeptTokens]()
    support_place = torch.zeros(count, limit, dtype=torch.long) if sampling.keeps_support else None
    running, made, asked = count, 0, 0
    for place in range(limit):
        if pause is not None and versions is not None:
            if (newest := pause.wait_for_version()) != version:
                version, read_ids = newest, torch.cat([ids[local[active]], block.tokens[block.rows, :place].cpu()], 1)
                read_mask = torch.cat([mask[active], torch.ones(active.shape[0], place, dtype=torch.bool)], 1)
                block.take_cache(*_read(network, read_ids, read_mask, limit - place, common))
                runner.forget()
            versions[active, place] = newest
        forbids = place < sampling.min_tokens
        runner.run("choose", (active.shape[0], forbids), partial(block.choose, forbids, support))
        if support_place is not None:
            support_place[active, place] = asked + torch.arange(active.shape[0])
            asked += active.shape[0]
        last = place + 1 == limit
        if last or (place + 1) % pace.ask_every == 0:
            (before, made_before), (running, made) = (running, made), block.ask()
            meter.add(before if last else before - running, made - made_before)
            if not running or last:
                break
            if running <= pace.drop_at * active.shape[0]:
                block.drop_ended()
                active = block.rows.cpu()
        block.set_span(pace.rung(width + place + 1))
        runner.run("advance", (active.shape[0], block.span), block.advance)
        if routes is not None and last_routes is not None:
            routes[active, width + place] = last_routes()
    tokens, logprobs, lengths, finished = (
        x.cpu() for x in (block.tokens, block.logprobs, block.lengths, block.finished)
    )
    return _Rows(tokens, logprobs, lengths, finished, versions, routes, support, support_place)


def _read(network: Decodes, ids: Tensor, mask: Tensor, room: int, common: int) -> tuple[Tensor, Any]:
    """Return the logits after rows that end in the same column, and the cache that so many tokens may follow. ids:
    int64 [N, T], of which the first `common` columns are alike and read once; mask: bool [N, T], False at padding."""
    ragged, cache = not bool(mask.all()), network.make_cache(room)
    positions = (mask.long().cumsum(1) - 1).clamp(min=0) if ragged else torch.arange(ids.shape[1])[None]
    seen = mask.to(network.device) if ragged else None
    ids, positions = ids.to(network.device), positions.to(network.device)
    if common:
        network.decode_step(ids[:1, :common], cache, positions[:1, :common], None)
        cache.spread(ids.shape[0], ids.shape[1] - common)
    return network.decode_step(ids[:, common:], cache, positions[:, common:], seen), cache


def _common_tokens(prompts: Sequences) -> int:
    """Return how many tokens all prompts begin with, beside the last one of each; 0 where reading them once would save
    too little. System prompts, tools and what came before in a conversation are such."""
    least = int(prompts.lengths.min()) - 1
    beginnings = prompts.tokens[prompts.row_starts[:, None] + torch.arange(least)]
    common = int((beginnings == beginnings[0]).all(0).long().cumprod(0).sum())
    return common if common * (len(prompts) - 1) >= SHARES.min_saved_share * prompts.lengths.sum() else 0


def _padded(prompts: Sequences, pad_id: int, common: int) -> tuple[Tensor, Tensor]:
    """Return rows that end in the same column: ids int64 [N, T] and a mask, bool [N, T], False at padding, which is
    behind their first `common` tokens."""
    places = torch.arange(int(prompts.lengths.max()))
    mask = (places < common) | (places >= common + len(places) - prompts.lengths[:, None])
    ids = torch.full(mask.shape, pad_id)
    ids[mask] = prompts.tokens
    return ids, mask


def _assemble(prompts: Sequences, n: int, blocks: list[Tensor], parts: list[_Rows], limit: int) -> Generation:
    """Put the blocks' responses behind their prompts, in the order of the rows."""
    count = len(prompts) * n
    if not count:
        return Generation(Sequences.from_lists([]), torch.zeros(0), torch.zeros(0, dtype=torch.bool))
    order = torch.cat(blocks).argsort()
    # Tensors made in inference mode may not enter a loss; what indexing makes here may.
    tokens = torch.cat([part.tokens for part in parts])[order]
    logprobs = torch.cat([part.logprobs for part in parts])[order]
    lengths = torch.cat([part.lengths for part in parts])[order]
    finished = torch.cat([part.finished for part in parts])[order]
    spans = [part.versions for part in parts if part.versions is not None]
    valid = torch.arange(limit)[None] < lengths[:, None]
    prompt_lengths = torch.repeat_interleave(prompts.lengths, n)
    starts = (prompt_lengths + lengths).cumsum(0) - (prompt_lengths + lengths)
    flat = torch.empty(int((prompt_lengths + lengths).sum()), dtype=torch.long)
    scored = torch.zeros(flat.shape[0], dtype=torch.bool)
    in_prompts = torch.repeat_interleave(prompts.row_starts, n)
    flat[ragged_index(starts, prompt_lengths)] = prompts.tokens[ragged_index(in_prompts, prompt_lengths)]
    responses = ragged_index(starts + prompt_lengths, lengths)
    flat[responses] = tokens[valid]
    scored[responses] = True
    versions = torch.cat(spans)[order][valid] if spans else None
    routes = _routes_of_rows([part.routes for part in parts], order, prompt_lengths, lengths, limit)
    sequences = Sequences(flat, prompt_lengths + lengths, scored, routes)
    return Generation(sequences, logprobs[valid], finished, versions, _support_of_rows(parts, order, valid))


def _support_of_rows(parts: list[_Rows], order: Tensor, valid: Tensor) -> KeptTokens | None:
    """Return for each token, row after row, those that it was sampled from; None where they are not kept. valid: bool
    [N, longest]."""
    kept = [tokens for part in parts for tokens in part.support]
    if not kept:
        return None
    places, before = [], 0
    for part in parts:
        assert part.support_place is not None
        places.append(part.support_place + before)
        before += sum(map(len, part.support))
    return kept[0].concat(kept[1:]).pick(torch.cat(places)[order][valid].numpy())


def _routes_of_rows(
    parts: list[Tensor | None], order: Tensor, prompt_lengths: Tensor, lengths: Tensor, limit: int
) -> Tensor | None:
    """Return the routes of all tokens but the last of each row, row after row, from those of blocks, whose prompts end
    in one column each."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    rows = [row for part in known for row in part]
    cut = []
    for row, prompt, length in zip(order.tolist(), prompt_lengths.tolist(), lengths.tolist(), strict=True):
        width = rows[row].shape[0] - limit
        cut.append(rows[row][width - prompt : width + length].clone())
        # Whether a row's last token was read depends on the rows beside it.
        cut[-1][-1:] = -1
    return torch.cat(cut)
