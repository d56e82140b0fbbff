"""Steps in flight: when one begins, what it waits for, and whose turn it is to change models.

A step begins when there is credit: `step async(lag=k)`, or `staleness=k`, lets it begin before the k steps before it
are over. What it reads of things that live across steps comes from the step before as soon as that has made it, and
weights from the step that made the version which it works with. Models are changed by the oldest step alone, once
whoever runs the steps has seen the end of the one before: between two steps there are no weights but those that the
first one left. So all that overlaps is what does not depend on it, and with `lag` the numbers are those of one step
after the other. With `staleness` a step that samples waits for the oldest weights that it may have, and gets the newest
that are there when it begins to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from rlgraph.backends.clocks import Crew
from rlgraph.backends.executor import Await, Executor, GraphRun, not_yet, wait
from rlgraph.backends.frame import Frame
from rlgraph.backends.versions import Versions
from rlgraph.ir.graph import Node, Phase, Program, Value
from rlgraph.ir.steps import distance
from rlgraph.ir.types import Handle, is_model

Things = Mapping[str, Any]
"""Values of things that live across steps, by name."""

Coming = tuple[Phase, int]
"""A step of a phase, by its number."""


@dataclass(eq=False)
class _Flight:
    """A step that is under way."""

    phase: Phase
    frame: Frame
    run: GraphRun
    lasts: Mapping[str, str]
    """For each thing that the step has to do with, its last value."""
    sources: dict[str, tuple[_Flight, str]] = field(default_factory=dict)
    """Inputs that a step before makes: which one, and the value there."""

    @property
    def number(self) -> int:
        return self.frame.step.number

    def take(self) -> None:
        """Takes what the steps before have made by now."""
        for name, (maker, value) in list(self.sources.items()):
            if maker.run.has_made(value):
                self.frame.values[name] = maker.frame.values[value]
                del self.sources[name], self.run.awaited[name]

    def left(self) -> dict[str, Any]:
        """Things after it, when it is over."""
        return {thing: self.frame.values[last] for thing, last in self.lasts.items()}


class Flights:
    """The steps of a program that are under way. Who stops asking for them can ask again: they go on."""

    def __init__(
        self,
        program: Program,
        executor: Executor,
        frame: Callable[[Phase, int], Frame],
        versions: Versions,
        published: Callable[[str], None],
    ) -> None:
        """published: is told of each new version of a model, beside the work of nodes."""
        self.executor, self.frame, self.versions, self.published = executor, frame, versions, published
        self.under_way: deque[_Flight] = deque()
        """The oldest first."""
        self.failed = 0
        """How often steps failed: those under way then begin again."""
        self.threads = max(executor.threads(phase.graph) * self.credit(phase) for phase in program.phases)
        self.threads += len(versions.newest)

    def credit(self, phase: Phase) -> int:
        """How many steps may be under way when one of a phase has begun: the oldest, those that may be ahead of it, and
        one that has all but the weights it waits for, so that it gets them before the next training begins, and while
        the one before it is evaluated. Where one node runs at a time, nothing is gained by more than one."""
        return 2 + phase.staleness.steps if self.executor.clock.together else 1

    def run(self, coming: Iterable[Coming], things: Things) -> Iterator[tuple[Frame, Things]]:
        """Runs steps: for each, in their order, its frame and what it left. coming: the first ones are those that are
        under way. things: as the last step that is over left them."""
        more, wanted = iter(coming), deque[Coming]()
        with self.executor.clock.crew(self.threads) as crew, self.executor.at_work():
            for flight in self.under_way:
                flight.run.crew = crew
            try:
                while self._begin(more, wanted, things, crew):
                    oldest = self.under_way[0]
                    self._end(oldest)
                    self.under_way.popleft()
                    wanted.popleft()
                    things = {**things, **oldest.left()}
                    yield oldest.frame, things
            except GeneratorExit:
                # Nobody wants more now. What is fired comes to its end, and nothing is lost.
                try:
                    while any(flight.run.under_way for flight in self.under_way):
                        crew.next()()
                except BaseException as error:
                    # Nobody asks what became of it, either.
                    self._fail(error)
            except BaseException as error:
                self._fail(error)
                raise

    def _fail(self, error: BaseException) -> None:
        """Of a step that failed nothing is over: asked again, it begins again, and so do those ahead of it."""
        self.under_way.clear()
        self.failed += 1
        self.executor.backend.abort(error)

    def _begin(self, more: Iterator[Coming], wanted: deque[Coming], things: Things, crew: Crew) -> bool:
        """Begins all steps for which there is credit; whether any is under way that is wanted."""
        while True:
            if len(wanted) <= len(self.under_way):
                wanted.extend(islice(more, 1))
            if len(wanted) <= len(self.under_way):
                return bool(wanted)
            phase, number = wanted[len(self.under_way)]
            if len(self.under_way) >= self.credit(phase):
                return True
            self._add(phase, number, things, crew)

    def _add(self, phase: Phase, number: int, things: Things, crew: Crew) -> None:
        frame, graph = self.frame(phase, number), phase.graph
        run = GraphRun(self.executor, graph, frame, crew)
        run.turn, run.overlaps = False, phase.staleness.steps > 0
        names = [thing_name(value) for value in graph.inputs]
        flight = _Flight(phase, frame, run, dict(zip(names, graph.outputs, strict=True)))
        for value, name in zip(graph.inputs, names, strict=True):
            maker = next((each for each in reversed(self.under_way) if name in each.lasts), None)
            if is_model(value.type):
                frame.values[value.name] = things[name]
                run.awaited[value.name] = self._weights(value.name, name, flight)
            elif maker is None:
                frame.values[value.name] = things[name]
            else:
                flight.sources[value.name], run.awaited[value.name] = (maker, maker.lasts[name]), not_yet
        self.under_way.append(flight)

    def _weights(self, handle: str, model: str, flight: _Flight) -> Await:
        """The version of a model that a node works with has been made."""
        makers: dict[int, _Flight | None] = {}
        for node in flight.phase.graph.nodes:
            if handle in node.inputs:
                version = self.versions.at(model, flight.frame.step, distance(node, handle))
                made_in = self.versions.made_in(model, version)
                makers[id(node)] = next((each for each in self.under_way if each.number == made_in), None)

        def there(node: Node) -> bool:
            maker = makers[id(node)]
            return maker is None or maker.run.has_made(maker.lasts[model])

        return there

    def _end(self, oldest: _Flight) -> None:
        """Lets all of them go on until the oldest one is over."""
        oldest.run.turn = True
        oldest.take()
        # All that it waited for was there when the step before it was over.
        oldest.run.awaited.clear()
        while not oldest.run.over:
            moved = False
            self._note(oldest)
            for flight in self.under_way:
                flight.take()
                moved |= flight.run.advance()
            if not moved and not oldest.run.over:
                wait([flight.run for flight in self.under_way], oldest.run.crew)
        self._note(oldest)

    def _note(self, oldest: _Flight) -> None:
        """Which weights are there: of a model that changes several times in a step, those after the last one."""
        for model in self.versions.newest:
            if model in oldest.lasts and oldest.run.has_made(oldest.lasts[model]):
                version = self.versions.after(model, oldest.number)
                if self.versions.newest[model] != version:
                    self.versions.newest[model] = version
                    oldest.run.crew.begin(partial(self._publish, model, oldest.run.crew))

    def _publish(self, model: str, crew: Crew) -> None:
        try:
            self.published(model)
        except BaseException as error:
            crew.tell(partial(_raise, error))


def _raise(error: BaseException) -> None:
    raise error


def thing_name(value: Value) -> str:
    """Of the thing that lives across steps, by a value of it."""
    return value.type.name if isinstance(value.type, Handle) else value.name.rsplit("@", 1)[0]
