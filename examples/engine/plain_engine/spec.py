"""What the compiler knows of it; loads no torch."""

from rlgraph.backends.enginespec.spec import EngineSpec

SPEC = EngineSpec(
    name="plain",
    opens="plain_engine.engine:open_rank",
    operations=frozenset({"train", "generate", "logprobs"}),
    axes=(),
    dtypes={"cpu": frozenset({"float32"}), "gpu": frozenset()},
    requires=("torch", "transformers"),
    install="rlgraph-plain-engine",
)
