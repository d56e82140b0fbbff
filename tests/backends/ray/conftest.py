"""A cluster on this machine for all tests of this folder that need no own one. The folder is no package: it would hide Ray from those who import
it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Ray, with as many devices as the largest plan has."""
    ray = pytest.importorskip("ray.util") and pytest.importorskip("ray")
    ray.init("local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(scope="module", autouse=True)
def precision() -> None:
    """transformers as it is: processes compute with it."""
