"""Answers of a model's head from the hidden states before it: in tiles where it is one plain matrix, else from all
logits of some places at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlgraph.backends.engines.chunks import compute_in_chunks
from rlgraph.backends.engines.likeliest import KeptTokens, LikeliestTokens, likeliest_in_parts
from rlgraph.backends.engines.linear_head import DTYPES, PLAIN_PRODUCTS, linear_logprobs
from rlgraph.backends.engines.logprobs import apply_temperature, entropies, token_logprobs
from rlgraph.backends.engines.transformers.linear import head_products, multiplies_with_onednn
from rlgraph.backends.engines.transformers.network import Network
from rlgraph.backends.engines.transformers.tensor_parallel import TensorParallel
from rlgraph.backends.engines.vocabulary_sums import reduce_vocabulary
from rlgraph.backends.enginespec.memory import HeadTiles


class Head:
    """The head of a network, or a rank's part of it."""

    def __init__(self, network: Network, tiles: HeadTiles, places: int, split: TensorParallel | None) -> None:
        """places: at how many logits are computed at a time where that is not in tiles. split: the ranks that have a
        part of the vocabulary each."""
        self._network, self._tiles, self._places, self._split = network, tiles, places, split

    def values(self, hidden: Tensor, tokens: Tensor) -> list[Tensor]:
        """Return the first output at some places, float [M]. hidden: what the network gives there."""
        return [wide(self._network.apply_head(hidden))[:, 0]]

    def logprobs(self, hidden: Tensor, tokens: Tensor, ops: Sequence[str], temperature: float) -> list[Tensor]:
        """Return log-probabilities of the tokens that follow some places, and entropies of all that could, float [M],
        in the order of `ops`."""
        matrix = self._matrix()
        if matrix is None or hidden.dtype != matrix.weight.dtype:
            tokens = tokens.to(hidden.device)
            return list(
                compute_in_chunks(
                    lambda part, follow: self._of_logits(part, follow, ops, temperature), self._places, hidden, tokens
                )
            )
        part = None
        if self._split is not None:
            hidden, part = self._split.enter_head(hidden), self._split.vocabulary_part
        products = head_products() if multiplies_with_onednn(matrix) else PLAIN_PRODUCTS
        weight, needs_entropy = matrix.weight, "entropy" in ops
        results = linear_logprobs(hidden, weight, tokens, temperature, self._tiles, needs_entropy, part, products)
        return [results[op == "entropy"] for op in ops]

    def vocabulary_sums(
        self,
        hidden: Tensor,
        formulas: Sequence[tuple[str, str]],
        temperature: float,
        others: Sequence[Head] = (),
        beside: Sequence[Tensor] = (),
    ) -> list[Tensor]:
        """Return for each formula what it is reduced to over the vocabulary at some places, float [M], by the word
        beside it. others: the heads of the models in it but the first; beside: what their networks give there, and then
        likeliest tokens and numbers."""
        heads, (first, group) = (self, *others), self._part

        def sums_of_chunk(*states: Tensor) -> Sequence[Tensor]:
            logits = [head.logits(part, temperature) for head, part in zip(heads, states, strict=False)]
            kept = [part.to(logits[0].device) for part in states[len(heads) :]]
            return reduce_vocabulary(formulas, logits, group, kept, first)

        places = max(1, self._places // (1 + len(beside)))
        return list(compute_in_chunks(sums_of_chunk, places, hidden, *beside))

    def likeliest(self, hidden: Tensor, asked: LikeliestTokens, temperature: float) -> KeptTokens:
        """Return the likeliest tokens at some places."""
        return likeliest_in_parts(lambda part: self.logits(part, temperature), hidden, self._places, asked, *self._part)

    @property
    def _part(self) -> tuple[int, dist.ProcessGroup | None]:
        """The number of the first token of this rank's part of the vocabulary, and the ranks that have the others."""
        part = None if self._split is None else self._split.vocabulary_part
        return (0, None) if part is None else (part.first, part.group)

    def logits(self, hidden: Tensor, temperature: float) -> Tensor:
        """Return the logits at some places, divided by the temperature, float [M, V]; of a rank's part alone."""
        return apply_temperature(wide(self._network.apply_head(hidden)), temperature)

    def _matrix(self) -> nn.Linear | None:
        """Return the head where all that it does is one product with a matrix."""
        matrix = self._network.head_matrix
        if matrix is None or matrix.weight.dtype not in DTYPES or type(matrix.weight.data) is not Tensor:
            return None
        # A split head has a hook: it sums the gradient of its input, as `enter_head` does.
        return matrix if len(matrix._forward_pre_hooks) == (self._split is not None) else None

    def _of_logits(self, hidden: Tensor, tokens: Tensor, ops: Sequence[str], temperature: float) -> list[Tensor]:
        logits = self.logits(hidden, temperature)
        if self._split is not None:
            results = self._split.logprobs_and_entropies(logits, tokens)
            return [results[op == "entropy"] for op in ops]
        return [entropies(logits) if op == "entropy" else token_logprobs(logits, tokens) for op in ops]


def wide(outputs: Tensor) -> Tensor:
    """Return a head's outputs in the dtype of results."""
    return outputs.to(wide_dtype(outputs.dtype))


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of results of a model of this one."""
    return torch.float64 if dtype == torch.float64 else torch.float32
