"""Who waits for whom, from what processes say: who did not come to a collective, and which of them is to be named."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
from multiprocessing.synchronize import Event
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from rlgraph.backends.engines.collectives import Collective, CollectiveState, read_flight_recorder
from rlgraph.backends.engines.process_groups import connect_to_store, open_store
from rlgraph.backends.exchange.exchange import CurrentMessage
from rlgraph.backends.exchange.link import LinkError
from rlgraph.backends.ray import activity as doing_module
from rlgraph.backends.ray.activity import ActivityLog, ActivityReport, ThreadWork
from rlgraph.backends.ray.row_refs import Address
from rlgraph.backends.ray.waits import WaitGraph
from tests.waits import NEVER

TP, DP = ("1", (0, 1)), ("2", (0, 2))


def at(
    last: dict[tuple[str, tuple[int, ...]], int], *open_: Collective, moving: str = "", work: str = ""
) -> ActivityReport:
    doing = (ThreadWork(work, 61.0, "engines/some/engine.py:9, in step"),) if work else ()
    ranks = {key: tuple(("learn", rank) for rank in key[1]) for key in last}
    return ActivityReport(
        doing, CollectiveState(last, open_), ranks, (CurrentMessage("a part of a tensor", moving),) if moving else ()
    )


def told(waits: WaitGraph, *unanswered: Address) -> list[str]:
    return [each.message for each in waits.explain_waits(unanswered)]


def test_who_did_not_come_and_who_waits_behind_it() -> None:
    """Rank 1 of four stands still; rank 0 waits for it, and rank 2 for rank 0, in another group; who samples waits for
    weights of rank 2."""
    found = {
        ("learn", 0): at({TP: 57, DP: 3}, Collective(TP, 57, "all_reduce", 120)),
        ("learn", 2): at({DP: 4}, Collective(DP, 4, "all_gather", 0)),
        ("play", 0): at({}, moving="rank 2 of learn"),
    }
    waits = WaitGraph.from_reports(found, {("learn", 1)})
    assert told(waits, ("learn", 0), ("learn", 1), ("learn", 2)) == [
        "rank 0 of learn waits for rank 1 of learn in `all_reduce`, number 57 of ranks 0-1 of learn, with 120 numbers",
        "rank 2 of learn waits for rank 0 of learn in `all_gather`, number 4 of ranks 0, 2 of learn",
        "rank 0 of play waits for rank 2 of learn in the transfer of a part of a tensor",
        "rank 1 of learn says nothing at all: its process, or its machine, stands still",
    ]
    assert waits.process_to_blame([("learn", 2), ("learn", 1), ("learn", 0)]) == ("learn", 1)


def test_who_lives_and_does_something_else() -> None:
    """Nobody stands still: who is waited for and waits for nobody is named, with what it does."""
    found = {
        ("learn", 0): at({TP: 8}, Collective(TP, 8, "all_reduce", 1)),
        ("learn", 1): at({TP: 7}, work="`train` for `actor@1`"),
    }
    waits = WaitGraph.from_reports(found, ())
    assert waits.process_to_blame(found) == ("learn", 1)
    assert told(waits, *found) == [
        "rank 0 of learn waits for rank 1 of learn in `all_reduce`, number 8 of ranks 0-1 of learn, with 1 number",
        "rank 1 of learn does `train` for `actor@1`, for 61 s, at engines/some/engine.py:9, in step",
    ]


def test_a_collective_to_which_all_have_come_blames_nobody() -> None:
    found = {("learn", rank): at({TP: 8}, Collective(TP, 8, "all_reduce", 1)) for rank in (0, 1)}
    assert not WaitGraph.from_reports(found, ()).waits


def test_many_waits_are_cut() -> None:
    silent = [("learn", rank) for rank in range(30)]
    found = told(WaitGraph.from_reports({}, silent))
    assert len(found) == 8 and found[-1] == "and 23 more sentences like these"


def _rank(rank: int, address: str, answers: multiprocessing.Queue[object], seen: Event) -> None:
    store = connect_to_store(address, NEVER)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    pair = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(3), group=pair)
    if rank:
        seen.wait(NEVER)
        return
    # Each look at the clock takes a second: what begins at 0 is seen at 1, and fails at 2.
    doing_module.time = SimpleNamespace(monotonic=itertools.count().__next__)  # type: ignore[assignment]
    doing = ActivityLog()

    def look() -> None:
        while not read_flight_recorder().unfinished:
            time.sleep(0.01)
        answers.put((read_flight_recorder(), doing.current_work()))

    threading.Thread(target=look).start()
    try:
        with doing("`train`"):
            dist.all_reduce(torch.ones(5, 7), group=pair)
    except LinkError as error:
        answers.put(str(error))


@pytest.mark.long
def test_torch_tells_while_it_waits_and_a_collective_that_fails_is_a_link_that_does() -> None:
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[object] = context.Queue()
    seen, meeting = context.Event(), open_store("127.0.0.1")
    how = (meeting.address, answers, seen)
    ranks = [context.Process(target=_rank, args=(rank, *how), daemon=True) for rank in (0, 1)]
    for each in ranks:
        each.start()
    try:
        found, work = answers.get(timeout=NEVER)  # type: ignore[misc]
        seen.set()
        failed = answers.get(timeout=NEVER)
    finally:
        for each in ranks:
            each.kill()
    [waits] = found.unfinished
    assert (waits.number, waits.name, waits.elements, waits.group[1]) == (2, "all_reduce", 35, (0, 1))
    assert found.last_numbers[waits.group] == 2
    [one] = work
    assert one.what == "`train`" and one.seconds == 1 and ".py:" in one.place
    assert str(failed).startswith("the other end is gone or does not answer, after 2.0 s: ")
