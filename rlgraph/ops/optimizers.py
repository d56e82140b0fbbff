"""Declares optimizers: the settings that `train` takes, and how many numbers each keeps per weight.

Checker, planner, memory and cost model ask the record. Engines list the optimizers that they have in their spec, and
get the name and the settings with each step (`rlgraph.backends.engines.base.TrainOptions`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rlgraph.ir.attributes import Attribute
from rlgraph.ir.graph import Node

UPDATED_TOGETHER_BYTES = 256 << 20
"""Bytes of wide gradients of narrow weights that an engine whose gradients do not stay makes at once, unless those of
one weight are more. Those of all would be four bytes a weight at the fullest moment of a training."""


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """The declaration of an optimizer."""

    name: str
    numbers_per_weight: int
    """How many numbers it keeps per weight from one step to the next."""
    settings: tuple[Attribute, ...]
    """Its own settings, each with a default; learning rate and clipping are common to all optimizers."""

    def default_of(self, setting: str) -> float:
        """Return the default of a setting."""
        return next(declared.default for declared in self.settings if declared.name == setting)  # type: ignore[return-value]


ADAMW = OptimizerSpec(
    "adamw",
    2,
    (
        Attribute("weight_decay", "float", 0.0, 0.0, None, "of AdamW"),
        # It divides by 1 - beta, and by eps where a weight has had no gradient yet.
        Attribute("beta1", "float", 0.9, 0.0, 1.0, "of AdamW", excluded=(1.0,)),
        Attribute("beta2", "float", 0.999, 0.0, 1.0, "of AdamW", excluded=(1.0,)),
        Attribute("eps", "float", 1e-8, 0.0, None, "of AdamW", excluded=(0.0,)),
    ),
)
"""AdamW, arXiv 1711.05101."""

OPTIMIZERS = {optimizer.name: optimizer for optimizer in (ADAMW,)}
"""All optimizers by name; the first is used where a program names none."""


def optimizer_attributes(optimizers: Iterable[OptimizerSpec] = tuple(OPTIMIZERS.values())) -> tuple[Attribute, ...]:
    """Return the attributes of `train`: the settings of the first optimizer, those that only others have, and, if there
    are others, which one it is."""
    first, *others = optimizers
    declared = {setting.name: setting for setting in first.settings}
    for other in others:
        for setting in other.settings:
            declared.setdefault(setting.name, replace(setting, default=None))
    names = [first.name, *(other.name for other in others)]
    choice = Attribute("optimizer", "word", None, names=lambda: names)
    return (*declared.values(), choice) if others else tuple(declared.values())


def optimizer_of(node: Node) -> OptimizerSpec:
    """Return the optimizer of a `train` node."""
    return OPTIMIZERS[node.attr("optimizer") or next(iter(OPTIMIZERS))]


def optimizer_settings_of(node: Node) -> dict[str, float]:
    """Return the settings of a `train` node's optimizer."""
    given = {setting.name: node.attr(setting.name) for setting in optimizer_of(node).settings}
    return {name: optimizer_of(node).default_of(name) if value is None else value for name, value in given.items()}
