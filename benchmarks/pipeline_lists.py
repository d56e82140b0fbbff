"""Random lists of pipelines: is what the checker of messages says what happens on the transport of hard devices?

    python benchmarks/pipeline_lists.py --lists 10000

A list is that of one to three models on two or four stages, with copies, chunks and directions, as a schedule makes it,
or with some of it moved: a step or a few elsewhere, messages where they are ready, a stage in any order. Each stage is
a thread that follows its list over the communicators of hard devices (`rlgraph.backends.hard.meetings`), which meet as
NCCL's do. Nobody holds a clock: where all threads wait for what only another of them can do, that is the end.

    waits    every message is waited for where it begins, as a large one that a stream is at: the verdict has to be the
             same, in all lists
    begins   a message is begun, and waited for where it is needed, as processes do: no list that the checker lets
             through may stand still; of those that it refuses some go through, since only the first message of two
             stages holds both up
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, cast

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rlgraph.backends.hard.meetings import Communicator
from rlgraph.errors import RunError
from rlgraph.passes.pipelines.messages import StageTransfer, Step, check_rendezvous
from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem
from rlgraph.passes.pipelines.stage_programs import forward_stage_programs, training_stage_programs
from rlgraph.passes.pipelines.timetable import ScheduleDeadlock, ScheduleEntry

Way = Literal["waits", "begins"]
Lists = list[list[Step]]
Message = tuple[int, str, int]
"""A replica, what needs the message, and where."""


class StandsStill(Exception):
    """Raised in every thread that waits when all do."""


class SharedKeys:
    """What processes write for each other, as torch's stores have it: who waits for a key waits until it is there, or
    until nobody is left who could write it."""

    def __init__(self, threads: int) -> None:
        self._news = threading.Condition()
        self._left, self._still = threads, False
        self._values: dict[str, bytes] = {}
        self._wanted: dict[int, str] = {}

    def set(self, key: str, value: str) -> None:
        with self._news:
            self._values[key] = value.encode()
            if key in self._wanted.values():
                self._news.notify_all()

    def get(self, key: str) -> bytes:
        return self._values[key]

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: Sequence[str], limit: timedelta) -> None:
        [key] = keys
        with self._news:
            self._wanted[threading.get_ident()] = key
            while key not in self._values:
                waiting = len(self._wanted) == self._left
                if self._still or waiting and not any(wanted in self._values for wanted in self._wanted.values()):
                    self._still = True
                    self._news.notify_all()
                    raise StandsStill
                self._news.wait()
            del self._wanted[threading.get_ident()]

    def leave(self) -> None:
        """End a thread's part."""
        with self._news:
            self._left -= 1
            self._wanted.pop(threading.get_ident(), None)
            self._news.notify_all()


class Stage:
    """One stage, which follows its list."""

    def __init__(self, communicator: Communicator, way: Way, sizes: Mapping[Message, int]) -> None:
        """sizes: of each message, in elements."""
        self._communicator, self._way, self._sizes = communicator, way, sizes
        self._arriving: dict[tuple[int, str, int], deque[tuple[int, int]]] = {}
        self._ready: Counter[tuple[int, str, int]] = Counter()
        self._begun: list[tuple[int, int]] = []

    def follow(self, steps: Sequence[Step]) -> None:
        """Do all steps. Raises RunError where a message does not meet, and LookupError where something is computed or
        sent that is not there."""
        comes = {_what(step) for step in steps if isinstance(step, StageTransfer) and step.kind == "receive"}
        for step in steps:
            if isinstance(step, StageTransfer):
                self._transfer(step)
            elif step.part != "W":
                self._compute(step, comes)
        for message in self._begun:
            self._communicator.meet_message(*message)

    def _transfer(self, step: StageTransfer) -> None:
        what = _what(step)
        if step.kind == "send":
            if not self._ready[what]:
                raise LookupError(f"{step} before it is there")
            self._ready[what] -= 1
        kind = "sends" if step.kind == "send" else "receives"
        message = step.peer, self._communicator.begin_message(kind, step.peer, self._sizes[_message(step)])
        if step.kind == "receive":
            self._arriving.setdefault(what, deque()).append(message)
        if self._way == "waits":
            self._communicator.meet_message(*message)
        else:
            self._begun.append(message)

    def _compute(self, entry: ScheduleEntry, comes: set[tuple[int, str, int]]) -> None:
        what = entry.replica, "F" if entry.part == "F" else "B", entry.chunk
        if what in comes:
            if not self._arriving.get(what):
                raise LookupError(f"{entry} before what it needs")
            self._communicator.meet_message(*self._arriving[what].popleft())
        self._ready[what] += 1


def _what(step: StageTransfer) -> tuple[int, str, int]:
    return step.replica, step.part, step.chunk


def _message(step: StageTransfer) -> Message:
    return step.replica, step.part, step.position


