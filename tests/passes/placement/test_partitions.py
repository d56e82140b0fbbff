"""Where pools and tensor-parallel ranks lie on the nodes of an island."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement, product
from pathlib import Path

import pytest

import rlgraph
from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.passes.placement.search.colocation import PartitionBlock
from rlgraph.passes.placement.search.partitions import allowed_pool_sizes, can_pack_pools, first_device_of_pools

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"


def island(nodes: int, per_node: int) -> NodeGroup:
    (found,) = read_cluster(f"{nodes}x{per_node}:rtx4090").islands
    return found


def test_pools_have_nodes_or_halves_of_one() -> None:
    assert allowed_pool_sizes(island(2, 8)) == (1, 2, 4, 8, 16)
    assert allowed_pool_sizes(island(2, 3)) == (1, 2, 3, 6)


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 3), (2, 5), (3, 6), (2, 7), (2, 8)])
@pytest.mark.parametrize("pools", [1, 2, 3, 4])
def test_pools_have_room_where_nodes_can_be_dealt_to_them(nodes: int, per_node: int, pools: int) -> None:
    own = island(nodes, per_node)
    blocks = tuple(PartitionBlock((at,), 0) for at in range(pools))
    for devices in combinations_with_replacement(allowed_pool_sizes(own), pools):
        if sum(devices) > own.device_count:
            continue
        parts = [size for size in devices if size < per_node]
        free = nodes - sum(size // per_node for size in devices)
        dealt = any(
            all(
                sum(size for size, at in zip(parts, where, strict=True) if at == node) <= per_node
                for node in range(free)
            )
            for where in product(range(free), repeat=len(parts))
        )
        assert can_pack_pools([own], blocks, devices) is dealt
        if dealt:
            places = [
                range(first, first + size)
                for first, size in zip(first_device_of_pools(own, devices), devices, strict=True)
            ]
            assert len(set().union(*places)) == sum(devices) and max(map(max, places)) < own.device_count
            assert all(len({at // per_node for at in place}) == -(-len(place) // per_node) for place in places)


def test_a_schedule_may_give_pools_sizes_that_nodes_have_no_room_for() -> None:
    own = island(2, 5)
    assert not can_pack_pools([own], [PartitionBlock((at,), 0) for at in range(3)], [3, 3, 3])
    assert can_pack_pools([own], [PartitionBlock((at,), 0, "pinned", 3) for at in range(3)], [3, 3, 3])
    assert first_device_of_pools(own, [3, 3, 3]) == [0, 3, 6]
    assert first_device_of_pools(own, [2, 8]) == [8, 0]


@pytest.mark.parametrize(
    ("per_node", "size", "teams"), [(7, 2, 6), (7, 4, 2), (6, 4, 2), (5, 1, 10), (7, 8, 1), (8, 2, 8)]
)
def test_ranks_that_a_node_has_room_for_are_on_one(per_node: int, size: int, teams: int) -> None:
    own = island(2, per_node)
    assert own.count_teams(size, own.device_count) == teams
    assert own.devices_for_teams(size, teams) <= own.device_count < own.devices_for_teams(size, teams + 1)
    devices = [own.team_member_device(size, number) for number in range(teams * size)]
    assert devices == sorted(set(devices)) and devices[-1] < own.device_count
    for team in range(teams):
        nodes = {device // per_node for device in devices[team * size : (team + 1) * size]}
        assert len(nodes) == (1 if size <= per_node else 2)


def test_neighbours_in_rows_of_teams() -> None:
    assert (
        island(2, 6).neighbour_teams_share_node(1, 2)
        and island(2, 6).neighbour_teams_share_node(2, 3)
        and island(2, 7).neighbour_teams_share_node(1, 7)
    )
    assert (
        not island(2, 6).neighbour_teams_share_node(2, 2)
        and not island(2, 7).neighbour_teams_share_node(1, 2)
        and not island(2, 7).neighbour_teams_share_node(4, 2)
    )
    assert replace(island(2, 7), nodes=1).neighbour_teams_share_node(1, 2)


@pytest.mark.parametrize(("name", "nodes", "per_node", "memory", "tp"), [("grpo", 2, 5, 26, 4), ("ppo", 2, 7, 32, 2)])
def test_plans_keep_tensor_parallel_ranks_on_a_node(name: str, nodes: int, per_node: int, memory: int, tp: int) -> None:
    made = rlgraph.compile(ALGORITHMS / f"{name}.rlf", cluster=f"{nodes}x{per_node}:rtx4090(memory={memory}GiB)")
    own = island(nodes, per_node)
    split = [group for group in made.plan.groups if group.mesh.axis_size("tp") == tp]
    assert split
    for group in split:
        first = next(pool.first for pool in made.plan.pools if pool.name == group.pool)
        for start in range(0, group.mesh.rank_count, tp):
            assert len({(first + device) // own.per_node for device in group.devices[start : start + tp]}) == 1
