"""Runs a schedule of `rlgraph.passes.pipelines` on one of its stages: its list, entry by entry.

A list may have the work of several models, each a pipeline over the same processes, in one direction or the other.
Messages between two stages have a tag for each model, chunk and direction, and come in the order of the micro-batches:
two stages may take the work of different models, and chunks, in different orders.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlgraph.backends.engines.roles import PipelineNeighbours
from rlgraph.passes.pipelines.time_sharing import ProcessTurn
from rlgraph.passes.pipelines.timetable import ScheduleEntry

Arrive = Callable[[Tensor], Tensor]
"""Fills an empty tensor with what the stage before has sent."""


@dataclass(frozen=True, slots=True)
class ModelPipeline:
    """A model's pipeline as one of its stages sees it."""

    forward: Callable[[int, int, Arrive], tuple[Tensor | None, Tensor]]
    """Computes a chunk, from the number of a micro-batch and that of the chunk. It returns the chunk's input, None
    where the model begins, and its output: a loss where the model ends."""
    ranks: Sequence[int]
    """The ranks that have the stages, among all, in the stages' order. A model with several chunks goes round them."""
    stage: int
    """The stage of this process."""
    chunks: int = 1
    before_last_backward: Callable[[int], None] | None = None
    """Called before the last micro-batch goes backward through a chunk."""

    def neighbour_rank(self, chunk: int, by: int) -> tuple[int, int] | None:
        """Return the rank that has the part of the model which lies so many chunks further along than a chunk of this
        stage, and which of its chunks that is; None where the model ends before."""
        round_, stage = divmod(chunk * len(self.ranks) + self.stage + by, len(self.ranks))
        return (self.ranks[stage], round_) if 0 <= round_ < self.chunks else None


Channel = Callable[[int], dist.ProcessGroup]
"""The group of the stages' ranks that carries a tag's messages. Gloo tells messages apart by their tags, so that it may
be one; NCCL does not, and needs one for each."""


def entries_in_turn(turns: Sequence[ProcessTurn], beside: PipelineNeighbours) -> Iterator[ScheduleEntry]:
    """Yield each entry when it is its turn on the device; once it has been done, the turn goes to others."""
    for turn in turns:
        if turn.previous_model is not None:
            beside.wait_for_turn(turn.previous_model)
        yield turn.entry
        if turn.next_model is not None:
            if torch.cuda.is_available():
                # The work that was launched has to end before others begin.
                torch.cuda.current_stream().synchronize()
            beside.pass_turn(turn.next_model)


def run_schedule(
    entries: Sequence[ScheduleEntry],
    lines: Sequence[ModelPipeline],
    channel: Channel,
    turns: Iterable[ScheduleEntry] | None = None,
) -> None:
    """Do what the stage has to do, in the order of its list. Gradients add up where autograd leaves them.

    All stages call it, with the lists of one schedule. Outputs that never go backward are not kept. turns: the same
    entries, each of which comes when it is to be done; None: one after the other.
    """
    to_come = Counter((entry.replica, entry.chunk) for entry in entries if entry.part == "B")
    trained, begun = set(to_come), Counter[tuple[int, int]]()
    flights: dict[tuple[int, int], deque[tuple[Tensor | None, Tensor, Any]]] = defaultdict(deque)
    under_way: list[tuple[Any, Tensor]] = []
    *offsets, all_chunks = accumulate((line.chunks for line in lines), initial=0)
    for tag in range(2 * all_chunks):
        # Groups, where there is one for each tag, are made in the same order on all stages.
        channel(tag)

    def tag_of(number: int, chunk: int, backward: bool) -> int:
        """Return the tag of what a chunk is sent."""
        return 2 * (offsets[number] + chunk) + backward

    def send(tensor: Tensor, rank: int, tag: int) -> Any:
        tensor = tensor.detach().contiguous()
        work = dist.isend(tensor, rank, channel(tag), tag)
        under_way.append((work, tensor))
        return work

    def receive(tensor: Tensor, source: int, tag: int) -> Tensor:
        work = dist.irecv(tensor, source, channel(tag), tag)
        assert work is not None
        work.wait()
        return tensor

    for number, part, chunk in entries if turns is None else turns:
        line, chunk_key = lines[number], (number, chunk)
        earlier, later = (line.neighbour_rank(chunk, by) for by in (-1, 1))
        if part == "B":
            received, output, sent = flights[chunk_key].popleft()
            to_come[chunk_key] -= 1
            if not to_come[chunk_key] and line.before_last_backward:
                line.before_last_backward(chunk)
            gradient = later and receive(torch.empty_like(output), later[0], tag_of(number, chunk, True))
            if sent is not None:
                # The gradient's arrival shows that the output arrived. With gloo one has to wait to learn of it.
                sent.wait()
            torch.autograd.backward(output, gradient)
            if earlier is not None:
                assert received is not None and received.grad is not None
                send(received.grad, earlier[0], tag_of(number, earlier[1], True))
        else:
            assert part == "F", "no stage computes halves of a backward"
            source = -1 if earlier is None else earlier[0]
            arrive = partial(receive, source=source, tag=tag_of(number, chunk, False))
            received, output = line.forward(begun[chunk_key], chunk, arrive)
            begun[chunk_key] += 1
            sent = None if later is None else send(output, later[0], tag_of(number, later[1], False))
            if chunk_key in trained:
                flights[chunk_key].append((received, output, sent))
        under_way = [pending for pending in under_way if not pending[0].is_completed()]
    for work, _ in under_way:
        work.wait()
