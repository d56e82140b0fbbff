"""Where processes meet, on a machine on which others listen too."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Thread

import pytest
import torch.distributed as dist

from rlgraph.engines.joining import attend, listen

EPHEMERAL = (32768, 61000)
"""Ports that Linux hands out."""


@pytest.fixture
def crowd() -> Iterator[None]:
    """A thousand programs that listen on an address of the machine, as those of others do."""
    with ExitStack() as open_sockets:
        for port in random.Random(0).sample(range(*EPHEMERAL), 1000):
            try:
                open_sockets.enter_context(socket.create_server(("127.0.0.2", port)))
            except OSError:
                continue  # Somebody has it already.
        yield


def test_a_port_is_taken_when_it_is_chosen(crowd: None) -> None:
    """A probe on one address finds ports that are in use on another: a store on all addresses then fails, in this
    crowd 13 times of 300."""
    meetings = [listen("127.0.0.1") for _ in range(100)]
    assert len({meeting.address for meeting in meetings}) == 100
    for meeting in meetings:
        _, port = meeting.address.split(":")
        assert int(port) == meeting.store.port


def test_nobody_else_can_take_it() -> None:
    meeting = listen("127.0.0.1")
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", meeting.store.port))


def test_who_attends_reads_what_the_others_wrote() -> None:
    meeting = listen("127.0.0.1")
    attend(meeting.address, 10).set("here", "1")
    assert attend(meeting.address, 10).get("here") == b"1"
    assert meeting.store.get("here") == b"1"


def test_torch_meets_there_by_itself() -> None:
    """vLLM starts its ranks by an address, in the process that listens: torch takes the store that is there."""
    meeting = listen("127.0.0.1")
    made: list[dist.Store] = []

    def come(rank: int) -> None:
        store, *_ = next(iter(dist.rendezvous(f"tcp://{meeting.address}", rank, 2)))
        made.append(store)

    ranks = [Thread(target=come, args=(rank,)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(20)
    assert len(made) == 2
    made[0].set("here", "1")
    assert meeting.store.get("here") == b"1" or made[1].get("here") == b"1"
