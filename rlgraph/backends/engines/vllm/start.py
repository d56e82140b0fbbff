"""Starting a vLLM engine: which of its many options matter here, and how much memory it takes."""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass
from typing import Any

import torch

from rlgraph.backends.engines.base import EngineError
from rlgraph.backends.engines.process_groups import url
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.vllm.environment import on_cpu
from rlgraph.backends.engines.vllm.experts import own_experts
from rlgraph.backends.engines.vllm.layout import ranks
from rlgraph.backends.engines.vllm.native_lora import options
from rlgraph.backends.enginespec.spec import Reserved
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.mesh import Mesh
from rlgraph.ir.plan import Holding
from rlgraph.passes.cost.work import cached_bytes, rank_parameters

_EXPERT_COLUMNS = 32
"""Of which the hidden size has to be a multiple for vLLM's experts on a CPU."""

_RESERVED = Reserved()
_BLOCK = _RESERVED.cpu_block
"""Tokens in a block of the key-value cache on a CPU: the least that vLLM's kernels there take, so that short rows waste
little."""

_LATENT_ON_CPU: dict[str, Any] = {
    # Another one, which some CPUs could have, packs away the matrix that makes keys and values.
    "attention_config": {"backend": "CPU_MLA"},
    # vLLM's own kernel takes queries for contiguous, of which here only the last numbers rotate.
    "compilation_config": {"custom_ops": ["-rotary_embedding"]},
}
_LATENT_SIZES = 512, 64
"""Of what keys and values are made of, and of the numbers that rotate: for these alone vLLM has a kernel on a CPU."""

_CACHE = _RESERVED.cpu_bytes
"""Bytes of the cache on a CPU: vLLM's own default there is several GiB, which it fills with zeros."""


@dataclass(frozen=True)
class Limits:
    """How much an engine takes on at a time."""

    rows: int | None = None
    """Rows decoded together; more wait until one of them ends. None: as many as `Reserved` says of the device."""
    row_tokens: int | None = None
    """Longest row, prompt and response together; None: as long as the cache has room for, and the model's positions
    reach."""
    cache_bytes: int | None = None
    """Of this rank's key-value cache, which has at least one row of `row_tokens`. Rows that do not fit wait, or are
    computed again. None: 64 MiB on a CPU, and what `gpu_memory_utilization` leaves on a GPU."""
    gpu_memory_utilization: float = 0.9
    """The share of a GPU's memory for weights and key-value cache where nobody says how large the cache is. vLLM wants
    its share to be free at the start, so that else it is that of the weights and of what is said."""
    adapters: str = ""
    """How adapters are held, of the ways in the engine's spec; empty: as the first of them."""
    sleeps: bool = False
    """It will give its memory back while others work: on a GPU vLLM then has an allocator of its own."""


def limits_of(holding: Holding) -> Limits:
    """What a plan says of a model here."""
    return Limits(cache_bytes=holding.kv_bytes or None, sleeps=holding.offload, adapters=holding.adapters)


