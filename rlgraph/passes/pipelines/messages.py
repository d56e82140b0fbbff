"""Puts the messages between stages into the stages' lists, in an order in which nobody waits for ever.

A message between two GPUs is a meeting: NCCL makes the communicator of two ranks when both have come to their first
message, and a large message goes when both are at it. What a process has begun is done in its order. So two stages that
both send first, each to the other, wait for ever, as do more of them in a ring.

Here all messages of a schedule have one order, that in which they are ready when every entry begins as early as its
list permits, and each stage takes part in its own in that order. The first message that is not over is then the next
one of both its stages, and all that they do before it is over: somebody can always go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from rlgraph.passes.pipelines.problem import Part, PipelineProblem
from rlgraph.passes.pipelines.timetable import Lists, ScheduleDeadlock, ScheduleEntry


class StageTransfer(NamedTuple):
    """The part that a stage has in the next message of its kind: it sends the message, or receives it."""

    replica: int
    """The number of the replica."""
    kind: Literal["send", "receive"]
    part: Literal["F", "B"]
    """What needs it: a forward, the output of the one before (F), or a backward, the gradient of its output (B)."""
    chunk: int
    """The replica's chunk on this stage that has made it, or needs it."""
    peer: int
    """The stage at the other end."""
    position: int
    """Where it is needed, counted along the path of the replica's forward."""

    def __str__(self) -> str:
        """Return `sends 0F to 1`: of replica 0, for a forward on stage 1."""
        where = f"to {self.peer}" if self.kind == "send" else f"from {self.peer}"
        return f"{self.kind}s {self.replica}{self.part} {where}"


class BatchedTransfers(NamedTuple):
    """Transfers that begin as one (`torch.distributed.batch_isend_irecv`): what follows waits for all of them."""

    transfers: tuple[StageTransfer, ...]

    def __str__(self) -> str:
        """Return the transfers with `and` between them."""
        return " and ".join(map(str, self.transfers))


Step = ScheduleEntry | StageTransfer
"""What a stage does next: it computes, or takes part in a message."""
Programs = tuple[tuple[Step, ...], ...]
"""For each stage its steps, one after the other."""


