"""Ends rows of conversations as their chat template does, for a model that gives one number for a whole row.

A sampler stops at the token that ends its turn, and templates write more behind it, a line break in most: where a
reward model reads its score in whole conversations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.worker.sampling_inputs import prompt_of


def with_ends_of_answers(
    sequences: Sequences, prompts: Sequence[Any], codec: Codec, *, pieces: bool, longest: int | None
) -> Sequences:
    """Return rows with what the template writes behind an answer, where the answer to messages is the last of them.

    pieces: they are made of pieces, of which only an answer that came to its end is ended; longest: the tokens that a
    row may have, beyond which nothing is put.
    """
    end = codec.end_of_answer if any(not isinstance(prompt_of(prompt), str) for prompt in prompts) else []
    if not end:
        return sequences
    rows, flags = sequences.rows(), sequences.scored_by_row()
    for prompt, row, scored in zip(prompts, rows, flags, strict=True):
        if isinstance(prompt_of(prompt), str) or not scored or not scored[-1]:
            continue
        there = next((count for count in range(len(end), 0, -1) if row[-count:] == end[:count]), 0)
        rest = [] if pieces and not there else end[there:]
        if longest is None or len(row) + len(rest) <= longest:
            row += rest
            scored += [False] * len(rest)
    return Sequences.from_lists(rows, flags)
