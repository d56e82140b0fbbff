"""What the engine of Hugging Face models is for: everything, with models that one process computes with."""

from __future__ import annotations

from rlgraph.clusters.cluster import DeviceKind
from rlgraph.engines.transformers.layout import layout
from rlgraph.enginespec.spec import Attention, EngineSpec, Grown, Memory


def _fused_norms(device: DeviceKind, dtype: str) -> bool:
    return device == "cpu" and dtype == "float32"


SPEC = EngineSpec(
    name="transformers",
    opens="rlgraph.engines.transformers.engine:open_rank",
    operations=frozenset({"train", "generate", "interact", "logprobs", "entropy", "values", "score"}),
    axes=("dp", "fsdp"),
    whole=frozenset({"generate", "interact"}),
    layout=layout,
    experts=True,
    every_model=True,
    packs=True,
    attention={
        "sdpa": Attention(),
        "eager": Attention(packs=False, scores=True),
        "flash_attention_2": Attention(packs=False, devices=frozenset({"gpu"})),
    },
    threads=True,
    rereads=True,
    accumulates=True,
    saves=True,
    adapters="apart",
    memory=Memory(fused_norms=_fused_norms, cache=Grown()),
    settings=frozenset({"recompute"}),
    preference=1,
    embedded=True,
    requires=("torch", "transformers"),
    install="rlgraph[run]",
)
