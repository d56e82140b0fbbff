"""A cluster that does not come, where Ray's own words say little."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlgraph.backends.ray import cluster
from rlgraph.backends.ray.daemons import Daemons
from rlgraph.backends.ray.start_timeout import longer_start_timeout
from rlgraph.errors import RunError
from rlgraph.ir.plan import Plan


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Exception("The current node timed out during startup.\nMore."), "The current node timed out during startup."),
        (Exception(), "Exception"),
    ],
)
def test_what_ray_says_where_it_does_not_start(error: Exception, told: str) -> None:
    """On a machine that is too busy its start takes over 30 s, for which it has no error of its own."""
    pytest.importorskip("ray.util")

    def init(*_: object, **__: object) -> None:
        raise error

    plan = cast(Plan, SimpleNamespace(pools=()))
    with pytest.raises(RunError) as found:
        cluster._connect(cast(Any, SimpleNamespace(init=init)), None, plan, print, Daemons())
    [said] = found.value.diagnostics
    assert said.code == "E0745" and said.message == f"Ray on this machine cannot be reached: {told}"


def test_ray_has_longer_than_its_own_thirty_seconds_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for the daemon is answered when it is there, or told that it is not when the time is over."""
    services = pytest.importorskip("ray._private.services")
    # What `patient` says there is for the whole process, and the first word stands.
    monkeypatch.setenv("RAY_gcs_server_port_wait_time_s", "30")
    asked = []

    def unknown_at_first(*question: object) -> str:
        asked.append(question)
        if len(asked) < 3:
            raise RuntimeError("no such node")
        return "the node"

    monkeypatch.setattr(services, "get_node", unknown_at_first)
    with longer_start_timeout():
        assert services.get_node("address", "id") == "the node"
    assert asked == [("address", "id")] * 3
    asked.clear()
    with longer_start_timeout(seconds=-1.0), pytest.raises(RuntimeError, match="no such node"):
        services.get_node("address", "id")
    assert services.get_node is unknown_at_first
