"""Sizes of what only DeepSeek's models have: multi-head latent attention, and routers whose sigmoids a bias
corrects."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Sizes of multi-head latent attention, whose keys and values are computed from a few numbers per token, shared by
    all heads (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    queries: int
    """Numbers per token from which all heads' queries are computed; 0: from the hidden state."""
    keys: int
    """Numbers per token from which all heads' keys and values are computed."""
    plain: int
    """Numbers of a head's query and key without rotary positions."""
    turned: int
    """The numbers after them, which rotate in pairs; those of keys are shared by all heads."""
    values: int
    """Numbers of a head's value."""

    @property
    def cached_numbers_per_token(self) -> int:
        """Numbers per token that the KV cache keeps in a layer."""
        return self.keys + self.turned


@dataclass(frozen=True, slots=True)
class ExpertRouting:
    """How a router chooses experts with the help of a bias that no gradient reaches and that does not enter their
    weights (DeepSeek-V3, arXiv 2412.19437, section 2.1.2)."""

    groups: int
    """The number of equal groups of neighbouring experts; a group scores as much as its best two."""
    chosen: int
    """How many groups a token's experts may come from."""
    scale: float
    """The factor of the experts' weights."""
