"""Environments: what answers an agent, whatever kind it is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rlgraph.user_code.child import Observation
from rlgraph.user_code.spec import CallSpec
from rlgraph.user_code.worker import Worker

if TYPE_CHECKING:
    from rlgraph.user_code.agent_environments import Agent

EnvironmentSpec = CallSpec


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that a model has made, and what it was answered."""

    name: str
    """The tool's name as the model wrote it; empty where it wrote none."""
    arguments: Mapping[str, Any]
    result: str
    failed: bool
    """Whether the result is an error."""


class Episode(Protocol):
    """One episode of an environment, from its first observation to its end."""

    @property
    def last_calls(self) -> tuple[ToolCall, ...]:
        """The calls of tools in the last action; none where the environment has no tools."""
        ...

    def reset(self, row: Mapping[str, Any]) -> Observation:
        """Begin with a row of the data, and return the first observation, empty where the prompt says it all."""
        ...

    def step(self, action: str) -> tuple[Observation, float, bool]:
        """Return what the environment answers: observation, reward, whether the episode is over."""
        ...

    def close(self) -> None:
        """End the episode."""
        ...


@dataclass(frozen=True, slots=True)
class Environment:
    """Makes the episodes of one `env` declaration."""

    begin: Callable[[str], Episode]
    """Returns an episode for the row of a name; its `reset` begins it."""
    workers: tuple[Worker, ...] = field(repr=False)
    """The processes that its episodes use."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """The schemas of its tools, which the chat template is given."""
    replies_as: Literal["user", "tool"] = "user"
    """The role of what it says."""
    reads_special: bool = False
    """Whether actions are shown to it with their special tokens."""
    tries: bool = False
    """Whether an episode is begun before the first step, to see that it can be."""
    agent: Agent | None = None
    """A function that plays whole episodes and asks the model itself, in place of `begin`."""

    def __call__(self, name: object) -> Episode:
        """Return an episode for the row called `name`.

        Calls of one process wait for each other.
        """
        return self.begin(str(name))

    def end_processes(self) -> None:
        """End the processes."""
        for worker in self.workers:
            worker.close()
