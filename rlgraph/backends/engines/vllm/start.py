"""Starts a vLLM engine: which of its many options matter here, and how much memory it takes."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from rlgraph.backends.engines.errors import EngineError, first_line
from rlgraph.backends.engines.process_groups import rendezvous_url
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.vllm.environment import all_reduce_by_nccl_only, has_no_gpu, sees_all_devices
from rlgraph.backends.engines.vllm.experts import use_local_experts
from rlgraph.backends.engines.vllm.layout import split_size_and_rank
from rlgraph.backends.engines.vllm.native_lora import lora_options
from rlgraph.backends.engines.vllm.spec import SPEC
from rlgraph.backends.enginespec.memory import ReservedCache
from rlgraph.backends.enginespec.registry import embedded_engine
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.mesh import Mesh
from rlgraph.ir.plan import ModelHolding
from rlgraph.passes.cost.cache_reservation import CacheSizingInput, cache_reservation, one_row_cache_bytes

if TYPE_CHECKING:
    from rlgraph.backends.engines.vllm.sampled_row import DrawnTokens

_EXECUTORS = "rlgraph.backends.engines.vllm.ranks"

_RESERVED = ReservedCache()
_CPU_BLOCK = _RESERVED.cpu_block
"""Tokens in a block of the key-value cache on a CPU: the least that vLLM's kernels there take, so that short rows waste
little."""

_LATENT_ON_CPU: dict[str, Any] = {
    # Another backend, which some CPUs could use, packs away the matrix that makes keys and values.
    "attention_config": {"backend": "CPU_MLA"},
    # vLLM's own kernel assumes contiguous queries, but here only their last numbers rotate.
    "compilation_config": {"custom_ops": ["-rotary_embedding"]},
}


@dataclass(frozen=True)
class StartNotes:
    """What executors of `vllm.ranks` are told beside vLLM's own arguments, as its `additional_config`, and what they
    share with the logits processor."""

    rank: int = 0
    url: str = ""
    """Where the ranks meet, where there are several."""
    records_routes: bool = False
    drawn: list[DrawnTokens] = field(default_factory=list)
    """What the step that samples now has drawn: its logits processor tells its executor."""

    def compute_hash(self) -> str:
        """Return the part of the name under which vLLM keeps what it compiles: that is the same wherever ranks meet."""
        return f"{type(self).__name__} {self.records_routes}"


@dataclass(frozen=True)
class EngineLimits:
    """The limits of what an engine takes on at a time."""

    rows: int | None = None
    """Rows decoded together; more wait until one of them ends. None: as many as `ReservedCache` says of the device."""
    row_tokens: int | None = None
    """The longest row, prompt and response together; None: as long as the cache has room for, and the model's positions
    reach."""
    cache_bytes: int | None = None
    """Bytes of this rank's key-value cache, which has at least one row of `row_tokens`. Rows that do not fit wait, or
    are computed again. None: 64 MiB on a CPU, and what `gpu_memory_utilization` leaves on a GPU."""
    gpu_memory_utilization: float = 0.9
    """The share of a GPU's memory for weights and key-value cache where nobody says how large the cache is. vLLM
    requires its share to be free at the start, so else it is the share of the weights and of the cache's size."""
    adapters: str = ""
    """How adapters are held, one of the ways in the engine's spec; empty: the first of them."""
    sleeps: bool = False
    """The engine will give its memory back while others work: on a GPU vLLM then has an allocator of its own."""


def limits_in_plan(holding: ModelHolding) -> EngineLimits:
    """Return the limits that a plan says of a model here."""
    return EngineLimits(
        row_tokens=holding.max_len or None,
        cache_bytes=holding.kv_bytes or None,
        gpu_memory_utilization=holding.share or _RESERVED.share,
        sleeps=holding.offload,
        adapters=holding.adapters,
    )


