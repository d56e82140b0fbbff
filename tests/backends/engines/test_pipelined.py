"""A stage follows its list."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from rlgraph.backends.engines.pipelined import Arrive, ModelPipeline, run_schedule
from rlgraph.passes.pipelines.timetable import ScheduleEntry


def test_the_oldest_micro_batch_goes_backward_first() -> None:
    """What comes back for a micro-batch comes in their order. Of one stage, to which nothing comes."""
    weight, went = torch.ones((), requires_grad=True), list[int]()

    def forward(number: int, chunk: int, arrive: Arrive) -> tuple[Tensor | None, Tensor]:
        loss = weight * 2
        loss.register_hook(lambda _: went.append(number))
        return None, loss

    entries = [ScheduleEntry(0, part) for part in cast(Any, "FFFBFBBB")]
    run_schedule(entries, [ModelPipeline(forward, [0], 0)], cast(Any, lambda tag: None))
    assert went == [0, 1, 2, 3]
