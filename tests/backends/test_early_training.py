"""Gradients that are added up while rows are still to come: the numbers are those of one step on all rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from scheduled import compiled
from test_sim import Fires, Fixed, streams
from tiny import data_folder, weights

from rlgraph.api.compiled import Compiled
from rlgraph.backends.graph_run import PIECE
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.sim.backend import SimBackend
from rlgraph.backends.worker.session import Settings
from rlgraph.errors import RunError
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.sampling import SamplingResult
from rlgraph.passes.cost.workload import Workload
from tests.suites import few

TEXT = f"""algorithm early
model actor  = causal_lm({weights()}, dtype="float64")
model critic = value_lm({weights(3)}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=5)
func correct = python("user.py:reward", over=row)
step:
    rollout = actor.generate(prompts, n=4, max_tokens=5)
    value   = critic.values(rollout)
    score   = correct(rollout)
    adv     = center(score, prompts)
    train actor(lr=0.02, eps=0.01, clip_norm=0.05, weight_decay=0.1):
        logp  = actor.logprobs(rollout)
        ratio = exp(logp - rollout.logprobs)
        drift = k3(logp, rollout.logprobs)
        minimize mean(-min(ratio * adv, clip(ratio, 0.8, 1.2) * adv)) - 0.3 * mean(logp)
    train critic(lr=0.01, eps=0.01):
        minimize 0.5 * mean((critic.values(rollout) - score)**2)
    report score = mean(score), drift = mean(drift), value = mean(value)
"""

USER = '''
from pathlib import Path

def reward(prompts, completions, completion_ids, **columns):
    """Fails once, at the third call after it was asked to."""
    calls = Path(__file__).parent / "raise"
    if calls.exists():
        with calls.open("a") as file:
            file.write("x")
        if len(calls.read_text()) == 3:
            calls.unlink()
            raise LookupError("once")
    return [(3 * sum(ids) + len(ids)) % 5 / 4 for ids in completion_ids]
'''

SCHEDULE = """pool learn = 1 devices
pool play  = 1 devices
place actor.train, critic on learn(engine=transformers)
place actor.generate      on play(engine=transformers)
stream rollout(block={})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = data_folder(tmp_path_factory.mktemp("early"))
    (folder / "user.py").write_text(USER)
    return folder


def made(folder: Path, block: int = 4) -> Compiled:
    return compiled(TEXT, {}, SCHEDULE.format(block), folder)


@contextmanager
def debugged(made: Compiled) -> Iterator[tuple[RayBackend, Fires]]:
    fires = Fires()
    with closing(RayBackend(made.program, made.plan, Settings(folder=made.folder), fires, debug=True)) as backend:
        yield backend, fires


def trained(backend: RayBackend) -> dict[str, dict[str, torch.Tensor]]:
    session = backend.processes.workers["learn.transformers", 0].session
    return {name: session.models[name].engine.state() for name in ("actor", "critic")}


@pytest.fixture(scope="module")
def local(folder: Path) -> tuple[list[dict[str, float]], dict[str, dict[str, torch.Tensor]]]:
    """One step after the other, each as a whole."""
    with closing(LocalBackend(made(folder).program, Settings(folder=folder))) as backend:
        metrics = [step.metrics for step in backend.run_steps(3)]
        return metrics, {name: backend.session.models[name].engine.state() for name in ("actor", "critic")}


def same(backend: RayBackend, metrics: list[dict[str, float]], local: Any) -> None:
    for found, expected in zip(metrics, local[0], strict=True):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)
    for name, state in trained(backend).items():
        for key, tensor in state.items():
            torch.testing.assert_close(tensor, local[1][name][key], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("block", few([1, 4, 8, 100], 4, 100))
def test_blocks_do_not_change_the_update(folder: Path, local: Any, block: int) -> None:
    with debugged(made(folder, block)) as (backend, fires):
        same(backend, [step.metrics for step in backend.run_steps(3)], local)
    blocks = {1: 5, 4: 5, 8: 3, 100: 1}[block]
    assert fires.names.count(("accumulate", "actor@2.added")) == 3 * blocks
    assert fires.names.count(("apply", "actor@2")) == 3
    if block < 8:
        order = [op for op, name in fires.names if name in ("rollout", "actor@2.added")]
        assert order.index("accumulate") < blocks, "before the next rows are sampled"


def test_what_a_step_that_failed_has_added_up_is_forgotten(folder: Path, local: Any) -> None:
    """Asked again, the step begins again: all but its first rows would count twice."""
    with debugged(made(folder)) as (backend, fires):
        metrics = [next(backend.run_steps(3)).metrics]
        (folder / "raise").touch()
        before, asked = trained(backend), fires.names.count(("accumulate", "actor@2.added"))
        with pytest.raises(RunError, match="once"):
            list(backend.run_steps(2))
        assert fires.names.count(("accumulate", "actor@2.added")) > asked, "some gradients are in"
        for name, state in trained(backend).items():
            assert all(torch.equal(tensor, before[name][key]) for key, tensor in state.items()), "the model is whole"
        same(backend, metrics + [step.metrics for step in backend.run_steps(2)], local)


def test_a_simulated_training_begins_before_the_batch_is_there(folder: Path) -> None:
    """Answers of four prompts end, those of the first one later, and are trained on meanwhile."""

    class Sampling(Fixed):
        def sampling_result(
            self,
            model: str,
            operation: str,
            prompts: Sequence[float],
            answers: Sequence[float],
            samples: int,
            copy: int,
            *played: object,
        ) -> SamplingResult:
            return super().sampling_result(
                model, operation, prompts, [10 * length for length in answers], samples, copy, *played
            )

    whole, ends = made(folder), {}
    answers = Workload(Lengths((2.0,)), Lengths((*[1.0] * 19, 5.0)))
    for block in (1, 100):
        backend = SimBackend(whole.program, streams(whole.plan, block), Sampling(overhead=0.0), answers)
        [step] = backend.run_steps(1)
        sampled = max(work.end for work in backend.works if work.op == "generate")
        works = [work for work in backend.works if work.name == "train actor"]
        assert sum(work.rows for work in works) == 20
        assert (min(work.start for work in works) < sampled) == (block == 1)
        [update] = [work for work in backend.works if work.name == "update actor"]
        assert update.start >= max(work.end for work in works) >= sampled
        ends[block] = step.seconds
    assert ends[1] < ends[100]


def test_new_weights_do_not_wait_for_all_that_there_is_to_train_on(folder: Path) -> None:
    """Where steps overlap a training takes some blocks at a time; weights for a sampler go before the next ones."""
    waited, most = {}, {}
    for lag, text in ((0, TEXT), (1, TEXT.replace("step:", "step async(lag=1):"))):
        whole = compiled(text.replace("min(ratio", "min(min(ratio, 2)"), {}, SCHEDULE.format(1), folder)
        backend = SimBackend(whole.program, streams(whole.plan, 1), Fixed(overhead=0.0), Workload(Lengths((2.0,))))
        list(backend.run_steps(6))
        most[lag] = max(work.rows for work in backend.works if work.op == "accumulate")
        waited[lag] = max(work.start - work.fired for work in backend.works if work.op == "sync")
    assert most[0] > PIECE >= most[1]
    assert waited[1] <= PIECE
