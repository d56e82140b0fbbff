"""Where processes meet, on a machine on which others listen too."""

from __future__ import annotations

import os
import random
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from threading import Event, Thread

import pytest
import torch.distributed as dist

from rlgraph.backends.engines import rendezvous
from rlgraph.backends.engines.process_groups import RendezvousStore, connect_to_store, open_store, rendezvous_url
from rlgraph.backends.engines.rendezvous import Message, StoreServer
from tests.waits import NEVER

EPHEMERAL = (32768, 61000)
"""Ports that Linux hands out."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is right may be slow, and nobody is thought to be wrong because of it."""
    monkeypatch.setattr(rendezvous, "_PATIENCE", NEVER)


@pytest.fixture
def crowd() -> Iterator[None]:
    """A thousand programs that listen on an address of the machine, as those of others do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    with ExitStack() as open_sockets:
        if soft != resource.RLIM_INFINITY and soft < many:
            resource.setrlimit(resource.RLIMIT_NOFILE, (many, hard))
            open_sockets.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for port in random.Random(0).sample(range(*EPHEMERAL), 1000):
            try:
                open_sockets.enter_context(socket.create_server(("127.0.0.2", port)))
            except OSError:
                continue  # Somebody has it already.
        yield


def place(meeting: RendezvousStore) -> tuple[str, int]:
    host, port = meeting.address.split("/")[0].split(":")
    return host, int(port)


def said(end: socket.socket, most: int = 1 << 20) -> bytes:
    """All that comes from there, until it is so much or nothing more comes."""
    found = b""
    end.settimeout(NEVER)
    try:
        while len(found) < most and (more := end.recv(most - len(found))):
            found += more
    except ConnectionError:
        pass  # Whoever is refused with bytes on their way is told so by a reset.
    return found


def test_a_port_is_taken_when_it_is_chosen(crowd: None) -> None:
    """A probe on one address finds ports that are in use on another: a store on all addresses then fails, in this
    crowd 13 times of 300."""
    meetings = [open_store("127.0.0.1") for _ in range(100)]
    assert len({place(meeting) for meeting in meetings}) == 100
    for meeting in meetings:
        connect_to_store(meeting.address, NEVER).set("here", "1")


def test_nobody_else_can_take_it() -> None:
    meeting = open_store("127.0.0.1")
    with pytest.raises(OSError, match="in use"):
        socket.create_server(place(meeting))


def test_it_answers_as_torch_s_own_store() -> None:
    meeting = open_store("127.0.0.1")
    theirs = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ours = connect_to_store(meeting.address, NEVER)

    def told(store: dist.Store) -> list[object]:
        prefixed = dist.PrefixStore("in", store)
        prefixed.set("here", "1")
        found: list[object] = [prefixed.get("here"), prefixed.add("count", 3), prefixed.add("count", 4)]
        found += [store.get("in/count"), prefixed.check(["here", "count"]), prefixed.check(["here", "there"])]
        # Of a value that is another one, of one that is, of a key that is not there.
        found += [prefixed.compare_set("here", was, "2") for was in ("0", "1")]
        found += [prefixed.compare_set("new", "", "3"), prefixed.compare_set("newer", "x", "4")]
        prefixed.append("here", "5")
        found += [prefixed.clone().get("here"), prefixed.delete_key("here"), prefixed.delete_key("here")]
        with pytest.raises(dist.DistStoreError):
            prefixed.wait(["here"], timedelta(milliseconds=50))
        return found

    assert told(ours) == told(theirs)
    assert connect_to_store(meeting.address, NEVER).get("in/new") == b"3"


def test_who_waits_keeps_nobody_else_from_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, plain = Event(), StoreServer._do_wait

    def noted(listener: StoreServer, *given: bytes) -> Message:
        asked.set()
        return plain(listener, *given)

    monkeypatch.setattr(StoreServer, "_do_wait", noted)
    meeting = open_store("127.0.0.1")
    store, found = connect_to_store(meeting.address, NEVER), []
    waiting = Thread(target=lambda: found.append(store.get("late")))
    waiting.start()
    assert asked.wait(NEVER)
    store.set("late", "1")
    waiting.join(NEVER)
    assert found == [b"1"]


def test_torch_meets_there_by_itself() -> None:
    """vLLM starts its ranks by a URL, in the process that listens, too."""
    meeting = open_store("127.0.0.1")
    named = rendezvous_url(meeting.address)
    assert meeting.address.split("/")[1] not in named
    made: list[dist.Store] = []

    def come(rank: int) -> None:
        store, *_ = next(iter(dist.rendezvous(named, rank, 2)))
        made.append(store)

    ranks = [Thread(target=come, args=(rank,)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(NEVER)
    assert len(made) == 2
    made[0].set("here", "1")
    assert made[1].get("here") == b"1"


# Strangers


def test_who_does_not_know_the_token_gets_no_answer() -> None:
    """Another token, none, that of another meeting, what torch's own client says, and any bytes."""
    meeting, other = open_store("127.0.0.1"), open_store("127.0.0.1")
    member = connect_to_store(meeting.address, NEVER)
    member.set("here", "1")
    where, port = meeting.address.split("/")[0], place(meeting)[1]
    for token in ("", "00" * 32, other.address.split("/")[1]):
        with pytest.raises(dist.DistNetworkError, match="cannot be reached"):
            connect_to_store(f"{where}/{token}", NEVER)
    with pytest.raises(dist.DistError):
        dist.TCPStore("127.0.0.1", port, wait_for_workers=False, timeout=timedelta(seconds=1)).set("here", "2")
    message = struct.pack("<4I", 3, 3, 4, 1) + b"sethere2"
    for stray in (message, os.urandom(32) + bytes(32) + message, os.urandom(1 << 20), b"\xff" * 100):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            with suppress(OSError):
                stranger.sendall(stray)
                stranger.shutdown(socket.SHUT_WR)
            # No more than the random number that everybody has to answer.
            assert len(said(stranger)) <= 32
    assert connect_to_store(meeting.address, NEVER).get("here") == b"1"


