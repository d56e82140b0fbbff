"""Processes that only sample are lost: others take their places, and the steps that were under way are run again by those
who live."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Timer
from typing import Any

import pytest

pytest.importorskip("ray.util")

import ray
from actors import rows
from actors import weights as wide
from scheduled import compiled, traced
from tiny import EPS, data_folder, weights

from rlgraph.api.compiled import Compiled
from rlgraph.backends.ray import actors
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.recording import claim_folder
from rlgraph.backends.step import Step
from rlgraph.backends.steps import SilentObserver, StepResult
from rlgraph.backends.worker.session import Settings
from rlgraph.errors import RunError
from rlgraph.ir.graph import Node
from tests.waits import NEVER, until

STEPS = 4
HEAD = f"""
algorithm repeats
model actor  = causal_lm({weights(0)}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=true)
"""
STEP = f"""
model ref    = frozen(actor)
buffer past  = fifo(capacity=9)
state level  = 0.0

step:
    rollout = actor.generate(prompts, n=2, max_tokens=5)
    old     = ref.logprobs(rollout)
    level  := 0.5 * level + mean(rollout.logprobs)
    push past(rollout, old=old)
    some    = past.sample(6)
    train actor(lr=0.02, eps={EPS}):
        minimize mean(-exp(actor.logprobs(some) - some.logprobs) * some.old)
    report sampler = mean(rollout.logprobs), level = level, some = mean(some.old), age = mean(some.age)
"""
AHEAD = f"""
step async(lag=1):
    rollout = actor.generate(prompts, n=2, max_tokens=5)
    train actor(lr=0.02, eps={EPS}):
        minimize mean(exp(actor.logprobs(rollout) - rollout.logprobs))
    report sampler = mean(rollout.logprobs), age = mean(rollout.age)
"""
TWICE = f"""
step:
    rollout = actor.generate(prompts, n=2, max_tokens=5)
    train actor(lr=0.02, eps={EPS}):
        minimize mean(exp(actor.logprobs(rollout) - rollout.logprobs))
    again   = actor.generate(prompts, n=1, max_tokens=5)
    report again = mean(again.logprobs)
"""
SCHEDULE = """
pool learn = 1 devices
pool play = 2 devices
place actor.train on learn(engine=transformers)
place actor.generate on play(engine=transformers, dp=2)
"""

LEARN, PLAY = "learn.transformers", "play.transformers"


class Kills(SilentObserver):
    """Ends processes with SIGKILL, or with another signal, when a node of an operation is fired for the so many-th
    time, or, of a training, when it is over; when it has been `sampled`, too."""

    def __init__(self, *moments: tuple[str, int, tuple[str, int]], by: int = signal.SIGKILL, late: float = 0.0) -> None:
        """late: seconds after that moment."""
        self.moments, self.seen, self.by, self.late = moments, dict[str, int](), by, late
        self.pid: Callable[[tuple[str, int]], int] = lambda who: 0
        self.killed = 0
        self.stopped = SimpleQueue[int]()
        """To whom it was done."""

    def node_started(self, node: Node, pool: str = "") -> None:
        if node.op != "train":
            self.passed(node.op)

    def node_done(self, node: Node, seconds: float, tokens: int, pool: str = "") -> None:
        if node.op == "train":
            self.passed(node.op)
        if tokens:
            self.passed("sampled")

    def weights_sent(
        self, model: str, source: str, destination: str, seconds: float, sent_bytes: int, peak_bytes: int
    ) -> None:
        """New weights are there: what was ordered with them begins."""
        self.passed("sync")

    def passed(self, op: str) -> None:
        self.seen[op] = self.seen.get(op, 0) + 1
        for moment, count, who in self.moments:
            if (moment, count) == (op, self.seen[op]):
                act = partial(self.act, self.pid(who))
                Timer(self.late, act).start() if self.late else act()
                self.killed += 1

    def act(self, pid: int) -> None:
        os.kill(pid, self.by)
        self.stopped.put(pid)


def made(folder: Path, step: str = STEP) -> Compiled:
    return compiled(HEAD + step, {}, SCHEDULE, data_folder(folder))


def expected(found: Compiled, folder: Path) -> list[dict[str, Any]]:
    """Of one process, which nobody disturbs."""
    run = found.run(STEPS, progress=False, threads=1)
    left_out = "step", "seconds", "mismatch/kl", "mismatch/max"
    return [{k: v for k, v in step.items() if k not in left_out} for step in run.metrics]


def on_ray(
    found: Compiled, folder: Path, watch: Kills, said: list[str], repeats: int = 3, record: Path | None = None
) -> RayBackend:
    settings = Settings(folder=folder, record=record)
    backend = RayBackend(found.program, found.plan, settings, watch, seconds=300, repeats=repeats, say=said.append)
    processes = backend.processes
    watch.pid = lambda who: ray.get(processes.call(who, Worker.pid))  # type: ignore[call-overload]
    return backend


def test_sampling_is_repeated(kept: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All copies are killed when they are about to sample."""
    # Whoever is not killed answers, sooner or later.
    monkeypatch.setattr(actors, "_GRACE", NEVER)
    monkeypatch.chdir(tmp_path)
    found, said = made(tmp_path), list[str]()
    watch = Kills(*[("generate", 3, (PLAY, rank)) for rank in (0, 1)])
    backend = on_ray(found, tmp_path, watch, said, repeats=1)
    try:
        before = watch.pid((LEARN, 0))
        steps = list(backend.run_steps(STEPS))
        assert watch.pid((LEARN, 0)) == before
    finally:
        backend.close()
    assert watch.killed == 2 and not backend.repeats
    assert len(said) == 1 and "step 3 begins again" in said[0]
    assert "`play.transformers`" in said[0] and "rank 0 of play.transformers is gone" in said[0]
    for one, other in zip(steps, expected(found, tmp_path), strict=True):
        assert one.metrics == pytest.approx(other, rel=0, abs=1e-6)
    assert backend.optimizer_step_counts()["actor"] == STEPS


