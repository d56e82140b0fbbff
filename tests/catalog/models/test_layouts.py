"""Layouts of the engines: what the ranks hold together, and where they have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import booleans, integers, sampled_from
from torch import Tensor

from rlgraph.backends.engines.megatron import layout as megatron
from rlgraph.backends.engines.transformers import layout as transformers
from rlgraph.backends.engines.vllm import layout as vllm
from rlgraph.backends.enginespec.layout_checks import layout_problems
from rlgraph.catalog.models.adapters import ALL, Adapters
from rlgraph.catalog.models.families import (
    CORRECTION,
    EMBEDDING,
    ModelKind,
    parameter_shapes,
    trainable_parameter_shapes,
)
from rlgraph.catalog.models.rank_slices import RankSlicer
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import Box, LocalTensor, box_elements
from rlgraph.ir.mesh import Mesh, make_mesh
from tests.catalog.models.splits import shapes, splits

KINDS: tuple[ModelKind, ...] = ("causal_lm", "value_lm", "reward_lm")
SHAPE = Shape("qwen2", vocab=50, hidden=6, ffn=24, layers=4, heads=12, kv_heads=2, head_dim=12, qkv_bias=True)


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(*part) for part in box)


def place(local: LocalTensor, index: int) -> tuple[slice, ...]:
    piece = local.pieces[index]
    return tuple(slice(at, at + stop - start) for at, (start, stop) in zip(piece.at, piece.box, strict=True))


def held(layouts: list[tuple[LocalTensor, ...]], shape: Shape, kind: ModelKind) -> dict[str, set[int]]:
    """How often each element of the global tensors is held, all counts that there are."""
    counts = {parameter.name: np.zeros(parameter.shape, int) for parameter in trainable_parameter_shapes(shape, kind)}
    for layout in layouts:
        for local in layout:
            for piece in local.pieces:
                assert box_elements(piece.box) > 0
                assert all(stop <= size for (_, stop), size in zip(piece.box, counts[piece.name].shape, strict=True))
                counts[piece.name][slices(piece.box)] += 1
    return {name: set(count.ravel().tolist()) for name, count in counts.items()}


def test_each_stage_has_some_layers_of_every_round() -> None:
    """The two stages have the layers 0 and 1, then 2 and 3."""
    cuts = [RankSlicer.for_rank(SHAPE, make_mesh(pp=2, chunks=2), rank, "causal_lm") for rank in (0, 1)]
    assert [each.layers for each in cuts] == [((0, 1), (2, 3)), ((1, 2), (3, 4))]


def check_locals(layouts: list[tuple[LocalTensor, ...]]) -> None:
    """No two pieces overlap in a local tensor, and only rows of the vocabulary are padding."""
    for layout in layouts:
        assert max(Counter(local.name for local in layout).values(), default=1) == 1
        for local in layout:
            covered = np.zeros(local.shape, int)
            for index in range(len(local.pieces)):
                covered[place(local, index)] += 1
            padded = "embed" in local.name or local.name in ("output_layer.weight", "lm_head.weight")
            assert covered.max(initial=0) <= 1
            assert padded or covered.min(initial=1) == 1


def everywhere(name: str) -> bool:
    """Of what heads and columns share, which no rank has only a part of."""
    return any(part in name for part in ("norm", ".gate.", "expert_gate", "_a_proj"))


def one_copy(over: Mesh) -> list[int]:
    return list(over.ranks_at(dp=0))


@settings(max_examples=40)
@given(splits("megatron"))
def test_megatron_holds_every_element_once_and_what_it_does_not_split_on_every_rank(
    split: tuple[Shape, Mesh],
) -> None:
    megatron_holds(*split)


@pytest.mark.long
@settings(max_examples=150)
@given(splits("megatron"))
def test_many_models_of_megatron(split: tuple[Shape, Mesh]) -> None:
    megatron_holds(*split)


@settings(max_examples=40)
@given(splits("megatron"), sampled_from([(ALL,), ("v_proj",), ("o_proj", "gate_proj")]))
def test_megatron_holds_what_adapters_have_of_its_matrices_and_all_that_lies_between(
    split: tuple[Shape, Mesh], targets: tuple[str, ...]
) -> None:
    shape, over = split
    shape = replace(shape, adapters=Adapters(3, 6.0, targets))
    if not megatron.layers_without_adapters(shape):
        megatron_holds(shape, over)


def megatron_holds(shape: Shape, over: Mesh) -> None:
    tp, pp, ep, cp = (over.axis_size(axis) for axis in ("tp", "pp", "ep", "cp"))
    for kind in KINDS:
        layouts = [megatron.layout(shape, over, rank, kind) for rank in one_copy(over)]
        check_locals(layouts)
        for name, counts in held(layouts, shape, kind).items():
            entire = everywhere(name) or name.startswith("score")
            if ".lora_" in name:
                entire = ("lora_B" in name) == ("o_proj" in name or "down_proj" in name)
            expected = cp * (tp if entire else 1) * (1 if ".experts." in name else ep)
            if name == EMBEDDING and shape.tied and pp > 1 and kind == "causal_lm":
                expected *= 2
            assert counts == {expected}, name
        assert [megatron.layout(shape, over, rank, kind) for rank in over.ranks_at(dp=1)] == layouts


@settings(max_examples=150)
@given(splits("vllm"))
def test_vllm_holds_every_element_once_but_norms_and_shared_heads(split: tuple[Shape, Mesh]) -> None:
    shape, over = split
    tp = over.axis_size("tp")
    layouts = [vllm.layout(shape, over, rank) for rank in one_copy(over)]
    check_locals(layouts)
    for name, counts in held(layouts, shape, "causal_lm").items():
        expected = tp if everywhere(name) else 1
        if "k_proj" in name or "v_proj" in name:
            expected = max(1, tp // shape.kv_heads)
        assert counts == {expected}, name
    assert [vllm.layout(shape, over, rank) for rank in over.ranks_at(dp=1)] == layouts


def test_transformers_has_everything_whole() -> None:
    for kind in KINDS:
        layout = transformers.layout(SHAPE, make_mesh(2), 1, kind)
        assert [(local.name, local.shape) for local in layout] == [
            (parameter.name, parameter.shape) for parameter in parameter_shapes(SHAPE, kind)
        ]
        assert set(map(frozenset, held([layout], SHAPE, kind).values())) == {frozenset({1})}


@settings(max_examples=50)
@given(shapes(sparse=True), integers(1, 9))
def test_ranks_share_a_model_out_as_torch_cuts_tensors(shape: Shape, parts: int) -> None:
    for kind in KINDS:
        over, full = make_mesh(dp=2, fsdp=parts), marked(shape, kind)
        layouts = [transformers.layout(shape, over, rank, kind) for rank in one_copy(over)]
        check_locals(layouts)
        for name, tensor in full.items():
            chunks = tensor.chunk(parts, int("*" in name))
            for rank, layout in enumerate(layouts):
                own = contents(layout, full)[name]
                if name.endswith(CORRECTION):
                    assert torch.equal(own, tensor)
                    continue
                assert torch.equal(own, chunks[rank]) if rank < len(chunks) else own.numel() == 0
        assert [transformers.layout(shape, over, rank, kind) for rank in over.ranks_at(dp=1)] == layouts


@settings(max_examples=50)
@given(shapes(sparse=True), integers(2, 4), integers(1, 5), booleans())
def test_ranks_of_transformers_have_heads_columns_and_tokens(shape: Shape, tp: int, parts: int, adapted: bool) -> None:
    """Or a share of these; of adapters what belongs to them, and all that lies between."""
    over = make_mesh(dp=2, tp=tp, fsdp=parts)
    shape = replace(shape, adapters=Adapters(3, 6.0)) if adapted else shape
    if shape.fused or layout_problems(shape, "transformers", over):
        return
    for kind in KINDS:
        layouts = [transformers.layout(shape, over, rank, kind) for rank in one_copy(over)]
        check_locals(layouts)
        for name, counts in held(layouts, shape, kind).items():
            entire = everywhere(name) or name.startswith("score")
            if ".lora_" in name:
                entire = ("lora_B" in name) == ("o_proj" in name or "down_proj" in name)
            assert counts == {tp if entire else 1}, name
        assert [transformers.layout(shape, over, rank, kind) for rank in over.ranks_at(dp=1)] == layouts


def marked(shape: Shape, kind: ModelKind = "causal_lm") -> dict[str, Tensor]:
    """Global tensors with no number twice."""
    found, start = {}, 0
    for parameter in parameter_shapes(shape, kind):
        size = int(np.prod(parameter.shape))
        found[parameter.name] = torch.arange(start, start + size).reshape(parameter.shape)
        start += size
    return found


def contents(layout: tuple[LocalTensor, ...], source: dict[str, Tensor]) -> dict[str, Tensor]:
    """The local tensors; -1 where there is padding."""
    found = {}
    for local in layout:
        found[local.name] = torch.full(local.shape, -1)
        for index, piece in enumerate(local.pieces):
            found[local.name][place(local, index)] = source[piece.name][slices(piece.box)]
    return found


@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("tp", [1, 2, 4, 6, 12])
def test_megatron_interleaves_queries_keys_and_values_by_group(tp: int, pp: int) -> None:
    source, over = marked(SHAPE), make_mesh(1, pp, tp)
    for field, rest in (("weight", [6]), ("bias", [])):
        q, k, v = (source[f"model.layers.*.self_attn.{letter}_proj.{field}"] for letter in "qkv")
        # Groups of six query heads, each with a key head and a value head of twelve rows.
        groups = [x.reshape(4, 2, -1, *rest) for x in (q, k, v)]
        fused = torch.cat(groups, dim=2).reshape(4, -1, *rest)
        for rank in range(over.rank_count):
            mine = contents(megatron.layout(SHAPE, over, rank), source)[
                f"decoder.layers.*.self_attention.linear_qkv.{field}"
            ]
            stage = fused.chunk(pp)[over.axis_position(rank, "pp")]
            assert torch.equal(mine, stage.chunk(tp, dim=1)[over.axis_position(rank, "tp")])


@pytest.mark.parametrize("tp", [1, 2, 4, 6, 12])
def test_vllm_has_its_queries_then_its_keys_then_its_values(tp: int) -> None:
    source, over = marked(SHAPE), make_mesh(1, 1, tp)
    for field in ("weight", "bias"):
        q, k, v = (source[f"model.layers.*.self_attn.{letter}_proj.{field}"] for letter in "qkv")
        for rank in range(tp):
            mine = contents(vllm.layout(SHAPE, over, rank), source)[f"model.layers.*.self_attn.qkv_proj.{field}"]
            if tp <= 2:
                keys, values = k.chunk(tp, dim=1)[rank], v.chunk(tp, dim=1)[rank]
            else:
                keys, values = (x.chunk(2, dim=1)[rank * 2 // tp] for x in (k, v))
            assert torch.equal(mine, torch.cat([q.chunk(tp, dim=1)[rank], keys, values], dim=1))


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        (
            megatron.layout,
            (
                "decoder.layers.*.mlp.linear_fc1.weight",
                "decoder.layers.*.mlp.linear_fc2.weight",
                "decoder.layers.*.self_attention.linear_proj.weight",
            ),
        ),
        (
            vllm.layout,
            (
                "model.layers.*.mlp.gate_up_proj.weight",
                "model.layers.*.mlp.down_proj.weight",
                "model.layers.*.self_attn.o_proj.weight",
            ),
        ),
    ],
    ids=["megatron", "vllm"],
)
def test_gate_and_up_are_joined_and_outputs_split_by_columns(
    layout: Callable[..., tuple[LocalTensor, ...]], names: tuple[str, str, str]
) -> None:
    source, over = marked(SHAPE), make_mesh(1, 1, 4)
    for rank in range(4):
        mine = contents(layout(SHAPE, over, rank), source)
        gate, up, down = (source[f"model.layers.*.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        assert torch.equal(mine[names[0]], torch.cat([gate.chunk(4, 1)[rank], up.chunk(4, 1)[rank]], 1))
        assert torch.equal(mine[names[1]], down.chunk(4, 2)[rank])
        assert torch.equal(mine[names[2]], source["model.layers.*.self_attn.o_proj.weight"].chunk(4, 2)[rank])


@pytest.mark.parametrize(
    ("layout", "name", "rows"),
    [(megatron.layout, "embedding.word_embeddings.weight", 72), (vllm.layout, "model.embed_tokens.weight", 128)],
    ids=["megatron", "vllm"],
)
def test_the_vocabulary_is_padded_at_its_end(
    layout: Callable[..., tuple[LocalTensor, ...]], name: str, rows: int
) -> None:
    shape = replace(SHAPE, vocab=70)
    source, over = marked(shape), make_mesh(1, 1, 4)
    parts = [contents(layout(shape, over, rank), source)[name] for rank in range(4)]
    assert {part.shape[0] for part in parts} == {rows // 4}
    joined = torch.cat(parts)
    assert torch.equal(joined[:70], source[EMBEDDING])
    assert (joined[70:] == -1).all()


def test_stages_of_megatron_have_their_layers_and_the_last_one_the_head() -> None:
    over, source = make_mesh(1, 2, 1), marked(SHAPE)
    first, last = (contents(megatron.layout(SHAPE, over, rank), source) for rank in range(2))
    name, theirs = "decoder.layers.*.pre_mlp_layernorm.weight", "model.layers.*.post_attention_layernorm.weight"
    assert torch.equal(first[name], source[theirs][:2])
    assert torch.equal(last[name], source[theirs][2:])
    assert "embedding.word_embeddings.weight" in first and "embedding.word_embeddings.weight" not in last
    assert torch.equal(last["output_layer.weight"], source["lm_head.weight"])
    assert "output_layer.weight" not in first


@pytest.mark.parametrize(("kind", "fields"), [("value_lm", {"weight", "bias"}), ("reward_lm", {"weight"})])
def test_a_scalar_head_takes_the_place_of_the_vocabulary(kind: ModelKind, fields: set[str]) -> None:
    over, source = make_mesh(1, 1, 2), marked(SHAPE, kind)
    for rank in range(2):
        mine = contents(megatron.layout(SHAPE, over, rank, kind), source)
        found = {name.removeprefix("output_layer."): x for name, x in mine.items() if name.startswith("output_layer.")}
        assert set(found) == fields
        for field, tensor in found.items():
            assert torch.equal(tensor, source[f"score.{field}"])