def stands_still(programs: Sequence[Sequence[Step]], way: Way) -> bool:
    """Return whether following the lists does not come to its end."""
    keys, failures = SharedKeys(len(programs)), list[Exception]()
    names = [f"stage {stage}" for stage in range(len(programs))]
    whose = {_message(step) for steps in programs for step in _transfers(steps)}
    # Each message has a size of its own, so that one that comes in place of another is seen.
    number = {message: size for size, message in enumerate(sorted(whose), start=1)}

    def run(stage: int) -> None:
        communicator = Communicator(cast(Any, keys), stage, names, stage, 1.0)
        try:
            Stage(communicator, way, number).follow(programs[stage])
        except (RunError, LookupError) as error:
            failures.append(error)
        finally:
            keys.leave()

    threads = [threading.Thread(target=run, args=(stage,)) for stage in range(len(programs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return bool(failures)


def is_refused(programs: Sequence[Sequence[Step]]) -> bool:
    """Return what the checker says."""
    try:
        check_rendezvous(programs)
    except ScheduleDeadlock:
        return True
    return False


def _transfers(steps: Sequence[Step]) -> list[StageTransfer]:
    return [step for step in steps if isinstance(step, StageTransfer)]


def random_lists(draw: random.Random) -> tuple[str, Lists]:
    """Return the kind of some lists, and the lists."""
    if draw.random() < 0.05:
        made = forward_stage_programs(draw.choice([2, 4]), draw.randint(1, 6), draw.choice([1, 2]))
    else:
        made = training_stage_programs(random_problem(draw))
    lists: Lists = [[*steps] for steps in cast(Sequence[Sequence[Step]], made)]
    kind = draw.choice(["as made", "as made", "one moved", "some moved", "sent at once", "swapped", "any order"])
    if kind in ("one moved", "some moved", "swapped"):
        for _ in range(draw.randint(2, 5) if kind == "some moved" else 1):
            steps = draw.choice(lists)
            at = draw.randrange(len(steps))
            to = at + 1 if kind == "swapped" else max(0, at + draw.randint(-4, 4))
            steps.insert(to, steps.pop(at))
    elif kind == "sent at once":
        lists = [_at_once(steps, draw) for steps in lists]
    elif kind == "any order":
        draw.shuffle(draw.choice(lists))
    return kind, lists


def _at_once(steps: Sequence[Step], draw: random.Random) -> list[Step]:
    """Return a stage's list with each message where it is ready or needed; of some, as it was."""
    if draw.random() < 0.3:
        return [*steps]
    waiting: dict[tuple[str, tuple[int, str, int]], deque[StageTransfer]] = {}
    for transfer in _transfers(steps):
        waiting.setdefault((transfer.kind, _what(transfer)), deque()).append(transfer)
    at_once: list[Step] = []
    for entry in steps:
        if isinstance(entry, ScheduleEntry):
            what = entry.replica, "F" if entry.part == "F" else "B", entry.chunk
            receives, sends = waiting.get(("receive", what)), waiting.get(("send", what))
            at_once += [receives.popleft()] if receives else []
            at_once += [entry, *([sends.popleft()] if sends else [])]
    return at_once


def random_problem(draw: random.Random) -> PipelineProblem:
    """Return one to three models on some stages."""
    stages = draw.choice([2, 2, 4])
    models = []
    for number in range(draw.choice([1, 2, 2, 3])):
        of_model = draw.choice([size for size in (2, 4) if size <= stages])
        seconds = draw.randint(1, 9), draw.randint(2, 18)
        more = {"reverse": draw.random() < 0.5, "chunks": draw.choice([1, 1, 2])}
        models.append(
            PipelineModel(f"m{number}", of_model, draw.randint(1, 4), *seconds, copies=stages // of_model, **more)  # type: ignore[arg-type]
        )
    return PipelineProblem(tuple(models))


def compared(lists: int, seed: int) -> tuple[Counter[tuple[str, bool, bool, bool]], list[str]]:
    """Return how often which verdict went with what happened, by the kind of the list, whether it is refused, and
    whether it stands still where every message `waits` and where it `begins`; and what contradicts the checker."""
    told, wrong = Counter[tuple[str, bool, bool, bool]](), []
    for number in range(seed, seed + lists):
        kind, programs = random_lists(random.Random(number))
        refused = is_refused(programs)
        waits, begins = stands_still(programs, "waits"), stands_still(programs, "begins")
        told[kind, refused, waits, begins] += 1
        if refused != waits or begins and not refused:
            wrong.append(f"{number}: {kind}, refused: {refused}, stands still: {waits}, begun: {begins}")
    return told, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0, help="of the first list; the others follow")
    options = parser.parse_args()
    began = perf_counter()
    told, wrong = compared(options.lists, options.seed)
    for kind in sorted({kind for kind, *_ in told}):
        of_kind = {key[1:]: count for key, count in told.items() if key[0] == kind}
        refused = sum(count for (said, _, _), count in of_kind.items() if said)
        through = sum(count for (said, _, begins), count in of_kind.items() if said and not begins)
        print(f"{kind}: {sum(of_kind.values())} lists, {refused} refused, {through} of these go through if only begun")
    print(*wrong[:20], sep="\n", end="\n" if wrong else "")
    print(
        f"{options.lists} lists, {len(wrong)} of them otherwise than the checker says, {perf_counter() - began:.0f} s"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