def test_a_proof_that_was_overheard_is_worth_nothing() -> None:
    """It answers a number that was drawn for it; and what the listener proves is not what one who comes has to."""
    meeting = open_store("127.0.0.1")
    token = meeting.address.split("/")[1]
    heard = b""
    with socket.create_server(("127.0.0.1", 0)) as between:
        port = between.getsockname()[1]

        def listening() -> None:
            """Passes on what both say, once."""
            nonlocal heard
            came, _ = between.accept()
            with came, socket.create_connection(place(meeting)) as there:
                came.sendall(said(there, 32))
                heard = said(came, 64)

        watching = Thread(target=listening)
        watching.start()
        with pytest.raises(dist.DistNetworkError):
            connect_to_store(f"127.0.0.1:{port}/{token}", NEVER)
        watching.join(NEVER)
    assert len(heard) == 64
    with socket.create_connection(place(meeting)) as again:
        said(again, 32)
        again.sendall(heard)
        assert not said(again)
    # The listener's own number sent back to it, as number and as proof.
    with socket.create_connection(place(meeting)) as mirror:
        mirror.sendall(2 * said(mirror, 32))
        assert not said(mirror)


def test_strangers_who_say_nothing_keep_nobody_out() -> None:
    """Who had to wait for all of them would give up."""
    meeting = open_store("127.0.0.1")
    with ExitStack() as silent:
        for _ in range(50):
            silent.enter_context(socket.create_connection(place(meeting)))
        connect_to_store(meeting.address, NEVER).set("here", "1")


def test_nobody_listens_when_it_is_over() -> None:
    meeting = open_store("127.0.0.1")
    address = meeting.address
    member = connect_to_store(address, NEVER)
    del meeting
    # Somebody else may have its port by now, and does not know the token.
    with pytest.raises(dist.DistNetworkError, match="cannot be reached"):
        connect_to_store(address, NEVER)
    # Who is in stays in.
    member.set("here", "1")
    assert member.get("here") == b"1"
