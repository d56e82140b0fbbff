"""The spec of Megatron-core's engine: training and scoring of models that are split."""

from __future__ import annotations

from rlgraph.backends.engines.megatron.layout import layers_without_adapters, layout
from rlgraph.backends.enginespec.layout_checks import expert_parallel_misfits, tensor_parallel_misfits
from rlgraph.backends.enginespec.memory import EngineMemory
from rlgraph.backends.enginespec.rates import Rates
from rlgraph.backends.enginespec.spec import GROWING_SEGMENTS, EngineSpec
from rlgraph.catalog.clusters.cluster import DeviceKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.errors import DISTRIBUTION

_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1,
    "high_freq_factor": 4,
    "original_max_position_embeddings": 8192,
}
"""The one scaling of rotary positions that megatron-core's GPTModel has; its factor is free."""


def unsupported_features(shape: Shape) -> list[str]:
    """Return what the engine cannot compute of a model."""
    scaling = dict(shape.rope_scaling)
    scaling.pop("factor", None)
    missing = [f"cannot compute {', '.join(shape.beyond)}, which this model has"] if shape.beyond else []
    if not scaling or scaling == _ROPE:
        return missing
    return [*missing, f"cannot scale rotary positions as this model does ({scaling['rope_type']})"]


def _adapter_faults(shape: Shape) -> list[str]:
    """Return why it cannot hold the adapters of a model."""
    missing = layers_without_adapters(shape)
    return [f"has no adapters of {', '.join(missing)} here yet"] if missing else []


def _cp_misfits(shape: Shape, cp: int) -> list[str]:
    if cp == 1 or not (shape.narrow or shape.score_cap):
        return []
    return ["does not go with a window" if shape.narrow else "does not go with scores that are capped"]


def _pp_misfits(shape: Shape, pp: int) -> list[str]:
    return [f"is more than the {shape.layers} layers"] if pp > shape.layers else []


def _tp_misfits(shape: Shape, tp: int) -> list[str]:
    misfits, fused = tensor_parallel_misfits(shape, tp), (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    # Where each rank gets whole heads this is no further condition.
    if shape.heads % tp == 0 and fused % tp:
        misfits.append(f"does not divide the {fused} fused rows of queries, keys and values")
    return misfits


def _fused_norms(device: DeviceKind, dtype: str) -> bool:
    return device != "cpu" or dtype == "float32"


SPEC = EngineSpec(
    name="megatron",
    opens="rlgraph.backends.engines.megatron.opening:open_rank",
    joint_axes=("dp", "tp"),
    operations=frozenset({"train", "logprobs", "entropy", "distribution", "likeliest", "values", "score"}),
    gpu_environment={
        # What was launched first begins first, as Megatron expects of messages beside products.
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        **GROWING_SEGMENTS,
    },
    axes=("dp", "pp", "chunks", "cp", "ep", "tp"),
    misfits={"pp": _pp_misfits, "cp": _cp_misfits, "ep": expert_parallel_misfits, "tp": _tp_misfits},
    faults=unsupported_features,
    experts=True,
    adapters=("apart",),
    separate_adapter_faults=_adapter_faults,
    lays_out_adapters=True,
    layout=layout,
    dtypes={"cpu": frozenset({"float32"}), "gpu": frozenset({"float32", "bfloat16"})},
    accumulates=True,
    keeps_moments=True,
    sleeps=True,
    fuses=True,
    shards_optimizer=True,
    replays_routes=True,
    gathers_later=frozenset({"cpu", "gpu"}),
    packs=True,
    memory=EngineMemory(
        network_columns=3,
        angle_numbers=1,
        row_by_row=True,
        splits_tokens=True,
        split_head=True,
        keeps_fused=False,
        fused_norms=_fused_norms,
        wide_norm_bytes=4,
        gradients_stay=True,
    ),
    # Shares of the rates of the largest products and long copies, and of its exchange what travels beside them: for
    # training fitted to MH01, MH03 and, with what they differ in, MA01 to MA07 of docs/why/accuracy.md, models of 1.7
    # to 175 billion parameters on H100 and A100. Work that only reads is assumed to reach as much. Bytes of a logit
    # are counted (docs/why/gpu.md); of reading, one of three passes is assumed. Bytes of a weight are counted, too
    # (`python benchmarks/step_bytes.py`), with torch's fused AdamW, as it is without Transformer Engine.
    rates={
        "gpu": {
            "train": Rates(
                0.9,
                0.9,
                call=0.01,
                block=1e-3,
                layer=1e-4,
                experts=1.6e-3,
                logit=175,
                gradient=10,
                stepped=16,
                update=5e-3,
                hides=0.6,
            ),
            "forward": Rates(0.9, 0.9, call=0.01, block=1e-3, layer=5e-5, experts=5e-4, logit=58, hides=0.6),
        },
        "cpu": {
            "train": Rates(0.4, 0.5, call=5e-3, block=8e-3, layer=2e-3, update=1e-2),
            "forward": Rates(0.4, 0.5, call=5e-3, block=5e-3, layer=1e-3),
        },
    },
    settings=frozenset({"micro_tokens", "recompute"}),
    preference=2,
    requires=("megatron.core",),
    install=f"{DISTRIBUTION}[megatron]",
)
