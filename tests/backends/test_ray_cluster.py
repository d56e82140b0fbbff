"""A cluster that does not come, where Ray's own words say little."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlgraph.backends.ray import cluster
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

    def init(*_: object, **__: object) -> None:
        raise error

    plan = cast(Plan, SimpleNamespace(pools=()))
    with pytest.raises(RunError) as found:
        cluster._connect(cast(Any, SimpleNamespace(init=init)), None, plan, print)
    [said] = found.value.diagnostics
    assert said.code == "E0745" and said.message == f"Ray on this machine cannot be reached: {told}"
