"""A new transport is one class: here one that does every order at once, in this process, and writes down what it
carried. What is computed are the numbers of the local backend."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from scheduled import apart, compiled
from test_exactness import PROGRAMS
from tiny import compile_text, data_folder, shipped, weights

from rlgraph.backends.clocks import InlineClock, ThreadClock
from rlgraph.backends.distributed.backend import DistributedBackend
from rlgraph.backends.distributed.transport import Coming, NodeRequest, TransferCost, WeightTransfer
from rlgraph.backends.exchange.link import LinkError
from rlgraph.backends.frame import NodeOutput, Part
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.step import Step
from rlgraph.backends.steps import SilentObserver, Things
from rlgraph.backends.worker.nodes import WORK
from rlgraph.backends.worker.row_choice import chosen_row_indices
from rlgraph.backends.worker.session import Session, Settings
from rlgraph.backends.worker.training import run_train
from rlgraph.ir.graph import with_node_ids
from rlgraph.ir.plan import Group
from tests.waits import NEVER

STEPS = 2


class Here:
    """Its stand-ins are the values themselves, and all groups have the same weights."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.carried: list[str] = []

    def run_request(self, order: NodeRequest) -> NodeOutput:
        node = order.node
        self.carried.append(f"{order.step.number}: {node.op} {node.id} on {order.group.name}")
        with torch.no_grad():
            return (run_train if node.op == "train" else WORK[node.op])(node, order.frame, self.session)

    def run_in_parts(self, order: NodeRequest, sizes: Sequence[int]) -> Iterator[Part]:
        raise NotImplementedError("nothing streams in one process")

    def choose_rows(self, order: NodeRequest) -> np.ndarray:
        return chosen_row_indices(order.node, order.frame, self.session)

    def row_loads(self, order: NodeRequest) -> Sequence[float]:
        raise NotImplementedError("rows begin in the order of the data")

    def send_weights(self, move: WeightTransfer) -> Coming:
        self.carried.append(f"{move.source}: {move.sender.name} > {move.receiver.name}")
        return lambda: TransferCost(0.5, sent_bytes=8)

    def assign_weights(self, move: WeightTransfer) -> None:
        raise NotImplementedError("no model is updated from another one")

    def finish_step(self, step: Step, things: Things) -> dict[str, float]:
        self.session.forget_steps(step)
        return {"orders": float(len(self.carried))}

    def save(self, model: str, owner: Group, folder: Path) -> None:
        self.session.models[model].engine.save(folder)

    def fail_pending_work(self, why: BaseException) -> None:
        """Nobody waits."""

    def end_processes(self) -> None:
        self.session.close()


class HereBackend(DistributedBackend):
    values_are_remote = False
    """Rows are here."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return data_folder(tmp_path)


@pytest.mark.parametrize("name", ["grpo", "async_grpo"])
def test_it_computes_what_one_process_does(folder: Path, name: str) -> None:
    swaps, changes = PROGRAMS[name]
    text = shipped(name, swaps)
    made = compiled(text, changes, apart(compile_text(text, changes)), folder)
    program, settings = with_node_ids(made.program), Settings(folder=folder)
    transport = Here(Session(program, settings))
    backend = HereBackend(
        program, made.plan, transport, InlineClock(), SilentObserver(), transport.session.first, seed=0
    )
    local = LocalBackend(made.program, settings)
    try:
        for found, expected in zip(backend.run_steps(STEPS), local.run_steps(STEPS), strict=True):
            assert found.metrics == expected.metrics
            assert found.extra["orders"] > 0
    finally:
        backend.close()
        local.close()
    assert backend.optimizer_step_counts() == local.optimizer_step_counts()
    # In the first step every group has the first weights.
    moves = [at for at, line in enumerate(transport.carried) if " > " in line]
    trained = next(at for at, line in enumerate(transport.carried) if line.startswith("1: train"))
    assert moves and moves[0] > trained
    assert found.extra["sync/bytes"] == 8 * len(moves)


class Stuck(Here):
    """Weights that are sent do not come."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.stuck, self.told = True, 0

    def send_weights(self, move: WeightTransfer) -> Coming:
        def arrived() -> TransferCost:
            if self.stuck:
                raise LinkError("the other end does not answer")
            self.told += 1
            return TransferCost(0.5, sent_bytes=8)

        return arrived


