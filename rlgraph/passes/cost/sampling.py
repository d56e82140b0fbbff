"""Computes when the rows that one replica of a model samples end, each by its own length.

An engine decodes so many rows together, one token of each in a step, and takes the next row when one has ended. The
time of a step depends on the rows in it. `rlgraph.passes.cost.decoding.generation_cost` has the cost on average.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.decoding import (
    DecodeStepCost,
    later_turn_cost,
    mixed_steps_saving,
    played_cost,
    preempted_cost,
    prefill_cost,
    turn_order,
)
from rlgraph.passes.cost.decoding_slots import busy_slots, decoding_slots
from rlgraph.passes.cost.decoding_steps import decoding_ends, decoding_steps
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.episodes import Episodes, EpisodeTurns, TurnPace, play_episodes
from rlgraph.passes.cost.latency import contention_slowdown
from rlgraph.passes.cost.lengths import Lengths


@dataclass(frozen=True, slots=True)
class SamplingPace:
    """How fast a replica samples the rows of a call."""

    call_seconds: float
    """Seconds until the call begins."""
    read_seconds: float
    """Seconds in which it reads a row's prompt; the other rows wait."""
    max_rows: int
    """The most rows that it decodes together."""
    step_seconds: Callable[[int], float]
    """Seconds of a step with so many rows."""


@dataclass(frozen=True, slots=True)
class SamplingResult:
    """The cost of rows that one replica samples, and when each of them ends."""

    cost: Cost
    """The cost until the last row has ended."""
    end_times: Sequence[float]
    """Seconds after which each row has ended, from the beginning of the work."""
    pace: SamplingPace | None = None
    """The pace, where rows of another call can begin in between."""


@dataclass(frozen=True, slots=True)
class EpisodeRows:
    """How the rows that one replica samples are episodes."""

    episodes: Episodes
    answers_s: Sequence[Sequence[float | None]]
    """For each row the seconds that an environment takes after each of its turns; None: nobody knows."""
    replicas: int
    """How many replicas play."""


NOTHING = SamplingResult(Cost(), (), SamplingPace(0.0, 0.0, 1, lambda rows: 0.0))
"""The result of a replica without rows."""


def predict_sampling(
    config: ModelConfig,
    deployment: Deployment,
    constants: Constants,
    prompts: Sequence[float],
    answers: Sequence[float],
    samples: int,
    played: EpisodeRows | None = None,
) -> SamplingResult:
    """Return the rows that one replica, or one thread of it, samples. prompts, answers: tokens of each row, in the
    order in which they begin; the `samples` rows of one prompt are adjacent. played: how they are episodes."""
    if not answers:
        return NOTHING
    rates = constants.rates[deployment.engine, "generate"]
    call = Cost(overhead=rates.call)
    batch = Batch(len(answers), Lengths.from_lengths(prompts), Lengths.from_lengths(answers), samples)
    if played is not None:
        batch = replace(batch, episodes=played.episodes)
    slots = decoding_slots(config, deployment, batch)
    most = max(1, int(slots if len(answers) <= slots else busy_slots(config, deployment, batch)))
    step, slower = DecodeStepCost(config, deployment, constants, batch), contention_slowdown(deployment, rates)
    read = prefill_cost(config, deployment, constants, batch, len(answers) / samples).scaled(slower)
    if played is not None:
        again = later_turn_cost(config, deployment, constants, batch, len(answers))
        processes, shared = played.episodes.processes(played.replicas)
        known = constants.host.function_row
        episodes = [
            EpisodeTurns(tokens / len(taken), [shared * (known if each is None else each) for each in taken])
            for tokens, taken in zip(answers, played.answers_s, strict=True)
        ]
        turn_pace = TurnPace(
            read.seconds / len(answers),
            again.seconds * slower,
            most,
            lambda count: step.cost(count).seconds * slower,
            processes,
            *turn_order(deployment, played.episodes),
        )
        play = play_episodes(episodes, turn_pace)
        cost = played_cost(play, read.scaled(1 / slower), again, step.cost, slower)
        return SamplingResult(call + cost, [call.seconds + end for end in play.ends])
    mixed = mixed_steps_saving(deployment, batch, len(answers), slots, max(slots, most), step, read)
    preempted = preempted_cost(config, deployment, constants, batch, len(answers), slots)
    read += (preempted + mixed.scaled(-1)).scaled(slower)
    import numpy as np  # What draws a plan loads this module, and needs no numbers.

    ended, numbers = np.array(decoding_ends(answers, most), dtype=float), np.arange(len(answers))
    order = ended.argsort(kind="stable")
    took = np.diff(ended[order], prepend=0.0)
    # Rows that are decoded together until the next one ends: waiting rows begin at once.
    decoding = [part * took * slower for part in step.costs(np.minimum(most, len(ended) - numbers))]
    # Prompts are read when their rows begin: at first as many as there are slots, then one when another row ends.
    # One that ends without a step has been read, too.
    before = np.maximum.accumulate(np.where(took > 0, numbers, 0))
    begun = np.minimum(1.0, np.maximum(most + before, numbers + 1) / len(ended))
    ends = np.empty(len(ended))
    ends[order] = call.seconds + read.seconds * begun + np.sum(decoding, axis=0).cumsum()
    pace = SamplingPace(
        call.seconds, read.seconds / len(ended), most, lambda count: step.cost(count).scaled(slower).seconds
    )
    compute, memory, sent, launched = (float(part.sum()) for part in decoding)
    return SamplingResult(call + read + Cost(compute, memory, sent, overhead=launched), ends.tolist(), pace)


