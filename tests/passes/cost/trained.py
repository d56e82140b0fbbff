"""Small models whose activations outweigh their gradients, and rows for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rlgraph.backends.engines.base import MicroBatch, ModelCall
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
from rlgraph.backends.engines.tokenizers import WordTokenizer
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.passes.cost.work import Tokens

WORDS = WordTokenizer(" ".join(f"t{i}" for i in range(3, 500)))
SIZES = {
    "vocab_size": 500,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
}

LATENT = (
    ("head_dim", 8),
    ("num_key_value_heads", 4),
    ("n_routed_experts", 8),
    ("n_shared_experts", 2),
    ("num_experts_per_tok", 2),
    ("moe_intermediate_size", 80),
    ("n_group", 4),
    ("topk_group", 2),
    ("first_k_dense_replace", 0),
    ("q_lora_rank", 48),
    ("kv_lora_rank", 32),
    ("qk_rope_head_dim", 8),
    ("qk_nope_head_dim", 16),
    ("v_head_dim", 16),
)
"""Of DeepSeek's models: all layers are alike."""
WIDE_VALUES = (*LATENT, ("q_lora_rank", None), ("v_head_dim", 40))


@dataclass(frozen=True)
class Case:
    """A model and one micro-batch of equal rows."""

    family: str = "qwen2"
    kind: ModelKind = "causal_lm"
    dtype: str = "float32"
    rows: int = 8
    length: int = 128
    scored: int = 1
    """Of each row, its last ones."""
    fields: tuple[tuple[str, Any], ...] = ()
    entropy: bool = False
    """The loss asks for it, too."""
    less: int = 0
    """Each row has so many tokens fewer than the one before, in front."""

    @property
    def lengths(self) -> list[int]:
        """Of the rows."""
        return [self.length - self.less * row for row in range(self.rows)]

    def shape(self) -> Shape:
        return shape_of({"model_type": self.family, **SIZES, **dict(self.fields)})

    def spec(self, layers: int) -> ModelSpec:
        fields = SIZES | dict(self.fields) | {"num_hidden_layers": layers}
        return ModelSpec(self.kind, RandomWeights(self.family, fields, WORDS), self.dtype)

    def micro(self) -> MicroBatch:
        lengths = torch.tensor(self.lengths)
        left = torch.cat([torch.arange(length, 0, -1) for length in self.lengths])
        scored = (left <= self.scored) & (left < lengths.repeat_interleave(lengths))
        sequences = Sequences(torch.randint(3, 500, (int(lengths.sum()),)), lengths, scored)
        op = "logprobs" if self.kind == "causal_lm" else "values"
        calls = (
            (ModelCall(op, sequences), ModelCall("entropy", sequences)) if self.entropy else (ModelCall(op, sequences),)
        )
        return MicroBatch(calls, lambda answers: sum(answer.sum() for answer in answers))

    def tokens(self) -> Tokens:
        """What is fed of the rows: all but their last tokens."""
        fed = self.length - 1
        return Tokens(self.rows, self.rows * fed, self.rows * fed**2, self.rows * self.scored, fed)
