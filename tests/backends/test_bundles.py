"""Which reserved device of a cluster each device of a pool is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlgraph.backends.ray import cluster
from rlgraph.backends.ray.cluster import bundles_by_device
from rlgraph.ir.plan import Plan


def test_on_one_machine_they_are_in_order() -> None:
    assert bundles_by_device(dict.fromkeys(range(8), "a")) == [*range(8)]


def test_neighbours_are_on_one_machine_however_ray_has_numbered_them() -> None:
    """Two machines of four devices, whose bundles Ray gives by turns: tp=4 would lie on both."""
    machines = {bundle: "ab"[bundle % 2] for bundle in range(8)}
    order = bundles_by_device(machines)
    assert sorted(order) == [*range(8)]
    assert [machines[bundle] for bundle in order] == [*"aaaabbbb"]


def test_the_fullest_machine_comes_first() -> None:
    """A pool of six with tp=2 on two machines, where the first bundle is alone with one other."""
    machines = {0: "a", 1: "b", 2: "b", 3: "a", 4: "b", 5: "b"}
    order = bundles_by_device(machines)
    assert [machines[bundle] for bundle in order] == [*"bbbbaa"] and order == [1, 2, 4, 5, 0, 3]


def test_a_process_is_started_on_the_device_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle that Ray is asked for, of each rank of a group with two machines."""
    strategies = pytest.importorskip("ray.util.scheduling_strategies")
    asked: list[int] = []

    def strategy(group: object, bundle: int) -> None:
        asked.append(bundle)

    class Actor:
        def options(self, **_: object) -> Actor:
            return self

        def remote(self, *_: object) -> None: ...

    monkeypatch.setattr(strategies, "PlacementGroupSchedulingStrategy", strategy)
    bundles = {"learn": bundles_by_device({0: "a", 1: "b", 2: "a", 3: "b"})}
    group = SimpleNamespace(name="learn", pool="learn", code=(), engine="megatron", devices=(0, 1, 2, 3))
    plan = cast(Plan, SimpleNamespace(groups=(group,)))
    ray: Any = SimpleNamespace(remote=lambda **_: lambda worker: Actor())
    for rank in range(4):
        spec: Any = SimpleNamespace(group=group, rank=rank, alone=True, hard=None)
        cluster._begin(ray, plan, spec, "GPU", {"learn": None}, bundles)
    assert asked == [0, 2, 1, 3]
