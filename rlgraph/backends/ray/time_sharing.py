"""Processes of models that are split unlike, and take turns on the devices of one pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlgraph.backends.exchange.mailbox import Mailbox
from rlgraph.backends.ray.remote import Address
from rlgraph.ir.plan import Group
from rlgraph.ir.shared_pipelines import common
from rlgraph.passes.pipelines.problem import Model
from rlgraph.passes.pipelines.time_sharing import Turn, entries_of, turns_of

_FIELDS = ("count", "stages", "forward", "backward", "memory", "chunks", "reverse")
"""That a process tells the others of a model: its micro-batches, and what `counted` says of it with one."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a process is in a pipeline."""

    stage: int
    """Of those that all models have in common."""
    own: tuple[int, ...]
    """The numbers of its models, among all of the pipeline."""
    there: tuple[int, ...]
    """For each model the place of the process that has it on the same device."""


def seated(groups: Sequence[Group], of: Sequence[str]) -> list[dict[Address, Seat]]:
    """For each block of stages its processes, by place, and where they are. of: for each model of the pipeline the name
    of its group."""
    whole = common([group.mesh for group in groups])
    there: list[list[tuple[Group, int, int]]] = [[] for _ in range(groups[0].mesh.size // whole.size)]
    for group in groups:
        for rank, place in enumerate(whole.places(group.mesh)):
            block, stage = whole.at(place)
            there[block].append((group, rank, stage))
    return [{(group.name, rank): _seat(group, rank, stage, each, of) for group, rank, stage in each} for each in there]


def _seat(group: Group, rank: int, stage: int, block: Sequence[tuple[Group, int, int]], of: Sequence[str]) -> Seat:
    own = tuple(number for number, name in enumerate(of) if name == group.name)
    here = {
        other.name: place for place, (other, each, _) in enumerate(block) if other.devices[each] == group.devices[rank]
    }
    return Seat(stage, own, tuple(here[name] for name in of))


class Beside:
    """One process and the others. Implements `rlgraph.backends.engines.base.Beside`."""

    def __init__(self, mailbox: Mailbox, seat: Seat, places: int) -> None:
        """mailbox: of all processes of a block of stages."""
        self._mailbox, self._seat, self._places = mailbox, seat, places
        self._word = torch.zeros(1)

    def turns(self, models: Sequence[Model], counts: Sequence[int]) -> list[Turn]:
        """How many micro-batches a copy has, its processes alone know: all tell the first place, which tells all."""
        told = torch.zeros(len(self._seat.there), len(_FIELDS), dtype=torch.float64)
        for number, model, count in zip(self._seat.own, models, counts, strict=True):
            told[number] = torch.tensor([float(each) for each in (count, *_told(model))], dtype=torch.float64)
        every = self._gathered(told)
        known = [_model(every[place, number].tolist()) for number, place in enumerate(self._seat.there)]
        stages = max(model.stages for model in known)
        own = {number: at for at, number in enumerate(self._seat.own)}
        entries = entries_of(
            [replace(model, copies=stages // model.stages) for model in known],
            self._seat.stage,
            [int(count) for count in every[:, :, 0].amax(0).tolist()],
            [int(every[place, number, 0]) for number, place in enumerate(self._seat.there)],
        )
        return [replace(turn, entry=turn.entry._replace(line=own[turn.entry.line])) for turn in turns_of(entries, own)]

    def wait(self, model: int) -> None:
        self._mailbox.receive(torch.zeros(1), self._seat.there[model]).wait()

    def hand(self, model: int) -> None:
        self._mailbox.send(self._word, self._seat.there[model]).wait()

    def _gathered(self, told: Tensor) -> Tensor:
        """What all places tell, [places, *told.shape]."""
        mail, others = self._mailbox, range(1, self._places)
        every = torch.zeros(self._places, *told.shape, dtype=told.dtype)
        if mail.place:
            mail.send(told, 0).wait()
            mail.receive(every, 0).wait()
            return every
        every[0] = told
        for post in [mail.receive(every[place], place) for place in others]:
            post.wait()
        for post in [mail.send(every, place) for place in others]:
            post.wait()
        return every


def _told(model: Model) -> list[float]:
    return [getattr(model, name) for name in _FIELDS[1:]]


def _model(told: Sequence[float]) -> Model:
    _, stages, forward, backward, memory, chunks, reverse = told
    return Model("", int(stages), 1, forward, backward, memory=memory, chunks=int(chunks), reverse=bool(reverse))
