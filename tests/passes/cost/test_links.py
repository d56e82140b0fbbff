"""What copies have of a node's adapters when they exchange gradients."""

from __future__ import annotations

import pytest

from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.passes.cost.links import replicas_link

NETWORK = 400e9 / 8 / 8


@pytest.mark.parametrize(
    ("one", "copies", "adapters"),
    [
        (8, 2, 1),  # each rank of a copy has its own ring, and all of them share the node's adapters
        (4, 4, 2),
        (1, 16, 8),  # one ring over all devices has all of them
        (16, 1, 1),
        (16, 2, 1),
    ],
)
def test_a_ring_has_the_adapters_of_its_ranks_on_a_node(one: int, copies: int, adapters: int) -> None:
    for text in ("4x8:h100-80gb@50Gb/s", "4x8:h100-80gb@400Gb/s/node"):
        (island,) = read_cluster(text).islands
        found = replicas_link(island, one, copies, 0.5)
        assert found.bandwidth == pytest.approx(0.5 * NETWORK * adapters)
        assert found.latency == island.network_latency


def test_within_a_node_they_have_its_links() -> None:
    (island,) = read_cluster("4x8:h100-80gb").islands
    assert replicas_link(island, 2, 4, 1.0).bandwidth == island.device.link


def test_a_ring_is_no_faster_than_the_links_of_its_devices() -> None:
    (island,) = read_cluster("4x8:h100-80gb(link=100GB/s)@50GB/s").islands
    assert replicas_link(island, 1, 32, 1.0).bandwidth == island.device.link
