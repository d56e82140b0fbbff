"""A backend whose work is done by the groups of a plan: which of them does a node's work, and with what weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from rlgraph.backends.executor import Made
from rlgraph.backends.frame import Frame
from rlgraph.backends.local.nodes import chosen, kept
from rlgraph.backends.ray.weights import Weights
from rlgraph.backends.steps import Steps
from rlgraph.enginespec.registry import engine
from rlgraph.ir.graph import Node
from rlgraph.ir.plan import HOST, Group, Plan
from rlgraph.ops.nodes import MODEL_CALLS

_WITH_MODELS = ("generate", "interact", "train", *MODEL_CALLS)


class Orders(Protocol):
    """Has groups do the work of nodes."""

    nodes: dict[int, int]
    """For each node, by its `id`, its number in the program."""

    def fire(self, node: Node, frame: Frame, group: Group) -> Made: ...

    def parts(self, node: Node, frame: Frame, group: Group, sizes: Sequence[int]) -> Iterator[Made]: ...

    def choose(self, node: Node, frame: Frame, host: Group) -> Tensor:
        """Which rows `keep` or `pick` takes."""
        ...


def block_of(plan: Plan) -> int | None:
    """Rows of a block of the executor: those of the smallest stream."""
    return min((rows for _, rows in plan.blocks), default=None)


class Placed(Steps):
    """Its frames have stand-ins for the rows that its groups have."""

    elsewhere = True
    plan: Plan
    dispatch: Orders
    weights: Weights
    replays = False
    """What is sampled comes from a recording."""

    def streams(self, node: Node, frame: Frame) -> bool:
        """Samples of some engines leave as soon as they end; a recording is there at once."""
        if node.op != "generate" or self.replays:
            return False
        return engine(self.plan.role(frame.values[node.inputs[0]], node.op).engine).streams

    def parts(self, node: Node, frame: Frame, sizes: Sequence[int]) -> Iterator[Made]:
        model = frame.values[node.inputs[0]]
        group = self.plan.role(model, node.op)
        self.weights.bring(model, group, node, frame.step)
        yield from self.dispatch.parts(node, frame, group, sizes)

    # Nodes

    def work(self, node: Node, frame: Frame) -> Made:
        if node.op == "size" and node.attr("axis") in frame.rows:
            return Made({node.name: torch.tensor(frame.size(node.attr("axis")))})
        if node.op == "update":
            target, source = (frame.values[name] for name in node.inputs)
            self.weights.update(target, source, node, frame.step)
            return Made({node.name: target})
        # An age is that of a step, which who has the rows is not told when he is asked for them.
        if node.op == "column" and node.attr("name") != "age":
            table = frame.values[node.inputs[0]]
            return Made({node.name: replace(table, column=self.dispatch.nodes[id(node)])})
        if node.op in _WITH_MODELS:
            return self.compute(node, frame)
        host = self.plan.group(HOST)
        if node.op in ("keep", "pick"):
            places = self.dispatch.choose(node, frame, host)
            return kept(node, frame, places) if node.op == "keep" else chosen(node, frame, places)
        return self.dispatch.fire(node, frame, host)

    def compute(self, node: Node, frame: Frame) -> Made:
        """Work with a model's weights, where the plan puts it, once the weights are there."""
        model = frame.values[node.inputs[0]]
        group = self.plan.role(model, node.op)
        self.weights.bring(model, group, node, frame.step)
        try:
            made = self.dispatch.fire(node, frame, group)
        except KeyboardInterrupt:
            # It comes at the end of an update, whose weights are new ones: they are worth saving.
            if node.op == "train":
                self.weights.trained(model, frame.step)
            raise
        if node.op == "train":
            self.weights.trained(model, frame.step)
        return made
