"""What goes wrong on a cluster: each run ends with the process, the work and what to do, soon, and leaves nothing
behind."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from safetensors.torch import load_file
from tiny import compile_text, shipped, weights

from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray import actors
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.ray.failures import CallContext
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.steps import SilentObserver
from rlgraph.backends.worker.session import Settings
from rlgraph.errors import RlgraphError
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.plan import HOST, Group, Plan, Pool, Role
from rlgraph.ops.program_work import model_operations
from tests.waits import NEVER, until

ray = pytest.importorskip("ray")

MARK = "RLGRAPH_TEST_RUN"
"""A variable that all processes of a run inherit."""

USER = '''
import time
from pathlib import Path

def told(what):
    """Whether a test wants it now."""
    return (Path(__file__).parent / what).exists()

while told("hold"):
    time.sleep(0.05)

def rows():
    while True:
        yield {"prompt": "ab", "note": "x" * (150 << 20) if told("big") else ""}

def exact_match(prompts, completions, **columns):
    if told("raise"):
        raise LookupError("no answer is known")
    if told("sleep"):
        (Path(__file__).parent / "sleeping").touch()
        time.sleep(600)
    return [len(each) % 3 for each in completions]
'''

SWAPS = {"max_tokens=1024": "max_tokens=5", "lr=1e-6": "lr=0.01", "parts=4": "parts=1", "rewards.py": "user.py"}
CHANGES = {"base": weights(), "n": "2", "prompts": 'python("user.py:rows", batch=4)'}


# A process for each test


@contextmanager
def nothing_left() -> Iterator[str]:
    """No process with the mark that it gives is there afterwards."""
    mark = uuid4().hex
    try:
        yield mark
        # What was killed cannot wait for its processes to end: they see to it themselves, when they get to it.
        until(lambda: not marked(mark))
    finally:
        for each in marked(mark):
            each.kill()


def marked(mark: str, called: str = "") -> list[psutil.Process]:
    """The processes that were started with this mark, and whose command has this text; any may end meanwhile.

    Where a process gives itself another name, as Ray's agents do, its variables are lost: it is in the session of one
    that has the mark.
    """
    there = {process: variables(process).get(MARK) == mark for process in psutil.process_iter()}
    leads = _leads.setdefault(mark, set())
    leads.update(process.pid for process, has in there.items() if has and session(process) == process.pid)
    return [
        process
        for process, has in there.items()
        if (has or session(process) in leads) and alive(process) and called in command_of(process)
    ]


_leads: dict[str, set[int]] = {}
"""Who has the mark, and a session of its own."""


def session(process: psutil.Process) -> int:
    try:
        return os.getsid(process.pid)
    except OSError:
        return 0


def variables(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


Alone = Callable[..., Any]


@pytest.fixture(scope="module")
def alone() -> Iterator[Alone]:
    """Calls a function in another process, which has a Ray of its own for each. It loads torch once for all of them."""
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))

    def call(scenario: Callable[..., Any], *args: Any, limit: float = NEVER) -> Any:
        with nothing_left() as mark:
            try:
                return pool.submit(_marked, mark, scenario, *args).result(limit)
            except TimeoutError:
                for each in (*marked(mark), *multiprocessing.active_children()):
                    each.kill()
                raise

    with pool:
        yield call


def _marked(mark: str, scenario: Callable[..., Any], *args: Any) -> Any:
    os.environ[MARK] = mark
    return scenario(*args)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "user.py").write_text(USER)
    return tmp_path


def program(**changes: str) -> Program:
    return compile_text(shipped("grpo", SWAPS), CHANGES | changes)


def plan(program: Program, play: int = 0, tp: int = 1, **ranks: int) -> Plan:
    """A pool and a group `learn` of so many copies, split over `tp` ranks each, and if `play`, another pool and group
    that generates."""
    names = tuple(model.name for model in program.models)
    meshes = {name: make_mesh(copies, 1, tp) for name, copies in {"learn": 1, **ranks}.items()}
    meshes |= {"play": make_mesh(play)} if play else {}
    sizes = {name: each.rank_count for name, each in meshes.items()}
    groups = tuple(
        Group(name, name, "transformers", each, tuple(range(each.rank_count)), names) for name, each in meshes.items()
    )
    roles = tuple(
        Role(model, operation, "play" if play and operation == "generate" else "learn")
        for model, found in model_operations(program).items()
        for operation in sorted(found)
    )
    pools = (Pool(HOST, 0), *(Pool(name, copies) for name, copies in sizes.items()))
    host = Group(HOST, HOST, HOST, make_mesh(), ())
    return Plan(program.name, pools, (host, *groups), roles, tuple((name, "learn") for name in names))


class At(SilentObserver):
    """Does something when the first node of an operation is fired."""

    def __init__(self, op: str, then: Callable[[], None]) -> None:
        self.op, self.then, self.done = op, then, False

    def node_started(self, node: Node, pool: str = "") -> None:
        if node.op == self.op and not self.done:
            self.done = True
            self.then()


def failure(work: Callable[[], Any]) -> str:
    """What the user is told. For what hangs until Ray or the backend give up, nobody waits: `alone` has a limit."""
    try:
        work()
    except RlgraphError as error:
        return str(error)
    raise AssertionError("it does not fail")


def number(backend: RayBackend, who: tuple[str, int]) -> int:
    """Of a process."""
    return int(ray.get(backend.processes.handles[who].pid.remote()))


def local_failure(program: Program, folder: Path) -> str:
    """What the same program says in one process."""

    def work() -> None:
        backend = LocalBackend(program, Settings(folder=folder))
        try:
            next(backend.run_steps(1))
        finally:
            backend.close()

    return failure(work)


# A process that fails


def two_copies(folder: Path) -> dict[str, str]:
    """A reward function raises, a call fails, and a rank is killed in an update: the first one, which is asked to save
    a model that all have."""
    told = {}
    made = program()
    watch = At("train", lambda: None)
    # Who trains is not replaced, however often others may be.
    backend = RayBackend(made, plan(made, learn=2), Settings(folder=folder), watch, seconds=120, repeats=3)
    try:
        # In its first step, as the run in one process.
        (folder / "raise").touch()
        told["user"] = failure(lambda: next(backend.run_steps(1)))
        told["same"] = local_failure(made, folder)
        (folder / "raise").unlink()
        backend.save("actor", folder / "after_user")
        next(backend.run_steps(1))

        bad = ("learn", 1)
        call = backend.processes.call(bad, Worker.report_weights, "nobody")
        told["bug"] = failure(lambda: backend.processes.get([call], CallContext((bad,), "its layout")))
        backend.save("actor", folder / "after_bug")

        pid = number(backend, ("learn", 0))
        watch.done, watch.then = False, lambda: os.kill(pid, signal.SIGKILL)
        told["killed"] = failure(lambda: next(backend.run_steps(1)))
        backend.save("actor", folder / "after_kill")
    finally:
        backend.close()
    return told


def test_exceptions_and_a_killed_rank(cluster: None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever is not killed answers, sooner or later.
    monkeypatch.setattr(actors, "_GRACE", NEVER)
    told = two_copies(folder)
    assert "LookupError: no answer is known" in told["user"]
    assert told["user"] == told["same"]
    assert told["bug"].startswith(
        "error[E0744]: rank 1 of learn failed: KeyError: 'nobody'; it was asked for its layout"
    )
    assert "logs are in /" in told["bug"] or "the logs in /" in told["bug"]
    assert told["killed"].startswith("error[E0740]: rank 0 of learn is gone")
    assert "it was asked for `train` for `actor" in told["killed"]
    assert "train actor(" in told["killed"]
    # The other copy is whole, and has not taken the step.
    saved = [load_file(folder / f"after_{what}" / "model.safetensors") for what in ("user", "bug", "kill")]
    assert not all(saved[0][name].equal(saved[1][name]) for name in saved[0])
    assert all(saved[1][name].equal(saved[2][name]) for name in saved[1])


@pytest.mark.long
def test_a_process_that_does_not_answer(cluster: None, folder: Path) -> None:
    """A rank stops in an update without ending. Of the three that wait for it, two have all of the model together, of
    different copies; the host, which writes it otherwise, is gone, too."""
    made = program(base=weights().replace("key_value_heads=1", "key_value_heads=2"))
    watch = At("train", lambda: None)
    backend = RayBackend(made, plan(made, learn=2, tp=2, play=1), Settings(folder=folder), watch, seconds=120)
    try:
        next(backend.run_steps(1))
        backend.save("actor", folder / "before")
        pids = [number(backend, ("learn", rank)) for rank in range(4)]

        def stop() -> None:
            backend.processes.seconds = 2.0
            os.kill(pids[3], signal.SIGSTOP)

        watch.done, watch.then = False, stop
        step = failure(lambda: next(backend.run_steps(1)))
        backend.processes.seconds = 120.0
        os.kill(number(backend, (HOST, 0)), signal.SIGKILL)
        backend.save("actor", folder / "after")
        os.kill(pids[1], signal.SIGKILL)
        lost = failure(lambda: backend.save("actor", folder / "lost"))
    finally:
        backend.close()
    assert step.startswith("error[E0742]: rank 3 of learn has not answered for 2 s: it was asked for `train`")
    assert "--timeout SECONDS" in step
    # Those of its layers wait for it, and those of the other copy for whoever of these has their part of the gradient.
    assert re.search(
        r"note: rank 2 of learn waits for rank 3 of learn in `all_reduce`, number \d+ of ranks 2-3 of", step
    )
    assert "note: rank 3 of learn says nothing at all" in step
    before, after = (
        {name: each for file in (folder / where).glob("*.safetensors") for name, each in load_file(file).items()}
        for where in ("before", "after")
    )
    assert before.keys() == after.keys() and all(before[name].equal(after[name]) for name in before)
    assert lost.startswith(
        "error[E0813]: rank 0 of learn does not answer, rank 1 of learn is gone, rank 3 of learn is gone"
    )
    assert "and nobody else has all of model." in lost and " more parts" in lost
    until(lambda: not psutil.pid_exists(pids[3]))


# A cluster


def two_machines(folder: Path) -> dict[str, str]:
    """An object store that is full, and then a machine that vanishes."""
    from ray.cluster_utils import Cluster

    told = {}
    # To Ray, a disk of which so little is used is full: there is no room for what the store cannot hold.
    little = {"num_cpus": 1, "object_store_memory": 100 << 20}
    # Whether a machine is there is asked often, so that it is soon known that one has vanished.
    asked = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
    cluster = Cluster(
        True, head_node_args={**little, "_system_config": {"local_fs_capacity_threshold": 0.0001, **asked}}
    )
    try:
        other = cluster.add_node(**little)
        made = program()

        def run(watch: SilentObserver) -> str:
            backend = RayBackend(made, plan(made, play=1), Settings(folder=folder), watch, address=cluster.address)
            try:
                return failure(lambda: list(backend.run_steps(20)))
            finally:
                backend.close()
                assert not ray.is_initialized(), "it leaves the cluster that it joined"

        (folder / "big").touch()
        told["full"] = run(SilentObserver())
        (folder / "big").unlink()
        told["vanished"] = run(At("train", lambda: cluster.remove_node(other, allow_graceful=False)))
    finally:
        cluster.shutdown()
    return told


@pytest.mark.long
def test_a_full_store_and_a_machine_that_vanishes(alone: Alone, folder: Path) -> None:
    told = alone(two_machines, folder)
    assert told["full"].startswith("error[E0741]: there is no room for the rows that the host process sends")
    assert "--object-store-memory" in told["full"]
    assert told["vanished"].startswith("error[E0740]: rank 0 of ")


def my_own_ray(folder: Path) -> dict[str, str]:
    """In a notebook that uses Ray for something else, too."""
    told = {}
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    made = program()
    told["large"] = failure(lambda: RayBackend(made, plan(made, learn=2, play=1), Settings(folder=folder)))
    (folder / "empty").mkdir()
    missing = program(base='"empty"')
    told["missing"] = failure(lambda: RayBackend(missing, plan(missing), Settings(folder=folder)))
    told["same"] = local_failure(missing, folder)

    @ray.remote(num_cpus=2)
    class Mine:
        def here(self) -> bool:
            return True

    mine = Mine.remote()
    assert ray.get(mine.here.remote())
    told["busy"] = failure(lambda: RayBackend(made, plan(made), Settings(folder=folder), seconds=1))
    assert ray.get(mine.here.remote(), timeout=NEVER)
    ray.shutdown()
    return told


@pytest.mark.long
def test_what_a_cluster_cannot_hold(alone: Alone, folder: Path) -> None:
    told = alone(my_own_ray, folder)
    assert told["large"] == (
        "error[E0745]: the plan needs 3 devices (`learn` 2, `play` 1), and the cluster has 2 (CPU)\n"
        "help: make the pools smaller, or add machines"
    )
    assert "E0730" in told["missing"] and "^^^^" in told["missing"]
    assert told["missing"] == told["same"]
    assert "others use the devices of the cluster: the plan needs `learn` 1, and 0 are free (CPU)" in told["busy"]


# The command


def command(mark: str, folder: Path, *options: str) -> subprocess.Popen[str]:
    """`rlgraph run`, in a session of its own as in a terminal of its own."""
    (folder / "p.rlf").write_text(shipped("grpo", SWAPS))
    (folder / "p.rls").write_text("schedule grpo\npool all = 1 devices\nplace actor, ref on all(engine=transformers)\n")
    changes = [word for name, value in CHANGES.items() for word in ("--set", f"{name}={value}")]
    line = [sys.executable, "-m", "rlgraph", "run", "p.rlf", "p.rls", "--backend", "ray", *changes, *options]
    return subprocess.Popen(
        line,
        cwd=folder,
        env=os.environ | {MARK: mark},
        start_new_session=True,
        # Where the tests run in the background, a shell has them ignore an interrupt, which programs would inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(run: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and stderr."""
    try:
        _, text = run.communicate(timeout=NEVER)
    except subprocess.TimeoutExpired:
        run.kill()
        raise
    return run.returncode, text


