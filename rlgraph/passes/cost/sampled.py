"""When rows end that one copy of a model samples: each by its own length.

An engine decodes so many rows together, a token of each in a step, and takes the next row when one has ended. A step
takes as long as the rows that are in it say. `rlgraph.passes.cost.decoding.generate` is what that takes on average.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.decoding import DecodeStep, prefill, slots
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.time import Batch, Cost, crowded


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a copy samples the rows of a call."""

    call: float
    """Seconds until it begins."""
    read: float
    """Seconds in which it reads a row's prompt; the others wait."""
    most: int
    """Rows that it decodes together."""
    step: Callable[[int], float]
    """Seconds of a step with so many rows."""


@dataclass(frozen=True, slots=True)
class Sampled:
    cost: Cost
    """Until the last row has ended."""
    ends: Sequence[float]
    """Seconds after which each row has ended, from the beginning of the work."""
    pace: Pace | None = None
    """Where rows of another call can come in between."""


NOTHING = Sampled(Cost(), (), Pace(0.0, 0.0, 1, lambda rows: 0.0))
"""Of a copy that has no rows."""


def sampled(
    config: ModelConfig,
    deployment: Deployment,
    constants: Constants,
    prompts: Sequence[float],
    answers: Sequence[float],
    samples: int,
) -> Sampled:
    """Of one copy, or one thread of it. prompts, answers: tokens of each row, in the order in which they begin; rows of
    one prompt stand together, so many samples of each."""
    if not answers:
        return NOTHING
    rates = constants.rates[deployment.engine, "generate"]
    call = Cost(overhead=rates.call)
    batch = Batch(len(answers), Lengths.of(prompts), Lengths.of(answers), samples)
    most = max(1, int(slots(config, deployment, batch)))
    step, slower = DecodeStep(config, deployment, constants, batch), crowded(deployment, rates)
    read = prefill(config, deployment, constants, batch, len(answers) / samples).times(slower)
    ended = _tokens(answers, most)
    order = sorted(range(len(ended)), key=ended.__getitem__)
    left = [min(most, len(ended) - number) for number in range(len(ended))]
    """Rows that are decoded together until the one ends that ends next: who waits goes on at once."""
    costs, total = dict[int, Cost](), dict[int, float]()
    ends = [0.0] * len(ended)
    before = decoded = begun = 0.0
    for number, (row, together) in enumerate(zip(order, left, strict=True)):
        if took := ended[row] - before:
            # Prompts are read when their rows begin: first as many as there is room for.
            begun, before = min(1.0, (most + number) / len(ended)), ended[row]
            if together not in costs:
                costs[together], total[together] = step.cost(together), 0.0
            decoded += took * costs[together].seconds * slower
            total[together] += took
        ends[row] = call.seconds + read.seconds * begun + decoded
    pace = Pace(call.seconds, read.seconds / len(ended), most, lambda count: step.cost(count).times(slower).seconds)
    decoding = Cost.total([(cost, total[count] * slower) for count, cost in costs.items()])
    return Sampled(call + read + decoding, ends, pace)


def _tokens(answers: Sequence[float], most: int) -> Sequence[float]:
    """After how many steps each row ends, where at most so many are decoded together."""
    if len(answers) <= most:
        return answers
    found = list(answers[:most])
    busy = list(found)
    heapify(busy)
    for length in answers[most:]:
        found.append(busy[0] + length)
        heapreplace(busy, found[-1])
    return found


class Together:
    """What one copy samples for several calls: as many rows as the largest of them has, or as there is room for. So a
    row that ends is followed by one of the next call, and a step takes as long as the rows that are in it say, each
    call's by its own pace."""

    def __init__(self) -> None:
        self._now = self._steps = 0.0
        """A moment, in seconds, and the steps that have been taken by then."""
        self._paces: list[tuple[int, Pace]] = []
        """Of each call, with its rows."""
        self._there: list[tuple[int, Pace]] = []
        """Of those that had rows when the last one came."""
        self._active: list[tuple[float, int, int]] = []
        """A heap of the rows that are decoded: after which step they end, their call, and which of it they are."""
        self._waiting: deque[tuple[int, int, float]] = deque()
        """Rows that have not begun: their call, which of it they are, and their tokens."""
        self._ends: list[list[float]] = []
        self._left: dict[int, int] = {}
        """Of each call the rows that have not ended."""

    def join(self, now: float, pace: Pace, answers: Sequence[float], more: bool = False) -> int:
        """A call with rows of so many tokens comes at a moment, no earlier than those before: its number. more: its
        rows are sampled beside those of the others, not in their places."""
        self._run(now + pace.call)
        number = len(self._paces)
        others = max((self._paces[call][0] for call in self._left), default=0) if more else 0
        self._paces.append((others + len(answers), pace))
        self._ends.append([self._now] * len(answers))
        self._waiting += ((number, row, length) for row, length in enumerate(answers))
        if answers:
            self._left[number] = len(answers)
        self._there = [self._paces[call] for call in self._left]
        return number

    def pause(self, now: float, seconds: float) -> None:
        """Nothing is sampled from a moment on, for so long."""
        self._run(now)
        self._now += seconds

    def going(self, now: float) -> list[tuple[int, int, float]]:
        """The rows that have begun at a moment and have not ended: their call, which of it they are, and the tokens
        that are left of them."""
        self._run(now)
        return [(call, row, end - self._steps) for end, call, row in self._active]

    def ends(self) -> list[list[float]]:
        """The moment at which each row of each call ends, if no other call comes."""
        alone = copy(self)
        alone._active, alone._waiting = list(self._active), copy(self._waiting)
        alone._ends, alone._left = [list(each) for each in self._ends], dict(self._left)
        alone._run(float("inf"))
        return alone._ends

    def _run(self, until: float) -> None:
        """Lets time pass."""
        costs: dict[int, float] = {}
        while self._now < until:
            if self._waiting:
                self._begin()
            if not self._active:
                if until < float("inf"):
                    self._now = until
                return
            together = len(self._active)
            if together not in costs:
                costs[together] = self._mean(lambda pace, rows=together: pace.step(rows))  # type: ignore[misc]
            # Rows of no tokens have ended when they begin.
            ends = max(self._active[0][0], self._steps)
            if self._now + (ends - self._steps) * costs[together] > until:
                self._steps += (until - self._now) / costs[together]
                self._now = until
                return
            self._now += (ends - self._steps) * costs[together]
            self._steps = ends
            while self._active and self._active[0][0] <= ends:
                _, call, row = heappop(self._active)
                self._ends[call][row] = self._now
                self._left[call] -= 1
                if not self._left[call]:
                    del self._left[call]

    def _begin(self) -> None:
        """Rows begin for which there is room; all others wait until their prompts are read."""
        most = min(max(self._paces[call][0] for call in self._left), max(1, int(self._mean(lambda pace: pace.most))))
        while self._waiting and len(self._active) < most:
            call, row, length = self._waiting.popleft()
            self._now += self._paces[call][1].read
            heappush(self._active, (self._steps + length, call, row))

    def _mean(self, of: Callable[[Pace], float]) -> float:
        return sum(count * of(pace) for count, pace in self._there) / sum(count for count, _ in self._there)