def start(
    folder: str, spec: ModelSpec, shape: Shape, mesh: Mesh, rank: int, address: str | None, limits: Limits
) -> Any:
    """vLLM's engine in this process, with arbitrary weights; `rlgraph.backends.engines.vllm.environment.prepare` comes
    first.

    folder: with the model's `config.json`.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    size, index = ranks(mesh, rank)
    meeting = _meeting(size, index, address)
    if on_cpu():
        _check_kernels(shape)
        if mesh.length("ep") > 1:
            own_experts()
    memory = 0 if on_cpu() else torch.cuda.mem_get_info()[1]
    asked = EngineArgs(model=folder, **arguments(spec, shape, mesh, limits, memory), **meeting)
    if shape.experts:
        _group_experts()
    # vLLM has the garbage collector look several times at all that is there: at thousands of modules, for seconds.
    gc.freeze()
    try:
        engine = LLMEngine.from_engine_args(asked)
    except (ValueError, NotImplementedError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise EngineError(f"vLLM cannot start with this model: {first}") from error
    # An engine that is dropped would take torch.distributed down for everything else in this process. What remains of
    # that is to let the garbage collector look again at all that vLLM has hidden from it.
    engine.engine_core._finalizer.detach()  # type: ignore[attr-defined, unused-ignore]
    gc.unfreeze()
    return engine


def arguments(spec: ModelSpec, shape: Shape, mesh: Mesh, limits: Limits, memory: int) -> dict[str, Any]:
    """What vLLM is asked for on each rank. memory: bytes of its GPU."""
    size, _ = ranks(mesh, 0)
    dtype = _dtype(spec)
    itemsize = getattr(torch, dtype).itemsize
    row_tokens = _row_tokens(shape, size, limits, itemsize)
    cache_bytes = _cache_bytes(shape, size, row_tokens, limits, itemsize)
    share = limits.gpu_memory_utilization
    if cache_bytes is not None and not on_cpu():
        share = min(share, (rank_parameters(shape, spec.kind, 1, size) * itemsize + cache_bytes) / memory)
    return {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "dtype": dtype,
        "enforce_eager": on_cpu(),
        "max_model_len": row_tokens,
        "max_num_seqs": limits.rows or (_RESERVED.cpu_rows if on_cpu() else _RESERVED.rows),
        "max_num_batched_tokens": None if on_cpu() else _RESERVED.prompt_tokens,
        "enable_prefix_caching": True,
        "block_size": _BLOCK if on_cpu() else None,
        "kv_cache_memory_bytes": cache_bytes,
        "gpu_memory_utilization": share,
        "enable_sleep_mode": limits.sleeps and not on_cpu(),
        "enable_expert_parallel": mesh.length("ep") > 1,
        # Others lay the weights of experts out anew.
        "moe_backend": "auto" if on_cpu() else "triton",
        **(options(spec.adapters, shape) if spec.adapters and limits.adapters == "apart" else {}),
        **(_LATENT_ON_CPU if shape.latent and on_cpu() else {}),
        "logits_processors": ["rlgraph.backends.engines.vllm.sampling:RowSampling"],
        # The place of a token is the number of those before it, and they must be known when it is sampled.
        "async_scheduling": False,
        "disable_log_stats": True,
        "seed": 0,
    }


def cache_for(spec: ModelSpec, shape: Shape, mesh: Mesh, row_tokens: int) -> int:
    """Bytes of each rank's cache of keys and values with room for one row of so many tokens: the least that a plan may
    say."""
    size, _ = ranks(mesh, 0)
    return _room(shape, size, row_tokens, getattr(torch, _dtype(spec)).itemsize)


def _dtype(spec: ModelSpec) -> str:
    return "float32" if on_cpu() else spec.dtype


def _group_experts() -> None:
    """Where the first model of this process had no experts, vLLM has no group of ranks for them: it is that of a
    layer."""
    from vllm.distributed import parallel_state

    if parallel_state._TP is not None and parallel_state._EP is None:
        parallel_state._EP = parallel_state._TP


def _check_kernels(shape: Shape) -> None:
    """vLLM itself would only notice in the first step, or say no numbers."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    sizes, latent = CPUAttentionBackend.get_supported_head_sizes(), shape.latent
    if latent and (latent.keys, latent.turned) != _LATENT_SIZES:
        numbers, turned = _LATENT_SIZES
        raise EngineError(
            f"on a CPU vLLM makes keys and values of {numbers} numbers a token, beside {turned} that rotate, but this "
            f"model has {latent.keys} and {latent.turned}"
        )
    if not latent and shape.head_dim not in sizes:
        listed = ", ".join(map(str, sizes))
        raise EngineError(
            f"on a CPU vLLM has attention for heads of size {listed}, but this model's are {shape.head_dim}"
        )
    if shape.experts and shape.hidden % _EXPERT_COLUMNS:
        raise EngineError(
            f"on a CPU vLLM has experts for hidden sizes that {_EXPERT_COLUMNS} divides, but this model's is "
            f"{shape.hidden}"
        )


def _meeting(size: int, index: int, address: str | None) -> dict[str, Any]:
    """How the ranks over which layers are split find each other."""
    if size == 1:
        return {}
    if address is None:
        raise EngineError(f"{size} ranks of a copy of vLLM need an address to meet at")
    return {
        "tensor_parallel_size": size,
        "distributed_executor_backend": "rlgraph.backends.engines.vllm.ranks.RankExecutor",
        "additional_config": {"rank": index, "url": url(address)},
    }


def _row_tokens(shape: Shape, tp: int, limits: Limits, itemsize: int) -> int:
    """Of the longest row: vLLM does not start with a cache that has no room for one."""
    longest = limits.row_tokens
    if longest is None and limits.cache_bytes:
        longest = _RESERVED.row(limits.cache_bytes / cached_bytes(shape, tp, itemsize), on_cpu())
    return min(longest or shape.positions, shape.positions)


def _cache_bytes(shape: Shape, tp: int, row_tokens: int, limits: Limits, itemsize: int) -> int | None:
    """Keys and values, of one row at least. None: as many as there is room for."""
    wanted = limits.cache_bytes
    if wanted is None:
        if not on_cpu():
            return None
        wanted = _CACHE
    return max(wanted, _room(shape, tp, row_tokens, itemsize))


def _room(shape: Shape, tp: int, row_tokens: int, itemsize: int) -> int:
    return math.ceil(cached_bytes(shape, tp, itemsize) * _RESERVED.room(row_tokens, on_cpu()))
