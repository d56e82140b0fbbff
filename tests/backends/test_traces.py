"""Runs whose timing is random: their traces are accepted, and a replay in one process is the run."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scheduled import compiled, traced
from test_transport import Here, HereBackend
from tiny import EPS, data_folder, weights

from rlgraph.api.compiled import Compiled
from rlgraph.backends.distributed.transport import NodeRequest
from rlgraph.backends.finish_order import FinishOrder
from rlgraph.backends.frame import NodeOutput
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.recording import claim_folder
from rlgraph.backends.steps import SilentObserver, StepResult
from rlgraph.backends.virtual_clock import VirtualClock
from rlgraph.backends.worker.row_choice import chosen_row_indices
from rlgraph.backends.worker.session import Session, Settings
from rlgraph.ir.graph import with_node_ids
from tests.suites import few

STEPS = 6

HEAD = f"""
model actor  = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=4)
data tasks   = jsonl("tasks.jsonl", batch=4)

step async(staleness=2):
"""

TRAIN = f"""
    weight  = min(exp(actor.logprobs(rollout) - rollout.logprobs), 5.0)
    minibatch prompts(parts=2, epochs=2):
        train actor(lr=0.02, eps={EPS}):
            minimize mean(-weight * (1 + rollout.age) * actor.logprobs(rollout) * score)
    report age = mean(rollout.age), oldest = max(rollout.age), version = mean(rollout.version), score = mean(score)
"""

BODIES = {
    "plain": """
    rollout = actor.generate(prompts, n=3, max_tokens=5)
    score   = rollout.length / 5
    keep rollout where score > 0.3
""",
    "carry": """
    collect prompts(5):
        rollout = actor.generate(prompts, n=3, first=2, max_tokens=5)
        score   = rollout.length / 5
        keep prompts where max(score, by=prompts) > 0.4
""",
    "drop": """
    collect prompts(5, ahead=1.5, rest=drop):
        rollout = actor.generate(prompts, n=2, max_tokens=5)
        score   = rollout.length / 5
        keep prompts where max(score, by=prompts) > 0.4
    keep rollout where score < 0.9
""",
    "later": """
    collect prompts(5, ahead=1.5, rest=later):
        rollout = actor.generate(prompts, n=2, max_tokens=5)
        score   = rollout.length / 5
        keep prompts where max(score, by=prompts) > 0.4
""",
    "longest": """
    collect prompts(4, ahead=2, rest=longest):
        rollout = actor.generate(prompts, n=3, first=2, max_tokens=5)
        score   = rollout.length / 5
""",
    "late": """
    collect prompts(3, ahead=2):
        rollout = actor.generate(prompts, n=3, max_tokens=5)
        score   = rollout.length / 5
        keep rollout where score > 0.3
""",
    "again": """
    collect prompts(3, ahead=2):
        rollout = actor.generate(prompts, n=2, max_tokens=5)
        score   = rollout.length / 5
        keep prompts where max(score, by=prompts) > 0.2
""",
    "arrival": """
    collect prompts(5, ahead=2):
        rollout = actor.generate(prompts, n=2, max_tokens=5)
        score   = rollout.length / 5
        keep rollout where score > 0.3
""",
    "deadline": """
    collect prompts(5, ahead=2):
        rollout = actor.generate(prompts, n=2, max_tokens=5)
        score   = rollout.length / 5
        keep prompts where max(score, by=prompts) > 0.2
""",
    "reasked": """
    collect prompts(3, ahead=4):
        rollout = actor.generate(prompts, n=2, max_tokens=5)
        score   = rollout.length / 5
        keep prompts where max(score, by=prompts) > 0.2
""",
    "agent": """
    rollout = actor.interact(shell, tasks, n=2, max_turns=3, max_tokens=9)
    score   = rollout.length / 5 + sum(rollout.reward, by=rollout)
""",
}

OPTIONS = {
    "drop": "staleness=11, unit=update",
    "late": "staleness=2, span=token, late=drop",
    "again": "staleness=2, late=again",
    "arrival": "staleness=3, order=arrival",
    "deadline": "staleness=3, span=token, late=drop, order=deadline",
    "reasked": "staleness=2, late=again, order=arrival",
}
"""Of `async`, where they are others."""

SCHEDULE = """
pool learn = 1 devices
pool play = 1 devices
place actor.train, actor.logprobs on learn(engine=transformers)
place actor.generate on play(engine=transformers)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("traces"))


def program(name: str, folder: Path) -> Compiled:
    train = TRAIN.replace("minibatch prompts", "minibatch tasks") if name == "agent" else TRAIN
    # Who calls nothing of the user's has no processes that have to be started.
    head = HEAD.replace("staleness=2", OPTIONS.get(name, "staleness=2"))
    head = head.replace("step", 'env shell = python("envs.py:Shell")\n\nstep') if name == "agent" else head
    schedule = SCHEDULE.replace("generate", "interact") if name == "agent" else SCHEDULE
    return compiled(f"algorithm {name}{head}{BODIES[name]}{train}", {}, schedule, folder)


