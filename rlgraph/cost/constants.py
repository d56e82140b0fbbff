"""The constants of the cost model: each has a name and a unit, and can be fitted on a machine.

Work of a kind with an engine takes

    seconds = call + block * micro-batches + layer * layers * micro-batches + row * rows + token * tokens * layers
              + FLOPs / (compute * peak) + bytes / (memory * bandwidth)

on each rank, where the FLOPs, bytes and layers are the rank's own. Of `generate`, a decoding step is what a micro-batch
is elsewhere, and the larger one of the last two terms counts. Ranks that work side by side take longer, and wait for
each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlgraph.enginespec.rates import Rates, WorkKind


@dataclass(frozen=True, slots=True)
class Host:
    """What is done by one process, and what an order to processes takes."""

    node: float = 1e-3
    """Seconds of each node that needs no model."""
    row: float = 2e-5
    """Seconds of each row that it works on."""
    function_row: float = 1e-3
    """Seconds that a function of the user's takes for a row."""
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
    fragmentation: float = 0.05
    """Share of a device's memory that an allocator cannot use."""
    reserved: int = 2 << 30
    """Bytes of a device that its runtime and libraries take."""
    source: str = "defaults"
    """Where they are from: shown with every prediction."""


GPU = Constants(
    {
        ("megatron", "train"): Rates(0.45, 0.8, call=0.01, block=1e-3, layer=1e-4, update=5e-3),
        ("megatron", "forward"): Rates(0.5, 0.8, call=0.01, block=1e-3, layer=5e-5),
        ("vllm", "generate"): Rates(0.6, 0.75, call=0.02, block=2e-3, layer=1e-5, row=1e-5),
        ("transformers", "train"): Rates(0.35, 0.8, call=0.01, block=2e-3, layer=3e-4, update=5e-3),
        ("transformers", "forward"): Rates(0.4, 0.8, call=0.01, block=2e-3, layer=1e-4),
        ("transformers", "generate"): Rates(0.3, 0.4, call=0.02, block=5e-3, layer=3e-4, row=2e-5),
    }
)
"""Of a data-centre GPU in bfloat16. Shares of the peak are those that training and serving systems publish
(Megatron-LM, arXiv 2104.04473: 0.44 to 0.52 on A100; vLLM decodes at 0.7 to 0.8 of the bandwidth with CUDA graphs);
overheads are of the order that kernel launches and Python take. `rlgraph profile` measures a machine's own."""

CPU = Constants(
    {
        ("megatron", "train"): Rates(0.4, 0.5, call=5e-3, block=8e-3, layer=2e-3, update=1e-2),
        ("megatron", "forward"): Rates(0.4, 0.5, call=5e-3, block=5e-3, layer=1e-3),
        ("vllm", "generate"): Rates(0.4, 0.5, call=1e-2, block=3e-3, layer=4e-4, row=1e-4),
        ("transformers", "train"): Rates(0.4, 0.5, call=3e-3, block=4e-3, layer=1.5e-3, update=5e-3),
        ("transformers", "forward"): Rates(0.4, 0.5, call=2e-3, block=2e-3, layer=5e-4),
        ("transformers", "generate"): Rates(0.4, 0.5, call=5e-3, block=1e-3, layer=3e-4, row=2e-5),
    },
    reserved=512 << 20,
)
"""Of a CPU; `rlgraph profile` measures a machine's own."""
