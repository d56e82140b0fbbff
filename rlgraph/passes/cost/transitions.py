"""Estimates the transition between works that take turns on the same devices: models that go to the host's memory and
come back. The weights that travel at such a time are in `weights.py`."""

from __future__ import annotations

from rlgraph.ops.nodes import NODES
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.deployment import Deployment


def offload_round_trip_cost(
    operation: str, held: float, deployment: Deployment, synced: bool, constants: Constants
) -> Cost:
    """Return the cost until an off-loaded model can do its work, and until it has left its devices again.

    Bytes go over the host's link: to the device each time, unless the weights are synced from where they are trained,
    and to the host if they changed. The engine takes its memory and gives it back beside that.

    held: bytes of the model on the fullest rank, without its cache.
    """
    trips = 2 if NODES[operation].trains else 0 if synced else 1
    overheads = constants.offload_overheads.get(deployment.engine)
    return Cost(
        memory=trips * held / (deployment.island.device.host * constants.host_link),
        overhead=overheads.round_trip if overheads else 0.0,
    )