def delayed(made: Compiled, settings: Settings, seed: int, patch: pytest.MonkeyPatch) -> list[StepResult]:
    """Runs the processes of a plan as objects here, in virtual time: every order takes a random while before it is
    carried out."""
    clock, chance = VirtualClock(), random.Random(seed)
    patch.setattr("rlgraph.backends.ray.backend.InlineClock", lambda: clock)
    backend = RayBackend(made.program, made.plan, settings, debug=True)
    call = backend.processes.call

    def slow(who: Any, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if method is Worker.run_packed_request:
            clock.sleep(chance.choice((0.1, 1.0, 10.0)) * chance.random())
        return call(who, method, *args, **named)

    patch.setattr(backend.processes, "call", slow)
    try:
        return list(backend.run_steps(STEPS))
    finally:
        backend.close()


@pytest.mark.parametrize("name", few(BODIES, "carry", "late"))
def test_whatever_takes_how_long(folder: Path, name: str, tmp_path: Path) -> None:
    made, ages, late, ended = program(name, folder), set[int](), 0, list[tuple[int, Any]]()
    for seed in range(2):
        path = tmp_path / str(seed)
        with claim_folder(path, name, 0), pytest.MonkeyPatch.context() as patch:
            steps = delayed(made, Settings(folder=folder, record=path), seed, patch)
        found = traced(made, steps, tmp_path / f"{seed}.run")
        assert found.accepted, [each.render() for each in found.diagnostics]
        ages |= found.ages.keys()
        late += found.late
        backend = LocalBackend(made.program, Settings(folder=folder, replay=path))
        try:
            again = list(backend.run_steps(STEPS))
        finally:
            backend.close()
        assert [step.metrics for step in again] == [step.metrics for step in steps]
        replayed = traced(made, again, tmp_path / f"{seed}.again")
        # What was under way at the end is not sampled again.
        known = (
            replace(found, sampled=replayed.sampled, left=replayed.left) if "order" in OPTIONS.get(name, "") else found
        )
        assert replayed == known and replayed.sampled <= found.sampled
        ended += [(step.number, batch) for step in steps for batch in (step.trace or {}).get("ended", ())]
    assert any(began < step for step, (_, began, _) in ended) == ("order" in OPTIONS.get(name, ""))
    assert ages >= {0, 1, 2}
    assert (late > 0) == (name in ("late", "again", "reasked"))


class Copies(Here):
    """Copies that work in virtual time, each order a random while; of the batches that are sampled a third takes as long
    as a few steps."""

    def __init__(self, session: Session, clock: VirtualClock, seed: int) -> None:
        super().__init__(session)
        self.clock, self.chance = clock, random.Random(seed)

    def run_request(self, order: NodeRequest) -> NodeOutput:
        longer = self.chance.choice((0.0, 0.0, 40.0)) if order.node.op == "generate" else 0.0
        self.clock.sleep(longer + self.chance.choice((0.1, 1.0, 10.0)) * self.chance.random())
        order.frame.version = order.version
        return super().run_request(order)

    def choose_rows(self, order: NodeRequest) -> np.ndarray:
        return chosen_row_indices(order.node, order.frame, self.session)


@pytest.mark.parametrize("name", few(["arrival", "deadline", "reasked"], "deadline"))
def test_batches_that_overtake_each_other(folder: Path, name: str, tmp_path: Path) -> None:
    """Three copies sample a batch each: which rows a step takes is a matter of time, and a replay takes the same."""
    copies = SCHEDULE.replace("play = 1", "play = 3") + "stream rollout(block=64, deal=free)\n"
    text = f"algorithm {name}{HEAD.replace('staleness=2', OPTIONS[name])}{BODIES[name]}{TRAIN}"
    made, overtaken, older = compiled(text, {}, copies, folder), 0, 0
    program = with_node_ids(made.program)
    for seed in (0, 2):
        path, clock = tmp_path / str(seed), VirtualClock()
        with claim_folder(path, name, 0):
            transport = Copies(Session(program, Settings(folder=folder, record=path)), clock, seed)
            first = transport.session.first
            backend = HereBackend(program, made.plan, transport, clock, SilentObserver(), first, seed=0)
            backend.trace_notes, backend.finish_order = transport.session.notes, FinishOrder(path)
            try:
                steps = list(backend.run_steps(STEPS))
            finally:
                backend.close()
        found = traced(made, steps, tmp_path / f"{seed}.run")
        assert found.accepted, [each.render() for each in found.diagnostics]
        local = LocalBackend(made.program, Settings(folder=folder, replay=path))
        try:
            assert [step.metrics for step in local.run_steps(STEPS)] == [step.metrics for step in steps]
        finally:
            local.close()
        ended = [tuple(batch) for step in steps for batch in (step.trace or {})["ended"]]
        overtaken += ended != sorted(ended)
        turns = [[began for _, began, _ in step.trace["ended"]] for step in steps if step.trace]
        older += any(each != sorted(each) for each in turns)
    # There are rows that a deadline puts before those that were there first.
    assert overtaken and (older or name != "deadline")
