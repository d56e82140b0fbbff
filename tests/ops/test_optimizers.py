"""Optimizers: what `train` is told of several, and what is kept of each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlgraph.ir.attributes import Attribute
from rlgraph.ops.nodes import NODES
from rlgraph.ops.optimizers import ADAMW, OPTIMIZERS, OptimizerSpec, optimizer_attributes
from rlgraph.passes.cost.optimizer import optimizer_bytes_per_weight

PLAIN = OptimizerSpec(
    "plain", 1, (replace(ADAMW.settings[0], default=0.5), Attribute("momentum", "float", 0.9, 0.0, 1.0))
)


def test_one_needs_no_name() -> None:
    assert optimizer_attributes([ADAMW]) == ADAMW.settings
    assert set(ADAMW.settings) <= set(NODES["train"].attributes)


def test_of_several_a_program_names_one_and_its_own_settings() -> None:
    *settings, choice = optimizer_attributes([ADAMW, PLAIN])
    assert (choice.name, choice.default, choice.choices_text) == ("optimizer", None, "adamw or plain")
    told = {each.name: each.default for each in settings}
    assert told == {**{each.name: each.default for each in ADAMW.settings}, "momentum": None}


@pytest.mark.parametrize(("item", "master"), [(2, 4), (4, 0), (8, 0)])
def test_bytes_follow_from_what_it_keeps(item: int, master: int) -> None:
    wide = max(4, item)
    for optimizer in (*OPTIMIZERS.values(), PLAIN):
        found = optimizer_bytes_per_weight(optimizer, item)
        assert (found.gradient, found.moments, found.master) == (wide, optimizer.numbers_per_weight * wide, master)
