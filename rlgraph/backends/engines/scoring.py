"""The operations that read rows with a model, in an engine that answers several of them from one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.likeliest import KeptTokens, LikeliestTokens
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.vocabulary_sums import OtherModel, VocabularySum

_ANSWERS = {
    "generate": ("causal_lm", "generate"),
    "logprobs": ("causal_lm", "log-probabilities"),
    "entropy": ("causal_lm", "an entropy"),
    "distribution": ("causal_lm", "a distribution"),
    "likeliest": ("causal_lm", "likeliest tokens"),
    "values": ("value_lm", "values"),
    "score": ("reward_lm", "a score"),
}
"""The kind of model that answers an operation, and what the answer is called."""


class ScoringMixin:
    """Implements `Scores` by what `_answer` returns."""

    spec: ModelSpec

    def _answer(self, sequences: Sequences, ops: Sequence[Any], temperature: float = 1.0) -> list[Tensor]:
        """Return the answers of some operations for the same rows, from one pass. ops: names, or sums over the
        vocabulary, or `LikeliestTokens`, which are answered by `KeptTokens`."""
        raise NotImplementedError

    def logprobs(self, sequences: Sequences, temperature: float = 1.0) -> Tensor:
        """Return log softmax(logits / temperature) of each scored token, float [total scored]."""
        return self._answer(sequences, ["logprobs"], temperature)[0]

    def entropy(self, sequences: Sequences, temperature: float = 1.0) -> Tensor:
        """Return the entropy in nats of the distribution of each scored token, float [total scored]."""
        return self._answer(sequences, ["entropy"], temperature)[0]

    def logprobs_and_entropy(self, sequences: Sequences, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return both from one pass, float [total scored] each."""
        logprobs, entropy = self._answer(sequences, ["logprobs", "entropy"], temperature)
        return logprobs, entropy

    def distribution(
        self,
        sequences: Sequences,
        temperature: float = 1.0,
        formula: str = "",
        others: tuple[OtherModel, ...] = (),
        reduce: str = "sum",
    ) -> Tensor:
        """Return the sum, mean or largest over the vocabulary of a formula of this model's probabilities and those of
        others, for each scored token, float [total scored]."""
        return self._answer(sequences, [VocabularySum(formula, others, reduce)], temperature)[0]

    def likeliest(
        self, sequences: Sequences, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
    ) -> KeptTokens:
        """Return the likeliest tokens in the place of each scored token, likeliest first."""
        asked = LikeliestTokens(top_k, top_p, min_p)
        self._require(asked)
        if not bool(sequences.scored.any()):
            return KeptTokens.nothing()
        return cast(KeptTokens, self._answer(sequences, [asked], temperature)[0])

    def values(self, sequences: Sequences) -> Tensor:
        """Return the value of the state before each scored token, float [total scored]."""
        return self._answer(sequences, ["values"])[0]

    def score(self, sequences: Sequences) -> Tensor:
        """Return the scalar at each row's last token, float [N]."""
        return self._answer(sequences, ["score"])[0]

    def _require(self, op: str | VocabularySum | LikeliestTokens) -> None:
        """Raise EngineError where the model is not of the kind that answers an operation."""
        kind, what = _ANSWERS[op if isinstance(op, str) else "distribution"]
        if self.spec.kind != kind:
            raise EngineError(f"a {self.spec.kind} does not give {what}: that needs a {kind}")
