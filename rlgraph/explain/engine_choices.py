"""Says what is chosen among the ways of an engine."""

from __future__ import annotations

from typing import Protocol


class EngineChoices(Protocol):
    """What is chosen among an engine's ways for a model that a group holds; empty: the engine's default."""

    @property
    def attention(self) -> str: ...
    @property
    def adapters(self) -> str: ...
    @property
    def gather(self) -> str: ...
    @property
    def optimizer(self) -> str: ...


def engine_choice_texts(held: EngineChoices) -> list[str]:
    """Return what is chosen otherwise than by default, in words."""
    texts = {
        "attention by": held.attention,
        "adapters": held.adapters,
        "gathered by": held.gather,
        "optimizer on the": held.optimizer,
    }
    return [f"{what} {choice}" for what, choice in texts.items() if choice]
