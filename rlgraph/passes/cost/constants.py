"""The constants of the cost model: each has a name and a unit, and can be fitted on a machine.

Work of a kind with an engine takes

    seconds = call + block * micro-batches + layer * layers * micro-batches + row * rows + token * tokens * layers
              + FLOPs / (compute * dense * peak) + bytes / (memory * stream * bandwidth)

on each rank, where the FLOPs, bytes and layers are the rank's own, `dense` and `stream` the shares that the device's
largest products and copies reach. The bytes of a pass over rows are those between matrix products (`traffic`). Of
`generate`, a decoding step is what a micro-batch is elsewhere, `row` is of each of them, and `hidden` more with a row's
numbers in all layers; a row takes `begin` once, the larger one of the last two terms counts, and of the attention of
prompts `attention`. Ranks that work side by side take longer, and wait for each other, and for what they exchange but
the share that an engine `hides`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from rlgraph.backends.enginespec.rates import Rates, WorkKind
from rlgraph.backends.enginespec.registry import engines
from rlgraph.catalog.clusters.cluster import DeviceKind

TENSOR = 2e-5
"""Of `Constants.tensor` on a GPU: launches of a few kernels. Assumed."""

COMMUNICATOR = 688 << 20
"""Of `Constants.communicator` on a GPU: NCCL's, of more than two ranks; of two it is 544 MB (nccl issue 964)."""

TRAFFIC = 3.0
"""Of `Constants.traffic` on a GPU: each number is written, read by what follows, and read again by its gradient. Fitted
to MA01 to MA07 of docs/why/accuracy.md, before other rows were there; these bear it out."""


@dataclass(frozen=True, slots=True)
class Host:
    """What is done by one process, and what an order to processes takes."""

    node: float = 1e-3
    """Seconds of each node that needs no model."""
    row: float = 2e-5
    """Seconds of each row that it works on."""
    function_row: float = 1e-3
    """Seconds that a function of the user's takes for a row, or an environment to answer it once."""
    order: float = 2e-3
    """Seconds until a group has its order and rows, and answers, beside the work."""
    order_rank: float = 2e-5
    """Seconds more for each process of the group."""


@dataclass(frozen=True, slots=True)
class Constants:
    rates: Mapping[tuple[str, WorkKind], Rates]
    """By engine and kind of work."""
    host: Host = field(default_factory=Host)
    collective: float = 0.8
    """Share of a link's bandwidth that collectives reach."""
    transfer: float = 0.7
    """Share of a link's bandwidth that planned transfers reach."""
    sync: float = 0.05
    """Seconds of each transfer of weights beside its bytes."""
    tensor: float = 0.0
    """Seconds of each tensor of a transfer of weights, whose pieces are packed and unpacked."""
    traffic: float = 0.0
    """How often what a layer keeps for its backward pass goes to or from memory, for each pass over it: what kernels
    beside the matrix products read and write."""
    fragmentation: float = 0.05
    """Share of a device's memory that an allocator cannot use."""
    reserved: int = 1 << 30
    """Bytes of a device that belong to no process: the driver's, of a GPU a few hundred MB to 1 GB (sichek pull request
    113)."""
    asleep: float = 0.5
    """Share of the memory of a node's host that models which sleep may have. Of the rest Ray's object store alone takes
    30% (docs.ray.io, "Memory Management"); then there are processes, files, and page-locked memory, which torch rounds
    up: assumed."""
    process: Mapping[str, int] = field(default_factory=dict)
    """Bytes of a device that a process has beside tensors, by its engine."""
    communicator: int = 0
    """Bytes of a device that a process has for each mesh axis along which it exchanges something."""
    source: str = "defaults"
    """Where they are from: shown with every prediction."""


def _rates(device: DeviceKind) -> Mapping[tuple[str, WorkKind], Rates]:
    """What engines say of themselves."""
    return {(name, kind): rates for name, spec in engines().items() for kind, rates in spec.rates[device].items()}


@cache
def defaults(device: DeviceKind) -> Constants:
    """Where nothing was measured: of a CPU, or of a data-centre GPU in bfloat16.

    What a GPU's largest products and copies reach is its own (`devices.toml`), what engines reach of that is theirs.
    docs/why/accuracy.md holds both against published measurements; of engines that are not there, overheads are of the
    order that kernel launches and Python take. `rlgraph profile` measures a machine's own.
    """
    # A function and not values of the module: only who predicts something has to find the engines.
    return (
        Constants(_rates(device), reserved=512 << 20)
        if device == "cpu"
        else Constants(
            _rates(device),
            tensor=TENSOR,
            traffic=TRAFFIC,
            process={name: spec.memory.process for name, spec in engines().items()},
            communicator=COMMUNICATOR,
        )
    )
