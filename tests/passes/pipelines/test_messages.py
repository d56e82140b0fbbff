"""The order of messages between stages: what the checker says of lists is what happens when threads follow them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from rlgraph.passes.pipelines.fuse import best_rule_schedule, search_schedule
from rlgraph.passes.pipelines.messages import (
    BatchedTransfers,
    StageTransfer,
    Step,
    check_rendezvous,
    make_stage_programs,
)
from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem
from rlgraph.passes.pipelines.published_schedules import serial_lists
from rlgraph.passes.pipelines.stage_programs import forward_stage_programs, training_stage_programs
from rlgraph.passes.pipelines.time_sharing import ProcessTurn, device_schedule, process_turns
from rlgraph.passes.pipelines.timetable import Lists, ScheduleDeadlock, ScheduleEntry, compute_timetable
from tests.backends.engines.meetings import Meetings, run_threads
from tests.suites import few

Anything = Step | BatchedTransfers


def deadlocks(programs: Sequence[Sequence[Anything]]) -> bool:
    """What the checker says."""
    try:
        check_rendezvous(programs)
    except ScheduleDeadlock:
        return True
    return False


def hangs(programs: Sequence[Sequence[Anything]]) -> bool:
    """What happens."""
    return run_threads([partial(follow, stage, program) for stage, program in enumerate(programs)]) is None


def follow(stage: int, program: Sequence[Anything], meetings: Meetings) -> None:
    """Messages between two stages have no tags: the n-th that one sends is the n-th that the other receives."""
    sent, received = Counter[int](), Counter[int]()
    for step in program:
        transfers = (
            step.transfers if isinstance(step, BatchedTransfers) else (step,) if isinstance(step, StageTransfer) else ()
        )
        given, taken = {}, []
        for transfer in transfers:
            if transfer.kind == "send":
                sent[transfer.peer] += 1
                given[stage, transfer.peer, sent[transfer.peer]] = None
            else:
                received[transfer.peer] += 1
                taken.append((transfer.peer, stage, received[transfer.peer]))
        if transfers:
            meetings.exchange(given, taken)


def random_programs(draw: random.Random) -> list[list[Anything]]:
    """A few messages between a few stages, in an order that the two ends mostly share; some begin together."""
    stages = draw.choice([2, 2, 3, 4])
    programs: list[list[Anything]] = [[] for _ in range(stages)]
    for _ in range(draw.randint(1, 6)):
        source, target = draw.sample(range(stages), 2)
        programs[source].append(StageTransfer(0, "send", "F", 0, target, 0))
        programs[target].append(StageTransfer(0, "receive", "F", 0, source, 0))
    for program in programs:
        if program and draw.random() < 0.6:
            at = draw.randrange(len(program))
            program.insert(draw.randint(0, len(program) - 1), program.pop(at))
        if len(program) > 1 and draw.random() < 0.3:
            at = draw.randrange(len(program) - 1)
            pair = program[at : at + 2]
            assert all(isinstance(step, StageTransfer) for step in pair)
            program[at : at + 2] = [BatchedTransfers(tuple(pair))]  # type: ignore[arg-type]
    # What is sent has to be computed before.
    return [[*(ScheduleEntry(0, "F") for _ in range(12)), *program] for program in programs]


@pytest.mark.parametrize("seed", few(range(10), 0))
def test_the_checker_says_what_happens(seed: int) -> None:
    draw, told = random.Random(seed), Counter[bool]()
    for _ in range(1000):
        programs = [
            [step for step in program if not isinstance(step, ScheduleEntry)] for program in random_programs(draw)
        ]
        computed: list[list[Anything]] = [[*[ScheduleEntry(0, "F")] * 12, *program] for program in programs]
        # A forward that needs a message cannot come before it: here all that is sent is there from the start.
        verdict = deadlocks([without_needs(program) for program in computed])
        assert verdict == hangs(programs), programs
        told[verdict] += 1
    assert min(told.values()) > 150, "both happen"


def without_needs(program: Sequence[Anything]) -> list[Anything]:
    """Messages that come are for chunks that compute nothing."""

    def moved(transfer: StageTransfer) -> StageTransfer:
        return transfer._replace(chunk=1) if transfer.kind == "receive" else transfer

    return [
        BatchedTransfers(tuple(map(moved, step.transfers)))
        if isinstance(step, BatchedTransfers)
        else moved(step)
        if isinstance(step, StageTransfer)
        else step
        for step in program
    ]


def random_problem(draw: random.Random) -> PipelineProblem:
    """One to three models, with chunks, copies and directions."""
    stages, models = draw.choice([2, 2, 4]), []
    for number in range(draw.choice([1, 2, 2, 3])):
        own = draw.choice([size for size in (2, 4) if size <= stages])
        models.append(
            PipelineModel(
                f"m{number}",
                own,
                draw.randint(1, 5),
                draw.randint(1, 9),
                draw.randint(2, 18),
                stages // own,
                reverse=draw.random() < 0.5,
                chunks=draw.choice([1, 1, 2]),
            )
        )
    return PipelineProblem(tuple(models))


@pytest.mark.parametrize("seed", few(range(10), 0))
def test_no_list_that_is_made_hangs(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(30):
        problem = random_problem(draw)
        if draw.random() < 0.2:
            problem = replace(problem, models=tuple(replace(model, weight=1.0) for model in problem.models))
            lists = best_rule_schedule(problem)
            programs = make_stage_programs(problem, lists)
        else:
            programs, lists = training_stage_programs(problem), tuple[tuple[ScheduleEntry, ...], ...]()
        assert not deadlocks(programs) and not hangs(programs)
        if lists:
            assert (
                tuple(tuple(step for step in program if isinstance(step, ScheduleEntry)) for program in programs)
                == lists
            )
        assert messages(programs) == sum(
            2 * model.copies * (model.stages * model.chunks - 1) * model.micro_batches for model in problem.models
        )
    forwards = forward_stage_programs(4, 6, 2)
    assert not hangs(forwards) and messages(forwards) == 6 * 7


def messages(programs: Sequence[Sequence[Step]]) -> int:
    """The messages, each of which has two ends."""
    ends = Counter(step.kind for program in programs for step in program if isinstance(step, StageTransfer))
    assert ends["send"] == ends["receive"]
    return ends["send"]


FUSED = PipelineProblem((PipelineModel("actor", 2, 4, 1.0, 2.0), PipelineModel("critic", 2, 4, 1.0, 2.0, reverse=True)))


def sent_at_once(problem: PipelineProblem, lists: Lists) -> list[list[Step]]:
    """As without an order: what is computed is sent at once, and received where it is needed."""
    ordered = make_stage_programs(problem, lists)
    programs: list[list[Step]] = []
    for program in ordered:
        sends = {
            (step.replica, step.part, step.chunk): step
            for step in program
            if isinstance(step, StageTransfer) and step.kind == "send"
        }
        receives = {
            (step.replica, step.part, step.chunk): step
            for step in program
            if isinstance(step, StageTransfer) and step.kind == "receive"
        }
        steps: list[Step] = []
        for entry in (step for step in program if isinstance(step, ScheduleEntry)):
            what = entry.replica, entry.part, entry.chunk
            steps += [receives[what]] if what in receives else []  # type: ignore[index]
            steps += [entry, *([sends[what]] if what in sends else [])]  # type: ignore[index]
        programs.append(steps)
    return programs


@pytest.mark.parametrize(
    "problem",
    [
        FUSED,
        PipelineProblem((replace(FUSED.models[0], stages=4), replace(FUSED.models[1], stages=4))),
        PipelineProblem((FUSED.models[0],)),
        PipelineProblem((replace(FUSED.models[0], chunks=2),)),
    ],
)
def test_the_same_lists_hang_where_each_stage_sends_as_soon_as_it_can(problem: PipelineProblem) -> None:
    lists = best_rule_schedule(problem) if len(problem.models) > 1 else serial_lists(problem)
    at_once = sent_at_once(problem, lists)
    assert deadlocks(at_once) and hangs(at_once)
    with pytest.raises(ScheduleDeadlock, match="nobody can go on: stage 0 (sends|receives) 0F"):
        check_rendezvous(at_once)
    assert not hangs(make_stage_programs(problem, lists))


def test_what_is_found_by_a_search_has_an_order() -> None:
    problem = PipelineProblem(
        (PipelineModel("33B", 4, 6, 5, 10), PipelineModel("13B", 2, 4, 4, 8, copies=2, reverse=True))
    )
    found = search_schedule(problem, work=0.3)
    assert found and not hangs(make_stage_programs(problem, found.lists))


def test_lists_that_wait_for_each_other_have_none() -> None:
    lists = ((ScheduleEntry(0, "B"), ScheduleEntry(0, "F")), (ScheduleEntry(0, "F"), ScheduleEntry(0, "B")))
    with pytest.raises(ScheduleDeadlock, match="stage 0 waits for ever, in 0B"):
        make_stage_programs(PipelineProblem((PipelineModel("a", 2, 1, 1, 2),)), lists)


WRONG: list[tuple[Callable[[list[list[Anything]]], None], str]] = [
    (lambda programs: programs[1].insert(0, programs[1].pop(1)), "computes 0F before it has received"),
    (lambda programs: programs[0].insert(0, programs[0].pop(1)), "sends 0F to 1 before it has computed"),
    (
        lambda programs: programs[1].__setitem__(0, StageTransfer(1, "receive", "F", 0, 0, 1)),
        "stage . .*, but stage . .*",
    ),
]


@pytest.mark.parametrize(("spoil", "said"), WRONG)
def test_what_is_wrong_is_said(spoil: Callable[[list[list[Anything]]], None], said: str) -> None:
    programs: list[list[Anything]] = [[*program] for program in forward_stage_programs(2, 1, 1)]
    spoil(programs)
    with pytest.raises(ScheduleDeadlock, match=said):
        check_rendezvous(programs)


def test_the_order_costs_nothing() -> None:
    """A message is sent when it is there: that of a backward after it, before the next entry."""
    for program in training_stage_programs(FUSED):
        for before, after in zip(program, program[1:], strict=False):
            if isinstance(before, ScheduleEntry) and isinstance(after, StageTransfer) and after.kind == "send":
                assert (before.replica, before.part) == (after.replica, after.part)
    compute_timetable(FUSED, best_rule_schedule(FUSED))


@pytest.mark.parametrize("seed", few(range(40), *range(6)))
def test_processes_that_take_turns_on_devices_end(seed: int) -> None:
    """Models that are split differently have a process for each on a device: replicas have more and fewer
    micro-batches."""
    draw = random.Random(seed)
    stages = draw.choice([2, 4])
    models = []
    for number in range(draw.choice([2, 2, 3])):
        own = draw.choice([size for size in (2, 4) if size <= stages])
        seconds = draw.randint(1, 9), draw.randint(2, 18)
        models.append(PipelineModel("", own, 1, *seconds, stages // own, 1.0, reverse=number % 2 == 1))
    counts = [[draw.randint(0, 4) for _ in range(model.copies)] for model in models]
    most = [max(own) for own in counts]

    def work(stage: int, model: int, steps: Sequence[ProcessTurn | StageTransfer], meetings: Meetings) -> None:
        sent, received, turns = Counter[int](), Counter[int](), Counter[tuple[int, int]]()
        for step in steps:
            if isinstance(step, StageTransfer):
                count, ends = (sent, (stage, step.peer)) if step.kind == "send" else (received, (step.peer, stage))
                count[step.peer] += 1
                name = ("message", model, *ends, count[step.peer])
                meetings.exchange({name: None} if step.kind == "send" else {}, () if step.kind == "send" else (name,))
                continue
            if step.previous_model is not None:
                turns[step.previous_model, model] += 1
                meetings.exchange({}, [(stage, step.previous_model, model, turns[step.previous_model, model])])
            if step.next_model is not None:
                turns[model, step.next_model] += 1
                meetings.give((stage, model, step.next_model, turns[model, step.next_model]))

    works = []
    for stage in range(stages):
        here = [own[stage // model.stages] for model, own in zip(models, counts, strict=True)]
        steps = device_schedule(models, stage, most, here)
        works += [partial(work, stage, model, process_turns(steps, [model])) for model in range(len(models))]
    assert run_threads(works) is not None
