"""Optimizers, each declared once: what `train` is told of it, and what it keeps for each weight.

Checker, planner, memory and cost ask the record. Engines say in their spec which of them they have, and are told the
name and the settings with each step (`rlgraph.backends.engines.base.TrainOptions`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rlgraph.ir.attributes import Attribute
from rlgraph.ir.graph import Node


@dataclass(frozen=True, slots=True)
class Optimizer:
    name: str
    kept: int
    """Numbers that it keeps for each weight from one step to the next."""
    settings: tuple[Attribute, ...]
    """Numbers of its own, each with a default; learning rate and clipping are those of any optimizer."""

    def default(self, setting: str) -> float:
        return next(each.default for each in self.settings if each.name == setting)  # type: ignore[return-value]


ADAMW = Optimizer(
    "adamw",
    2,
    (
        Attribute("weight_decay", "float", 0.0, 0.0, None, "of AdamW"),
        Attribute("beta1", "float", 0.9, 0.0, 1.0, "of AdamW"),
        Attribute("beta2", "float", 0.999, 0.0, 1.0, "of AdamW"),
        Attribute("eps", "float", 1e-8, 0.0, None, "of AdamW"),
    ),
)
"""arXiv 1711.05101."""

OPTIMIZERS = {each.name: each for each in (ADAMW,)}
"""The first is taken where a program names none."""


def attributes(optimizers: Iterable[Optimizer] = tuple(OPTIMIZERS.values())) -> tuple[Attribute, ...]:
    """What `train` is told: the settings of the first, those that only others have, and which it is, if there are
    others."""
    first, *others = optimizers
    found = {each.name: each for each in first.settings}
    for other in others:
        for each in other.settings:
            found.setdefault(each.name, replace(each, default=None))
    names = [first.name, *(other.name for other in others)]
    choice = Attribute("optimizer", "word", None, names=lambda: names)
    return (*found.values(), choice) if others else tuple(found.values())


def optimizer_of(node: Node) -> Optimizer:
    """That a `train` node steps with."""
    return OPTIMIZERS[node.attr("optimizer") or next(iter(OPTIMIZERS))]


def settings_of(node: Node) -> dict[str, float]:
    """Of a `train` node, those of its optimizer."""
    said = {each.name: node.attr(each.name) for each in optimizer_of(node).settings}
    return {name: optimizer_of(node).default(name) if value is None else value for name, value in said.items()}
