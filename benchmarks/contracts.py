"""What a plan has for vLLM, what vLLM is told, and what its own code then asks for: ten public layouts side by side.

    python benchmarks/contracts.py
    python benchmarks/contracts.py --only slime

The layouts are those of `public_layouts.py`. Each is compiled for its cluster, with rows of half the lengths that its
recipe allows. Then vLLM's configuration is made by vLLM from what the engine would be told on a GPU, and its own
functions say whether that starts: the memory that has to be free, beside what the plan has awake on the device by then;
the cache that its longest row needs, in blocks of 16 and 64 tokens; the heads that its ranks divide; whether its ranks
look for each other's devices. Nothing is loaded, and no GPU is needed. It ends with status 1 if a figure differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import rlgraph
from benchmarks.public_layouts import LAYOUTS, Layout
from rlgraph.backends.enginespec.registry import engine
from rlgraph.backends.enginespec.start_demand import StartDevice
from rlgraph.backends.hard.demands import start_demands
from rlgraph.backends.ray.cluster import process_env_vars
from rlgraph.catalog.models.adapters import adapters_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.catalog.models.shape import Shape
from rlgraph.passes.compilation.choose_plan import peak_memory_by_pool
from rlgraph.passes.compilation.target import parse_workload
from rlgraph.passes.placement.engine_contracts import EngineContract
from rlgraph.passes.placement.model_load_order import model_load_rounds

BLOCKS = 16, 64
"""Tokens of the blocks among which vLLM's kernels on GPUs choose."""


@dataclass(frozen=True)
class Sampler:
    """A model that vLLM samples with in a plan: planned, told, and asked for."""

    layout: Layout
    split: str
    """The split of its ranks."""
    contract: EngineContract
    peak_bytes: float
    """The most bytes of its device in a step, of all processes together."""
    room_bytes: float
    """The bytes of its device that a plan may use."""
    weight_bytes: int
    """A rank's weights."""
    row_tokens: int
    """The longest row that vLLM takes."""
    row_bytes: int
    """The cache that it needs for one, with the block that it keeps for itself: of two sizes of blocks the larger."""
    needed_bytes: int
    """The memory that has to be free when it starts."""
    free_bytes: int
    """The memory that is."""
    wrong: tuple[str, ...]
    """Each difference between the plan's contract and what vLLM asks for."""