def start_engine(
    folder: str, spec: ModelSpec, shape: Shape, mesh: Mesh, rank: int, address: str | None, limits: EngineLimits
) -> Any:
    """Start vLLM's engine in this process, with arbitrary weights; `vllm.environment.import_vllm` comes first.

    folder: with the model's `config.json`.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    size, index = split_size_and_rank(mesh, rank)
    if not sees_all_devices(size):
        all_reduce_by_nccl_only()
    meeting = _meeting_arguments(size, index, address, spec.keeps_routes and bool(shape.experts))
    if has_no_gpu():
        _check_kernels(shape)
        if mesh.axis_size("ep") > 1:
            use_local_experts()
    memory = 0 if has_no_gpu() else torch.cuda.mem_get_info()[1]
    engine_arguments = EngineArgs(model=folder, **vllm_arguments(spec, shape, mesh, limits, memory), **meeting)
    if shape.experts:
        _group_experts()
    # vLLM runs the garbage collector several times over all objects, thousands of modules, which takes seconds.
    gc.freeze()
    try:
        engine = LLMEngine.from_engine_args(engine_arguments)
    except (ValueError, NotImplementedError) as error:
        raise EngineError(f"vLLM cannot start with this model: {first_line(error) or type(error).__name__}") from error
    # An engine that is dropped would take torch.distributed down for everything else in this process. The rest of its
    # finalizer's work is done here: the garbage collector sees again what vLLM has hidden from it.
    engine.engine_core._finalizer.detach()  # type: ignore[attr-defined, unused-ignore]
    gc.unfreeze()
    return engine


def vllm_arguments(spec: ModelSpec, shape: Shape, mesh: Mesh, limits: EngineLimits, memory: int) -> dict[str, Any]:
    """Return the arguments of vLLM on each rank. memory: bytes of its GPU."""
    size, _ = split_size_and_rank(mesh, 0)
    dtype = _dtype(spec)
    itemsize = getattr(torch, dtype).itemsize
    question = CacheSizingInput(shape, spec.kind, size, itemsize, has_no_gpu(), memory)
    said = limits.row_tokens, limits.cache_bytes, limits.gpu_memory_utilization
    terms = cache_reservation(question, _RESERVED, *said)
    return {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "dtype": dtype,
        "enforce_eager": has_no_gpu(),
        "max_model_len": terms.row_tokens,
        "max_num_seqs": limits.rows or (_RESERVED.cpu_rows if has_no_gpu() else _RESERVED.rows),
        "max_num_batched_tokens": None if has_no_gpu() else _RESERVED.prompt_tokens,
        "enable_prefix_caching": True,
        "block_size": _CPU_BLOCK if has_no_gpu() else None,
        "kv_cache_memory_bytes": terms.cache_bytes,
        "gpu_memory_utilization": terms.share,
        "enable_sleep_mode": limits.sleeps and not has_no_gpu(),
        "enable_expert_parallel": mesh.axis_size("ep") > 1,
        # Other backends change the layout of experts' weights.
        "moe_backend": "auto" if has_no_gpu() else "triton",
        **(lora_options(spec.adapters, shape) if spec.adapters and limits.adapters == "apart" else {}),
        **(_LATENT_ON_CPU if shape.latent and has_no_gpu() else {}),
        "logits_processors": ["rlgraph.backends.engines.vllm.sampling:SamplingLogitsProcessor"],
        # A GPU works on a step while its host schedules the next one.
        "async_scheduling": not has_no_gpu(),
        "disable_log_stats": True,
        "seed": 0,
    }


def min_cache_bytes(spec: ModelSpec, shape: Shape, mesh: Mesh, row_tokens: int) -> int:
    """Return the bytes of each rank's cache of keys and values with room for one row of so many tokens: the least that
    a plan may say."""
    size, _ = split_size_and_rank(mesh, 0)
    itemsize = getattr(torch, _dtype(spec)).itemsize
    return one_row_cache_bytes(
        CacheSizingInput(shape, spec.kind, size, itemsize, has_no_gpu(), None), _RESERVED, row_tokens
    )


def _dtype(spec: ModelSpec) -> str:
    return "float32" if has_no_gpu() else spec.dtype


def _group_experts() -> None:
    """Give vLLM a group of ranks for experts, that of a layer, where it has none because the first model of this
    process had no experts."""
    from vllm.distributed import parallel_state

    if parallel_state._TP is not None and parallel_state._EP is None:
        parallel_state._EP = parallel_state._TP


def _check_kernels(shape: Shape) -> None:
    """Raise EngineError where vLLM has no CPU kernel for a model."""
    if faults := SPEC.device_faults(shape, "cpu"):
        hint = f"place it with `engine={embedded_engine().name}` here; on GPUs vLLM has what it needs"
        raise EngineError(f"on a CPU vLLM {faults[0]}", hint)


def _meeting_arguments(size: int, index: int, address: str | None, records_routes: bool = False) -> dict[str, Any]:
    """Return the arguments of this rank's executor: how the ranks over which layers are split find each other, and what
    is recorded."""
    if size == 1:
        return {
            "distributed_executor_backend": f"{_EXECUTORS}.OneRankExecutor",
            "additional_config": StartNotes(records_routes=records_routes),
        }
    if address is None:
        raise EngineError(f"{size} ranks of a copy of vLLM need an address to meet at")
    return {
        "tensor_parallel_size": size,
        "distributed_executor_backend": f"{_EXECUTORS}.RankExecutor",
        "additional_config": StartNotes(index, rendezvous_url(address), records_routes),
        "disable_custom_all_reduce": not sees_all_devices(size),
    }
