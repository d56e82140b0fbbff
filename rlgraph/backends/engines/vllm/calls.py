"""Calls of an engine whose rows it samples together, and where they are handed over."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Condition
from typing import TYPE_CHECKING

from rlgraph.backends.engines.base import Admission, Begun, GivenUp, Refresh, State

if TYPE_CHECKING:
    from rlgraph.backends.engines.vllm.sampling import Batch, Row


_NOTHING = Begun([], [])


@dataclass(frozen=True)
class Sample:
    """A response, as soon as it ends."""

    row: int
    tokens: list[int]
    """The stop token included."""
    logprobs: list[float]
    finished: bool
    """It ended by itself, not at `max_tokens`."""
    versions: tuple[tuple[int, int, int], ...]
    """Which weights sampled which tokens: a version, its first place and the one after its last."""


@dataclass(eq=False)
class Call:
    """The rows of one call."""

    batch: Batch
    prompts: list[list[int]]
    n: int
    keys: list[int]
    refresh: Refresh | None
    known: dict[int, int]
    """By the engine's count of its weights the versions that they are, where somebody tells them."""
    admission: Admission | None
    weights: State | None
    """In place of the engine's own."""
    expected: Sequence[float] | None = None
    """For each prompt the tokens that its rows are expected to have."""
    waiting: dict[str, Row] = field(default_factory=dict)
    """Rows that have not ended, by their request."""
    coming: deque[str] = field(default_factory=deque)
    """Of them those that vLLM does not have yet."""
    ended: dict[int, list[int]] = field(default_factory=dict)
    """Of each prompt the tokens of its rows that have."""
    samples: SimpleQueue[Sample | BaseException] = field(default_factory=SimpleQueue)
    """What has ended, or why nothing more will."""
    begun: bool = False
    """The engine has its rows."""
    dropped: bool = False
    """Nobody wants the other rows."""

    def prompt(self, row: Row) -> list[int]:
        return [*self.prompts[row.index // self.n], *row.begun]

    def in_turn(self) -> list[str]:
        """The requests that have not ended, in the order in which they begin: of rows that are expected to be long
        before others."""
        if self.expected is None:
            return list(self.waiting)
        expected = self.expected
        return sorted(self.waiting, key=lambda name: -expected[self.waiting[name].index // self.n])

    @property
    def moved(self) -> bool:
        """Others have begun its rows."""
        return self.admission is not None and self.admission.begun is not None

    def of(self, index: int) -> Begun:
        """What there was of a row."""
        if self.admission is None or self.admission.begun is None:
            return _NOTHING
        return self.admission.begun[index]

    def hand_on(self) -> None:
        """Rows of which nobody wants more are there."""
        for index in range(len(self.keys)):
            begun = self.of(index)
            if begun.over:
                self.samples.put(Sample(index, begun.tokens, begun.logprobs, begun.finished, ()))
                if begun.tokens:
                    self.ended.setdefault(index // self.n, []).append(len(begun.tokens))

    def given_up(self) -> GivenUp:
        """What there is of the rows that have not ended."""
        return GivenUp({row.index: row.progress() for row in self.waiting.values()})

    def next(self) -> Sample:
        """Of its rows the next one that ends. Raises why there is none."""
        sample = self.samples.get()
        if isinstance(sample, BaseException):
            raise sample
        return sample


class Desk:
    """Calls that wait until the thread that samples takes them."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}
        self._dismissed: set[int] = set()
        self._driven: set[int] = set()
        """Of which nothing is known any more when they are dismissed."""
        self._leaving: set[int] = set()
        """Those that are to give their rows up."""
        self._limits: dict[int, int] = {}
        """Tokens with which rows of calls are to be given up, where they are not yet."""
        self._changed = Condition()

    def hand(self, number: int, call: Call) -> None:
        """In place of the one before, whose rows have ended."""
        with self._changed:
            self._calls[number] = call
            self._changed.notify_all()

    def dismiss(self, number: int) -> None:
        with self._changed:
            if number in self._driven:
                self._driven.remove(number)
            else:
                self._dismissed.add(number)
            self._changed.notify_all()

    def wait(self, number: int) -> Call | None:
        """The last call of this number, when one has been handed over; None: it was dismissed before."""
        with self._changed:
            self._changed.wait_for(lambda: number in self._calls or number in self._dismissed)
            return self._calls.get(number)

    def leave(self, number: int) -> None:
        with self._changed:
            self._leaving.add(number)

    def leaving(self) -> int | None:
        """The lowest number of those that have rows to give up."""
        with self._changed:
            return min(
                (each for each in self._leaving if each in self._calls and self._calls[each].begun), default=None
            )

    def left(self, number: int) -> Call:
        """It has given them up."""
        with self._changed:
            self._leaving.discard(number)
            return self._calls[number]

    def limit(self, number: int, tokens: int) -> None:
        with self._changed:
            self._limits[number] = tokens

    def limited(self) -> tuple[int, int] | None:
        """The lowest number of those whose rows have a new limit, and that."""
        with self._changed:
            found = (each for each in self._limits.items() if each[0] in self._calls and self._calls[each[0]].begun)
            return min(found, default=None)

    def agreed(self, number: int, tokens: int) -> Call:
        """All ranks know of it."""
        with self._changed:
            if self._limits.get(number) == tokens:
                del self._limits[number]
            return self._calls[number]

    def over(self, number: int) -> None:
        """It was driven to its end."""
        with self._changed:
            self._leaving.discard(number)
            self._limits.pop(number, None)
            self._calls.pop(number, None)
            if number in self._dismissed:
                self._dismissed.remove(number)
            else:
                self._driven.add(number)

    def following(self, driven: int) -> int | None:
        """The lowest number of those that have not begun and may: which is driven, and which join."""
        with self._changed:
            return self._following(driven)

    def _following(self, driven: int) -> int | None:
        found = [number for number, call in self._calls.items() if not (call.begun or call.dropped)]
        may = (each for each in found if each == driven or ((how := self._calls[each].admission) and how.joins))
        return min(may, default=None)

    def ended(self, number: int) -> bool:
        """Nothing more will be sampled for it."""
        with self._changed:
            call = self._calls[number]
            more = call.admission is not None and call.admission.more
            return number in self._dismissed or (not more and (call.begun or call.dropped) and not call.waiting)

    def await_more(self, driven: int) -> None:
        """Until there are rows that may begin, or the one that is driven is dismissed."""
        with self._changed:
            self._changed.wait_for(lambda: driven in self._dismissed or self._following(driven) is not None)
