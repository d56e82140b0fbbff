"""What is said of a split that an engine cannot do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlgraph.backends.enginespec import layout_checks
from rlgraph.backends.enginespec.layout_checks import layout_problems
from rlgraph.backends.enginespec.registry import engine as named
from rlgraph.backends.enginespec.registry import engines_by_name
from rlgraph.catalog.models.adapters import Adapters
from rlgraph.catalog.models.config_shape import FAMILIES, shape_of
from rlgraph.catalog.models.config_shape import SPARSE as SPARSE_FAMILIES
from rlgraph.catalog.models.families import ModelKind, parameter_shapes
from rlgraph.catalog.models.shape import Shape, UnknownFamily
from rlgraph.ir.mesh import Mesh, make_mesh

SHAPE = Shape("qwen2", vocab=50, hidden=16, ffn=24, layers=4, heads=4, kv_heads=2, head_dim=4, qkv_bias=True)


@pytest.mark.parametrize(
    ("engine", "over"),
    [
        ("transformers", make_mesh(4)),
        ("megatron", make_mesh(2, 4, 2)),
        ("megatron", make_mesh(pp=3)),
        ("megatron", make_mesh(1, 1, 4)),
        ("megatron", make_mesh(2, 2, chunks=2)),
        ("vllm", make_mesh(3, 1, 4)),
    ],
)
def test_a_legal_split_has_no_problems(engine: str, over: Mesh) -> None:
    assert layout_problems(SHAPE, engine, over) == []


@pytest.mark.parametrize(
    ("engine", "over", "expected"),
    [
        ("transformers", make_mesh(2, 2), ["transformers does not split along pp, but pp=2: it can use dp, fsdp, tp"]),
        ("vllm", make_mesh(1, 2, 2), ["vllm does not split along pp, but pp=2: it can use dp, ep, tp"]),
        ("megatron", make_mesh(1, 5), ["pp=5 is more than the 4 layers: the nearest that fits is pp=4"]),
        (
            "megatron",
            make_mesh(1, 1, 3),
            [
                "tp=3 does not divide the 4 attention heads and neither divides the 2 key-value heads nor is a multiple of"
                " them: the nearest that fits is tp=2 or tp=4"
            ],
        ),
        ("vllm", make_mesh(1, 1, 8), ["tp=8 does not divide the 4 attention heads: the nearest that fits is tp=4"]),
        (
            "megatron",
            Mesh((("tp", 2), ("fsdp", 2))),
            ["megatron does not split along fsdp, but fsdp=2: it can use dp, pp, chunks, cp, ep, tp"],
        ),
        (
            "megatron",
            make_mesh(pp=2, chunks=3),
            ["chunks=3 on pp=2 makes 6 parts of 4 layers: the nearest that fits is chunks=2"],
        ),
        (
            "megatron",
            make_mesh(pp=2, chunks=10**11),
            ["chunks=100000000000 on pp=2 makes 200000000000 parts of 4 layers: the nearest that fits is chunks=2"],
        ),
        (
            "megatron",
            make_mesh(chunks=2),
            ["chunks=2 are parts of the layers on each of several stages, and there is one: say `pp=`, too"],
        ),
        (
            "megatron",
            make_mesh(pp=3, chunks=2),
            ["chunks=2 on pp=3 makes 6 parts of 4 layers: the nearest that fits is chunks=1"],
        ),
        ("vllm", make_mesh(chunks=2), ["vllm does not split along chunks, but chunks=2: it can use dp, ep, tp"]),
        ("vllm", make_mesh(ep=2), ["ep=2 splits experts, of which this model has none: the nearest that fits is ep=1"]),
    ],
)
def test_a_problem_is_said_with_its_numbers_and_what_would_fit(engine: str, over: Mesh, expected: list[str]) -> None:
    assert layout_problems(SHAPE, engine, over) == expected


def test_ranks_with_whole_experts_split_all_else() -> None:
    sparse = replace(SHAPE, family="mixtral", experts=8, ffn=10)
    assert layout_problems(sparse, "vllm", make_mesh(ep=4)) == []
    assert [each[:39] for each in layout_problems(sparse, "vllm", make_mesh(tp=4))] == [
        "tp=4 does not divide the 10 columns of "
    ]
    assert layout_problems(sparse, "vllm", make_mesh(ep=8)) == [
        "ep=8 does not divide the 4 attention heads: the nearest that fits is ep=4"
    ]
    assert layout_problems(sparse, "vllm", make_mesh(ep=2, tp=2)) == [
        "vllm does not split along tp=2 and ep=2 at once: over 4 devices it does tp=4 or ep=4"
    ]
    assert layout_problems(sparse, "megatron", make_mesh(ep=2, tp=2)) == []


def test_the_feed_forward_network_and_the_vocabulary_have_to_divide() -> None:
    odd = replace(SHAPE, heads=12, kv_heads=12, ffn=20)
    assert layout_problems(odd, "megatron", make_mesh(1, 1, 3)) == [
        "tp=3 does not divide the 20 columns of the feed-forward network: the nearest that fits is tp=2 or tp=4"
    ]
    wide = replace(SHAPE, heads=12, kv_heads=12)
    assert layout_problems(wide, "megatron", make_mesh(1, 1, 3)) == []
    assert layout_problems(wide, "vllm", make_mesh(1, 1, 3)) == [
        "tp=3 does not divide the 64 rows of the padded vocabulary: the nearest that fits is tp=2 or tp=4"
    ]


def test_megatron_splits_the_fused_rows_of_a_head_that_ranks_share() -> None:
    shared = replace(SHAPE, heads=6)
    assert layout_problems(shared, "megatron", make_mesh(1, 1, 6)) == [
        "tp=6 does not divide the 40 fused rows of queries, keys and values: the nearest that fits is tp=2"
    ]
    assert layout_problems(replace(shared, head_dim=6), "megatron", make_mesh(1, 1, 6)) == []


@pytest.mark.parametrize(("kind", "what"), [("value_lm", "values"), ("reward_lm", "scores")])
def test_vllm_only_generates(kind: ModelKind, what: str) -> None:
    assert layout_problems(SHAPE, "vllm", make_mesh(), kind) == [
        f"vllm generates: for a model that gives {what}, use megatron or transformers"
    ]


def test_rotary_positions_that_megatron_lacks() -> None:
    llama3 = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert layout_problems(replace(SHAPE, rope_scaling=tuple(llama3.items())), "megatron", make_mesh()) == []
    for other in (llama3 | {"high_freq_factor": 2.0}, {"rope_type": "yarn", "factor": 4.0}):
        [found] = layout_problems(replace(SHAPE, rope_scaling=tuple(other.items())), "megatron", make_mesh())
        assert found.startswith("megatron cannot scale rotary positions as this model does")
        assert layout_problems(replace(SHAPE, rope_scaling=tuple(other.items())), "vllm", make_mesh()) == []


def test_transformers_splits_heads_of_families_with_a_plan() -> None:
    assert layout_problems(SHAPE, "transformers", make_mesh(2, tp=2)) == []
    assert layout_problems(SHAPE, "transformers", make_mesh(tp=4)) == [
        "tp=4 does not divide the 2 key-value heads: the nearest that fits is tp=2"
    ]
    assert layout_problems(replace(SHAPE, family="phi3"), "transformers", make_mesh(tp=2)) == [
        "tp=2 is not for phi3 models, whose layers transformers has no plan to split: the nearest that fits is tp=1"
    ]
    assert layout_problems(replace(SHAPE, adapters=Adapters(4, 8.0)), "transformers", make_mesh(tp=2, fsdp=2)) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_the_families_with_a_plan_are_those_of_transformers(family: str) -> None:
    """Its plan splits every matrix of the layers, and experts, by words that are known."""
    from transformers import CONFIG_MAPPING

    shape = replace(SHAPE, family=family, fused=family == "phi3", qkv_bias=False)
    if family in SPARSE_FAMILIES:
        shape = replace(shape, experts=4, experts_per_token=2, shared_ffn=20 * (family == "qwen2_moe"))
    plan = CONFIG_MAPPING[family]().base_model_tp_plan or {}
    wanted = {
        name.removeprefix("model.").removesuffix(".weight")
        for name in map(lambda each: each.name, parameter_shapes(shape))
    }
    wanted = {name for name in wanted if name.endswith("_proj")}
    split = {name for name, word in plan.items() if word in ("colwise", "rowwise", "packed_colwise")}
    assert (wanted <= split) == (layout_problems(shape, "transformers", make_mesh(tp=2)) == [])


SPARSE = replace(SHAPE, family="qwen2_moe", experts=4, experts_per_token=2, shared_ffn=20)


def test_experts_have_to_divide() -> None:
    for engine in ("transformers", "vllm", "megatron"):
        assert layout_problems(SPARSE, engine, make_mesh()) == []
    assert layout_problems(SPARSE, "vllm", make_mesh(tp=4)) == []
    assert layout_problems(SPARSE, "megatron", make_mesh(2, 2, 2, ep=4)) == []
    assert layout_problems(SPARSE, "vllm", make_mesh(ep=2)) == []
    assert layout_problems(SPARSE, "megatron", make_mesh(ep=3)) == [
        "ep=3 does not divide the 4 experts: the nearest that fits is ep=2 or ep=4"
    ]
    assert layout_problems(SHAPE, "megatron", make_mesh(ep=2)) == [
        "ep=2 splits experts, of which this model has none: the nearest that fits is ep=1"
    ]
    assert layout_problems(replace(SPARSE, ffn=30, shared_ffn=18), "vllm", make_mesh(tp=4)) == [
        "tp=4 does not divide the 30 columns of an expert and does not divide the 18 columns of the shared expert: the"
        " nearest that fits is tp=2"
    ]


def test_an_engine_without_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = replace(named("megatron"), experts=False)
    monkeypatch.setattr(layout_checks, "spec_of", lambda name: plain)
    monkeypatch.setattr(layout_checks, "engines_by_name", lambda: {**engines_by_name(), "megatron": plain})
    assert layout_problems(SPARSE, "megatron", make_mesh(tp=2)) == [
        "megatron cannot lay out the experts of qwen2_moe models here yet: use transformers"
    ]


NOBODYS = ("olmo2", "gpt_neox", "gpt2", "deepseek_v2")
"""Architectures that `transformers` alone takes."""


@pytest.mark.parametrize("engine", ["megatron", "vllm"])
def test_a_family_that_nobody_knows_is_refused_with_those_that_the_engine_can_hold(engine: str) -> None:
    known = layout_checks.supported_families(named(engine))
    for name in NOBODYS:
        assert named("transformers").every_model
        with pytest.raises(UnknownFamily) as caught:
            shape_of({"model_type": name, "vocab_size": 50})
        assert str(layout_checks.explain_unsupported(caught.value, engine)) == (
            f"models of the family `{name}` are not known: there are {', '.join(known)}"
        )
    for name in FAMILIES:
        plain = shape_of({"model_type": name, "vocab_size": 50, "sliding_window": None})
        assert (name in known) == (not layout_problems(plain, engine, make_mesh())), name
    assert known == list(FAMILIES)


def test_a_family_that_transformers_does_not_split() -> None:
    shape = shape_of({"model_type": "deepseek_v3", "vocab_size": 50})
    assert (
        layout_problems(shape, "transformers", make_mesh(2))
        == layout_problems(shape, "megatron", make_mesh(2, tp=2, ep=4))
        == []
    )
    assert layout_problems(shape, "vllm", make_mesh(tp=2)) == layout_problems(shape, "vllm", make_mesh(ep=2)) == []
    assert layout_problems(shape, "transformers", make_mesh(tp=2)) == [
        "tp=2 is not for deepseek_v3 models, whose layers transformers has no plan to split: the nearest that fits is tp=1"
    ]


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_a_search_tries_the_parts_of_a_stage_that_are_all_as_long(stages: int) -> None:
    for name, spec in engines_by_name().items():
        able = [
            each
            for each in range(2, SHAPE.layers + 1)
            if "pp" in spec.axes and not layout_problems(SHAPE, name, make_mesh(pp=stages, chunks=each))
            if SHAPE.layers % (stages * each) == 0
        ]
        assert layout_checks.model_chunk_counts(spec, SHAPE, stages) == able