def add_transfers(
    lists: Sequence[Sequence[ScheduleEntry]], paths: Sequence[Sequence[int]], seconds: Callable[[int, Part], float]
) -> Programs:
    """Return the lists of all stages with the messages between them, which `check_rendezvous` has looked at.

    paths: for each replica the stages of a forward, as `PipelineReplica.forward_path`. seconds: more than 0, of a part
    of a replica's micro-batch in one chunk. Raises ScheduleDeadlock where stages wait for each other.
    """
    keyed: list[list[tuple[tuple[float, ...], Step]]] = [[] for _ in lists]
    for (start, end), stage, entry, position in _timed(lists, paths, seconds):
        keyed[stage].append(((start, 1.0), entry))
        path, by = paths[entry.replica], {"F": 1, "B": -1, "I": -1}.get(entry.part, 0)
        if not by or not 0 <= (needed := position + by) < len(path) or path[needed] == stage:
            # Between chunks of one stage alone nothing is sent.
            continue
        part: Literal["F", "B"] = "F" if by == 1 else "B"
        # Messages that are ready at the same time have any order that is the same on both their stages.
        key = (end, 0.0, stage, entry.replica, by, position)
        of_chunk = len(set(path))
        keyed[stage].append(
            (key, StageTransfer(entry.replica, "send", part, position // of_chunk, path[needed], needed))
        )
        keyed[path[needed]].append(
            (key, StageTransfer(entry.replica, "receive", part, needed // of_chunk, stage, needed))
        )
    programs = tuple(tuple(step for _, step in sorted(steps, key=lambda keyed: keyed[0])) for steps in keyed)
    check_rendezvous(programs)
    return programs


def make_stage_programs(problem: PipelineProblem, lists: Lists) -> Programs:
    """Return the lists of a problem with their messages. Raises ScheduleDeadlock."""
    lines = problem.replicas
    return add_transfers(
        lists, [line.forward_path for line in lines], lambda number, part: lines[number].model.part_seconds(part)
    )


def _timed(
    lists: Sequence[Sequence[ScheduleEntry]], paths: Sequence[Sequence[int]], seconds: Callable[[int, Part], float]
) -> Iterator[tuple[tuple[float, float], int, ScheduleEntry, int]]:
    """Yield for each entry its start and its end, its stage, itself, and its place along the path of its replica: when
    all of them begin as early as their lists permit, and messages take no time."""
    ends: list[dict[str, list[list[float]]]] = [{way: [[] for _ in path] for way in "FB"} for path in paths]
    free, done = [0.0] * len(lists), [0] * len(lists)
    moved = True
    while moved:
        moved = False
        for stage, entries in enumerate(lists):
            while done[stage] < len(entries):
                entry = entries[done[stage]]
                path, of_replica = paths[entry.replica], ends[entry.replica]
                in_chunk = len(set(path))
                at = next(at for at in range(entry.chunk * in_chunk, len(path)) if path[at] == stage)
                ready = 0.0
                if entry.part != "W":
                    way, by = ("F", -1) if entry.part == "F" else ("B", 1)
                    number, ended = len(of_replica[way][at]), of_replica[way]
                    before = [ended[at + by]] if 0 <= at + by < len(path) else []
                    before += [of_replica["F"][at]] if way == "B" else []
                    if any(number >= len(list_) for list_ in before):
                        break
                    ready = max([0.0, *(list_[number] for list_ in before)])
                start = max(free[stage], ready)
                free[stage] = start + seconds(entry.replica, entry.part)
                assert free[stage] > start, "the order of messages is that of times"
                if entry.part != "W":
                    of_replica[way][at].append(free[stage])
                yield (start, free[stage]), stage, entry, at
                done[stage] += 1
                moved = True
    if stuck := [stage for stage, entries in enumerate(lists) if done[stage] < len(entries)]:
        raise ScheduleDeadlock(f"stage {stuck[0]} waits for ever, in {lists[stuck[0]][done[stuck[0]]]}")


def check_rendezvous(programs: Sequence[Sequence[Step | BatchedTransfers]]) -> None:
    """Raise ScheduleDeadlock where a message would never end, or the two ends would take different ones for the same,
    though every stage does one step after the other and every message waits until both its stages are at it."""
    at, left = [0] * len(programs), [_transfers(program, 0) for program in programs]
    counts = [Counter[tuple[str, int, str, int]]() for _ in programs]
    comes = [
        {_what(step) for item in program for step in _flat(item) if step.kind == "receive"} for program in programs
    ]
    waiting = {stage for stage, program in enumerate(programs) if program}
    while waiting:
        stage = waiting.pop()
        while at[stage] < len(programs[stage]) and not left[stage]:
            step = programs[stage][at[stage]]
            if isinstance(step, ScheduleEntry):
                _count_entry(stage, step, counts[stage], comes[stage])
            at[stage] += 1
            left[stage] = _transfers(programs[stage], at[stage])
        for transfer in list(left[stage]):
            if transfer not in left[stage]:
                continue
            other = _counterpart(stage, transfer, left)
            if other is None:
                continue
            if (transfer.replica, transfer.part, transfer.position) != (other.replica, other.part, other.position):
                raise ScheduleDeadlock(f"stage {stage} {transfer}, but stage {transfer.peer} {other}")
            for end, half in ((stage, transfer), (transfer.peer, other)):
                left[end].remove(half)
                _count_transfer(end, half, counts[end])
                waiting.add(end)
    stuck = [
        f"stage {stage} {step}"
        for stage, program in enumerate(programs)
        if at[stage] < len(program) and (step := program[at[stage]])
    ]
    if stuck:
        raise ScheduleDeadlock(f"nobody can go on: {', '.join(stuck)}")


def _flat(step: Step | BatchedTransfers) -> tuple[StageTransfer, ...]:
    if isinstance(step, BatchedTransfers):
        return step.transfers
    return (step,) if isinstance(step, StageTransfer) else ()


def _transfers(program: Sequence[Step | BatchedTransfers], at: int) -> list[StageTransfer]:
    return [*_flat(program[at])] if at < len(program) else []


def _counterpart(stage: int, transfer: StageTransfer, left: Sequence[Sequence[StageTransfer]]) -> StageTransfer | None:
    """Return what the peer does with the same message, if it is at it: the first of those that go this way, if this is
    the first of them here."""
    alike = [other for other in left[stage] if (other.peer, other.kind) == (transfer.peer, transfer.kind)]
    if alike[0] != transfer:
        return None
    return next((other for other in left[transfer.peer] if other.peer == stage and other.kind != transfer.kind), None)


def _what(transfer: StageTransfer) -> tuple[int, str, int]:
    return transfer.replica, transfer.part, transfer.chunk


def _count_entry(
    stage: int, entry: ScheduleEntry, counts: Counter[tuple[str, int, str, int]], comes: set[tuple[int, str, int]]
) -> None:
    way = "F" if entry.part == "F" else "B"
    what = entry.replica, way, entry.chunk
    if entry.part == "W":
        return
    counts["done", *what] += 1
    if what in comes and counts["receive", *what] < counts["done", *what]:
        raise ScheduleDeadlock(f"stage {stage} computes {entry} before it has received what that needs")


def _count_transfer(stage: int, transfer: StageTransfer, counts: Counter[tuple[str, int, str, int]]) -> None:
    what = _what(transfer)
    counts[transfer.kind, *what] += 1
    if transfer.kind == "send" and counts["send", *what] > counts["done", *what]:
        raise ScheduleDeadlock(f"stage {stage} {transfer} before it has computed that")
