"""Sums over the vocabulary of several models: which models they are of, and those of the same models from the same
logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlgraph.backends.engines.likeliest import KeptRows
from rlgraph.backends.engines.transformers.head import Head
from rlgraph.backends.engines.vocabulary_sums import OtherModel, VocabularySum


@dataclass(frozen=True)
class KeptReader:
    """Reads likeliest tokens, or numbers of tokens, where another model would be read."""

    dtype: torch.dtype

    def hidden_before_scored(self, rows: KeptRows) -> Tensor:
        """Return the numbers of some rows, [total scored, 2 top_k or 1]."""
        return rows.numbers(self.dtype)


def distinct_others(sums: Sequence[VocabularySum]) -> list[OtherModel]:
    """Return the other models of some sums, each once for the same rows."""
    return list({other.identity: other for asked in sums for other in asked.others}.values())


def answer_sums(
    head: Head,
    hidden: Tensor,
    sums: Sequence[VocabularySum],
    temperature: float,
    others: Sequence[OtherModel],
    heads: Sequence[Head | None],
    beside: Sequence[Tensor],
) -> dict[Any, Any]:
    """Return sums over the vocabulary at some places, [M] each.

    head, hidden: of the model that is asked, and what its network gives there. others: all models beside it; heads:
    theirs; beside: what their networks give. Likeliest tokens have no head, and come behind the models.
    """
    place_of = {other.identity: place for place, other in enumerate(others)}
    by_models: dict[tuple[int, ...], list[VocabularySum]] = {}
    for asked in sums:
        by_models.setdefault(tuple(place_of[other.identity] for other in asked.others), []).append(asked)
    answers: dict[Any, Any] = {}
    for places, together in by_models.items():
        formulas = [(asked.formula, asked.reduce) for asked in together]
        columns = [of for place in places if (of := heads[place]) is not None], [beside[place] for place in places]
        answers.update(zip(together, head.vocabulary_sums(hidden, formulas, temperature, *columns), strict=True))
    return answers
