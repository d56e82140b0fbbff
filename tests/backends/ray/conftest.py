"""A cluster on this machine for all tests of this folder that need no own one. The folder is no package: it would hide Ray from those who import
it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forked
import pytest

from benchmarks.delays import Kept, known
from tests.backends.enginespec.packages import installed

# As where rlgraph starts Ray.
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
# Ray has its workers stand back behind all else that the machine does, which are the other tests.
os.environ.setdefault("RAY_worker_niceness", "0")
# However busy the machine is: Ray takes who is late for lost, and ends a process where memory is nearly full.
for _name, _value in {
    "memory_monitor_refresh_ms": 0,
    "worker_register_timeout_seconds": 600,
    "agent_register_timeout_ms": 600_000,
    "health_check_timeout_ms": 600_000,
}.items():
    os.environ.setdefault(f"RAY_{_name}", str(_value))

SLEEP = 0.02
"""Seconds that engines which are late usually sleep, at most."""


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which packages with engines are installed."""
    return installed(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="session")
def cluster(packages: Path) -> Iterator[None]:
    """Ray, with as many devices as the largest plan has. Its processes have the packages."""
    ray = pytest.importorskip("ray.util") and pytest.importorskip("ray")
    from rlgraph.backends.ray.start_timeout import longer_start_timeout

    with known(packages, SLEEP), forking(packages):
        with longer_start_timeout():
            ray.init("local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()


@contextmanager
def forking(folder: Path) -> Iterator[None]:
    """Where Ray is started meanwhile, workers are forked that ask for it, and those of runs on CPUs do."""
    from ray._private.parameter import RayParams

    from rlgraph.backends.ray import cluster

    plain, environment = RayParams.__init__, cluster.process_env_vars

    def begin(params: Any, *args: Any, **named: Any) -> None:
        plain(params, *args, **{"setup_worker_path": forked.__file__} | named)

    def asking(kind: str, *given: Any) -> dict[str, str]:
        return environment(kind, *given) | ({forked.ASKS: "1"} if kind == "CPU" else {})

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(forked.LISTENS, str(folder / "forks"))
        patch.setattr(RayParams, "__init__", begin)
        patch.setattr(cluster, "process_env_vars", asking)
        yield


@pytest.fixture(scope="module")
def started(cluster: None) -> Iterator[None]:
    """The cluster, for runs whose processes are started as those of users are."""
    from rlgraph.backends.ray import cluster as processes

    asking = processes.process_env_vars
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            processes,
            "process_env_vars",
            lambda *given: {name: value for name, value in asking(*given).items() if name != forked.ASKS},
        )
        yield


@pytest.fixture(scope="session")
def processes() -> Kept:
    """Those of the cluster that have served a run, and are there for the next."""
    return Kept()


@pytest.fixture(scope="module")
def kept(cluster: None, processes: Kept) -> Iterator[None]:
    """The cluster, for runs that need no processes of their own: to start these takes longer than the runs."""
    with processes.in_use():
        yield


@pytest.fixture
def engines(cluster: None, packages: Path) -> Iterator[None]:
    """Those of packages are there, too."""
    with known(packages, SLEEP):
        yield


@pytest.fixture(scope="module", autouse=True)
def precision() -> None:
    """transformers as it is: processes compute with it."""
