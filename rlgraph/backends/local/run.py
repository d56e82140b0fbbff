"""A run in this process: phases, steps, and the work of each node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import torch

from rlgraph.backends.executor import Executor, Made
from rlgraph.backends.frame import Frame
from rlgraph.backends.local.nodes import work
from rlgraph.backends.local.session import Session, Settings
from rlgraph.backends.local.training import train
from rlgraph.backends.loops import collect, every, minibatch
from rlgraph.ir.graph import Node, Phase, Program
from rlgraph.ir.types import Handle, Type


class Observer(Protocol):
    """Who watches a run."""

    def opening(self, what: str) -> None: ...

    def fired(self, node: Node, seconds: float, tokens: int) -> None:
        """A node was done with a block; `tokens`: those that it generated."""
        ...

    def firing(self, node: Node) -> None: ...


class Silent:
    """Nobody."""

    def opening(self, what: str) -> None: ...

    def fired(self, node: Node, seconds: float, tokens: int) -> None: ...

    def firing(self, node: Node) -> None: ...


@dataclass(frozen=True)
class Step:
    """What one step reported."""

    number: int
    """Counted from 1 over all phases."""
    phase: str
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)


class LocalBackend:
    """Fires nodes in this process. `session` outlives the run: its models can be saved."""

    def __init__(self, program: Program, settings: Settings, observer: Observer | None = None) -> None:
        self.observer = observer or Silent()
        self.session = Session(program, settings, self.observer.opening)
        self.program, self.settings = program, settings
        self.executor = Executor(self, settings.block)
        self.watch: Callable[[Node, Frame], None] | None = None
        """Sees the frame after each node, for tests and debugging."""

    def steps(self, wanted: int | None) -> Iterator[Step]:
        """Runs phase after phase, then the main step `wanted` times (None: for ever)."""
        number = 0
        for phase in self.program.phases:
            turns = phase.steps if phase.steps is not None else wanted
            for _ in count() if turns is None else range(turns):
                number += 1
                yield self.step(phase, number)

    def step(self, phase: Phase, number: int) -> Step:
        session = self.session
        session.step, session.metrics = number, {}
        began = time.perf_counter()
        frame = Frame(phase.graph.values(), session.dtype)
        for value in phase.graph.inputs:
            frame.values[value.name] = session.handles[_name(value.name, value.type)]
        with torch.no_grad():
            self.executor.run(phase.graph, frame)
        for value, last in zip(phase.graph.inputs, phase.graph.outputs, strict=True):
            session.handles[_name(value.name, value.type)] = frame.values[last]
        session.end_step()
        return Step(number, phase.name, time.perf_counter() - began, dict(session.metrics))

    def fire(self, node: Node, frame: Frame) -> Made:
        self.observer.firing(node)
        began = time.perf_counter()
        made = self._fire(node, frame)
        if self.watch:
            self.watch(node, _after(frame, made))
        tokens = 0
        if node.op in ("generate", "interact"):
            table = made.values[node.outputs[0].name]
            tokens = int(table.sequences.scored.sum())
        self.observer.fired(node, time.perf_counter() - began, tokens)
        return made

    def _fire(self, node: Node, frame: Frame) -> Made:
        session = self.session
        if node.op == "train":
            return train(node, frame, session)
        if node.op == "minibatch":
            return minibatch(node, frame, self.executor, f"{self.settings.seed}/{session.step}")
        if node.op == "collect":
            return collect(node, frame, self.executor, self.observer.opening)
        if node.op == "every":
            return every(node, frame, self.executor, session.step)
        return work(node, frame, session)


def _name(value: str, kind: Type) -> str:
    return kind.name if isinstance(kind, Handle) else value.rsplit("@", 1)[0]


def _after(frame: Frame, made: Made) -> Frame:
    seen = frame.child()
    for rows in made.rows:
        seen.add_rows(rows)
    seen.values.update(made.values)
    return seen
