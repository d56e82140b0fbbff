"""Legal splits of models, for hypothesis."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from rlgraph.enginespec.legal import problems
from rlgraph.ir.mesh import Mesh, mesh
from rlgraph.models.shape import Shape
from tests.models.tiny import DENSE


@st.composite
def shapes(draw: DrawFn) -> Shape:
    family = draw(st.sampled_from(DENSE))
    kv_heads = draw(st.integers(1, 4))
    return Shape(
        family,
        vocab=draw(st.integers(3, 200)),
        hidden=4,
        ffn=draw(st.sampled_from([12, 24])),
        layers=draw(st.sampled_from([1, 2, 4, 6])),
        heads=kv_heads * draw(st.integers(1, 4)),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([2, 4, 6])),
        tied=draw(st.booleans()),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
    )


@st.composite
def splits(draw: DrawFn, engine: str) -> tuple[Shape, Mesh]:
    """A shape, and a mesh with two copies over which this engine can split it."""
    shape = draw(shapes())
    tp = draw(st.sampled_from([tp for tp in (1, 2, 3, 4, 6, 8) if shape.heads % tp == 0]))
    pp = draw(st.sampled_from([pp for pp in (1, 2, 3) if shape.layers % pp == 0])) if engine == "megatron" else 1
    over = mesh(2, pp, tp)
    assume(not problems(shape, engine, over))
    return shape, over