@pytest.mark.long
def test_two_runs_of_which_one_is_interrupted_and_one_killed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both are in the middle of a step, in a function of the user's that does not come back."""
    other = tmp_path_factory.mktemp("other")
    (other / "user.py").write_text(USER)
    with nothing_left() as mark:
        runs = {where: command(mark, where, "--out", "out", "--steps", "100000") for where in (folder, other)}
        for where in runs:
            until(
                lambda at=where: (
                    runs[at].poll() is not None
                    or ((at / "out" / "metrics.jsonl").is_file() and (at / "out" / "metrics.jsonl").stat().st_size > 0)
                )
            )  # type: ignore[misc]
            assert runs[where].poll() is None, ended(runs[where])
            (where / "sleep").touch()
        for where in runs:
            until((where / "sleeping").is_file)
        # Ray itself would end with its group, before the models are saved.
        os.killpg(runs[folder].pid, signal.SIGTERM)
        code, text = ended(runs[folder])
        assert code == 143, text
        assert "saved out/models/actor\ninterrupted after " in text
        assert (folder / "out" / "models" / "actor" / "config.json").is_file(), text
        assert runs[other].poll() is None
        # As when memory runs out: neither the command nor the actors get to clean up.
        for each in marked(mark, "ray::Worker"):
            each.kill()
        runs[other].kill()
        ended(runs[other])


def test_an_interrupt_while_it_starts(folder: Path) -> None:
    """Agents that do not get to see that Ray's daemon is gone, as on a busy machine, do not stay."""
    # However late the interrupt is, no step begins before.
    (folder / "hold").touch()
    with nothing_left() as mark:
        run = command(mark, folder, "--out", "out")
        until(lambda: bool(marked(mark, "Agent")))
        for agent in marked(mark, "Agent"):
            agent.suspend()
        os.killpg(run.pid, signal.SIGINT)
        code, text = ended(run)
        assert code == 130, text
        assert not [process.cmdline()[:3] for process in marked(mark)], "it ends after all that it started"
        assert not (folder / "out").exists()


def test_a_cluster_that_is_not_there(folder: Path) -> None:
    # A port that somebody has, and on which nobody listens.
    with nothing_left() as mark, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        code, text = ended(command(mark, folder, "--address", address))
    assert code == 4, text
    assert f"error[E0745]: the cluster at {address} cannot be reached" in text
