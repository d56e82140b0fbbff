"""The constants of the cost model: each has a name and a unit, and can be fitted on a machine.

Work of a kind with an engine takes

    seconds = call + block * micro-batches + layer * layers * micro-batches + row * rows + token * tokens * layers
              + FLOPs / (compute * dense * peak) + bytes / (memory * stream * bandwidth)

on each rank, where the FLOPs, bytes and layers are the rank's own, and `dense` and `stream` are the shares of the peaks
that the device's largest products and copies reach. The bytes of a pass over rows are those that kernels between matrix
products move (`traffic`). For `generate`, a decoding step takes the place of a micro-batch. It reads weights, and keys
and values, at rates of their own (a device's `weight_stream` and `cache_stream`), and each kernel takes what the device
takes to begin one, where an engine says how many there are (`products`). `row` counts for each token that is sampled,
and `hidden` for each number of a row in all layers of a step; a row takes `begin` once, and `attention` scales the
attention of prompts. Of products and their weights' bytes the longer one counts, in a step and in a pass over prompts.
Ranks that work side by side take longer (`crowd`), and they wait for each other and for communication, but for the
share that an engine `hides`.

"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from rlgraph.backends.enginespec.offload_overheads import OffloadOverheads
from rlgraph.backends.enginespec.rates import Rates, WorkKind
from rlgraph.backends.enginespec.registry import engines_by_name
from rlgraph.catalog.clusters.cluster import DeviceKind
from rlgraph.ir.transfer import SECTION

PIECE = 1.5e-5
"""`Constants.piece` on a GPU: 6 us to cut a piece out and copy it, and 9.4 us for a message, measured as `SECTION` of
`rlgraph.ir.transfer`."""

HOST_LINK = 0.78
"""`Constants.host_link` on a GPU: 49 and 50 of 64 GB/s on an H100 (docs/why/gpu.md), and 24.4 and 23.5 GiB/s of 32 GB/s
on an L20, there and back (vllm-project/vime pull request 444)."""

HOST_UPDATE = 50e9
"""`Constants.host_update`: AdamW of 72 billion weights on the hosts of four nodes takes 10 s (deepspeedai/DeepSpeed
issue 6834), of 11.6 billion on one 8.2 s (its pull request 735): 28 bytes a weight, 50 and 40 GB/s."""

COMMUNICATOR = 688 << 20
"""`Constants.communicator` on a GPU: NCCL's, of more than two ranks; of two it is 544 MB (nccl issue 964)."""

TRAFFIC = 3.0
"""`Constants.traffic` on a GPU: each number is written, read by what follows, and read again by its gradient. Fitted to
MA01 to MA07 of docs/why/accuracy.md, before other rows were there; these bear it out."""

UNEVEN = 1.6
"""`Constants.uneven`. Of a layer of Qwen3-30B-A3B the choice of experts lacks 11.1% of the entropy of an even one on
prose, code and math, and 15.4% on Python alone (mcp-tool-shop-org, gpu-container handbook, "Routing De-risk"): where
shares of 128 experts are log-normal, 1.4 and 1.9 times the mean. It is fitted to no seconds; MZ06 to MZ08 and MZ14 to
MZ16 of docs/why/accuracy.md, the same runs with even and with real routers, ask for 1.9."""


@dataclass(frozen=True, slots=True)
class HostCosts:
    """The costs of work in the controller process, and of a request to workers."""

    node: float = 1e-3
    """Seconds of each node that needs no model."""
    row: float = 2e-5
    """Seconds of each row that such a node works on."""
    function_row: float = 1e-3
    """Seconds that a function of the user takes for a row, or an environment for one answer to it."""
    order: float = 2e-3
    """Seconds until a group has its request and rows, and answers, beside the work."""
    order_rank: float = 2e-5
    """Seconds more for each process of the group."""


