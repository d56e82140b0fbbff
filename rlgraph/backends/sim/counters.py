"""This module counts what a simulated step made, and which rows have come where."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from rlgraph.backends.distributed.transport import NodeRequest
from rlgraph.backends.frame import NodeOutput
from rlgraph.backends.sim.fake_rows import FakeRows, no_row_numbers
from rlgraph.backends.step import Step
from rlgraph.backends.weight_versions import WeightVersions
from rlgraph.ops.nodes import NODES, model_of, tables_read


@dataclass
class StepCounts:
    """The counts of one step."""

    rows: int = 0
    """Rows that were generated or encoded."""
    tokens: int = 0
    """Tokens of these rows, with their prompts."""
    ages: Counter[int] = field(default_factory=Counter)
    """Rows that a model sampled which the program trains: how many, by how many versions its weights were behind those
    that the step trains."""
    trained: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """For each table the numbers of the rows that something was trained on, of each request."""
    sent: defaultdict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    """For each value and group the numbers of the rows that have come there."""


class StepCounters:
    """The counts of the steps in flight."""

    def __init__(self, versions: WeightVersions) -> None:
        self.versions = versions
        self._books: dict[int, StepCounts] = {}
        """The counts of each step in flight."""
        self._over = 0
        """The last step that is over."""

    def counts_of_step(self, step: Step) -> StepCounts:
        """Return the counts of a step; a batch that goes on when its step is over counts for the next one."""
        return self._books.setdefault(max(step.number, self._over + 1), StepCounts())

    def count_request(self, order: NodeRequest, made: NodeOutput) -> None:
        """Count the rows and tokens of a request for its step."""
        node = order.node
        if NODES[node.op].generates or node.op == "encode":
            rows, counts = made.values[node.name], self.counts_of_step(order.step)
            counts.rows += rows.row_count
            counts.tokens += int(rows.token_counts.sum())
        if NODES[node.op].generates:
            model, step = order.frame.values[model_of(node)], order.step
            if self.versions.version_after(model, step.number):
                assert order.version is not None
                counts.ages[max(0, self.versions.version_at(model, step) - order.version)] += rows.row_count
        if NODES[node.op].trains:
            counts = self.counts_of_step(order.step)
            for name in tables_read(node):
                table = order.frame.values[name]
                counts.trained.setdefault(table.name, []).append(table.numbers)

    def take_unsent_rows(self, value: FakeRows, order: NodeRequest) -> FakeRows:
        """Return the rows that the group does not have yet; now it has them."""
        sent, numbers = self.counts_of_step(order.step).sent[value.name, order.group.name], value.numbers.tolist()
        if sent.isdisjoint(numbers):
            new_rows = value
        elif sent.issuperset(numbers):
            new_rows = value.pick(no_row_numbers())
        else:
            new_rows = value.pick(np.fromiter((number not in sent for number in numbers), bool, len(numbers)))
        sent.update(numbers)
        return new_rows

    def pop_step_totals(self, step: Step) -> dict[str, float]:
        """Return the rows and tokens of the step; of the rows, how many were trained on, and how many were of which
        age."""
        counts, self._over = self._books.pop(step.number, StepCounts()), step.number
        trained = sum(np.unique(np.concatenate(numbers)).shape[0] for numbers in counts.trained.values())
        totals = {"rows": counts.rows, "tokens": counts.tokens, "trained": trained}
        return {name: float(value) for name, value in totals.items()} | {
            f"age/{age}": float(rows) for age, rows in counts.ages.items()
        }
