"""Legal splits of models, for hypothesis."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from rlgraph.backends.enginespec.layout_checks import layout_problems
from rlgraph.backends.enginespec.registry import engine as named
from rlgraph.catalog.models.config_shape import FAMILIES, SPARSE
from rlgraph.catalog.models.latent_attention import ExpertRouting, LatentAttention
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.mesh import Mesh, make_mesh


@st.composite
def shapes(draw: DrawFn, sparse: bool) -> Shape:
    family = draw(st.sampled_from([each for each in FAMILIES if sparse or each not in SPARSE]))
    kv_heads = draw(st.integers(1, 4))
    layers = draw(st.sampled_from([1, 2, 4, 6]))
    more = {}
    if family == "deepseek_v3":
        dense = draw(st.integers(0, layers - 1))
        more = {
            "latent": LatentAttention(draw(st.sampled_from([0, 5])), 3, 2, 2, draw(st.sampled_from([3, 6]))),
            "routing": ExpertRouting(1, 1, 1.0),
            "dense": dense,
            "dense_ffn": 24 if dense else 0,
        }
    found = Shape(
        family,
        vocab=draw(st.integers(3, 200)),
        hidden=4,
        ffn=draw(st.sampled_from([12, 24])),
        layers=layers,
        heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([2, 4, 6])),
        tied=draw(st.booleans()),
        qkv_bias=family.startswith("qwen2"),
        qk_norm=family.startswith("qwen3"),
        experts=draw(st.integers(2, 8)) if family in SPARSE else 0,
        experts_per_token=2 if family in SPARSE else 0,
        shared_ffn=draw(st.sampled_from([12, 24])) if family in ("qwen2_moe", "deepseek_v3") else 0,
    )
    return replace(found, kv_heads=found.heads, head_dim=4, **more) if more else found


@st.composite
def splits(draw: DrawFn, engine: str) -> tuple[Shape, Mesh]:
    """A shape, and a mesh with two copies over which this engine can split it."""
    shape = draw(shapes(named(engine).experts))
    tp = draw(st.sampled_from([tp for tp in (1, 2, 3, 4, 6, 8) if shape.heads % tp == 0]))
    pp = draw(st.sampled_from([pp for pp in (1, 2, 3, 4) if pp <= shape.layers])) if engine == "megatron" else 1
    sizes = [ep for ep in (1, 2, 3) if engine == "megatron" and shape.experts and shape.experts % ep == 0]
    cp = draw(st.sampled_from((1, 2))) if engine == "megatron" else 1
    chunks = draw(st.sampled_from([each for each in (1, 2, 3) if pp > 1 and shape.layers % (each * pp) == 0] or [1]))
    over = make_mesh(2, pp, tp, ep=draw(st.sampled_from(sizes or [1])), cp=cp, chunks=chunks)
    assume(not layout_problems(shape, engine, over))
    return shape, over
