"""This module runs steps in flight: it decides when one begins, what it waits for, and whose turn it is to change
models.

A step begins when there is credit: `step async(lag=k)`, or `staleness=k`, lets it begin before the k steps before it
are over. What it reads of things that live across steps comes from the step before as soon as that has made it, and
weights from the step that made the version which it works with. Models are changed by the oldest step alone, once the
caller has seen the end of the one before: between two steps there are no weights but those that the first one left. So
all that overlaps does not depend on this change, and with `lag` the numbers are those of one step after the other. With
`staleness` a step that samples waits for the oldest weights that it may have, and gets the newest that there are when
it begins to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from rlgraph.backends.clocks import TaskPool, report_failure
from rlgraph.backends.executor import Executor
from rlgraph.backends.frame import Frame
from rlgraph.backends.graph_run import Await, GraphRun, never_ready, wait_for_progress
from rlgraph.backends.weight_versions import WeightVersions
from rlgraph.ir.graph import Node, Phase, Program, Value
from rlgraph.ir.step_edges import weights_age_steps
from rlgraph.ir.types import StateHandle, is_model

Things = Mapping[str, Any]
"""Values of things that live across steps, by name."""

Coming = tuple[Phase, int]
"""A step of a phase, by its number."""


@dataclass(eq=False)
class _InFlightStep:
    """A step that has begun and has not ended."""

    phase: Phase
    frame: Frame
    run: GraphRun
    lasts: Mapping[str, str]
    """For each thing that the step uses, the name of its last value."""
    sources: dict[str, tuple[_InFlightStep, str]] = field(default_factory=dict)
    """Inputs that an earlier step makes: which step, and the value there."""

    @property
    def number(self) -> int:
        """The number of the step."""
        return self.frame.step.number

    def take_earlier_values(self) -> None:
        """Take what the steps before have made by now."""
        for name, (maker, value) in list(self.sources.items()):
            if maker.run.value_is_complete(value):
                self.frame.values[name] = maker.frame.values[value]
                del self.sources[name], self.run.awaited[name]

    def values_after(self) -> dict[str, Any]:
        """Return the step state after the step, when it is over."""
        return {thing: self.frame.values[last] for thing, last in self.lasts.items()}


class InFlightSteps:
    """The steps in flight of a program. A caller that stops asking for them can ask again: they go on."""

    def __init__(
        self,
        program: Program,
        executor: Executor,
        frame: Callable[[Phase, int], Frame],
        versions: WeightVersions,
        published: Callable[[str], None],
    ) -> None:
        """published: is told of each new version of a model, while nodes work."""
        self.executor, self.frame, self.versions, self.published = executor, frame, versions, published
        self.under_way: deque[_InFlightStep] = deque()
        """The steps in flight, the oldest first."""
        self.failed = 0
        """How often steps failed: those in flight then begin again."""
        self.threads = max(executor.max_threads(phase.graph) * self.in_flight_limit(phase) for phase in program.phases)
        self.threads += len(versions.newest)

    def in_flight_limit(self, phase: Phase) -> int:
        """Return how many steps may be in flight when one of a phase has begun: the oldest, those that may be ahead of
        it, and one that has all but the weights it waits for, so that it gets them before the next training begins,
        and while the one before it is evaluated. Where one node runs at a time, nothing is gained by more than one."""
        return 2 + phase.staleness.steps if self.executor.clock.concurrent else 1

    def run(self, coming: Iterable[Coming], things: Things) -> Iterator[tuple[Frame, Things]]:
        """Run steps, and yield for each, in order, its frame and what it left. coming: the first ones are those in
        flight. things: as the last step that is over left them."""
        more, wanted = iter(coming), deque[Coming]()
        with self.executor.clock.task_pool(self.threads) as pool, self.executor.keep_pools_open():
            for step in self.under_way:
                step.run.pool = pool
            try:
                while self._begin(more, wanted, things, pool):
                    oldest = self.under_way[0]
                    self._end(oldest)
                    self.under_way.popleft()
                    wanted.popleft()
                    things = {**things, **oldest.values_after()}
                    yield oldest.frame, things
            except GeneratorExit:
                # The caller wants no more steps now. What is fired comes to its end, and nothing is lost.
                try:
                    while any(step.run.under_way for step in self.under_way):
                        pool.next_event()()
                except BaseException as error:
                    # The caller does not ask for this failure, either.
                    self._fail(error)
            except BaseException as error:
                self._fail(error)
                raise

    def _fail(self, error: BaseException) -> None:
        """Give up all steps in flight after a failure: asked for again, the step begins again, and so do those ahead of
        it."""
        self.under_way.clear()
        self.failed += 1
        self.executor.backend.fail_pending_work(error)

    def _begin(self, more: Iterator[Coming], wanted: deque[Coming], things: Things, pool: TaskPool) -> bool:
        """Begin all steps for which there is credit. Returns whether any step is in flight that is wanted."""
        while True:
            if len(wanted) <= len(self.under_way):
                wanted.extend(islice(more, 1))
            if len(wanted) <= len(self.under_way):
                return bool(wanted)
            phase, number = wanted[len(self.under_way)]
            if len(self.under_way) >= self.in_flight_limit(phase):
                return True
            self._add(phase, number, things, pool)

    def _add(self, phase: Phase, number: int, things: Things, pool: TaskPool) -> None:
        frame, graph = self.frame(phase, number), phase.graph
        run = GraphRun(self.executor, graph, frame, pool)
        run.may_change_models, run.overlaps = False, phase.staleness.steps > 0
        names = [state_name(value) for value in graph.inputs]
        step = _InFlightStep(phase, frame, run, dict(zip(names, graph.outputs, strict=True)))
        for value, name in zip(graph.inputs, names, strict=True):
            maker = next((earlier for earlier in reversed(self.under_way) if name in earlier.lasts), None)
            if is_model(value.type):
                frame.values[value.name] = things[name]
                run.awaited[value.name] = self._weights(value.name, name, step)
            elif maker is None:
                frame.values[value.name] = things[name]
            else:
                step.sources[value.name], run.awaited[value.name] = (maker, maker.lasts[name]), never_ready
        self.under_way.append(step)

    def _weights(self, handle: str, model: str, step: _InFlightStep) -> Await:
        """Return a check whether the version of a model that a node works with has been made."""
        makers: dict[int, _InFlightStep | None] = {}
        for node in step.phase.graph.nodes:
            if handle in node.inputs:
                version = self.versions.version_at(model, step.frame.step, weights_age_steps(node, handle))
                made_in = self.versions.step_that_made(model, version)
                makers[id(node)] = next(
                    (candidate for candidate in self.under_way if candidate.number == made_in), None
                )

        def weights_have_come(node: Node) -> bool:
            maker = makers[id(node)]
            return maker is None or maker.run.value_is_complete(maker.lasts[model])

        return weights_have_come

    def _end(self, oldest: _InFlightStep) -> None:
        """Let all steps go on until the oldest one is over."""
        oldest.run.may_change_models = True
        oldest.take_earlier_values()
        # All that it waited for was made when the step before it was over.
        oldest.run.awaited.clear()
        while not oldest.run.is_over:
            moved = False
            self._note(oldest)
            for step in self.under_way:
                step.take_earlier_values()
                moved |= step.run.advance()
            if not moved and not oldest.run.is_over:
                wait_for_progress([step.run for step in self.under_way], oldest.run.pool)
        self._note(oldest)

    def _note(self, oldest: _InFlightStep) -> None:
        """Note which weights have been made: of a model that changes several times in a step, those after the last
        change."""
        for model in self.versions.newest:
            if model in oldest.lasts and oldest.run.value_is_complete(oldest.lasts[model]):
                version = self.versions.version_after(model, oldest.number)
                if self.versions.newest[model] != version:
                    self.versions.newest[model] = version
                    oldest.run.pool.submit(partial(self._publish, model, oldest.run.pool))

    def _publish(self, model: str, pool: TaskPool) -> None:
        try:
            self.published(model)
        except BaseException as error:
            report_failure(pool, error)


def state_name(value: Value) -> str:
    """Return the name of the step state (a model, a keyed state, a buffer) that a value is."""
    return value.type.name if isinstance(value.type, StateHandle) else value.name.rsplit("@", 1)[0]
