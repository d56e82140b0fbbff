"""The spec of the engine of Hugging Face models: it does everything, with models that one process computes with."""

from __future__ import annotations

from rlgraph.backends.engines.transformers.layout import layout
from rlgraph.backends.enginespec.layout_checks import tensor_parallel_misfits
from rlgraph.backends.enginespec.memory import EngineMemory, GrowingCache, HeadTiles
from rlgraph.backends.enginespec.spec import GROWING_SEGMENTS, AttentionKind, EngineSpec, PrefixSharing
from rlgraph.catalog.clusters.cluster import DeviceKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.errors import DISTRIBUTION


def _fused_norms(device: DeviceKind, dtype: str) -> bool:
    return device == "cpu" and dtype == "float32"


SHARES = PrefixSharing(
    # For the gradient only keys and values of a beginning exist once for each row: with an eighth less tokens a layer
    # keeps less in all, also where as many heads have keys as queries and the network has no gate.
    min_saved_share=1 / 8,
    # In longer rows attention is much of the work, and torch's kernel is slower where queries begin in a row's midst.
    max_suffix_tokens=4096,
    # With a mask torch's kernels for GPUs want keys and values for each head.
    devices=frozenset({"cpu"}),
)

_UNPLANNED = ("phi3", "qwen2_moe", "deepseek_v3")
"""Families whose layers the plan of transformers (`base_model_tp_plan`) does not split, or not entirely."""


def _tp_misfits(shape: Shape, tp: int) -> list[str]:
    if tp > 1 and shape.family in _UNPLANNED:
        return [f"is not for {shape.family} models, whose layers transformers has no plan to split"]
    misfits = tensor_parallel_misfits(shape, tp)
    if not misfits and shape.kv_heads % tp:
        misfits.append(f"does not divide the {shape.kv_heads} key-value heads")
    return misfits if tp <= shape.vocab else [*misfits, "is more than there are tokens"]


SPEC = EngineSpec(
    name="transformers",
    opens="rlgraph.backends.engines.transformers.engine:open_rank",
    operations=frozenset(
        {"train", "generate", "interact", "logprobs", "entropy", "distribution", "likeliest", "values", "score"}
    ),
    gpu_environment=GROWING_SEGMENTS,
    axes=("dp", "fsdp", "tp"),
    misfits={"tp": _tp_misfits},
    joint_axes=("dp", "tp"),
    mixes=True,
    # Generating would gather all parameters for each token.
    unsplit_operations={"fsdp": frozenset({"generate", "interact"})},
    layout=layout,
    experts=True,
    replays_routes=True,
    keeps_support=True,
    ends_at_texts=True,
    every_model=True,
    autocast=True,
    packs=True,
    plain_attention=True,
    prefix_sharing=SHARES,
    attention={
        "sdpa": AttentionKind(),
        "eager": AttentionKind(packs=False, scores=True),
        "flash_attention_2": AttentionKind(packs=False, devices=frozenset({"gpu"})),
    },
    threads=True,
    longest_first=True,
    rereads=True,
    accumulates=True,
    keeps_moments=True,
    sleeps=True,
    saves=True,
    adapters=("apart",),
    lays_out_adapters=True,
    gather=("layer", "update"),
    optimizer=("device", "host"),
    memory=EngineMemory(fused_norms=_fused_norms, head_tiles=HeadTiles(), cache=GrowingCache()),
    settings=frozenset({"recompute"}),
    preference=1,
    embedded=True,
    requires=("torch", "transformers"),
    install=f"{DISTRIBUTION}[run]",
)
