"""Computes when episodes end that one replica plays with an environment, turn by turn.

An episode is sampled, waits until its environment has answered, and is sampled again. An environment's process answers
one episode after the other. How those that wait hold up the others is the runtime's (`backends.worker.turn_play`).
"""

from __future__ import annotations

import math
import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from heapq import heappop, heappush

from rlgraph.ops.turn_times import MOST_AT_ONCE, QUIET_S, QUIET_SHARE
from rlgraph.passes.cost.decoding_steps import decoding_ends, decoding_steps
from rlgraph.passes.cost.lengths import Lengths

EVENTS = 768
"""About how many turns a search plays to know what all take: of more episodes each stands for several."""


@dataclass(frozen=True)
class Episodes:
    """What the rows of a batch are, where an environment answers what they say."""

    turns: Lengths
    """How often the model acts in an episode, and an environment answers."""
    answer_s: Lengths | None = None
    """Seconds that it takes for an answer; None: nobody knows (`HostCosts.function_row`)."""
    observation: float = 0.0
    """Tokens of an answer, on average."""
    workers: int = 1
    """Processes that answer."""
    shared: bool = False
    """Whether these answer the episodes of all replicas; else each replica has as many."""
    players: bool = False
    """Whether several models play, so that an engine is not asked for single turns."""

    @property
    def observed_tokens(self) -> float:
        """Return the tokens that an environment adds to a row, on average: nobody reads what it says last."""
        return self.observation * (self.turns.mean - 1)

    def processes(self, copies: int) -> tuple[int, float]:
        """Return how many processes answer the episodes of each of so many replicas, and how much longer each takes
        because it answers others, too."""
        if not self.shared:
            return self.workers, 1.0
        return max(1, self.workers // copies), max(1.0, copies / self.workers)


@dataclass(frozen=True, slots=True)
class EpisodeTurns:
    """What one episode takes."""

    tokens: float
    """Tokens of each turn."""
    answers_s: Sequence[float]
    """Seconds that the environment takes after each turn."""


@dataclass(frozen=True, slots=True)
class TurnPace:
    """How fast a replica samples turns, and how long it waits for environments."""

    first_read_s: float
    """Seconds in which it reads the prompt of an episode."""
    later_read_s: float
    """Seconds in which it reads what is new before a later turn; all of it, where the cache has not kept the rest."""
    slots: int
    """The most rows that it decodes together."""
    step_s: Callable[[int], float]
    """Seconds of a decoding step with so many rows."""
    processes: int
    """Processes of the environment."""
    one_by_one: bool
    """Whether each turn begins when its observation comes, among those that are being sampled."""
    in_rounds: bool
    """Else, whether all environments answer before the next turn, however long they take."""


@dataclass
class EpisodePlay:
    """What playing episodes takes."""

    ends: list[float]
    """Seconds after which each episode has ended."""
    steps: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Decoding steps by the number of rows in them."""
    first_reads: int = 0
    later_reads: int = 0


def play_episodes(episodes: Sequence[EpisodeTurns], pace: TurnPace) -> EpisodePlay:
    """Return what playing these episodes takes, which all begin at once."""
    return (_play_one_by_one if pace.one_by_one else _play_together)(episodes, pace)


class _Answers:
    """The processes of an environment: each answers one episode after the other."""

    def __init__(self, episodes: Sequence[EpisodeTurns], processes: int) -> None:
        self.episodes, self.free = episodes, [0.0] * processes
        self.turns, self.coming = [0] * len(episodes), list[tuple[float, int]]()
        """How many turns each episode has had, and a heap of when those that wait have their answers."""

    def ask(self, number: int, now: float) -> None:
        """Have an episode answered from a moment on."""
        process = number % len(self.free)
        self.free[process] = max(now, self.free[process]) + self.episodes[number].answers_s[self.turns[number]]
        self.turns[number] += 1
        heappush(self.coming, (self.free[process], number))

    def take(self) -> tuple[float, int, bool]:
        """Return when the next answer has come, of which episode, and whether this is over with it."""
        moment, number = heappop(self.coming)
        return moment, number, self.turns[number] == len(self.episodes[number].answers_s)


def _play_one_by_one(episodes: Sequence[EpisodeTurns], pace: TurnPace) -> EpisodePlay:
    answers, play = _Answers(episodes, pace.processes), EpisodePlay([0.0] * len(episodes))
    waiting, active, step_s = deque(range(len(episodes))), list[tuple[float, int]](), cache(pace.step_s)
    now = steps = 0.0
    slots = max(1, min(pace.slots, MOST_AT_ONCE))
    while waiting or active or answers.coming:
        while waiting and len(active) < slots:
            number = waiting.popleft()
            first = answers.turns[number] == 0
            now += pace.first_read_s if first else pace.later_read_s
            play.first_reads, play.later_reads = play.first_reads + first, play.later_reads + (not first)
            heappush(active, (steps + decoding_steps(episodes[number].tokens), number))
        together = len(active)
        ended = now + max(0.0, active[0][0] - steps) * step_s(together) if together else math.inf
        if answers.coming and answers.coming[0][0] <= ended:
            moment, number, over = answers.take()
            if together and moment > now:
                taken = (moment - now) / step_s(together)
                play.steps[together], steps = play.steps[together] + taken, steps + taken
            now = max(now, moment)
            if over:
                play.ends[number] = now
            else:
                waiting.append(number)
            continue
        taken = max(0.0, active[0][0] - steps)
        play.steps[together] += taken
        now, steps = ended, steps + taken
        _, number = heappop(active)
        answers.ask(number, now)
    return play


def _play_together(episodes: Sequence[EpisodeTurns], pace: TurnPace) -> EpisodePlay:
    answers, play = _Answers(episodes, pace.processes), EpisodePlay([0.0] * len(episodes))
    ready, now, step_s = list(range(len(episodes))), 0.0, cache(pace.step_s)
    while ready or answers.coming:
        if ready:
            first = sum(answers.turns[number] == 0 for number in ready)
            play.first_reads, play.later_reads = play.first_reads + first, play.later_reads + len(ready) - first
            sampled_s = pace.first_read_s * first + pace.later_read_s * (len(ready) - first)
            before = 0.0
            lengths = sorted(decoding_ends([episodes[number].tokens for number in ready], pace.slots))
            for place, length in enumerate(lengths):
                if length > before:
                    together = min(max(1, pace.slots), len(lengths) - place)
                    play.steps[together] += length - before
                    sampled_s += (length - before) * step_s(together)
                    before = length
            now += sampled_s
            for number in ready:
                answers.ask(number, now)
        now, ready = max(now, answers.coming[0][0]), []
        quiet_s = math.inf if pace.in_rounds else max(QUIET_S, QUIET_SHARE * sampled_s)
        while answers.coming:
            moment, number = answers.coming[0]
            if moment > now + quiet_s:
                now += quiet_s
                break
            now = max(now, moment)
            _, _, over = answers.take()
            if over:
                play.ends[number] = moment
            else:
                ready.append(number)
    return play


@lru_cache(256)
def drawn_episodes(
    count: int, answer: Lengths, turns: Lengths, answer_s: Lengths, slower: float
) -> tuple[EpisodeTurns, ...]:
    """Return so many episodes that stand for all: evenly spread over each distribution, whose values meet at random.
    slower: how much longer an environment takes for each."""
    chance = random.Random(0)
    tokens, acted = _mixed(answer, count, chance), [max(1, round(each)) for each in _mixed(turns, count, chance)]
    taken = [_mixed(answer_s, count, chance) for _ in range(max(acted))]
    return tuple(
        EpisodeTurns(tokens[number] / often, [slower * taken[turn][number] for turn in range(often)])
        for number, often in enumerate(acted)
    )


def _mixed(lengths: Lengths, count: int, chance: random.Random) -> list[float]:
    values = list(lengths.quantile_points(count))
    chance.shuffle(values)
    return values
