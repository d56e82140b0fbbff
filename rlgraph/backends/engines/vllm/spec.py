"""The spec of vLLM's engine: generation, whose rows leave it as they end."""

from __future__ import annotations

from rlgraph.backends.engines.vllm.layout import layout, padded_vocab_size
from rlgraph.backends.enginespec.layout_checks import expert_parallel_misfits, tensor_parallel_misfits
from rlgraph.backends.enginespec.memory import EngineMemory, ReservedCache
from rlgraph.backends.enginespec.offload_overheads import OffloadOverheads
from rlgraph.backends.enginespec.rates import Rates
from rlgraph.backends.enginespec.spec import EngineSpec
from rlgraph.catalog.clusters.cluster import DeviceKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.errors import DISTRIBUTION

_DTYPES = frozenset({"float32", "bfloat16"})


def _tp_misfits(shape: Shape, tp: int, entire: bool = False) -> list[str]:
    misfits, rows = tensor_parallel_misfits(shape, tp, entire), padded_vocab_size(shape)
    return [*misfits, f"does not divide the {rows} rows of the padded vocabulary"] if rows % tp else misfits


def _ep_misfits(shape: Shape, ep: int) -> list[str]:
    """Return the misfits of `ep`: ranks that have whole experts split everything else as those of a layer do."""
    return [*expert_parallel_misfits(shape, ep), *_tp_misfits(shape, ep, entire=True)]


_ROUNDED = dict.fromkeys(
    ("bfloat16", "float16"), "whose outputs are rounded before: that loses 81% of a step at lr=1e-4, 25% of one at 1e-3"
)
"""What is lost where vLLM's own kernels add an adapter's product to the output of a narrow matrix: measured of such
sums in bfloat16, for one step of AdamW (`benchmarks/adapters.py`)."""

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def _apart_faults(shape: Shape) -> list[str]:
    """Return why vLLM's own LoRA is not for a model."""
    faults = ["holds adapters apart only for models without experts"] if shape.experts else []
    if shape.adapters and shape.adapters.rank > _RANKS[-1]:
        faults.append(f"holds adapters apart only up to rank {_RANKS[-1]}")
    return faults


CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""The sizes of attention heads for which vLLM 0.32 has a kernel on a CPU (`CPUAttentionBackend`)."""
_CPU_LATENT = 512, 64
"""The numbers that keys and values are made of, and those that rotate: for these alone vLLM has a kernel on a CPU."""
_CPU_EXPERT_COLUMNS = 32
"""The hidden size has to be a multiple of this for vLLM's experts on a CPU."""


def _device_faults(shape: Shape, kind: DeviceKind) -> list[str]:
    """Return for what of a model vLLM has no kernel: it would only notice in its first step, or give no numbers."""
    if kind != "cpu":
        return []
    faults, latent = [], shape.latent
    if latent and (latent.keys, latent.turned) != _CPU_LATENT:
        numbers, rotated = _CPU_LATENT
        faults.append(
            f"makes keys and values of {numbers} numbers a token, beside {rotated} that rotate, but this model has "
            f"{latent.keys} and {latent.turned}"
        )
    if not latent and shape.head_dim not in CPU_HEAD_SIZES:
        sizes = ", ".join(map(str, CPU_HEAD_SIZES))
        faults.append(f"has attention for heads of size {sizes}, but this model's are {shape.head_dim}")
    if shape.experts and shape.hidden % _CPU_EXPERT_COLUMNS:
        faults.append(
            f"has experts for hidden sizes that {_CPU_EXPERT_COLUMNS} divides, but this model's is {shape.hidden}"
        )
    return faults


SPEC = EngineSpec(
    name="vllm",
    opens="rlgraph.backends.engines.vllm.engine:open_rank",
    start_check="rlgraph.backends.engines.vllm.start_check:check_start",
    operations=frozenset({"generate", "interact"}),
    axes=("dp", "ep", "tp"),
    columns=("tp", "ep"),
    misfits={"ep": _ep_misfits, "tp": _tp_misfits},
    device_faults=_device_faults,
    experts=True,
    layout=layout,
    dtypes={"cpu": _DTYPES, "gpu": _DTYPES},
    adapters=("merged", "apart"),
    separate_adapter_faults=_apart_faults,
    adapter_dtypes={"apart": _ROUNDED},
    # vLLM 0.32, `MaxLoRARanks` in `vllm/config/lora.py`.
    adapter_ranks=_RANKS,
    keeps_support=True,
    ends_at_texts=True,
    streams=True,
    admits=True,
    longest_first=True,
    rereads=True,
    keeps=True,
    sleeps=True,
    # vLLM pull request 48337, on an A100: to sleep without a copy of the weights (level 2) takes 0.12 s of a model of
    # 0.6 billion parameters, 0.31 s of one of 8 billion. To wake up takes 1.22 s and 2.19 s with weights from the host,
    # which are 0.05 s and 0.7 s of that; a cache of 31 GiB is made anew. That other caches take as long is assumed.
    offload_overheads=OffloadOverheads(sleep=0.2, wake=1.3),
    # A process has 0.33 to 0.39 GiB that are not torch's (vllm issues 14452 and 11251), and graphs of decoding steps of
    # several sizes, 0.36 to 0.46 GiB (gpustack/runner pull request 251, vllm issue 57475).
    memory=EngineMemory(
        cache=ReservedCache(),
        process_bytes=1 << 30,
        cpu_dtype="float32",
        cpu_packs_experts=True,
        cpu_adapters_by_token=True,
    ),
    # In decoding weights, keys and values are read as fast as kernels do on a device (`devices.toml`). The share of the
    # largest products' rate that its own reach, and 3 us of a layer for norms and activations, are fitted to GA01 to
    # GA17 and SB01 to SB20 of docs/why/accuracy.md. Of a row in a step the device takes 10 us, fitted to SB01 to SB20,
    # of vLLM 0.30. The host prepares the next step meanwhile, in 1.5 ms and 27 us for each of its rows
    # (`python benchmarks/vllm_host.py`). The attention of prompts is fitted to VP05, VP07, VR01 and VR03: of 1,024 to
    # 32,000 tokens, on an A100 and on a 4090.
    # An adapter beside a matrix: 4.4 to 4.7 ms of a step of 8 to 48 rows, of four matrices in each of 48 layers, on a
    # B200 (unslothai/unsloth pull request 5123).
    # On a CPU a decoded row takes what docs/why/calibration.md has measured.
    rates={
        "gpu": {
            "generate": Rates(
                0.68,
                1.0,
                adapted=2.5e-5,
                call=0.02,
                layer=3e-6,
                products=4,
                experts=2e-5,
                row=1e-5,
                host=1.5e-3,
                host_row=2.7e-5,
                attention=0.85,
            )
        },
        "cpu": {
            "generate": Rates(0.4, 0.5, adapted=1.4e-4, call=1e-2, block=3e-3, layer=4e-4, row=1.4e-5, hidden=2.7e-7)
        },
    },
    absorbs_latent=True,
    settings=frozenset({"kv_bytes"}),
    replays_routes=True,
    preference=2,
    requires=("vllm",),
    install=f"{DISTRIBUTION}[vllm]",
)
