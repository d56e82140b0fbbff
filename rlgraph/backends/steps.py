"""Phases and steps: the same on every backend. Who watches a run is told here, too."""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import torch

from rlgraph.backends.executor import Executor
from rlgraph.backends.frame import Frame
from rlgraph.ir.graph import Node, Phase, Program
from rlgraph.ir.types import Handle, Type


class Observer(Protocol):
    """Who watches a run. Pools are named where there are several."""

    def opening(self, what: str) -> None: ...

    def firing(self, node: Node, pool: str = "") -> None: ...

    def fired(self, node: Node, seconds: float, tokens: int, pool: str = "") -> None:
        """A node was done with a block; `tokens`: those that it generated."""
        ...

    def synced(
        self, model: str, source: str, destination: str, seconds: float, sent_bytes: int, peak_bytes: int
    ) -> None:
        """A model's weights went from one group of processes to another; `peak_bytes`: buffers of the fullest
        process."""
        ...

    def span(
        self, pool: str, rank: int | str, name: str, category: str, start: float, end: float, **args: object
    ) -> int:
        """Work of one process, in seconds since 1970; its number, for `flow`."""
        ...

    def flow(self, source: int, target: int, name: str, sent_bytes: int) -> None:
        """Rows or weights that one piece of work made went to another one."""
        ...


class Silent:
    """Nobody."""

    def opening(self, what: str) -> None: ...

    def firing(self, node: Node, pool: str = "") -> None: ...

    def fired(self, node: Node, seconds: float, tokens: int, pool: str = "") -> None: ...

    def synced(
        self, model: str, source: str, destination: str, seconds: float, sent_bytes: int, peak_bytes: int
    ) -> None: ...

    def span(
        self, pool: str, rank: int | str, name: str, category: str, start: float, end: float, **args: object
    ) -> int:
        return 0

    def flow(self, source: int, target: int, name: str, sent_bytes: int) -> None: ...


@dataclass(frozen=True)
class Step:
    """What one step reported."""

    number: int
    """Counted from 1 over all phases."""
    phase: str
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)
    extra: dict[str, float] = field(default_factory=dict)
    """About the machine, not about the algorithm: `sync/seconds`, `sync/bytes`, `sync/peak_bytes`."""


class Steps:
    """Runs a program's phases one after the other. A backend says what happens around and inside a step."""

    program: Program
    executor: Executor
    dtype: torch.dtype
    elsewhere = False
    """The values of its frames are in other processes."""
    handles: MutableMapping[str, Any]
    """Values of things that live across steps, by name."""

    def steps(self, wanted: int | None) -> Iterator[Step]:
        """Runs phase after phase, then the main step `wanted` times (None: for ever)."""
        number = 0
        for phase in self.program.phases:
            turns = phase.steps if phase.steps is not None else wanted
            for _ in count() if turns is None else range(turns):
                number += 1
                yield self.step(phase, number)

    def step(self, phase: Phase, number: int) -> Step:
        began = time.perf_counter()
        self.begin_step(number)
        frame = Frame(phase.graph.values(), self.dtype, self.elsewhere)
        for value in phase.graph.inputs:
            frame.values[value.name] = self.handles[_name(value.name, value.type)]
        with torch.no_grad():
            self.executor.run(phase.graph, frame)
        for value, last in zip(phase.graph.inputs, phase.graph.outputs, strict=True):
            self.handles[_name(value.name, value.type)] = frame.values[last]
        metrics, extra = self.end_step()
        return Step(number, phase.name, time.perf_counter() - began, metrics, extra)

    def begin_step(self, number: int) -> None:
        raise NotImplementedError

    def end_step(self) -> tuple[dict[str, float], dict[str, float]]:
        """What the program reported, and what there is to say about the machine."""
        raise NotImplementedError


def _name(value: str, kind: Type) -> str:
    return kind.name if isinstance(kind, Handle) else value.rsplit("@", 1)[0]
