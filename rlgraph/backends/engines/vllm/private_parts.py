"""The parts of vLLM that it does not offer to others and that this engine needs, each with the reason.

All else goes by what vLLM offers: `LLMEngine` (requests, steps, `sleep`, `wake_up`, `reset_prefix_cache`,
`set_weight_version`, `add_lora`), `apply_model` and `collective_rpc` for what is in a worker, and logits processors.

Its weight transfers (`vllm.distributed.weight_transfer`) are not used: a trainer gives whole tensors by the names of
the checkpoint, which vLLM loads anew. Here each rank gets the boxes of its own tensors that a plan has worked out, over
any number of ranks on either side, and writes them in place. `AsyncLLM` with its pause and resume is not used either:
the engine's steps belong to this process, so that between two of them nothing runs, and a row's draws are its own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrivatePart:
    """Names of one of vLLM's modules that may change without notice."""

    module: str
    """The module, as it is imported."""
    names: tuple[str, ...]
    """What is used of it; `Class.attribute` of a class."""
    reason: str
    """What it is needed for, and why nothing that is offered does it."""


PRIVATE_PARTS: tuple[PrivatePart, ...] = (
    PrivatePart(
        "vllm.v1.worker.utils",
        ("request_memory",),
        "hard devices ask whether it would start, as it asks itself",
    ),
    PrivatePart(
        "vllm.distributed.device_communicators.custom_all_reduce",
        ("_can_p2p",),
        "hard devices ask whether its ranks reach each other, as it asks itself",
    ),
    PrivatePart(
        "vllm.v1.executor.uniproc_executor",
        ("UniProcExecutor._init_executor", "UniProcExecutor._distributed_args", "UniProcExecutor.sample_tokens"),
        "a rank of several is this very process; the offered executors start processes of their own, or want torchrun; "
        "and log-probabilities come to the host with the tokens, for which a step ahead does not wait",
    ),
    PrivatePart(
        "vllm.distributed.parallel_state",
        ("_groups", "_TP", "_EP", "get_world_group", "get_tp_group"),
        "ranks agree over the groups that vLLM has made, shared memory is unlinked once all have mapped it, and a "
        "second model of a process needs a group for its experts",
    ),
    PrivatePart(
        "vllm.v1.engine.core_client",
        ("InprocClient._finalizer",),
        "an engine that is dropped would end torch.distributed for all else in the process",
    ),
    PrivatePart(
        "vllm.v1.engine.core",
        ("EngineCore.batch_queue", "EngineCore.scheduler"),
        "before new weights come, a step that was begun ahead ends; what is offered gives up the rows, or waits for "
        "their ends",
    ),
    PrivatePart(
        "vllm.v1.core.sched.interface",
        ("PauseState", "SchedulerInterface.set_pause_state"),
        "no other step is begun meanwhile",
    ),
    PrivatePart(
        "vllm.lora.model_manager",
        ("LoRAModelManager.lora_index_to_id", "LoRAModelManager.modules", "LoRAModelManager.packed_modules"),
        "new numbers are written into the slot of one adapter between two steps; `add_lora` reads files",
    ),
    PrivatePart(
        "vllm.v1.worker.gpu_model_runner",
        ("GPUModelRunner.kv_caches", "GPUModelRunner.input_batch", "GPUModelRunner.query_start_loc"),
        "on a CPU the cache is given back by hand: `sleep` is for GPUs; and where tokens lie in the cache says which "
        "experts they have: the offered record of experts takes no logits processors of others",
    ),
    PrivatePart(
        "vllm._custom_ops",
        ("_supports_onednn",),
        "on a CPU linear layers would be packed into what nobody can write new weights to; no option says so",
    ),
    PrivatePart(
        "vllm.model_executor.layers.fused_moe.router.base_router",
        ("BaseRouter.set_capture_fn",),
        "routers say which experts they choose",
    ),
    PrivatePart(
        "vllm.model_executor.layers.fused_moe.runner.moe_runner",
        ("MoERunner",),
        "layers that have experts, and their numbers",
    ),
    PrivatePart(
        "vllm.model_executor.layers.fused_moe.experts.cpu_moe",
        ("CPUUnquantizedExperts.apply",),
        "its kernel for a CPU takes an expert's number among all for that among those of a rank",
    ),
    PrivatePart(
        "vllm.model_executor.layers.fused_moe.routed_experts",
        ("RoutedExperts",),
        "its kernel for a CPU packs experts, which are packed again when new weights have come",
    ),
    PrivatePart(
        "vllm.v1.attention.backends.cpu_attn",
        ("CPUAttentionBackend.get_supported_head_sizes",),
        "on a CPU heads of other sizes fail in the first step, and not at the start",
    ),
    PrivatePart(
        "vllm.v1.sample.logits_processor.builtin",
        ("process_dict_updates",),
        "what each row samples with follows vLLM's batch; the offered interface has no such table",
    ),
)
"""Every part, which `tests/backends/engines/test_vllm_parts.py` looks for in the version that is installed."""
