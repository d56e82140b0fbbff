"""Follows a schedule of `rlgraph.pipelines` on one of its stages: its list, entry by entry.

A list may have the work of several models, each a pipeline over the same processes, in one direction or the other. What
is on its way between two stages has a tag for each model and direction, and comes in the order of the micro-batches:
two stages may take the work of different models in different orders.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlgraph.pipelines.timetable import Entry

Arrive = Callable[[Tensor], Tensor]
"""Fills an empty tensor with what the stage before has sent."""


@dataclass(frozen=True, slots=True)
class Line:
    """A model's pipeline as one of its stages sees it."""

    forward: Callable[[int, Arrive], tuple[Tensor | None, Tensor]]
    """From the number of a micro-batch to what came in, None on the first stage, and to what this stage makes of it: on
    the last one a loss."""
    before: int | None
    """The rank, among all, that has the stage before; None: this is the first one."""
    after: int | None
    """The rank that has the next stage; None: this is the last one."""
    last: Callable[[], None] | None = None
    """Called before the last micro-batch goes backward."""


Channel = Callable[[int], dist.ProcessGroup]
"""The group of the stages' ranks that carries what has a tag. Gloo tells messages apart by their tags, so that it may
be one; NCCL does not, and needs one for each."""


def follow(entries: Sequence[Entry], lines: Sequence[Line], channel: Channel) -> None:
    """What the stage has to do, in the order of its list. Gradients add up where autograd leaves them.

    All stages call it, with the lists of one schedule. What never goes backward is not kept.
    """
    to_come = Counter(entry.line for entry in entries if entry.part == "B")
    trained = set(to_come)
    begun = [0] * len(lines)
    flights: list[deque[tuple[Tensor | None, Tensor]]] = [deque() for _ in lines]
    under_way: deque[tuple[Any, Tensor]] = deque()

    def send(tensor: Tensor, to: int, tag: int) -> None:
        tensor = tensor.detach().contiguous()
        under_way.append((dist.isend(tensor, to, channel(tag), tag), tensor))

    def receive(tensor: Tensor, source: int | None, tag: int) -> Tensor:
        work = dist.irecv(tensor, source, channel(tag), tag)
        assert work is not None
        work.wait()
        return tensor

    for number, part, _ in entries:
        line, ahead, back = lines[number], 2 * number, 2 * number + 1
        if part == "B":
            came, made = flights[number].popleft()
            to_come[number] -= 1
            if not to_come[number] and line.last:
                line.last()
            given = None if line.after is None else receive(torch.empty_like(made), line.after, back)
            torch.autograd.backward(made, given)
            if line.before is not None:
                assert came is not None and came.grad is not None
                send(came.grad, line.before, back)
        else:
            came, made = line.forward(begun[number], partial(receive, source=line.before, tag=ahead))
            begun[number] += 1
            if line.after is not None:
                send(made, line.after, ahead)
            if number in trained:
                flights[number].append((came, made))
        while under_way and under_way[0][0].is_completed():
            under_way.popleft()
    for work, _ in under_way:
        work.wait()