def test_all_who_work_with_weights_wait_for_them(folder: Path) -> None:
    """Not only who had them brought, who may be behind another one: what has failed on their way is told by whoever
    comes first, and what they took is counted once."""
    swaps, changes = PROGRAMS["grpo"]
    text = shipped("grpo", swaps)
    made = compiled(text, changes, apart(compile_text(text, changes)), folder)
    program = with_node_ids(made.program)
    transport = Stuck(Session(program, Settings(folder=folder)))
    backend = HereBackend(
        program, made.plan, transport, ThreadClock(), SilentObserver(), transport.session.first, seed=0
    )
    play = made.plan.group_of_role("actor", "generate")
    [node] = [node for _, node in program.walk() if node.op == "generate"]
    first, second = Step(1, "step"), Step(2, "step")
    try:
        backend.weights.note_update("actor", first)
        lent = partial(backend.weights.lend_weights, "actor", play, node)
        with lent(first) as brought, lent(second) as found:
            for each in (found, brought, found):
                with pytest.raises(LinkError):
                    each.wait_for_arrival()
            transport.stuck = False
        assert transport.told == 1
        assert backend.weights.pop_step_costs(first, first)["sync/bytes"] == 8
    finally:
        backend.close()


AHEAD = f"""algorithm t
model actor = causal_lm({weights()})
data prompts = jsonl("prompts.jsonl", batch=5)
step async(lag=1):
    rollout = actor.generate(prompts, max_tokens=4)
    train actor(lr=0.05):
        minimize mean(-actor.logprobs(rollout))
"""


class Noting(Here):
    """Which versions of the weights are sent."""

    def send_weights(self, move: WeightTransfer) -> Coming:
        self.carried.append(str(move.version))
        return super().send_weights(move)


def test_who_has_newer_weights_is_brought_the_older_ones(folder: Path) -> None:
    """A step that begins late, behind one that samples with weights of a later version."""
    made = compiled(AHEAD, {}, apart(compile_text(AHEAD)), folder)
    program = with_node_ids(made.program)
    transport = Noting(Session(program, Settings(folder=folder)))
    backend = HereBackend(
        program, made.plan, transport, InlineClock(), SilentObserver(), transport.session.first, seed=0
    )
    play = made.plan.group_of_role("actor", "generate")
    [node] = [node for _, node in program.walk() if node.op == "generate"]
    try:
        backend.weights.note_update("actor", Step(1, "step"))
        for number in (3, 2):
            with backend.weights.lend_weights("actor", play, node, Step(number, "step")) as found:
                assert found.version == number - 2
    finally:
        backend.close()
    assert transport.carried[::2] == ["1", "0"]


class Slowed(Here):
    """The first copy that is given rows does nothing before another one has done so many orders."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.dealt: list[int] = []
        self.numbers, self.slow = count(), -1
        self.turn, self.others = threading.Lock(), threading.Semaphore(0)

    def run_request(self, order: NodeRequest) -> NodeOutput:
        if order.copy is not None and order.node.op == "generate":
            self.dealt.append(order.copy)
            if next(self.numbers) == 0:
                self.slow = order.copy
                assert all(self.others.acquire(timeout=NEVER) for _ in range(3))
            self.others.release()
        with self.turn:
            return super().run_request(order)


def test_a_copy_that_is_free_takes_the_next_rows(folder: Path) -> None:
    """One of two is slow: the other one does all but its rows, and the numbers are those of one process."""
    swaps, changes = PROGRAMS["grpo"]
    text = shipped("grpo", swaps)
    placed = apart(compile_text(text, changes)).replace("= 1 devices", "= 2 devices")
    made = compiled(text, changes, f"{placed}stream rollout(block=1, deal=free)\n", folder)
    program, settings = with_node_ids(made.program), Settings(folder=folder)
    transport = Slowed(Session(program, settings))
    things = transport.session.first
    backend = HereBackend(program, made.plan, transport, ThreadClock(), SilentObserver(), things, seed=0)
    local = LocalBackend(made.program, settings)
    try:
        for found, expected in zip(backend.run_steps(1), local.run_steps(1), strict=True):
            assert found.metrics == pytest.approx(expected.metrics, rel=0, abs=1e-12)
    finally:
        backend.close()
        local.close()
    slow = transport.slow
    assert transport.dealt.count(slow) < transport.dealt.count(1 - slow) and len(transport.dealt) == 5
