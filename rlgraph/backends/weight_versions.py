"""This module has the versions of a model's weights: which there is after which step, and which of them are still
needed.

Version 0 are the first weights; every step that changes a model makes its next version. Which steps do is read off the
program. So every process knows the version that a step works with, also of steps that are not over, and nobody has to
be told. But where a program only bounds the age of weights that sample, whoever hands the work out chooses the version
and tells it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING

from rlgraph.backends.loops import LOOPS
from rlgraph.backends.regions import LoopPolicy
from rlgraph.backends.step import Step
from rlgraph.ir.graph import Graph, Node, Program
from rlgraph.ir.step_edges import earlier_versions_kept, longest_step_distances, oldest_weights_age_versions
from rlgraph.ir.types import is_model

if TYPE_CHECKING:
    from rlgraph.backends.engines.records import State


Runs = tuple[tuple[int, int], ...]
"""Which versions of a model's weights made the tokens of a row, in order: a version, and how many tokens it made before
another one went on. For a row without tokens, the version that would have made them."""


def merge_version_runs(runs: Iterable[tuple[int, int]]) -> Runs:
    """Merge neighbours of the same version."""
    runs_left: list[tuple[int, int]] = []
    for version, tokens in runs:
        earlier = runs_left.pop()[1] if runs_left and runs_left[-1][0] == version else 0
        runs_left.append((version, earlier + tokens))
    return tuple(runs_left)


class WeightVersions:
    """The versions of all models of a program."""

    def __init__(self, program: Program, loops: Mapping[str, LoopPolicy] = LOOPS) -> None:
        self._reach = longest_step_distances(program)
        self._kept = earlier_versions_kept(program)
        self._coming = _models_changed_by_step(program, loops)
        self._seen = 0
        self._changed: dict[str, list[int]] = {model.name: [] for model in program.models}
        """For each model the steps up to the last one seen that change it."""
        self._lock = Lock()
        self.newest = dict.fromkeys(self._changed, 0)
        """For each model the last version that has been made: whoever runs the steps notes it."""

    def version_after(self, model: str, number: int) -> int:
        """Return the version that a step leaves; step 0 is before the first one."""
        with self._lock:
            while self._seen < number:
                for name in next(self._coming):
                    self._changed[name].append(self._seen + 1)
                self._seen += 1
        return bisect_right(self._changed[model], number)

    def version_at(self, model: str, step: Step, distance: int = 1) -> int:
        """Return the version that an edge of this length brings into a step."""
        return max(0, self.version_after(model, step.number - 1) + 1 - distance)

    def allowed_versions(self, model: str, step: Step, node: Node) -> range:
        """Return the versions that a node of a step may sample with now: where only their age is bounded, all from the
        oldest one allowed to the newest that there is."""
        last, first = self.version_at(model, step), self.version_at(model, step, 1 + oldest_weights_age_versions(node))
        if not node.attr("staleness", 0):
            return range(first, first + 1)
        # A batch that goes on is trained on in a later step, so it may have versions newer than this step's last one.
        newest = self.newest[model] if step.batch is not None else min(last, self.newest[model])
        return range(first, max(first, newest) + 1)

    def newest_allowed(self, model: str, step: Step, node: Node) -> int:
        """Return the newest version that a node may sample with."""
        return self.allowed_versions(model, step, node)[-1]

    def step_that_made(self, model: str, version: int) -> int:
        """Return the step that made a version which `version_after` or `version_at` has returned; 0: it was there
        before the first step."""
        with self._lock:
            return self._changed[model][version - 1] if version else 0

    def oldest_needed(self, model: str, number: int) -> int:
        """Return the oldest version that a step or a later one may read."""
        return max(0, self.version_after(model, number - 1) + 1 - self._reach.get(model, 1))

    def oldest_kept(self, model: str, step: Step) -> int:
        """Return the oldest version that is kept once a step has changed the model."""
        return max(0, self.version_after(model, step.number) - self._kept[model])

    def reads_past_versions(self, model: str) -> bool:
        """Whether an edge reads versions that are not the last one."""
        return model in self._reach


class PastWeights:
    """The weights of a model before the present ones, by version, as long as a step may read them. Weights are copied
    before they change."""

    def __init__(self, model: str, versions: WeightVersions) -> None:
        self.model, self.versions = model, versions
        self.changed = 0
        """The last step that changed the weights."""
        self._past: dict[int, State] = {}
        self._lock = Lock()
        """A step ends while a later one is at work."""

    def copy_before_change(self, step: Step, state: Callable[[], State]) -> None:
        """Copy the weights, if needed, before a step changes them."""
        if self.changed < step.number:
            before, self.changed = self.changed, step.number
            if self.versions.reads_past_versions(self.model):
                # Steps in between that might have changed them, and did not, made versions of the same weights.
                first = self.versions.version_after(self.model, before)
                versions = range(first, self.versions.version_after(self.model, step.number - 1) + 1)
                # Before the copy is made, so that there is never one more.
                self._drop_before(self.versions.oldest_kept(self.model, step))
                copied = state()
                with self._lock:
                    self._past |= dict.fromkeys(versions, copied)

    def get(self, version: int) -> State | None:
        """Return the weights of a version; None: these are the present ones."""
        return self._past.get(version)

    def snapshot(self, number: int) -> dict[int, State]:
        """Return the weights that a step after this one may read; nobody writes into them."""
        oldest = self.versions.oldest_needed(self.model, number + 1)
        with self._lock:
            return {version: state for version, state in self._past.items() if version >= oldest}

    def restore(self, changed: int, past: Mapping[int, State]) -> None:
        """Restore what another process has left: the last step that changed the weights, and the weights before
        these."""
        self.changed, self._past = changed, dict(past)

    def drop_unneeded(self, step: Step) -> None:
        """Forget what is needed no more when this step and those before are over."""
        self._drop_before(self.versions.oldest_needed(self.model, step.number + 1))

    def _drop_before(self, oldest: int) -> None:
        with self._lock:
            self._past = {version: state for version, state in self._past.items() if version >= oldest}


def _models_changed_by_step(program: Program, loops: Mapping[str, LoopPolicy]) -> Iterator[set[str]]:
    """Yield for each step the models that it changes."""
    number = 0
    for phase in program.phases:
        for _ in count() if phase.steps is None else range(phase.steps):
            number += 1
            yield set(_changed_models(phase.graph, Step(number, phase.name), loops))


def _changed_models(graph: Graph, step: Step, loops: Mapping[str, LoopPolicy]) -> Iterator[str]:
    for node in graph.nodes:
        policy = loops.get(node.op)
        if policy is None:
            yield from (value.type.name for value in node.outputs if is_model(value.type))
        elif policy.runs_in_step(node, step):
            yield from _changed_models(node.region, step, loops)
