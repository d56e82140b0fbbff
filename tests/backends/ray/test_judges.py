"""Functions and environments on a pool of cpus: several processes run them, the numbers are those of one, and what goes
wrong is said as it is there."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray.util")

import ray.cloudpickle
from scheduled import compiled
from tiny import data_folder, weights

from rlgraph.api.compiled import Compiled
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray import actors
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.worker.session import Settings
from rlgraph.errors import Diagnostic, RlgraphError, RunError
from rlgraph.passes.rewrites.accumulate import streamed_trainings
from tests.waits import NEVER

# Actors cannot import what pytest imports.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

USER = '''
import os, time
from pathlib import Path

HERE = Path(__file__).parent

def slow(prompts, completions, completion_ids, **columns):
    """Tells by which process it was called; longer answers take longer, so that rows are done in another order."""
    (HERE / f"called-by-{os.getpid()}").touch()
    # Nobody is done before each of the three has been called.
    while len(list(HERE.glob("called-by-*"))) < 3 and not (HERE / "one-will-do").exists():
        time.sleep(0.01)
    time.sleep(0.01 * sum(len(ids) ** 2 for ids in completion_ids))
    if (HERE / "raise").exists() and "dddd" in prompts:
        raise LookupError("no answer is known")
    assert columns["deep"] == [info["deep"] for info in columns["info"]] and len(columns["name"]) == len(prompts)
    assert columns["name"] == [deep["name"] for deep in columns["deep"]]
    return [(3 * sum(ids) + len(ids)) % 5 / 4 for ids in completion_ids]

class Longer:
    """Wants each action to be longer than the one before."""

    def reset(self, row):
        self.row, self.before = row, -1
        return row["first"]

    def step(self, action):
        (HERE / f"stepped-by-{os.getpid()}").touch()
        if (HERE / "raise-in-step").exists() and self.row["prompt"] == "dddd":
            raise LookupError("nothing to do")
        longer, self.before = len(action) > self.before, len(action)
        return "ab"[: len(action) % 3], len(action) / 4, not longer
'''

TEXT = f"""algorithm judged
model actor  = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=4)
data tasks   = jsonl("tasks.jsonl", batch=4)
func correct = python("user.py:slow", workers=2, over=row)
env longer   = python("user.py:Longer", workers=2)
step:
    rollout = actor.generate(prompts, n=4, max_tokens=5)
    score   = correct(rollout, name=rollout.info.deep.name, deep=rollout.info.deep)
    adv     = center(score, prompts)
    episode = actor.interact(longer, tasks, n=2, max_turns=3, max_tokens=12)
    gain    = sum(episode.reward, turn)
    train actor(lr=0.01, eps=0.01):
        minimize mean(-actor.logprobs(rollout) * adv)
    report gain = mean(gain), turns = mean(episode.turns), over = mean(episode.finished)
    report score = mean(score), spread = std(score), length = mean(rollout.length), best = mean(max(score, by=prompts))
    report place = mean(rollout.info.place), first = mean(rollout.info.deep.name == "a")
"""

SCHEDULE = """pool all    = 2 devices
pool judges = 3 cpus
place actor   on all(engine=transformers)
place correct, longer on judges
stream rollout(block=4, deal=free)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    folder = data_folder(tmp_path_factory.mktemp("judged"))
    (folder / "user.py").write_text(USER)
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    nested = [{**row, "info": {"place": row["place"], "deep": {"name": row["task"]}}} for row in rows]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in nested))
    return compiled(TEXT, {}, SCHEDULE, folder)


@pytest.fixture(scope="module")
def backend(started: None, made: Compiled) -> Iterator[RayBackend]:
    with closing(RayBackend(made.program, made.plan, Settings(folder=made.folder))) as found:
        yield found


def callers(folder: Path, done: str) -> set[int]:
    return {int(path.name.rsplit("-")[-1]) for path in folder.glob(f"{done}-by-*")}


def test_several_processes_run_the_users_code_and_the_numbers_are_those_of_one(
    made: Compiled, backend: RayBackend
) -> None:
    assert [each.why for each in streamed_trainings(made.program, made.plan)] == [""], "both copies train meanwhile"
    found = list(backend.run_steps(2))
    called, stepped = (callers(made.folder, done) for done in ("called", "stepped"))
    assert len(called) == 3, "one process on each cpu, whatever `workers` says"
    assert stepped == called, "all that a file has shares its process"
    assert all(psutil.Process(each).parent().pid in _pids(backend) for each in called)
    assert _have_loaded(backend, "transformers.modeling_utils") == {"all"}, "it takes seconds"
    (made.folder / "one-will-do").touch()
    with closing(LocalBackend(made.program, Settings(folder=made.folder))) as local:
        for ours, told in zip(found, local.run_steps(2), strict=True):
            names = ("score", "spread", "length", "best", "gain", "turns", "over", "place", "first")
            assert {name: ours.metrics[name] for name in names} == pytest.approx(told.metrics, abs=1e-12)


def _pids(backend: RayBackend) -> list[int]:
    who = [each for each in backend.transport.processes.who if each[0] == "judges.python"]
    processes = backend.transport.processes
    from rlgraph.backends.ray.failures import CallContext

    return processes.call_all(CallContext(tuple(who), "its number"), Worker.pid)


def _have_loaded(backend: RayBackend, module: str) -> set[str]:
    """The pools whose processes have imported it."""
    handles = backend.transport.processes.handles
    asked = {who: handle.__ray_call__.remote(_has_loaded, module) for who, handle in handles.items()}
    return {who[0].split(".")[0] for who, answer in asked.items() if ray.get(answer)}


def _has_loaded(worker: Worker, module: str) -> bool:
    return module in sys.modules


def _raised(made: Compiled, backend: RayBackend, asked: str) -> Diagnostic:
    """What is said where the user's code raises, as a file asks it to."""
    (made.folder / asked).touch()
    try:
        with pytest.raises(RunError) as failed:
            list(backend.run_steps(3))
    finally:
        (made.folder / asked).unlink()
        backend.transport.processes.allow_calls()
    (found,) = failed.value.diagnostics
    return found


def test_an_exception_of_the_function_names_it_its_row_and_its_line(made: Compiled, backend: RayBackend) -> None:
    found = _raised(made, backend, "raise")
    assert found.code == "E0726"
    assert found.message.startswith("`slow` raised LookupError: no answer is known, on prompts row 5 (pass 2), sample ")
    assert found.span.covered_text == '"user.py:slow"'
    assert found.related[0].span.source.path == "user.py"


def test_an_exception_of_the_environment_does(made: Compiled, backend: RayBackend) -> None:
    found = _raised(made, backend, "raise-in-step")
    assert found.code == "E0726"
    assert found.message.startswith("`Longer` raised LookupError: nothing to do, on tasks row 5 (pass 2), sample ")
    assert ", in turn 1" in found.message
    assert found.span.covered_text == '"user.py:Longer"'
    assert found.related[0].span.source.path == "user.py"


def test_a_worker_that_is_gone_is_named(made: Compiled, backend: RayBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the last test with these processes."""
    monkeypatch.setattr(actors, "_GRACE", NEVER)
    os.kill(_pids(backend)[1], signal.SIGKILL)
    with pytest.raises(RlgraphError) as failed:
        list(backend.run_steps(3))
    (found,) = failed.value.diagnostics
    assert found.code == "E0740"
    assert found.message.startswith("rank 1 of judges.python is gone")
    assert "`call` for `score`" in found.message or "`interact` for `episode`" in found.message
