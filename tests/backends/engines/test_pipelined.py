"""A stage follows its list, and stages that meet for each message, as on GPUs, come to its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from rlgraph.backends.engines import pipelined
from rlgraph.backends.engines.pipelined import ModelPipeline, run_schedule
from rlgraph.passes.pipelines.messages import Step
from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem
from rlgraph.passes.pipelines.stage_programs import forward_stage_programs, training_stage_programs
from rlgraph.passes.pipelines.timetable import ScheduleEntry
from tests.backends.engines.meetings import Meetings, run_threads


def no_input(number: int, chunk: int) -> Tensor:
    raise AssertionError("the model begins here")


def test_the_oldest_micro_batch_goes_backward_first() -> None:
    """What comes back for a micro-batch comes in their order. Of one stage, to which nothing comes."""
    weight, went = torch.ones((), requires_grad=True), list[int]()

    def forward(number: int, chunk: int, received: Tensor | None) -> Tensor:
        loss = weight * 2
        loss.register_hook(lambda _: went.append(number))
        return loss

    entries = [ScheduleEntry(0, part) for part in cast(Any, "FFFBFBBB")]
    run_schedule(entries, [ModelPipeline(forward, no_input, [0], 0)], cast(Any, lambda sender, receiver: None))
    assert went == [0, 1, 2, 3]


class Thread:
    """What `torch.distributed` does for one rank, where each rank is a thread: a message is there when both are, and
    until then neither goes on."""

    def __init__(self, rank: int, meetings: Meetings) -> None:
        self.rank, self.meetings = rank, meetings
        self._counts = Counter[tuple[int, int]]()

    def isend(self, tensor: Tensor, peer: int, group: Any) -> Any:
        self.meetings.exchange({self._name(self.rank, peer): tensor.clone()}, ())
        return _DONE

    def irecv(self, tensor: Tensor, peer: int, group: Any) -> Any:
        [message] = self.meetings.exchange({}, [self._name(peer, self.rank)])
        tensor.copy_(message)
        return _DONE

    def _name(self, sender: int, receiver: int) -> tuple[int, int, int]:
        self._counts[sender, receiver] += 1
        return sender, receiver, self._counts[sender, receiver]


_DONE = SimpleNamespace(wait=lambda: None, is_completed=lambda: True)


def train(
    rank: int, programs: Sequence[Sequence[Step]], models: Sequence[PipelineModel], trained: bool, meetings: Meetings
) -> list[Tensor]:
    """The gradients of each model's weights on a stage: two for each chunk, of a product and a sum."""
    threads.dist = Thread(rank, meetings)
    lines, weights = [], []
    for at, model in enumerate(models):
        ranks = list(range(model.stages))[:: -1 if model.reverse else 1]
        stage = ranks.index(rank)
        own = torch.arange(1.0, 1 + model.chunks, dtype=torch.float64).add(stage / 7 + at / 3).requires_grad_()
        weights.append(own)

        def forward(
            number: int,
            chunk: int,
            received: Tensor | None,
            *,
            own: Tensor = own,
            model: PipelineModel = model,
            stage: int = stage,
        ) -> Tensor:
            first = torch.linspace(0.1, 1.0, 3 + number, dtype=torch.float64)
            output = torch.tanh((first if received is None else received) * own[chunk])
            return output.sum() if (stage, chunk) == (model.stages - 1, model.chunks - 1) else output

        def empty(number: int, chunk: int) -> Tensor:
            return torch.empty(3 + number, dtype=torch.float64)

        lines.append(ModelPipeline(forward, empty, ranks, stage, model.chunks))
    with torch.set_grad_enabled(trained):
        run_schedule(programs[rank], lines, cast(Any, lambda sender, receiver: None))
    return [cast(Tensor, own.grad) for own in weights]


class Threads:
    """The `dist` of each thread."""

    def __init__(self) -> None:
        import threading

        self._local = threading.local()

    @property
    def dist(self) -> Thread:
        return cast(Thread, self._local.dist)

    @dist.setter
    def dist(self, value: Thread) -> None:
        self._local.dist = value

    def isend(self, *arguments: Any) -> Any:
        return self.dist.isend(*arguments)

    def irecv(self, *arguments: Any) -> Any:
        return self.dist.irecv(*arguments)


threads = Threads()


def alone(model: PipelineModel, at: int) -> list[Tensor]:
    """The gradients of the stages of a model, all in one place, one micro-batch after the other."""
    stages = [
        torch.arange(1.0, 1 + model.chunks, dtype=torch.float64).add(stage / 7 + at / 3).requires_grad_()
        for stage in range(model.stages)
    ]
    for number in range(model.micro_batches):
        value = torch.linspace(0.1, 1.0, 3 + number, dtype=torch.float64)
        for chunk in range(model.chunks):
            for own in stages:
                value = torch.tanh(value * own[chunk])
        value.sum().backward()
    return [cast(Tensor, own.grad) for own in stages]


def model(stages: int, batches: int = 5, **settings: Any) -> PipelineModel:
    return PipelineModel("", stages, batches, 1.0, 2.0, **settings)


@pytest.mark.parametrize(
    "models",
    [
        (model(2),),
        (model(4),),
        (model(2, chunks=2),),
        (model(4, chunks=2),),
        (model(2), model(2, 3, reverse=True)),
        (model(4), model(4, reverse=True)),
        (model(4), model(4)),
        (model(2, chunks=2), model(2, 4, reverse=True, chunks=2), model(2, 2)),
    ],
)
def test_stages_that_meet_for_each_message_end(models: tuple[PipelineModel, ...], monkeypatch: Any) -> None:
    """With each order of the work, gradients are those of one process."""
    monkeypatch.setattr(pipelined, "dist", threads)
    programs = training_stage_programs(PipelineProblem(models))
    found = run_threads([partial(train, rank, programs, models, True) for rank in range(len(programs))])
    assert found is not None, "nobody can move"
    for at, each in enumerate(models):
        expected = alone(each, at)[:: -1 if each.reverse else 1]
        for rank, gradients in enumerate(expected):
            # Gradients of micro-batches are added up in one order.
            assert torch.equal(found[rank][at], gradients)


def test_forwards_alone_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelined, "dist", threads)
    each = model(4, 6, chunks=2)
    programs = forward_stage_programs(each.stages, each.micro_batches, each.chunks)
    assert run_threads([partial(train, rank, programs, [each], False) for rank in range(4)]) is not None
