"""Turns of processes on the devices of one pipeline: in the order of the list, to the end, whatever copies have."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rlgraph.passes.pipelines.problem import PipelineModel
from rlgraph.passes.pipelines.time_sharing import ProcessTurn, device_schedule, process_turns
from rlgraph.passes.pipelines.timetable import ScheduleEntry


@pytest.mark.parametrize("seed", range(30))
def test_processes_do_all_in_the_order_of_the_list(seed: int) -> None:
    draw = random.Random(seed)
    stages = draw.choice([2, 4])
    models = []
    for number in range(draw.choice([2, 2, 3])):
        own = draw.choice([each for each in (1, 2, 4) if each <= stages])
        models.append(
            PipelineModel(
                "", own, 1, draw.randint(1, 9), draw.randint(2, 18), stages // own, 1.0, reverse=number % 2 == 1
            )
        )
    counts = [[draw.randint(0, 4) for _ in range(model.copies)] for model in models]
    most = [max(own) for own in counts]
    queues = {}
    for stage in range(stages):
        here = [own[stage // model.stages] for model, own in zip(models, counts, strict=True)]
        steps = device_schedule(models, stage, most, here)
        entries = [step for step in steps if isinstance(step, ScheduleEntry)]
        done = Counter((entry.replica, entry.part) for entry in entries)
        assert all(done[at, part] == here[at] for at in range(len(models)) for part in "FB"), "as many as there are"
        all_turns = [process_turns(steps, [at]) for at in range(len(models))]
        queues[stage] = entries, [[turn for turn in own if isinstance(turn, ProcessTurn)] for own in all_turns]
    words, finished = Counter[tuple[int, int, int]](), {stage: list[ScheduleEntry]() for stage in queues}
    gone = Counter[tuple[int, int, str]]()
    moved = True
    while moved:
        moved = False
        for stage, (_, turns) in queues.items():
            for at, own in enumerate(turns):
                turn = own[0] if own else None
                if turn is None or (turn.previous_model is not None and not words[stage, turn.previous_model, at]):
                    continue
                model, entry = models[at], turn.entry
                step = -1 if (entry.part == "F") != model.reverse else 1
                before = stage + step
                first = before // model.stages != stage // model.stages or before < 0
                if not first and gone[before, at, entry.part] <= gone[stage, at, entry.part]:
                    continue
                own.pop(0)
                if turn.previous_model is not None:
                    words[stage, turn.previous_model, at] -= 1
                if turn.next_model is not None:
                    words[stage, at, turn.next_model] += 1
                gone[stage, at, entry.part] += 1
                finished[stage].append(entry)
                moved = True
    assert all(finished[stage] == entries for stage, (entries, _) in queues.items())
    assert not +words
