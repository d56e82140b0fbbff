"""Selects the samples of each prompt that end first, and tells when it is certain which these are.

A sample ends before another if it has fewer tokens, or as many and the smaller number. So which ones are kept is a
function of the rows alone, and not of timing. An engine that gives the others up early changes none of the kept ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rlgraph.backends.engines.records import Generation, Sampling
from rlgraph.backends.engines.sequences import Sequences, ragged_index


def select_first_finished(made: Generation, n: int, sampling: Sampling, whole: bool = True) -> Tensor:
    """Return the rows of `made`, `n` for each prompt, that are kept, int64 ascending. whole: as many samples of each
    prompt have ended as are kept; of a generation that was given up rows without tokens are kept, too."""
    counts = made.sequences.scored_counts()
    if not sampling.samples_wanted:
        return torch.arange(counts.shape[0])
    ended = made.finished | (counts == sampling.max_tokens)
    lengths = torch.where(ended, counts, sampling.max_tokens + 1).view(-1, n)
    assert not whole or bool((ended.view(-1, n).sum(1) >= sampling.samples_wanted).all()), (
        "the engine gave up samples that are wanted"
    )
    order = lengths.argsort(dim=1, stable=True)[:, : sampling.samples_wanted].sort(dim=1).values
    return (order + torch.arange(order.shape[0])[:, None] * n).reshape(-1)


def take_rows(made: Generation, rows: Tensor) -> Generation:
    """Return some rows of what was generated; `rows`, int64 ascending, are their numbers."""
    if rows.shape[0] == len(made.sequences):
        return made
    counts = made.sequences.scored_counts()
    places = ragged_index((counts.cumsum(0) - counts)[rows], counts[rows])
    return replace(
        made,
        sequences=made.sequences.take(rows),
        logprobs=made.logprobs[places],
        finished=made.finished[rows],
        versions=None if made.versions is None else made.versions[places],
        support=None if made.support is None else made.support.pick(places.numpy()),
    )


def with_empty_answers(made: Generation, answers: Sequence[int | None], prompts: Sequence[Sequence[int]]) -> Generation:
    """Return rows of what was generated, and rows without an answer that have ended. answers: the number of each row in
    `made`; None: it has no answer. prompts: what each row begins with."""
    responses = made.sequences.scored_tokens_by_row()
    rows = torch.tensor([answer for answer in answers if answer is not None], dtype=torch.long)
    counts = made.sequences.scored_counts()
    places = ragged_index((counts.cumsum(0) - counts)[rows], counts[rows])
    finished = made.finished.tolist()
    whole = Sequences.from_pairs(prompts, [[] if answer is None else responses[answer] for answer in answers])
    if made.sequences.routes is not None:
        routes = torch.full((whole.tokens.shape[0], *made.sequences.routes.shape[1:]), -1, dtype=torch.int16)
        answered = torch.tensor([answer is not None for answer in answers]).repeat_interleave(whole.lengths)
        routes[answered] = made.sequences.take(rows).routes  # type: ignore[assignment]
        whole = replace(whole, routes=routes)
    return replace(
        made,
        sequences=whole,
        logprobs=made.logprobs[places],
        finished=torch.tensor([answer is None or finished[answer] for answer in answers], dtype=torch.bool),
        versions=None if made.versions is None else made.versions[places],
        support=None if made.support is None else made.support.pick(places.numpy()),
    )


def is_decided(ended: Sequence[int], unfinished: Sequence[int], first: int) -> bool:
    """Return whether it is certain which samples of a prompt end first. ended: tokens of those that have; unfinished:
    tokens that the others have at least, and each of them will have more."""
    if len(ended) < first:
        return False
    last = sorted(ended)[first - 1]
    return all(tokens >= last for tokens in unfinished)