def amid(backend: RayBackend, watch: Kills, *steps: int) -> list[StepResult]:
    """Runs; processes are stopped while they sample, and killed when these steps, before theirs, are over."""
    found = []
    for step in backend.run_steps(STEPS):
        found.append(step)
        if step.number in steps:
            pid = watch.stopped.get(timeout=NEVER)
            os.kill(pid, signal.SIGKILL)
    return found


@pytest.mark.long
def test_others_do_the_rows_of_a_copy_that_is_lost(kept: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two copies is killed when it samples: the other one does its rows, in the same step, and all of the next
    one. When that is killed, too, both are replaced."""
    monkeypatch.chdir(tmp_path)
    found, said = made(tmp_path, STEP.replace("max_tokens=5", "max_tokens=30, min_tokens=25")), list[str]()
    # Before the second step, and before the fourth.
    watch = Kills(("sync", 1, (PLAY, 0)), ("sync", 3, (PLAY, 1)), by=signal.SIGSTOP)
    sampled = tmp_path / "sampled"
    with claim_folder(sampled, "repeats", 0):
        backend = on_ray(found, tmp_path, watch, said, repeats=2, record=sampled)
        try:
            steps = amid(backend, watch, 1, 3)
            assert len(backend.processes.who) == 4
        finally:
            backend.close()
    assert watch.killed == 2 and not backend.repeats
    without, replaced = said
    assert without.startswith(f"rank 0 of {PLAY} is gone: ") and "`generate` for `rollout" in without
    assert without.endswith(
        f"the rows of its copy are done by the other one, and the run goes on with 1 of 2 copies of `{PLAY}`"
    )
    assert f"rank 1 of {PLAY} is gone" in replaced and "step 4 begins again" in replaced
    for one, other in zip(steps, expected(found, tmp_path), strict=True):
        assert one.metrics == pytest.approx(other, rel=0, abs=1e-6)
    assert backend.optimizer_step_counts()["actor"] == STEPS
    for step in range(1, STEPS + 1):
        assert len(rows(sampled, step)) == 10


@pytest.mark.long
def test_a_step_that_begins_again_is_recorded_once(kept: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All copies have sampled and recorded the rows of the third step when they are killed."""
    monkeypatch.chdir(tmp_path)
    found, said = made(tmp_path), list[str]()
    watch, sampled = Kills(*[("sampled", 3, (PLAY, rank)) for rank in (0, 1)]), tmp_path / "sampled"
    with claim_folder(sampled, "repeats", 0):
        backend = on_ray(found, tmp_path, watch, said, repeats=1, record=sampled)
        try:
            steps = list(backend.run_steps(STEPS))
        finally:
            backend.close()
    assert watch.killed == 2 and len(said) == 1 and "step 3 begins again" in said[0]
    for one, other in zip(steps, expected(found, tmp_path), strict=True):
        assert one.metrics == pytest.approx(other, rel=0, abs=1e-6)
    for step in range(1, STEPS + 1):
        assert len(rows(sampled, step)) == 10


def dying() -> Callable[[Any], None]:
    """A process ends in the second step, when it has recorded rows and has not said so. A process of a test's own does
    not know this file: it is sent the function itself."""

    def begin(worker: Any) -> None:
        write = worker.session.recorder.write_rows

        def last(node: Node, step: Step, *rest: Any) -> None:
            write(node, step, *rest)
            if step.number == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        worker.session.recorder.write_rows = last

    return begin


def test_rows_that_others_do_are_recorded_once(kept: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy has recorded its rows, and is lost before it says so."""
    monkeypatch.chdir(tmp_path)
    found, said, sampled = made(tmp_path), list[str](), tmp_path / "sampled"
    with claim_folder(sampled, "repeats", 0):
        backend = on_ray(found, tmp_path, Kills(), said, record=sampled)
        try:
            handle = backend.processes.handles[PLAY, 1]  # type: ignore[attr-defined]
            ray.get(handle.__ray_call__.remote(dying()))
            steps = list(backend.run_steps(STEPS))
        finally:
            backend.close()
    assert len(said) == 1 and said[0].endswith(f"the run goes on with 1 of 2 copies of `{PLAY}`")
    for one, other in zip(steps, expected(found, tmp_path), strict=True):
        assert one.metrics == pytest.approx(other, rel=0, abs=1e-6)
    for step in range(1, STEPS + 1):
        assert len(rows(sampled, step)) == 10


@pytest.mark.long
def test_a_copy_with_rows_of_its_own_is_not_done_without(kept: None, tmp_path: Path) -> None:
    """It is lost in the second sampling of a step: the rows of the first one were with it. The model has changed."""
    found, said = made(tmp_path, TWICE), list[str]()
    backend = on_ray(found, tmp_path, Kills(("generate", 4, (PLAY, 1))), said)
    try:
        with pytest.raises(RunError, match="is gone"):
            list(backend.run_steps(STEPS))
    finally:
        backend.close()
    assert not said


@pytest.mark.long
def test_vllm_does_so_too(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy is killed amid its tokens."""
    pytest.importorskip("vllm")
    monkeypatch.chdir(tmp_path)
    head = HEAD.replace(weights(0), wide(0)).replace(', dtype="float64"', "")
    schedule = SCHEDULE.replace("transformers, dp=2", "vllm, dp=2")
    text = head + STEP.replace("max_tokens=5", "max_tokens=40, min_tokens=30")
    found, said = compiled(text, {}, schedule, data_folder(tmp_path)), list[str]()
    watch = Kills(("sync", 1, ("play.vllm", 1)), by=signal.SIGSTOP, late=0.05)
    sampled = tmp_path / "sampled"
    with claim_folder(sampled, "repeats", 0):
        backend = on_ray(found, tmp_path, watch, said, record=sampled)
        try:
            steps = amid(backend, watch, 1)
        finally:
            backend.close()
    assert watch.killed == 1 and len(said) == 1 and "the run goes on with 1 of 2 copies of `play.vllm`" in said[0]
    for one, other in zip(steps, expected(found, tmp_path), strict=True):
        assert one.metrics == pytest.approx(other, rel=0, abs=1e-4)
    for step in range(1, STEPS + 1):
        assert len(rows(sampled, step)) == 10


@pytest.mark.long
def test_steps_that_are_ahead_are_repeated_too(kept: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of them samples with older weights, which the trainer still has; no row is trained on twice."""
    monkeypatch.chdir(tmp_path)
    found, said = made(tmp_path, AHEAD), list[str]()
    backend = on_ray(found, tmp_path, watch := Kills(), said)
    try:
        steps = []
        for step in backend.run_steps(STEPS):
            steps.append(step)
            if step.number == 3:
                # No model is changed between two steps, and the fourth one trains on rows that only they have.
                until(lambda: watch.seen["sampled"] >= 4)
                os.kill(watch.pid((PLAY, 1)), signal.SIGKILL)
    finally:
        backend.close()
    assert len(said) == 1 and "step 4 begins again" in said[0]
    for one, other in zip(steps, expected(found, tmp_path), strict=True):
        assert one.metrics == pytest.approx(other, rel=0, abs=1e-6)
    checked = traced(found, steps, tmp_path / "run")
    assert checked.accepted, [each.render() for each in checked.diagnostics]


@pytest.mark.long
def test_a_step_that_has_changed_a_model_is_not_repeated(kept: None, tmp_path: Path) -> None:
    """Its rows would be trained on twice."""
    found, said = made(tmp_path, TWICE), list[str]()
    backend = on_ray(found, tmp_path, Kills(*[("train", 2, (PLAY, rank)) for rank in (0, 1)]), said)
    try:
        with pytest.raises(RunError, match="is gone"):
            list(backend.run_steps(STEPS))
    finally:
        backend.close()
    assert not said and backend.optimizer_step_counts()["actor"] == 2


@pytest.mark.long
def test_a_transfer_that_does_not_get_on(kept: None, tmp_path: Path) -> None:
    """Who samples is stopped when it is about to get new weights: it is told by rank, and by what was on its way."""
    found = made(tmp_path, TWICE)
    backend = on_ray(found, tmp_path, Kills(("train", 2, (PLAY, 1)), by=signal.SIGSTOP), [], repeats=0)
    try:
        ray.get([each.patience.remote(5) for each in backend.processes.handles.values()])  # type: ignore[attr-defined]
        with pytest.raises(RunError) as caught:
            list(backend.run_steps(STEPS))
    finally:
        backend.close()
    [told] = caught.value.diagnostics
    assert told.code == "E0742"
    assert told.message.startswith(f"rank 1 of {PLAY} does not answer: it was the transfer of `actor`")
    assert f"of the weights of `actor` from rank 0 of {LEARN} to rank 1 of {PLAY} (round" in told.message
    waited = re.search(r"after ([\d.]+) s", told.message)
    assert "over shared" in told.message and waited and float(waited[1]) >= 5
