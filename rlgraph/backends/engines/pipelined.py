"""Runs a schedule of `rlgraph.passes.pipelines` on one of its stages: its list, step by step.

A list may have the work of several models, each a pipeline over the same processes, in one direction or the other.
All messages of a schedule have one order (`rlgraph.passes.pipelines.messages`), in which each stage begins its own: the
two ends of a message come to it in the same order, so that messages need no tags, and nobody waits for ever.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlgraph.backends.engines.roles import PipelineNeighbours
from rlgraph.passes.pipelines.messages import StageTransfer
from rlgraph.passes.pipelines.time_sharing import ProcessTurn
from rlgraph.passes.pipelines.timetable import ScheduleEntry


@dataclass(frozen=True, slots=True)
class ModelPipeline:
    """A model's pipeline as one of its stages sees it."""

    forward: Callable[[int, int, Tensor | None], Tensor]
    """Computes a chunk, from the number of a micro-batch, that of the chunk, and the chunk's input, None where the
    model begins. It returns the output: a loss where the model ends."""
    empty_input: Callable[[int, int], Tensor]
    """Returns an empty tensor for the input of a chunk, from the same two numbers. It is called first."""
    ranks: Sequence[int]
    """The ranks that have the stages, among all, in the stages' order. A model with several chunks goes round them."""
    stage: int
    """The stage of this process."""
    chunks: int = 1
    before_last_backward: Callable[[int], None] | None = None
    """Called before the last micro-batch goes backward through a chunk."""

    def neighbour_rank(self, chunk: int, by: int) -> int | None:
        """Return the rank that has the part of the model which lies so many chunks further along than a chunk of this
        stage; None where the model ends before."""
        round_, stage = divmod(chunk * len(self.ranks) + self.stage + by, len(self.ranks))
        return self.ranks[stage] if 0 <= round_ < self.chunks else None


Channel = Callable[[int, int], dist.ProcessGroup]
"""Returns the group that carries messages, from the rank that sends and the one that receives, among all."""


@contextmanager
def taking_turn(turn: ProcessTurn, beside: PipelineNeighbours) -> Iterator[None]:
    """Wait until it is the entry's turn on the device; once it has been done, the turn goes to others."""
    if turn.previous_model is not None:
        beside.wait_for_turn(turn.previous_model)
    yield
    if turn.next_model is not None:
        if torch.cuda.is_available():
            # The work that was launched has to end before others begin.
            torch.cuda.current_stream().synchronize()
        beside.pass_turn(turn.next_model)


def run_schedule(
    steps: Sequence[ScheduleEntry | ProcessTurn | StageTransfer],
    lines: Sequence[ModelPipeline],
    channel: Channel,
    beside: PipelineNeighbours | None = None,
) -> None:
    """Do what the stage has to do, in the order of its list. Gradients add up where autograd leaves them.

    All stages call it, with the lists of one schedule. Outputs that never go backward are not kept. beside: who takes
    the turns of the list on this device.
    """
    stage = _StageRun(steps, lines, channel)
    for step in steps:
        if isinstance(step, StageTransfer):
            stage.begin_transfer(step)
        elif isinstance(step, ProcessTurn):
            assert beside is not None
            with taking_turn(step, beside):
                stage.compute(step.entry)
        else:
            stage.compute(step)
    stage.end()


@dataclass(frozen=True, slots=True)
class _Flight:
    """A micro-batch between its forward through a chunk and its backward."""

    received: Tensor | None
    output: Tensor
    sent: list[Any]
    """The message with the output, once it has begun."""


_Chunk = tuple[int, int]
"""The number of a model, and that of one of its chunks."""


