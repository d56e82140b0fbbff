"""Plays episodes turn by turn: each goes on when its environment has answered, whatever others still wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

from rlgraph.backends.worker.action_sampling import ActionSampling, SampledTurn
from rlgraph.backends.worker.turn_sampling import WantedTurn, cut_to_room, sample_turns
from rlgraph.ops.turn_times import MOST_AT_ONCE, QUIET_S, QUIET_SHARE
from rlgraph.user_code import Environment

CALLS_OF_A_PROCESS = 8
"""The most calls that wait for one process of an environment's, so that its queue holds up no other."""


class TurnEpisode(Protocol):
    """An episode that is played turn by turn."""

    @property
    def place(self) -> int:
        """Its place among the episodes."""
        ...

    def begin(self) -> Callable[[], Any]:
        """Return the call that begins it, of which `take_beginning` takes in the answer."""
        ...

    def take_beginning(self, answer: Any) -> None:
        """Take in what is said before the first action."""
        ...

    def next_turn(self) -> WantedTurn | None:
        """Return what is to be sampled; None where it is over."""
        ...

    def act(self, made: SampledTurn) -> Callable[[], Any]:
        """Take in an action, and return the call by which the environment answers it."""
        ...

    def take_answer(self, answer: Any) -> None:
        """Take in what the environment answers."""
        ...

    def close(self) -> None:
        """End it."""
        ...


def play_turns(
    sampling: Mapping[str, ActionSampling], episodes: Sequence[TurnEpisode], environment: Environment
) -> None:
    """Play episodes to their ends. sampling: how each player's actions are sampled, by its name.

    What is sampled depends on the episode and the turn alone: when an environment answers changes nothing but with
    which others it is sampled.
    """
    try:
        with _TurnPlay(sampling, episodes, environment) as play:
            play.run()
    finally:
        for episode in episodes:
            episode.close()


class _TurnPlay:
    """The play of some episodes, with the threads that wait for environments, and for an engine that takes rows while
    it samples others. One thread alone writes and reads texts."""

    def __init__(
        self, sampling: Mapping[str, ActionSampling], episodes: Sequence[TurnEpisode], environment: Environment
    ) -> None:
        self.sampling, self.episodes, self.environment = sampling, episodes, environment
        first = next(iter(sampling.values()))
        self.by_rounds = first.session.split
        """Whether all environments answer before any of them is asked again: all processes of a replica sample the
        same at the same time."""
        self.one_by_one = first.takes_rows_meanwhile and not self.by_rounds
        self.sampled_s = 0.0
        """How long it took to sample the last actions."""
        self.ready: list[TurnEpisode] = []
        self.going: dict[Future[Any], tuple[TurnEpisode, Callable[[TurnEpisode, Any], None]]] = {}
        """What is waited for, with what is done then."""
        processes = len(environment.workers)
        calls = 1 if processes == 1 else min(len(episodes), CALLS_OF_A_PROCESS * processes)
        self.calls = ThreadPoolExecutor(max(1, calls))
        self.samples = ThreadPoolExecutor(max(1, min(len(episodes), MOST_AT_ONCE)))

    def __enter__(self) -> _TurnPlay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.calls.shutdown(wait=False, cancel_futures=True)
        self.samples.shutdown(wait=False, cancel_futures=True)
        if error is not None and any(future.running() for future in self.going):
            # Nothing waits for the user's code.
            for worker in self.environment.workers:
                worker.kill()
        self.calls.shutdown()
        self.samples.shutdown()

    def run(self) -> None:
        """Play all episodes to their ends."""
        for episode in self.episodes:
            self._wait_for(self.calls.submit(episode.begin()), episode, self._begin)
        while self.going:
            self._take_what_has_come()
            wanted = [(episode, turn) for episode in self.ready if (turn := episode.next_turn()) is not None]
            self.ready = []
            if self.one_by_one:
                for episode, turn in wanted:
                    self._wait_for(self.samples.submit(self._sample, [turn]), episode, self._act_alone)
            elif wanted:
                for (episode, _), made in zip(wanted, self._sample([turn for _, turn in wanted]), strict=True):
                    self._act(episode, made)

    def _take_what_has_come(self) -> None:
        """Wait until something has come, take it in, and note which episodes go on."""
        done, waiting = wait(self.going, None, FIRST_EXCEPTION if self.by_rounds else FIRST_COMPLETED)
        quiet_s = max(QUIET_S, QUIET_SHARE * self.sampled_s)
        while waiting and not self.one_by_one and all(future.exception() is None for future in done):
            more, waiting = wait(waiting, quiet_s, FIRST_COMPLETED)
            if not more:
                break
            done |= more
        # In their order, so that the first one is told of where several have failed.
        for future in sorted(done, key=lambda future: self.going[future][0].place):
            episode, take = self.going.pop(future)
            take(episode, future.result())

    def _wait_for(self, future: Future[Any], episode: TurnEpisode, take: Callable[[TurnEpisode, Any], None]) -> None:
        self.going[future] = episode, take

    def _sample(self, wanted: Sequence[WantedTurn]) -> list[SampledTurn]:
        since_s = time.monotonic()
        made = sample_turns(self.sampling, wanted)
        self.sampled_s = time.monotonic() - since_s
        return [cut_to_room(turn, one.turn.room) for turn, one in zip(made, wanted, strict=True)]

    def _begin(self, episode: TurnEpisode, answer: Any) -> None:
        episode.take_beginning(answer)
        self.ready.append(episode)

    def _act(self, episode: TurnEpisode, made: SampledTurn) -> None:
        self._wait_for(self.calls.submit(episode.act(made)), episode, self._answer)

    def _act_alone(self, episode: TurnEpisode, made: list[SampledTurn]) -> None:
        self._act(episode, made[0])

    def _answer(self, episode: TurnEpisode, answer: Any) -> None:
        episode.take_answer(answer)
        self.ready.append(episode)