@dataclass(frozen=True, slots=True)
class Constants:
    """All constants that the cost model reads."""

    rates: Mapping[tuple[str, WorkKind], Rates]
    """The rates by engine and kind of work."""
    host: HostCosts = field(default_factory=HostCosts)
    collective: float = 0.8
    """Share of a link's bandwidth that collectives reach."""
    transfer: float = 0.7
    """Share of a link's bandwidth that planned transfers reach."""
    sync: float = 0.05
    """Seconds of each transfer of weights beside its bytes."""
    host_link: float = 1.0
    """Share of the bandwidth to the host's memory that copies of off-loaded models reach."""
    offload_overheads: Mapping[str, OffloadOverheads] = field(default_factory=dict)
    """Seconds of off-loading beside its bytes, by engine."""
    piece: float = 0.0
    """Seconds of each piece of a transfer of weights at each end, beside its bytes: it is cut out and copied, and is a
    message."""
    section: float = 0.0
    """Seconds of each end's part of a stream in each round of a transfer of weights, beside its bytes."""
    traffic: float = 0.0
    """How often the numbers that a layer keeps for its backward pass go to or from memory in each pass over it: what
    kernels beside the matrix products read and write."""
    uneven: float = UNEVEN
    """Standard deviation of how often each expert of a layer is chosen, as a share of the mean: routers are trained to
    be even, and are not."""
    fragmentation: float = 0.05
    """Share of a device's memory that an allocator cannot use."""
    reserved: int = 1 << 30
    """Bytes of a device that belong to no process but to the driver: on a GPU a few hundred MB to 1 GB (sichek pull
    request 113)."""
    spare: float = 0.0
    """Share of a device's memory that a plan leaves at least, `fragmentation` and `reserved` included: what is not
    counted, as communicators that are made late and what a library keeps for itself, has to have room."""
    asleep: float = 0.5
    """Share of the memory of a node's host that off-loaded models may use. Of the rest Ray's object store alone takes
    30% (docs.ray.io, "Memory Management"); then there are processes, files, and page-locked memory, which torch rounds
    up: assumed."""
    unpinned: float = 0.7
    """Share of that memory that optimizers may use which keep their state there: all but Ray's object store. It is not
    page-locked, so that nothing is rounded up: assumed."""
    host_update: float = HOST_UPDATE
    """Bytes per second that the processors of a node read and write as they make an optimizer's step."""
    process: Mapping[str, int] = field(default_factory=dict)
    """Bytes of a device that a process uses beside tensors, by engine."""
    communicator: int = 0
    """Bytes of a device that a process uses for each mesh axis along which it communicates."""
    source: str = "defaults"
    """Where the constants are from: shown with every prediction."""

    @property
    def unpinned_part(self) -> float:
        """Return the bytes of `asleep` that a byte takes which is not page-locked."""
        return min(1.0, self.asleep / self.unpinned)


def _rates(device: DeviceKind) -> Mapping[tuple[str, WorkKind], Rates]:
    """Return the rates that engines state of themselves on a kind of device."""
    return {
        (name, kind): rates for name, spec in engines_by_name().items() for kind, rates in spec.rates[device].items()
    }


@cache
def default_constants(device: DeviceKind) -> Constants:
    """Return the constants where nothing was measured: of a CPU, or of a data-centre GPU in bfloat16.

    The share of the peak that a GPU's largest products and copies reach is its own (`devices.toml`); the share of that
    which engines reach is theirs. docs/why/accuracy.md compares both with published measurements; overheads of engines
    without measurements are of the order that kernel launches and Python take. `rlgraph profile` measures a machine's
    own.
    """
    # This is a function, not module constants, so that only predictions have to find the engines.
    return (
        Constants(_rates(device), reserved=512 << 20)
        if device == "cpu"
        else Constants(
            _rates(device),
            piece=PIECE,
            section=SECTION,
            host_link=HOST_LINK,
            offload_overheads={name: spec.offload_overheads for name, spec in engines_by_name().items()},
            traffic=TRAFFIC,
            process={name: spec.memory.process_bytes for name, spec in engines_by_name().items()},
            communicator=COMMUNICATOR,
            spare=0.06,
        )
    )
