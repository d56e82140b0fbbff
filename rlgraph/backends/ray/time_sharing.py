"""Lets processes of heterogeneously split models take turns on the devices of one pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlgraph.backends.exchange.link import InFlightMessage
from rlgraph.backends.exchange.mailbox import GlooLink
from rlgraph.backends.ray.row_refs import Address
from rlgraph.ir.plan import Group
from rlgraph.ir.shared_pipelines import shared_stages
from rlgraph.passes.pipelines.messages import StageTransfer
from rlgraph.passes.pipelines.problem import PipelineModel
from rlgraph.passes.pipelines.time_sharing import ProcessTurn, device_schedule, process_turns

_FIELDS = ("count", "stages", "forward", "backward", "memory", "chunks", "reverse")
"""What a process tells the others of a model: its micro-batches, and what `counted` says of it with one."""


@dataclass(frozen=True, slots=True)
class PipelineSeat:
    """The place of a process in a pipeline."""

    stage: int
    """Its stage, of those that all models have in common."""
    own_models: tuple[int, ...]
    """The indices of its models among all of the pipeline."""
    place_of_model: tuple[int, ...]
    """For each model, the place of the process that has it on the same device."""


def pipeline_seats(groups: Sequence[Group], of: Sequence[str]) -> list[dict[Address, PipelineSeat]]:
    """Return for each block of stages its processes, in the order of their places, and their seats. of: for each model
    of the pipeline the name of its group."""
    pipeline = shared_stages([group.mesh for group in groups])
    blocks: list[list[tuple[Group, int, int]]] = [
        [] for _ in range(groups[0].mesh.rank_count // pipeline.devices_per_block)
    ]
    for group in groups:
        for rank, place in enumerate(pipeline.rank_device_positions(group.mesh)):
            block, stage = pipeline.block_and_stage(place)
            blocks[block].append((group, rank, stage))
    return [
        {(group.name, rank): _seat(group, rank, stage, members, of) for group, rank, stage in members}
        for members in blocks
    ]


def _seat(
    group: Group, rank: int, stage: int, block: Sequence[tuple[Group, int, int]], of: Sequence[str]
) -> PipelineSeat:
    models = tuple(index for index, name in enumerate(of) if name == group.name)
    place_of = {
        other.name: place
        for place, (other, other_rank, _) in enumerate(block)
        if other.devices[other_rank] == group.devices[rank]
    }
    return PipelineSeat(stage, models, tuple(place_of[name] for name in of))


class PipelineTurns:
    """Takes turns with the other processes of a block. Implements
    `rlgraph.backends.engines.base.PipelineNeighbours`."""

    def __init__(self, mailbox: GlooLink, seat: PipelineSeat, places: int) -> None:
        """mailbox: that of all processes of a block of stages."""
        self._mailbox, self._seat, self._places = mailbox, seat, places
        self._word = torch.zeros(1)
        self._passed: list[InFlightMessage] = []
        """Turns that went to others, since `plan_turns`."""

    def plan_turns(self, models: Sequence[PipelineModel], counts: Sequence[int]) -> list[ProcessTurn | StageTransfer]:
        """Work out the turns of this process. Only its processes know a replica's number of micro-batches: all tell the
        first place, which tells all."""
        for turn in self._passed:
            turn.wait()
        self._passed.clear()
        models_here = torch.zeros(len(self._seat.place_of_model), len(_FIELDS), dtype=torch.float64)
        for index, model, count in zip(self._seat.own_models, models, counts, strict=True):
            models_here[index] = torch.tensor([float(field) for field in (count, *_told(model))], dtype=torch.float64)
        gathered = self._all_gathered(models_here)
        seen = [_model(gathered[place, index].tolist()) for index, place in enumerate(self._seat.place_of_model)]
        stages = max(model.stages for model in seen)
        line_of = {index: line for line, index in enumerate(self._seat.own_models)}
        steps = device_schedule(
            [replace(model, copies=stages // model.stages) for model in seen],
            self._seat.stage,
            [int(count) for count in gathered[:, :, 0].amax(0).tolist()],
            [int(gathered[place, index, 0]) for index, place in enumerate(self._seat.place_of_model)],
        )
        return [
            step._replace(replica=line_of[step.replica])
            if isinstance(step, StageTransfer)
            else replace(step, entry=step.entry._replace(replica=line_of[step.entry.replica]))
            for step in process_turns(steps, line_of)
        ]

    def wait_for_turn(self, model: int) -> None:
        self._mailbox.receive(torch.zeros(1), self._seat.place_of_model[model]).wait()

    def pass_turn(self, model: int) -> None:
        # The other process hears of it when it is done with its messages to others, which may wait for this one's.
        self._passed.append(self._mailbox.send(self._word, self._seat.place_of_model[model]))

    def _all_gathered(self, told: Tensor) -> Tensor:
        """Return what all places report, [places, *told.shape]."""
        mail, others = self._mailbox, range(1, self._places)
        gathered = torch.zeros(self._places, *told.shape, dtype=told.dtype)
        if mail.place:
            mail.send(told, 0).wait()
            mail.receive(gathered, 0).wait()
            return gathered
        gathered[0] = told
        for message in [mail.receive(gathered[place], place) for place in others]:
            message.wait()
        for message in [mail.send(gathered, place) for place in others]:
            message.wait()
        return gathered


def _told(model: PipelineModel) -> list[float]:
    return [getattr(model, name) for name in _FIELDS[1:]]


def _model(told: Sequence[float]) -> PipelineModel:
    _, stages, forward, backward, memory, chunks, reverse = told
    return PipelineModel(
        "", int(stages), 1, forward, backward, memory=memory, chunks=int(chunks), reverse=bool(reverse)
    )