def sampler(layout: Layout) -> Sampler:
    """Compile a layout, and ask vLLM."""
    from rlgraph.backends.engines.errors import EngineError
    from rlgraph.backends.engines.vllm.environment import import_vllm
    from rlgraph.backends.engines.vllm.start_check import check_start

    import_vllm()
    lengths = parse_workload(str(layout.prompt // 2), str(layout.answer // 2))
    schedule = f"schedule layout\n{layout.schedule}"
    made = rlgraph.compile(layout.program, schedule=schedule, cluster=layout.cluster, workload=lengths)
    group = made.plan.group_of_role("actor", "generate")
    [contract] = [found for found in made.contracts if (found.group, found.model) == (group.name, "actor")]
    assert made.target is not None and contract.cache is not None and made.choice is not None
    memory = int(made.target.cluster.islands[0].device.memory)
    peak = peak_memory_by_pool(made.choice)[group.pool]
    demand = start_demands(made.program, made.plan, made.placed.shapes, memory)[group.name, "actor"]
    config, told = vllm_config(made, group, memory)
    free = memory - awake_bytes(made, group, contract, dict(peak.moments), demand.weight_bytes)
    rows = [row_bytes(config, block) for block in BLOCKS]
    wrong = list(differences(contract, config, told, group.engine))
    if max(rows) > (contract.cache.cache_bytes or 0):
        wrong.append("the cache has no room for the longest row")
    try:
        check_start(demand, StartDevice(memory, free, contract.visible_devices), "host:1/token")
    except EngineError as error:
        wrong.append(str(error))
    if peak.used_bytes > peak.capacity:
        wrong.append("the plan does not fit its devices")
    needed = int(contract.cache.share * memory)
    mesh = group.mesh
    split = " ".join(f"{axis}{mesh.axis_size(axis)}" for axis in ("dp", "tp", "ep") if mesh.axis_size(axis) > 1)
    return Sampler(
        layout,
        split,
        contract,
        peak.used_bytes,
        peak.capacity,
        demand.weight_bytes,
        config.model_config.max_model_len,
        max(rows),
        needed,
        free,
        tuple(wrong),
    )


def vllm_config(made: Any, group: Any, memory: int) -> tuple[Any, dict[str, Any]]:
    """Return the configuration that vLLM makes of what the engine tells it on a GPU, and that."""
    from vllm.engine.arg_utils import EngineArgs

    from rlgraph.backends.engines.sources import ModelSpec
    from rlgraph.backends.engines.vllm import start

    model, shape, holding = (
        made.program.model("actor"),
        made.placed.shapes["actor"],
        made.plan.holding("actor", group.name),
    )
    assert isinstance(shape, Shape)
    dtype = made.program.dtype_of_model(model)
    spec = ModelSpec(model.kind, str(model.source), dtype, adapters=adapters_of(model))
    with patch.object(start, "has_no_gpu", lambda: False), patch("torch.cuda.device_count", lambda: 1):
        told = start.vllm_arguments(spec, shape, group.mesh, start.limits_in_plan(holding), memory)
        size, index = start.split_size_and_rank(group.mesh, 0)
        told |= start._meeting_arguments(size, index, "host:1/token")
    # A CPU refuses to sleep; all else of the configuration is made as on a GPU.
    arguments = {name: value for name, value in told.items() if name != "enable_sleep_mode"}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(known_config(str(model.source))))
        return EngineArgs(model=folder, **arguments).create_engine_config(), told


def row_bytes(config: Any, block: int) -> int:
    """Return the bytes of a rank's cache that vLLM needs for its longest row, with the block that it keeps for itself;
    ask it, too, whether as many are enough, and one byte less is not."""
    from vllm.v1.core.kv_cache_utils import check_enough_kv_cache_memory
    from vllm.v1.kv_cache_interface import FullAttentionSpec
    from vllm.v1.kv_cache_layout import KVCacheLayout

    model = config.model_config
    layer = FullAttentionSpec(
        block_size=block,
        num_kv_heads=model.get_num_kv_heads(config.parallel_config),
        head_size=model.get_head_size(),
        dtype=model.dtype,
    )
    layers: dict[str, Any] = {
        f"layers.{number}": layer for number in range(model.get_num_layers(config.parallel_config))
    }
    needed = len(layers) * (layer.max_memory_usage_bytes(config) + layer.page_size_bytes)
    config.cache_config.kv_cache_layout = KVCacheLayout.LBNHC.name
    check_enough_kv_cache_memory(config, dict(layers), needed)
    try:
        check_enough_kv_cache_memory(config, dict(layers), needed - 1)
    except ValueError:
        return int(needed)
    raise AssertionError("vLLM takes less than a row and a block")


def awake_bytes(made: Any, group: Any, contract: EngineContract, moments: dict[str, float], weights: int) -> int:
    """Return what others have on the device when vLLM starts: all that the plan has awake beside it while it samples,
    where that may have been opened; and a runtime for each process that is there."""
    assert contract.cache is not None
    rounds = model_load_rounds(made.plan)
    before = {name for names in rounds[: contract.opens] for name in names}
    others = [
        other for other in made.plan.groups if other.pool == group.pool and other.name in before and other != group
    ]
    runtimes = sum(engine(other.engine).memory.process_bytes for other in [*others, group])
    awake = [other for other in others if any(not made.plan.holding(name, other.name).offload for name in other.models)]
    if not awake:
        return runtimes
    sampling = max(size for name, size in moments.items() if name == "rollout")
    return int(runtimes + max(0.0, sampling - weights - (contract.cache.cache_bytes or 0)))


def differences(contract: EngineContract, config: Any, told: dict[str, Any], name: str) -> Iterator[str]:
    """Yield what vLLM has in another way than the contract says."""
    cache = contract.cache
    assert cache is not None
    pairs = {
        "tokens of a row": (cache.row_tokens, config.model_config.max_model_len),
        "bytes of the cache": (cache.cache_bytes, config.cache_config.kv_cache_memory_bytes),
        "share of the device": (cache.share, config.cache_config.gpu_memory_utilization),
        "asleep": (bool(contract.asleep_during), told["enable_sleep_mode"]),
        "one device": (True, config.parallel_config.disable_custom_all_reduce or "tensor_parallel_size" not in told),
    }
    for what, (ours, theirs) in pairs.items():
        if ours != theirs:
            yield f"{what}: {ours} in the contract, {theirs} asked for"
    if missing := contract.environment.items() - process_env_vars("GPU", False, name).items():
        yield f"the processes begin without {sorted(missing)}"


HEAD = (
    "| layout | plan: a device, of what it may use | contract: row, cache, free at the start, asleep during | "
    "vLLM asks: row, a row's cache, free of what there is |\n|---|---|---|---|"
)


def line(found: Sampler) -> str:
    """Return a layout as a line of the table."""
    cache = found.contract.cache
    assert cache is not None
    plan = f"vllm {found.split}: {size(found.peak_bytes)} of {size(found.room_bytes)}"
    asleep = ", ".join(found.contract.asleep_during) or "never"
    told = f"{cache.row_tokens:,}; {size(cache.cache_bytes or 0)}; {cache.share:.0%}; {asleep}"
    asks = f"{found.row_tokens:,}; {size(found.row_bytes)}; {size(found.needed_bytes)} of {size(found.free_bytes)}"
    name = found.layout.name
    return f"| {name} | {plan} | {told} | {asks}{''.join(f'; **{text}**' for text in found.wrong)} |"


def size(count: float) -> str:
    """Return bytes in words."""
    return f"{count / 1e9:.1f} GB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="layouts with this text in their names")
    options = parser.parse_args()
    print(HEAD)
    wrong = 0
    for layout in LAYOUTS:
        if options.only in layout.name:
            found = sampler(layout)
            wrong += bool(found.wrong)
            print(line(found), flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
