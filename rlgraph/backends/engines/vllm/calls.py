"""Calls of an engine whose rows it samples together, and the desk where they are handed over."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Condition
from typing import TYPE_CHECKING

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.likeliest import KeptTokens
from rlgraph.backends.engines.records import Admission, PartialRow, RowsAbandoned, State
from rlgraph.backends.engines.roles import WeightRefresh

if TYPE_CHECKING:
    import numpy as np

    from rlgraph.backends.engines.vllm.sampled_row import CallSamplingSettings, SampledRow


_NOTHING = PartialRow([], [])


@dataclass(frozen=True)
class Sample:
    """A response, as soon as it ends."""

    row: int
    tokens: list[int]
    """The response's tokens, the stop token included."""
    logprobs: list[float]
    finished: bool
    """It ended by itself, not at `max_tokens`."""
    versions: tuple[tuple[int, int, int], ...]
    """Which weights sampled which tokens: a version, its first place and the one after its last."""
    routes: Sequence[np.ndarray] = ()
    """Experts of the first tokens of prompt and response, where they are recorded: int16 [tokens, layers, experts of a
    token] each."""
    support: list[KeptTokens] = field(default_factory=list)
    """For each token those that it was sampled from, where they are kept."""


@dataclass(eq=False)
class GenerateCall:
    """The rows of one call."""

    batch: CallSamplingSettings
    prompts: list[list[int]]
    n: int
    keys: list[int]
    refresh: WeightRefresh | None
    version_by_count: dict[int, int]
    """For the engine's count of its weights the versions that they are, where somebody tells them."""
    admission: Admission | None
    weights: State | None
    """Weights in place of the engine's own."""
    expected: Sequence[float] | None = None
    """For each prompt the tokens that its rows are expected to have."""
    unfinished_by_request: dict[str, SampledRow] = field(default_factory=dict)
    """Rows that have not ended, by their request."""
    pending_samples: deque[str] = field(default_factory=deque)
    """Requests of these rows that vLLM does not have yet."""
    ended_lengths: dict[int, list[int]] = field(default_factory=dict)
    """For each prompt the tokens of its rows that have ended."""
    samples: SimpleQueue[Sample | BaseException] = field(default_factory=SimpleQueue)
    """Rows that have ended, or why nothing more will come."""
    begun: bool = False
    """The engine has its rows."""
    is_abandoned: bool = False
    """Nobody wants the other rows."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be sampled for it."""
        return (self.begun or self.is_abandoned) and not self.unfinished_by_request

    def prompt_and_begun_tokens(self, row: SampledRow) -> list[int]:
        """Return a row's prompt and the tokens with which its response began."""
        return [*self.prompts[row.index // self.n], *row.begun_tokens]

    def ordered_requests(self) -> list[str]:
        """Return the requests that have not ended, in the order in which they begin: rows that are expected to be long
        first."""
        if self.expected is None:
            return list(self.unfinished_by_request)
        expected = self.expected
        return sorted(
            self.unfinished_by_request, key=lambda name: -expected[self.unfinished_by_request[name].index // self.n]
        )

    @property
    def has_begun_parts(self) -> bool:
        """Whether others have begun its rows."""
        return self.admission is not None and self.admission.partial_rows is not None

    def partial_row(self, index: int) -> PartialRow:
        """Return what existed of a row."""
        if self.admission is None or self.admission.partial_rows is None:
            return _NOTHING
        return self.admission.partial_rows[index]

    def deliver_finished(self) -> None:
        """Deliver the rows of which nobody wants more."""
        for index in range(len(self.keys)):
            begun = self.partial_row(index)
            if begun.needs_no_more:
                self.samples.put(Sample(index, begun.tokens, begun.logprobs, begun.finished, (), support=begun.support))
                if begun.tokens:
                    self.ended_lengths.setdefault(index // self.n, []).append(len(begun.tokens))

    def unfinished_rows(self) -> RowsAbandoned:
        """Return what exists of the rows that have not ended."""
        return RowsAbandoned({row.index: row.partial_row() for row in self.unfinished_by_request.values()})

    def next_sample(self) -> Sample:
        """Wait for the next of its rows that ends. Raises the reason where there is none."""
        sample = self.samples.get()
        if isinstance(sample, BaseException):
            raise sample
        return sample


class NumberedCalls:
    """Keeps calls until the thread that samples takes them. Several may have one number: those of a request whose rows
    come one after the other, or beside each other."""

    def __init__(self) -> None:
        self._calls: dict[int, list[GenerateCall]] = {}
        self._dismissed: set[int] = set()
        self._driven: set[int] = set()
        """Calls that have been driven to their end, and are forgotten when they are dismissed."""
        self._leaving: set[int] = set()
        """Calls that are to give their rows up."""
        self._limits: dict[int, int] = {}
        """Numbers of tokens at which rows of calls are to be given up, where that has not happened yet."""
        self._condition = Condition()

    def hand_over_call(self, number: int, call: GenerateCall) -> None:
        """Hand a call over, beside those of its number whose rows have not ended."""
        with self._condition:
            if number in self._driven:
                call.samples.put(request_ended())
                return
            self._calls[number] = [*(other for other in self._calls.get(number, ()) if not other.is_over), call]
            self._condition.notify_all()

    def dismiss_call(self, number: int) -> None:
        """Note that the caller of a call is done with it."""
        with self._condition:
            if number in self._driven:
                self._driven.remove(number)
            else:
                self._dismissed.add(number)
            self._condition.notify_all()

    def wait_for_call(self, number: int) -> GenerateCall | None:
        """Return a call of this number, when one has been handed over; None: it was dismissed before."""
        with self._condition:
            self._condition.wait_for(lambda: number in self._calls or number in self._dismissed)
            return next(iter(self._calls.get(number, ())), None)

    def first_waiting_call(self, number: int) -> GenerateCall:
        """Return the first call of this number that has not begun."""
        with self._condition:
            return next(call for call in self._calls[number] if not call.begun)

    def calls_of(self, number: int) -> list[GenerateCall]:
        """Return the calls of this number."""
        with self._condition:
            return [*self._calls.get(number, ())]

    def request_give_up(self, number: int) -> None:
        """Note that a call is to give its rows up."""
        with self._condition:
            self._leaving.add(number)

    def first_call_giving_up(self) -> int | None:
        """Return the lowest number of the calls that have rows to give up."""
        with self._condition:
            return min((number for number in self._leaving if self._has_begun(number)), default=None)

    def note_given_up(self, number: int) -> list[GenerateCall]:
        """Note that the calls of this number, which are returned, have given their rows up."""
        with self._condition:
            self._leaving.discard(number)
            return [*self._calls[number]]

    def set_token_limit(self, number: int, tokens: int) -> None:
        """Set the number of tokens at which rows of a call are given up."""
        with self._condition:
            self._limits[number] = tokens

    def first_limited_call(self) -> tuple[int, int] | None:
        """Return the lowest number of the calls whose rows have a new limit, and that limit."""
        with self._condition:
            return min((entry for entry in self._limits.items() if self._has_begun(entry[0])), default=None)

    def note_limit_agreed(self, number: int, tokens: int) -> GenerateCall:
        """Note that all ranks know of a call's limit."""
        with self._condition:
            if self._limits.get(number) == tokens:
                del self._limits[number]
            return self._calls[number][0]

    def note_driven_to_end(self, number: int) -> list[GenerateCall]:
        """Note that a call was driven to its end, and return those of its number that have not begun, and never
        will."""
        with self._condition:
            self._leaving.discard(number)
            self._limits.pop(number, None)
            calls = self._calls.pop(number, [])
            if number in self._dismissed:
                self._dismissed.remove(number)
            else:
                self._driven.add(number)
            return [call for call in calls if not call.begun]

    def next_startable(self, driven: int) -> int | None:
        """Return the lowest number of the calls that have not begun and may: the driven one, and those that join."""
        with self._condition:
            return self._following(driven)

    def _has_begun(self, number: int) -> bool:
        return any(call.begun for call in self._calls.get(number, ()))

    def _following(self, driven: int) -> int | None:
        return min(
            (
                number
                for number, calls in self._calls.items()
                for call in calls
                if not (call.begun or call.is_abandoned)
                and (number == driven or (call.admission is not None and call.admission.join_call))
            ),
            default=None,
        )

    def is_call_over(self, number: int) -> bool:
        """Return whether nothing more will be sampled for a call."""
        with self._condition:
            calls = self._calls[number]
            more = any(call.admission is not None and call.admission.may_continue for call in calls)
            return number in self._dismissed or (not more and all(call.is_over for call in calls))

    def wait_for_startable(self, driven: int) -> None:
        """Wait until there are rows that may begin, or the driven call is dismissed."""
        with self._condition:
            self._condition.wait_for(lambda: driven in self._dismissed or self._following(driven) is not None)


def request_ended() -> EngineError:
    """Return why a call is not sampled that comes too late."""
    return EngineError("the request that its rows are of has ended")
