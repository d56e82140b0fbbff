"""A cluster on this machine for all tests of this folder that need no own one. The folder is no package: it would hide Ray from those who import
it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.delays import Kept, known
from tests.enginespec.packages import installed

# As where rlgraph starts Ray.
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")

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
    with known(packages, SLEEP):
        ray.init("local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


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