class ContinuousBatch:
    """The rows that one replica samples for several calls, as many together as the largest call has rows, or as there
    are slots. So a row that ends is followed by one of the next call, and the time of a step depends on the rows in it,
    each at the pace of its call."""

    def __init__(self) -> None:
        self._now = self._steps = 0.0
        """The present moment in seconds, and the steps that have been taken by then."""
        self._paces: list[tuple[int, SamplingPace]] = []
        """The number of rows and the pace of each call."""
        self._mixed: list[tuple[int, SamplingPace]] = []
        """The rows and paces of the calls that had rows when the last one arrived."""
        self._active: list[tuple[float, int, int]] = []
        """A heap of the rows that are decoded: the step after which a row ends, its call, and its number in the
        call."""
        self._waiting: deque[tuple[int, int, float]] = deque()
        """Rows that have not begun: the call, the number in the call, and the tokens of each."""
        self._ends: list[list[float]] = []
        """For each call, the moment at which each row ends."""
        self._unfinished: dict[int, int] = {}
        """The rows of each call that have not ended."""

    def add_call(self, now: float, pace: SamplingPace, answers: Sequence[float], more: bool = False) -> int:
        """Add a call with rows of so many tokens at a moment, no earlier than the calls before, and return its
        number. more: its rows are sampled in addition to those of the other calls, not in their slots."""
        self._run(now + pace.call_seconds)
        number = len(self._paces)
        others = max((self._paces[call][0] for call in self._unfinished), default=0) if more else 0
        self._paces.append((others + len(answers), pace))
        self._ends.append([self._now] * len(answers))
        self._waiting += ((number, row, length) for row, length in enumerate(answers))
        if answers:
            self._unfinished[number] = len(answers)
        self._mixed = [self._paces[call] for call in self._unfinished]
        return number

    def pause_sampling(self, now: float, seconds: float) -> None:
        """Sample nothing from a moment on, for so many seconds."""
        self._run(now)
        self._now += seconds

    def unfinished_rows(self, now: float) -> list[tuple[int, int, float]]:
        """Return the rows that have begun at a moment and have not ended: the call of each, its number in the call,
        and the tokens that are left of it."""
        self._run(now)
        return [(call, row, end - self._steps) for end, call, row in self._active]

    def row_end_times(self) -> list[list[float]]:
        """Return the moment at which each row of each call ends, if no other call arrives."""
        alone = copy(self)
        alone._active, alone._waiting = list(self._active), copy(self._waiting)
        alone._ends, alone._unfinished = [list(ends) for ends in self._ends], dict(self._unfinished)
        alone._run(float("inf"))
        return alone._ends

    def _run(self, until: float) -> None:
        """Advance the time to a moment."""
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
                costs[together] = self._mean(lambda pace, rows=together: pace.step_seconds(rows))  # type: ignore[misc]
            # Rows without tokens end when they begin.
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
                self._unfinished[call] -= 1
                if not self._unfinished[call]:
                    del self._unfinished[call]

    def _begin(self) -> None:
        """Start as many rows as there are slots for; all others wait until their prompts are read."""
        most = min(
            max(self._paces[call][0] for call in self._unfinished), max(1, int(self._mean(lambda pace: pace.max_rows)))
        )
        while self._waiting and len(self._active) < most:
            call, row, length = self._waiting.popleft()
            self._now += self._paces[call][1].read_seconds
            heappush(self._active, (self._steps + decoding_steps(length), call, row))

    def _mean(self, of: Callable[[SamplingPace], float]) -> float:
        """Return the mean of a number over the paces of the mixed calls, weighted by rows."""
        return sum(count * of(pace) for count, pace in self._mixed) / sum(count for count, _ in self._mixed)
