"""Runs an agent's function for many episodes beside each other, and collects what it asks."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from rlgraph.backends.worker.agent_answers import AgentAnswer
from rlgraph.backends.worker.agent_requests import AgentRequest, RequestRefused
from rlgraph.backends.worker.agent_server import AgentServer
from rlgraph.backends.worker.agent_tree import AgentTree
from rlgraph.user_code import Agent, AgentCall, CodeFailure, EndedByUs
from rlgraph.user_code.worker import IMPORT_LIMIT_S, Worker

MOST_REFUSED = 64
"""The refused requests after which an episode is ended."""
GATHER_S = 0.05
"""How long requests wait for those of other episodes, which are answered together with them, at least."""
GATHER_SHARE = 0.1
"""How long they wait as a share of the time that the last ones took: that much slower is a round at most."""
LOOK_S = 0.1
"""How often it is looked whether an episode takes too long."""
_OVER = "the episode is over"


class AgentEpisode:
    """One episode that an agent plays."""

    def __init__(self, name: str, row: Mapping[str, Any], seed: int, trees: Mapping[str, AgentTree]) -> None:
        """trees: what each model is asked, by the names by which the agent asks them."""
        self.name, self.row, self.seed, self.trees = name, row, seed, trees
        self.worker: Worker | None = None
        """The process that plays it."""
        self.over = False
        self.numbers: list[float] | None = None
        """What the agent returned; None where it failed."""
        self.failure: CodeFailure | None = None
        self.refused = 0
        self.stalled = False
        self.ended_because = ""
        """Why rlgraph has ended it, in words; empty: it has not."""
        self._used_s = 0.0
        self._since_s: float | None = None
        """Since when the agent works by itself; None: it waits for an answer."""
        self._waits = 0

    def begin(self, now_s: float) -> None:
        """Note that the agent begins to work."""
        self._since_s = now_s

    def wait(self, now_s: float) -> None:
        """Note that the agent waits for an answer, besides others that it may wait for."""
        self._waits += 1
        if self._since_s is not None:
            self._used_s += now_s - self._since_s
            self._since_s = None

    def go_on(self, now_s: float) -> None:
        """Note that an answer has come."""
        self._waits -= 1
        if not self._waits:
            self._since_s = now_s

    def used_s(self, now_s: float) -> float:
        """Return how long the agent has worked by itself."""
        return self._used_s + (0.0 if self._since_s is None else now_s - self._since_s)


class AskedRequest:
    """A request that waits for its answer."""

    def __init__(self, episode: AgentEpisode, request: AgentRequest) -> None:
        self.episode, self.request = episode, request
        self.ended = threading.Event()
        self.result: AgentAnswer | RequestRefused | None = None


class AgentPlay:
    """The play of some episodes: within its `with` block the function runs, and whoever is there answers."""

    def __init__(
        self,
        agent: Agent,
        server: AgentServer,
        models: Sequence[str],
        episodes: Sequence[AgentEpisode],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """models: the names by which models are asked, the first one that of whom an agent asks if it does not say."""
        self.agent, self.server, self.models, self.episodes, self.clock = agent, server, models, episodes, clock
        self._changed = threading.Condition()
        self._coming = list(reversed(episodes))
        self._pending: list[AskedRequest] = []
        self._answering: set[AgentEpisode] = set()
        """Episodes of which a request has been handed out, and is not answered."""
        self._woken = False
        self._stops = False
        self._handed_out_s = time.monotonic()
        """When requests were last handed out."""
        count = min(agent.processes, len(episodes))
        self._threads = [threading.Thread(target=self._drive, daemon=True) for _ in range(count)]

    @property
    def most_at_once(self) -> int:
        """How many episodes may wait for an answer, at most."""
        return len(self._threads)

    def __enter__(self) -> AgentPlay:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._stops = True
            for episode in self.episodes:
                self._end(episode, "the run goes on without it")
        for thread in self._threads:
            thread.join()

    def next_requests(self, gathers: bool = True) -> list[AskedRequest] | None:
        """Return requests that are to be answered, at most one of each episode; none where nobody asks yet, and None
        where all episodes are over. gathers: requests wait a little for those of others."""
        gather_s = max(GATHER_S, GATHER_SHARE * (time.monotonic() - self._handed_out_s)) if gathers else 0.0
        with self._changed:
            self._changed.wait_for(lambda: self._woken or self._next() or self._all_over(), LOOK_S)
            self._woken = False
            while gathers and self._next() and self._others_work() and self._changed.wait(gather_s):
                pass
            self._handed_out_s = time.monotonic()
            self._end_stalled()
            taken = self._next()
            self._pending = [asked for asked in self._pending if asked not in taken]
            self._answering |= {asked.episode for asked in taken}
            return None if not taken and self._all_over() else taken

    def wake(self) -> None:
        """Have whoever waits for requests look up."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def _next(self) -> list[AskedRequest]:
        """Return the first request of each episode that has none being answered."""
        first = {asked.episode: asked for asked in reversed(self._pending)}
        return [asked for episode, asked in reversed(first.items()) if episode not in self._answering]

    def answer(self, asked: AskedRequest, result: AgentAnswer | RequestRefused) -> None:
        """Answer a request."""
        with self._changed:
            self._answering.discard(asked.episode)
            self._answer(asked, result)
            if isinstance(result, RequestRefused):
                asked.episode.refused += 1
                if asked.episode.refused >= MOST_REFUSED:
                    why = (
                        f"it has sent {MOST_REFUSED} requests that were refused, the last one because {result.message}"
                    )
                    self._end(asked.episode, why)

    def _answer(self, asked: AskedRequest, result: AgentAnswer | RequestRefused) -> None:
        asked.result = result
        asked.episode.go_on(self.clock())
        asked.ended.set()

    def _all_over(self) -> bool:
        return all(episode.over for episode in self.episodes)

    def _others_work(self) -> bool:
        """Return whether there are episodes that may ask soon."""
        asking = {asked.episode for asked in self._pending}
        return any(episode.worker and not episode.over and episode not in asking for episode in self.episodes)

    def _end_stalled(self) -> None:
        for episode in self.episodes:
            if episode.worker and not episode.over and episode.used_s(self.clock()) > self.agent.limit_s:
                episode.stalled = True
                self._end(episode, f"it did not come back within {self.agent.limit_s:g} s")

    def _end(self, episode: AgentEpisode, why: str) -> None:
        """End an episode, and its process."""
        for asked in [asked for asked in self._pending if asked.episode is episode]:
            self._pending.remove(asked)
            self._answer(asked, RequestRefused(_OVER, "over"))
        if episode.worker is None or episode.over or episode.ended_because:
            return
        episode.ended_because = why
        episode.worker.kill()

    def _drive(self) -> None:
        """Play one episode after the other, each in a process that is free."""
        while True:
            worker = None
            while worker is None and not self._stops:
                try:
                    worker = self.agent.idle.get(timeout=LOOK_S)
                except queue.Empty:
                    continue
            with self._changed:
                episode = self._coming.pop() if self._coming and not self._stops else None
                if episode is not None:
                    episode.worker = worker
            if episode is not None and worker is not None:
                self._play(episode, worker)
            if worker is not None:
                self.agent.idle.put(worker)
            if episode is None:
                return

    def _play(self, episode: AgentEpisode, worker: Worker) -> None:
        token = self.server.open_session(self.models, partial(self._ask, episode))
        call = AgentCall(episode.row, self.server.base_url, token, self.models[0], episode.seed)
        numbers: list[float] | None = None
        failure: CodeFailure | None = None
        try:
            worker.request("load_early", limit_s=IMPORT_LIMIT_S)
            with self._changed:
                if episode.ended_because:
                    raise EndedByUs(episode.ended_because, "", 0)
                episode.begin(self.clock())
            numbers = self.agent.play(worker, call)
        except CodeFailure as error:
            failure = error
        finally:
            self.server.close_session(token)
        with self._changed:
            if why := episode.ended_because:
                numbers, failure = None, EndedByUs(why, "", 0)
            episode.numbers, episode.failure, episode.over = numbers, failure, True
            self._end(episode, "")
            self._changed.notify_all()
        if episode.ended_because:
            # It may have ended by itself before it was killed, and its process is to be used again.
            worker.close()

    def _ask(self, episode: AgentEpisode, request: AgentRequest) -> AgentAnswer:
        """Wait for the answer to a request, in the thread of its connection. Raises RequestRefused."""
        asked = AskedRequest(episode, request)
        with self._changed:
            if episode.over or episode.ended_because or self._stops:
                raise RequestRefused(_OVER, "over")
            episode.wait(self.clock())
            self._pending.append(asked)
            self._changed.notify_all()
        asked.ended.wait()
        if isinstance(asked.result, RequestRefused):
            raise asked.result
        assert asked.result is not None
        return asked.result


def numbers_of(episode: AgentEpisode, agent: Agent) -> list[float]:
    """Return the numbers of an episode that is over: the reward first."""
    if episode.numbers is not None:
        return episode.numbers
    return [agent.failed, *[0.0] * max(0, len(agent.returns) - 1)]


def failures_of(episodes: Sequence[AgentEpisode], agent: Agent) -> list[Any]:
    """Return a sentence on each episode in which the agent failed."""
    return [f"on {e.name}: {agent.sentence(e.failure)}" for e in episodes if e.failure is not None]
