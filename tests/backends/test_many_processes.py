"""What the controller does for a step of a large plan: it grows with the data-parallel copies, and not with their ranks,
nor with the square of anything. It is counted on processes that answer at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest

pytest.importorskip("ray.util")

from benchmarks.at_once import Controlled, grpo
from rlgraph.backends.clocks import InlineClock
from rlgraph.backends.exchange.exchange import ExchangeCost
from rlgraph.backends.ray.requests import unpickle_request
from rlgraph.backends.ray.row_refs import Address
from rlgraph.backends.ray.worker import Worker
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.plan import Group
from tests.counting import calls, grows_with_its_size
from tests.waits import NEVER


def step(run: Controlled) -> tuple[Counter[str], Counter[str]]:
    """Calls and bytes of a step after those that plan."""
    steps = run.run_steps(3)
    next(steps), next(steps)
    run.processes.forget()
    next(steps)
    return run.processes.calls, run.processes.sent


def test_an_order_goes_to_a_copy() -> None:
    """Of two ranks or of sixteen: who speaks gets one, and passes one on to all the others."""
    few, bytes_of_few = step(grpo(2, 4, heads=2, stages=1, clock=InlineClock()))
    many, bytes_of_many = step(grpo(2, 4, heads=8, stages=2, clock=InlineClock()))
    assert few == many
    # Who speaks has one of its own: eight mini-batches and a reading by two copies, a generation by four.
    by_models = 2 * (8 * 2 + 2 + 4)
    assert by_models < few["run_packed_request"] < by_models + 20
    # A rank more has its number in an order.
    assert sum(bytes_of_many.values()) < 1.1 * sum(bytes_of_few.values())


def test_blocks_cost_no_more_orders_than_they_are() -> None:
    """The 256 blocks of a batch are told of by who speaks for a copy, one after the other; who is behind takes all that
    are there."""
    whole, _ = step(grpo(2, 4, heads=2, stages=1, clock=InlineClock()))
    few, _ = step(grpo(2, 4, heads=2, stages=1, block=64, clock=InlineClock()))
    many, _ = step(grpo(2, 4, heads=8, stages=2, block=64, clock=InlineClock()))
    assert few == many
    assert few["next_part"] == 256 - 4 and few["run_packed_request"] == whole["run_packed_request"]


def test_work_grows_with_the_copies() -> None:
    def work(copies: int) -> int:
        run = grpo(copies, copies, heads=2, stages=1, clock=InlineClock())
        steps = run.run_steps(3)
        next(steps), next(steps)
        return calls(lambda: next(steps))

    one, two, four = (work(copies) for copies in (8, 16, 32))
    assert four - two < 2.5 * (two - one)


def test_a_rank_is_told_its_own_ways_of_the_weights() -> None:
    def told(copies: int) -> int:
        run = grpo(copies, copies, heads=2, stages=1, clock=InlineClock())
        steps = run.run_steps(2)
        next(steps), next(steps)
        return run.processes.sent["prepare_weight_transfer"]

    one, two, four = (told(copies) for copies in (4, 8, 16))
    assert four - two < 2.5 * (two - one)


def test_the_copies_of_a_group() -> None:
    def work(copies: int) -> object:
        over = make_mesh(dp=copies, tp=2)
        return Group("learn", "learn", "megatron", over, tuple(range(over.rank_count))).replica_ranks()

    assert grows_with_its_size(work, 16)


def test_an_order_is_sent_behind_the_weights_that_it_works_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that take part in a transfer have their next order then: nobody answers before."""
    run, sent = grpo(2, 4, heads=1, stages=1), Event()
    processes = run.processes
    fire = processes.answers[Worker.run_packed_request]

    def fired(who: Address, told: bytes, *arrived: Any) -> bytes:
        if processes.nodes[unpickle_request(told).node].op == "generate":
            sent.set()
        return fire(who, told, *arrived)

    def exchanged(*_: object) -> Callable[[], ExchangeCost]:
        sent.clear()
        transfers.append(sent)

        def answer() -> ExchangeCost:
            assert sent.wait(NEVER)
            return ExchangeCost(0, 0, 1.0, 0)

        return answer

    transfers: list[Event] = []
    monkeypatch.setitem(processes.answers, Worker.run_packed_request, fired)
    monkeypatch.setitem(processes.answers, Worker.exchange_weights, exchanged)
    steps = run.run_steps(2)
    next(steps)
    assert next(steps).extra["sync/seconds"] == 1 and transfers
