"""Messages and collectives over gloo that meet as NCCL's do: what they refuse, by threads that share a store; what they
do, by processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from rlgraph.backends.hard.groups import BACKEND, HardGroups
from rlgraph.backends.hard.meetings import Communicator
from rlgraph.errors import RunError
from rlgraph.ir.mesh import Mesh, make_mesh
from tests.backends.engines.ranks import Ranks
from tests.waits import NEVER

Work = Callable[[Communicator], Any]


def met(works: Sequence[Work], devices: Sequence[int] = (0, 1, 2, 3), seconds: float = NEVER) -> list[str]:
    """What comes of a work for each process, in a thread of its own: the communicators that were made, or what was
    said."""
    store, found = HashStore(), [""] * len(works)
    names = [f"rank {rank} of all" for rank in range(len(works))]

    def run(rank: int) -> None:
        made: list[int] = []
        communicator = Communicator(store, rank, names, devices[rank], seconds, lambda: made.append(1))
        try:
            works[rank](communicator)
            found[rank] = f"{len(made)} made"
        except RunError as error:
            [told] = error.diagnostics
            assert told.code == "E0751"
            found[rank] = told.message

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def messages(*kinds: tuple[str, int]) -> Work:
    """Begins messages with another process, and then waits for each."""

    def work(communicator: Communicator) -> None:
        begun = [(peer, communicator.begin_message(kind, peer, 3)) for kind, peer in kinds]
        for peer, number in begun:
            communicator.meet_message(peer, number)
            assert communicator.has_met(peer, number)

    return work


def collectives(*names: str) -> Work:
    def work(communicator: Communicator) -> None:
        for name in names:
            communicator.meet_collective(communicator.begin_collective(name))

    return work


def nothing(communicator: Communicator) -> None:
    pass


def test_messages_in_one_order_meet() -> None:
    there = messages(("sends", 1), ("receives", 1), ("sends", 1))
    back = messages(("receives", 0), ("sends", 0), ("receives", 0))
    assert met([there, back]) == ["1 made", "1 made"]


def test_two_that_both_send_first_never_meet() -> None:
    work = ("sends", "receives")
    [one, other] = met([messages(*((kind, 1 - rank) for kind in work)) for rank in range(2)])
    assert one == "rank 0 of all and rank 1 of all are both at message 1 of their communicator, and each sends it"
    assert other == "rank 1 of all and rank 0 of all are both at message 1 of their communicator, and each sends it"


def test_a_ring_whose_first_messages_are_with_the_next_never_meets() -> None:
    """Each waits for the communicator that it makes with the one after it, as three stages do whose lists begin so."""
    ring = met([messages(("sends", (rank + 1) % 3), ("receives", (rank - 1) % 3)) for rank in range(3)], seconds=0.3)
    assert (
        ring[0]
        == "rank 0 of all sends its first message with rank 1 of all and rank 1 of all has not come to it in 0.3 s"
    )
    assert all("has not come to it" in said for said in ring)


def test_messages_of_another_size_are_named() -> None:
    def work(size: int, kind: str) -> Work:
        return lambda communicator: communicator.meet_message(
            1 - communicator._rank, communicator.begin_message(kind, 1 - communicator._rank, size)
        )

    assert met([work(2, "sends"), work(3, "receives")])[1] == (
        "rank 1 of all receives message 1 with 3 numbers, and rank 0 of all sends 2 numbers"
    )


def test_collectives_that_are_not_the_same_are_named() -> None:
    found = met([collectives("allreduce of 3", "barrier"), collectives("allreduce of 3", "broadcast of 1")])
    assert found[0] == (
        "rank 0 of all is in `barrier` and rank 1 of all in `broadcast of 1`: both are collective 2 of their communicator"
    )
    assert met([collectives("barrier", "barrier")] * 3) == ["1 made"] * 3


def test_one_that_not_all_join_is_named() -> None:
    found = met([collectives("allreduce of 3"), collectives("allreduce of 3"), nothing], seconds=0.2)
    assert found == [
        f"rank {rank} of all begins `allreduce of 3`, the first of its communicator, and rank 2 of all has not come to it "
        "in 0.2 s"
        for rank in range(2)
    ] + ["0 made"]
    later = met([collectives("barrier", "allreduce of 3"), collectives("barrier")], seconds=0.2)
    assert later[0] == (
        "rank 0 of all is in `allreduce of 3`, collective 2, and rank 1 of all has not come to it in 0.2 s"
    )


def test_no_two_ranks_of_a_communicator_are_on_one_device() -> None:
    found = met([collectives("barrier")] * 3, devices=(0, 1, 0))
    assert found == ["rank 0 of all and rank 2 of all are in one communicator and both on device 0"] * 3


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks(2)
    yield started
    started.close()


def in_order(mesh: Mesh) -> tuple[list[float], int]:
    """One sends twice, then the other; then all add up and gather. And how many communicators were made."""
    rank, made = dist.get_rank(), list[int]()
    groups = HardGroups(rank, lambda rank: f"rank {rank}", lambda: made.append(1))
    groups.install()
    try:
        group: Any = dist.new_group(backend=BACKEND)
        assert dist.get_backend(group) == "hard"
        begun, tensors = [], []
        for number, sender in enumerate((0, 0, 1), start=1):
            tensors.append(torch.full((2,), float(number)) if rank == sender else torch.zeros(2))
            begun.append((dist.isend if rank == sender else dist.irecv)(tensors[-1], 1 - rank, group))
        for work in begun:
            assert work is not None
            work.wait()
            assert work.is_completed()
        total, gathered = torch.ones(3), torch.empty(4)
        dist.all_reduce(total, group=group)
        dist.all_gather_into_tensor(gathered, torch.full((2,), float(rank)), group=group, async_op=True).wait()
        # Groups that are not hard are gloo's, as before.
        dist.all_reduce(total)
        return [value for tensor in (*tensors, total, gathered) for value in tensor.tolist()], len(made)
    finally:
        groups.remove()


def test_what_meets_is_what_gloo_does(ranks: Ranks) -> None:
    """Two communicators are made: of the pair, and of all."""
    found = ranks.run(make_mesh(dp=2), in_order)
    assert found == [([1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 4.0, 0.0, 0.0, 1.0, 1.0], 2)] * 2
