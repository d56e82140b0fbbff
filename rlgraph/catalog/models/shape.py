"""Describes the sizes of a decoder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rlgraph.catalog.models.adapters import Adapters
from rlgraph.catalog.models.latent_attention import ExpertRouting, LatentAttention

NORMS = ("input_layernorm", "post_attention_layernorm")


class UnsupportedModel(ValueError):
    """Raised for an unsupported architecture, and for a configuration that makes no sense; the message names the family
    or the field."""


class UnknownFamily(UnsupportedModel):
    """Raised for a family of models that is not supported; the message names those that are."""

    def __init__(self, family: str, known: Iterable[str]) -> None:
        self.family = family
        super().__init__(f"models of the family `{family}` are not known: there are {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder with grouped-query attention, rotary positions, RMS norms and a gated feed-forward
    network, or a mixture of experts."""

    family: str
    """The `model_type` of transformers: `llama`, `qwen3_moe`."""
    vocab: int
    hidden: int
    ffn: int
    """The inner width of the feed-forward network, or of each expert."""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool = False
    """Whether the output layer is the embedding."""
    qkv_bias: bool = False
    qk_norm: bool = False
    """Whether queries and keys are normalized, each head by itself."""
    rope_theta: float = 10000.0
    rope_scaling: tuple[tuple[str, Any], ...] = ()
    """`rope_type` and the fields that it needs, in alphabetical order; empty for plain rotary positions."""
    norm_eps: float = 1e-6
    positions: int = 4096
    """The longest row, in tokens."""
    pad_id: int | None = None
    """A token whose embedding transformers never trains."""
    experts: int = 0
    """The number of experts in each layer; 0 for a dense model."""
    experts_per_token: int = 0
    norm_topk: bool = False
    """Whether the weights of a token's experts add up to 1, or are their probabilities among all experts."""
    shared_ffn: int = 0
    """The inner width of the shared expert, which every token takes in addition; 0 where there is none."""
    routing: ExpertRouting | None = None
    """How experts are chosen; None: those with the largest softmax, and the shared expert has a gate."""
    dense: int = 0
    """How many first layers have no experts, where the others have some."""
    dense_ffn: int = 0
    """The inner width of the feed-forward network of these layers."""
    latent: LatentAttention | None = None
    """The sizes of latent attention, where a model has it; `head_dim` is then that of queries and keys."""
    fused: bool = False
    """Whether queries, keys and values are one tensor, in this order, and gate and up another."""
    norms: tuple[str, ...] = NORMS
    """The names of each layer's norms over its hidden states."""
    wide_norms: bool = False
    """Whether norms multiply by 1 + weight, in float32."""
    gelu: bool = False
    """Whether its networks have GELU (the tanh approximation) instead of SiLU."""
    embedding_scale: float = 1.0
    """The factor of embeddings."""
    residual_scale: float = 1.0
    """The factor of the outputs of attention and network before they are added to the residual."""
    score_scale: float = 0.0
    """The factor of attention scores; 0: 1 / sqrt(head_dim)."""
    logits_scale: float = 1.0
    """The divisor of logits."""
    score_cap: float = 0.0
    """The soft cap of attention scores; 0: no cap."""
    logits_cap: float = 0.0
    """The soft cap of logits; 0: no cap."""
    window: int = 0
    """The sliding window in tokens, of the layers that have one; 0 where no layer has."""
    narrow: tuple[int, ...] = ()
    """The layers with a sliding window."""
    narrow_theta: float = 0.0
    """The base of the unscaled rotary positions of these layers; 0: theirs are those of all layers."""
    beyond: tuple[str, ...] = ()
    """What else it computes that is not described here, as text after `compute`: `heads of which a part rotates`."""
    adapters: Adapters | None = None
    """The adapters that are trained instead of the model itself."""

    @property
    def windowed_layer_count(self) -> int:
        """The number of layers with a sliding window."""
        return len(self.narrow)

    @property
    def value_dim(self) -> int:
        """The size of a head's value."""
        return self.latent.values if self.latent else self.head_dim

    @property
    def padded_head_dim(self) -> int:
        """The common size of a head's query, key and value after zero padding, as fused attention kernels need it."""
        return max(self.head_dim, self.value_dim)

    @property
    def expert_layer_count(self) -> int:
        """The number of layers with experts."""
        return self.layers - self.dense if self.experts else 0

    @property
    def routes_of_token(self) -> tuple[int, int]:
        """The layers with experts, and the experts of a token in each: a row of `Sequences.routes`."""
        return self.expert_layer_count, self.experts_per_token

    @property
    def shared_expert_name(self) -> str:
        """The name of the shared expert in a layer."""
        return "shared_experts" if self.routing else "shared_expert"

    @property
    def has_soft_cap(self) -> bool:
        """Whether attention scores or logits have a soft cap."""
        return bool(self.score_cap or self.logits_cap)

    def __hash__(self) -> int:
        # The cost model's caches are keyed by shape, and these numbers distinguish shapes well enough.
        return hash((self.vocab, self.hidden, self.ffn, self.layers, self.heads))
