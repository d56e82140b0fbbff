"""What DeepSeek's models have that other decoders have not: attention to a few numbers a token, and routers whose
sigmoids a bias corrects."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Latent:
    """Attention whose keys and values are made of a few numbers a token, which all heads share (DeepSeek-V2, arXiv
    2405.04434, section 2.1)."""

    queries: int
    """Of a token, of which the queries of all heads are made; 0: these are made of its hidden state."""
    keys: int
    """Of a token, of which the keys and values of all heads are made."""
    plain: int
    """Of the numbers of a head's query and key those that do not rotate."""
    turned: int
    """Those behind them, which do, two by two; those of keys are the same for all heads."""
    values: int
    """Numbers of a head's value."""

    @property
    def cached(self) -> int:
        """Numbers of a token that a cache keeps in a layer."""
        return self.keys + self.turned


@dataclass(frozen=True, slots=True)
class Routing:
    """How a token gets its experts where a bias that no gradient reaches takes part in the choice, but not in what
    their answers weigh (DeepSeek-V3, arXiv 2412.19437, section 2.1.2)."""

    groups: int
    """Equal ones, of neighbouring experts; a group counts as much as its best two."""
    chosen: int
    """Groups whose experts a token may have."""
    scale: float
    """What the experts' shares are multiplied with."""
