"""This module has the executor, which moves blocks of rows through a graph.

A node fires when a block of its unit is ready on all its inputs. With one block for the batch this is the classical
step, node after node; with small blocks rows stream from one node to the next, and only a node that works on the whole
batch waits. A backend says what firing means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from rlgraph.backends.clocks import Clock, InlineClock, TaskPool
from rlgraph.backends.frame import Frame, NodeOutput, Part
from rlgraph.backends.graph_run import GraphRun, never_ready, wait_for_progress
from rlgraph.backends.row_blocks import BlockSizes
from rlgraph.ir.graph import Graph, Node


class Backend(Protocol):
    """The work that the executor asks for when a node fires."""

    def fire(self, node: Node, frame: Frame) -> NodeOutput:
        """Do the work of a node on the rows of a frame."""
        ...

    def streams_output(self, node: Node, frame: Frame) -> bool:
        """Whether the output of this node comes part by part, from `run_in_parts`."""
        ...

    def run_in_parts(self, node: Node, frame: Frame, sizes: Sequence[int]) -> Iterator[Part]:
        """Do the work of a node on all rows of a frame, and yield each part when it is done, in whatever order: that of
        the first `sizes[0]` rows of its unit, that of the next `sizes[1]`, and so on."""
        ...

    def max_concurrent_blocks(self, node: Node, frame: Frame) -> int:
        """Return on how many blocks a node is at work at the same time, at most: its workers take rows one by one."""
        ...

    def fail_pending_work(self, why: BaseException) -> None:
        """Make work that is fired in other threads fail soon, with the same error: the run is over."""
        ...


@dataclass(frozen=True)
class FusedTrainings:
    """Trainings that are fired as one piece of work."""

    model_groups: Sequence[Sequence[str]]
    """The models of each such piece."""
    fire: Callable[[Sequence[Node], Frame], Sequence[NodeOutput]]
    """Does the work of these nodes, in the order of their models."""


class Executor:
    """Runs graphs on a backend."""

    def __init__(
        self,
        backend: Backend,
        blocks: BlockSizes | None = None,
        clock: Clock | None = None,
        lanes: int = 1,
        together: FusedTrainings | None = None,
    ) -> None:
        """lanes: on how many blocks any node is at work at the same time, at most."""
        self.fused = together
        self.backend, self.lanes = backend, lanes
        self.clock = clock or InlineClock()
        self.blocks = blocks or BlockSizes()
        self._pools, self._lasting = ExitStack(), dict[str, TaskPool]()

    def max_threads(self, graph: Graph) -> int:
        """Return how many threads a graph needs at most; they are started as they are needed."""
        return len(graph.nodes) * self.lanes

    @contextmanager
    def keep_pools_open(self) -> Iterator[None]:
        """Keep lasting task pools open while somebody asks for steps. At the end all work of these pools has ended,
        and been reported."""
        with ExitStack() as self._pools:
            try:
                yield
            finally:
                self._lasting.clear()

    def lasting_pool(self, key: str, size: int) -> TaskPool:
        """Return the task pool of a key, which does not end with the node for which it works."""
        if key not in self._lasting:
            self._lasting[key] = self._pools.enter_context(_until_told(self.clock, size))
        return self._lasting[key]

    def run(self, graph: Graph, frame: Frame) -> None:
        """Run every node; the values are in the frame afterwards."""
        self.run_frames(graph, [frame], ())

    def run_frames(self, graph: Graph, frames: Sequence[Frame], carried: Sequence[Any]) -> list[Any]:
        """Run a graph on several frames, which wait for each other where the first inputs of one are the first outputs
        of the one before; `carried` are those of the first frame. They change models one after the other. Returns
        what the last one leaves of these."""
        frames[0].values.update(zip((value.name for value in graph.inputs), carried, strict=False))
        with self.clock.task_pool(self.max_threads(graph) * len(frames)) as pool:
            try:
                runs = [GraphRun(self, graph, frame, pool) for frame in frames]
                for run in runs[1:]:
                    run.may_change_models, run.awaited = (
                        False,
                        {value.name: never_ready for value in graph.inputs[: len(carried)]},
                    )
                while not all(run.is_over for run in runs):
                    moved = runs[0].advance()
                    for before, run in pairwise(runs):
                        run.take_over_from(before, graph)
                        # Where one node runs at a time nothing is gained by beginning early.
                        moved |= (self.clock.concurrent or before.is_over) and run.advance()
                    if not moved:
                        wait_for_progress(runs, pool)
                for before, run in pairwise(runs):
                    run.take_over_from(before, graph)
            except BaseException as error:
                self.backend.fail_pending_work(error)
                raise
        return [frames[-1].values[name] for name in graph.outputs[: len(carried)]]


@contextmanager
def _until_told(clock: Clock, size: int) -> Iterator[TaskPool]:
    """Yield a task pool whose last events are run by whoever ends it."""
    with clock.task_pool(size) as pool:
        yield pool
        pool.become_event_thread()
    while pool.has_event:
        pool.next_event()()