class _StageRun:
    """One run over the list of a stage: what has come, what is to go, and what is in flight."""

    def __init__(
        self,
        steps: Sequence[ScheduleEntry | ProcessTurn | StageTransfer],
        lines: Sequence[ModelPipeline],
        channel: Channel,
    ) -> None:
        entries = [step.entry if isinstance(step, ProcessTurn) else step for step in steps]
        self._to_come = Counter(
            (entry.replica, entry.chunk) for entry in entries if isinstance(entry, ScheduleEntry) and entry.part == "B"
        )
        self._lines, self._channel = lines, channel
        self._trained, self._begun = set(self._to_come), Counter[_Chunk]()
        self._asked = Counter[_Chunk]()
        """The inputs of a chunk whose messages have begun."""
        self._flights: dict[_Chunk, deque[_Flight]] = defaultdict(deque)
        self._arriving: dict[tuple[_Chunk, str], deque[tuple[Any, Tensor]]] = defaultdict(deque)
        self._to_send: dict[tuple[_Chunk, str], deque[tuple[Tensor, list[Any]]]] = defaultdict(deque)
        self._under_way: list[tuple[Any, Tensor]] = []

    def begin_transfer(self, transfer: StageTransfer) -> None:
        """Begin a message, and do not wait for it."""
        line, chunk = self._lines[transfer.replica], (transfer.replica, transfer.chunk)
        # What a forward needs goes forward, and a gradient goes back.
        further = (transfer.kind == "send") == (transfer.part == "F")
        peer, here = line.neighbour_rank(transfer.chunk, 1 if further else -1), line.ranks[line.stage]
        assert peer is not None
        if transfer.kind == "send":
            tensor, begun = self._to_send[chunk, transfer.part].popleft()
            work = dist.isend(tensor, peer, self._channel(here, peer))
            begun.append(work)
            self._under_way.append((work, tensor))
            return
        arriving = self._arriving[chunk, transfer.part]
        if transfer.part == "F":
            tensor = line.empty_input(self._asked[chunk], transfer.chunk)
            self._asked[chunk] += 1
        else:
            # Those before it in flight have their messages already.
            tensor = torch.empty_like(self._flights[chunk][len(arriving)].output)
        work = dist.irecv(tensor, peer, self._channel(peer, here))
        assert work is not None
        arriving.append((work, tensor))

    def compute(self, entry: ScheduleEntry) -> None:
        """Compute the next micro-batch's forward or backward."""
        line, chunk = self._lines[entry.replica], (entry.replica, entry.chunk)
        if entry.part == "B":
            self._go_backward(line, chunk)
        else:
            assert entry.part == "F", "no stage computes halves of a backward"
            self._go_forward(line, chunk)
        self._under_way = [pending for pending in self._under_way if not pending[0].is_completed()]

    def end(self) -> None:
        """Wait until all that was sent is away."""
        for work, _ in self._under_way:
            work.wait()

    def _go_forward(self, line: ModelPipeline, chunk: _Chunk) -> None:
        number, part = chunk
        received = None
        if line.neighbour_rank(part, -1) is not None:
            received = self._arrived(chunk, "F").requires_grad_(torch.is_grad_enabled())
        output = line.forward(self._begun[chunk], part, received)
        self._begun[chunk] += 1
        sent = list[Any]()
        if line.neighbour_rank(part, 1) is not None:
            self._to_send[chunk, "F"].append((output.detach().contiguous(), sent))
        if chunk in self._trained:
            self._flights[chunk].append(_Flight(received, output, sent))

    def _go_backward(self, line: ModelPipeline, chunk: _Chunk) -> None:
        number, part = chunk
        self._to_come[chunk] -= 1
        if not self._to_come[chunk] and line.before_last_backward:
            line.before_last_backward(part)
        gradient = None if line.neighbour_rank(part, 1) is None else self._arrived(chunk, "B")
        flight = self._flights[chunk].popleft()
        for work in flight.sent:
            # The gradient's arrival shows that the output arrived. With gloo one has to wait to learn of it.
            work.wait()
        torch.autograd.backward(flight.output, gradient)
        if line.neighbour_rank(part, -1) is not None:
            assert flight.received is not None and flight.received.grad is not None
            self._to_send[chunk, "B"].append((flight.received.grad.detach().contiguous(), []))

    def _arrived(self, chunk: _Chunk, part: str) -> Tensor:
        work, tensor = self._arriving[chunk, part].popleft()
        work.wait()
        return tensor
