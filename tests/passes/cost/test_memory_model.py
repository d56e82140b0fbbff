"""What the cost model says of memory, beside the tensors of real engines that work: transformers, with and without
threads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlgraph.backends.engines.micro_batches import plan_micro_batches
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.transformers.packing import pack_sharing_prefixes
from rlgraph.backends.engines.transformers.spec import SHARES
from rlgraph.backends.enginespec.memory import HeadTiles
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import even_range
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.passes.cost.activations import logits_bytes
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.micro_batching import micro_batching
from rlgraph.passes.cost.predict import memory_footprint
from rlgraph.passes.cost.work import Tokens
from tests.passes.cost.allocated import Work, transformers
from tests.passes.cost.trained import LATENT, WIDE_VALUES, Case
from tests.suites import few

WIDE = (("hidden_size", 256), ("intermediate_size", 512))
"""Weights outweigh activations."""
TIED = (*WIDE, ("tie_word_embeddings", True))
EXPERTS = (("num_local_experts", 4), ("num_experts_per_tok", 2))
DENSE_FIRST = (*LATENT, ("first_k_dense_replace", 1))
DTYPES = ("float32", "bfloat16")
ALONE = make_mesh()
CASES = [
    *(Work("train", Case("qwen2", dtype=dtype)) for dtype in DTYPES),
    *(Work("train", Case("qwen2", dtype=dtype, scored=64), micros=3) for dtype in DTYPES),
    *(Work("train", Case("llama", dtype=dtype, rows=1, length=32, scored=8, fields=WIDE), 4, 3) for dtype in DTYPES),
    *(Work("train", Case("llama", dtype=dtype, rows=2, length=100, fields=WIDE), 4, 2) for dtype in DTYPES),
    Work("train", Case("qwen3", rows=2, length=64, fields=TIED), 4),
    Work("train", Case("qwen2", "value_lm", scored=64), micros=2),
    Work("train", Case("qwen2"), micros=4, threads=2),
    *(Work("train", Case("llama", dtype=dtype), 4, 3, recompute=True) for dtype in DTYPES),
    *(Work("train", Case(family, rows=4, scored=127, less=16), 4, 3) for family in ("llama", "qwen3", "gemma2")),
    Work("train", Case("qwen2", dtype="bfloat16", rows=4, scored=127, less=16), 4, 3),
    Work("train", Case("mixtral", rows=4, scored=127, less=16, fields=EXPERTS), 2, 3),
    *(Work("train", Case("llama", dtype=dtype, rows=4), 4, 2, attention="eager") for dtype in DTYPES),
    *(Work("accumulate", Case("qwen2", dtype=dtype, scored=64), micros=3) for dtype in DTYPES),
    *(
        Work("accumulate", Case("llama", dtype=dtype, rows=1, length=32, scored=8, fields=WIDE), 4, micros)
        for dtype in DTYPES
        for micros in (2, 4)
    ),
    Work("accumulate", Case("qwen2"), micros=4, threads=2),
    *(Work("logprobs", Case("qwen2", dtype=dtype, scored=127)) for dtype in DTYPES),
    *(Work("logprobs", Case("llama", dtype=dtype, fields=WIDE), 4, 3) for dtype in DTYPES),
    Work("values", Case("llama", "value_lm", scored=100), 4, 3),
    Work("values", Case("llama", "value_lm", rows=4, scored=127, less=16), 4),
    Work("values", Case("llama", "value_lm", rows=4, scored=100), 4, attention="eager"),
    *(Work("generate", Case("llama", dtype=dtype, rows=4, length=16), 2, 4, response=100) for dtype in DTYPES),
    *(Work("train", Case("deepseek_v3", dtype=dtype, rows=4, scored=64, fields=DENSE_FIRST), 3, 3) for dtype in DTYPES),
    Work("logprobs", Case("deepseek_v3", scored=64, fields=DENSE_FIRST), 3, 3),
    Work("logprobs", Case("deepseek_v3", rows=2, length=500, scored=8, fields=WIDE_VALUES), 3),
    *(
        Work("generate", Case("deepseek_v3", dtype=dtype, rows=4, length=16, fields=DENSE_FIRST), 2, 4, response=100)
        for dtype in DTYPES
    ),
    Work("generate", Case("llama", rows=16, length=200), 4, response=8),
    Work("generate", Case("llama", rows=4, length=16), micros=4, threads=2, response=16),
]
KEPT = [
    Work("train", Case("qwen2", dtype="bfloat16", scored=64), micros=3),
    Work("train", Case("qwen3", rows=2, length=64, fields=TIED), 4),
    Work("train", Case("qwen2", "value_lm", scored=64), micros=2),
    Work("train", Case("qwen2"), micros=4, threads=2),
    Work("train", Case("qwen3", rows=4, scored=127, less=16), 4, 3),
    Work("train", Case("llama", dtype="bfloat16", rows=4), 4, 2, attention="eager"),
    Work("accumulate", Case("qwen2", scored=64), micros=3),
    Work("accumulate", Case("llama", dtype="bfloat16", rows=1, length=32, scored=8, fields=WIDE), 4, 2),
    Work("logprobs", Case("qwen2", scored=127)),
    Work("values", Case("llama", "value_lm", rows=4, scored=127, less=16), 4),
    Work("values", Case("llama", "value_lm", rows=4, scored=100), 4, attention="eager"),
    Work("logprobs", Case("deepseek_v3", rows=2, length=500, scored=8, fields=WIDE_VALUES), 3),
    Work("generate", Case("llama", rows=16, length=200), 4, response=8),
]
"""Each operation, with weights or activations that outweigh the rest, threads, uneven rows and scores that are written
out."""


@pytest.mark.parametrize("work", few(CASES, *KEPT), ids=str)
def test_what_stays_and_what_work_needs(work: Work) -> None:
    stays, needs = transformers(work)
    found = work.predicted("transformers")
    assert found.resident.total == pytest.approx(stays, rel=0.03)
    assert found.resident.total + found.active.total == pytest.approx(stays + needs, rel=0.1)
    assert found.active.total == pytest.approx(needs, rel=0.15)


def llama(
    operation: str, engine: str, rows: int = 64, cluster: str = "1x8:a100-80gb", split: Mesh = ALONE, **how: int
) -> dict[str, float]:
    config = known_config("meta-llama/Llama-3.1-8B")
    assert config is not None
    model = ModelConfig("actor", shape_of(config), "causal_lm", "bfloat16")
    deployment = Deployment(engine, read_cluster(cluster).islands[0], split, **how)
    found = memory_footprint(operation, model, deployment, [Batch(rows, Lengths((512.0,)), Lengths((1024.0,)))])
    return dict((found.resident + found.active).parts)


def test_copies_share_the_optimizer_and_nothing_else() -> None:
    two, eight = (llama("train", "megatron", 64 * n, split=make_mesh(n), micro_tokens=12288) for n in (2, 8))
    assert eight.pop("optimizer") == two.pop("optimizer") / 4
    assert eight == two


def test_stages_hold_more_micro_batches_under_way() -> None:
    """The first of four stages has a quarter of the layers, and four micro-batches."""

    def of(stages: int, rows: int = 64) -> dict[str, float]:
        return llama("train", "megatron", 2 * rows, micro_tokens=24576, split=make_mesh(2, stages))

    assert of(4)["activations"] == pytest.approx(of(1)["activations"], rel=0.1)
    assert of(4)["gradients"] < of(1)["gradients"] / 2
    # Fewer rows than stages cannot all be under way.
    assert of(4, 2).get("activations", 0.0) < of(4)["activations"] / 4


def test_recomputation_saves_most_activations() -> None:
    whole, again = (
        llama("train", "megatron", micro_tokens=24576, split=make_mesh(8), recompute=each) for each in (False, True)
    )
    assert again["activations"] < whole["activations"] / 4


@pytest.mark.parametrize(
    "name,split,answer",
    [("Qwen/Qwen2.5-7B", make_mesh(tp=8), 32768), ("Qwen/Qwen2.5-1.5B", make_mesh(dp=4, tp=2), 28672)],
)
def test_long_answers_fit(name: str, split: Mesh, answer: int) -> None:
    """On eight H100s, without recomputation; what they need grows with the tokens, not with their square."""
    config = known_config(name)
    assert config is not None
    model = ModelConfig("actor", shape_of(config), "causal_lm", "bfloat16")
    deployment = Deployment("megatron", read_cluster("1x8:h100-80gb").islands[0], split)

    def needs(tokens: float) -> tuple[float, float]:
        found = memory_footprint("train", model, deployment, [Batch(512, Lengths((1024.0,)), Lengths((tokens,)))])
        return found.resident.total + found.active.total, dict(found.active.parts)["activations"]

    whole, activations = needs(answer)
    assert whole < 0.9 * 80e9
    assert needs(2 * answer)[1] == pytest.approx(2 * activations, rel=0.05)


def test_a_cache_is_as_large_as_it_is_told() -> None:
    assert llama("generate", "vllm", kv_bytes=1 << 30)["cache"] == 1 << 30
    row = 2 * 32 * 8 * 128 * 2 * 1536
    assert llama("generate", "vllm")["cache"] == 64 * row
    assert llama("generate", "vllm", split=make_mesh(tp=2))["cache"] == 32 * row
    left = 0.9 * read_cluster("1x8:a100-80gb").islands[0].device.memory - llama("generate", "vllm", 4096)["weights"]
    assert llama("generate", "vllm", 4096)["cache"] == pytest.approx(left)
    assert left < 1024 * row


def test_logits_of_a_forward_pass_are_computed_in_pieces() -> None:
    """In tiles, or where a head is none that is one plain matrix, at so many places at a time."""
    shape = Case("qwen2", fields=(("vocab_size", 128256),)).shape()
    capped = replace(shape, logits_cap=30.0)

    def needs(shape: Shape, tokens: float) -> float:
        micro = Tokens(tokens / 1024, tokens, tokens * 1024, tokens, 1024)
        return logits_bytes(shape, "causal_lm", micro, tiles=HeadTiles(), itemsize=2, on_cpu=False)

    assert needs(shape, 1 << 13) == needs(shape, 1 << 16) == (2 + 8) * (1 << 24)
    assert needs(capped, 1 << 13) == needs(capped, 1 << 16) == 8 * (1 << 25)


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.integers(20, 200),
    st.integers(1, 3),
    st.sampled_from([(False, False), (True, False), (True, True)]),
)
def test_no_micro_batch_is_larger_than_what_memory_counts(
    lengths: list[int], budget: int, side: int, how: tuple[bool, bool]
) -> None:
    """However long rows turn out, up to the longest."""
    packed, ordered = how
    batch = Batch(len(lengths), Lengths((1.0,)), Lengths((1.0, 39.0)))
    rows, _, _ = micro_batching((batch,), budget, side, 1).largest_micro_batch_of_replica(1)
    blocks = plan_micro_batches(torch.tensor(lengths), budget, side, packed=packed, ordered=ordered)
    tokens = [sum(lengths[row] for row in block) for block in blocks]
    assert max(tokens) <= rows * batch.mean_row_tokens.longest * (1 + 1e-12)


@settings(max_examples=60)
@example(prompts=4, each=7, prompt=1, answer=8, budget=81, side=1, copies=3)  # 10, 9 and 9 rows: 5 and 5, 9, 9
@given(
    st.integers(1, 6),
    st.integers(1, 8),
    st.integers(1, 30),
    st.integers(2, 30),
    st.integers(20, 400),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_micro_batches_have_the_beginnings_that_memory_counts(
    prompts: int, each: int, prompt: int, answer: int, budget: int, side: int, copies: int
) -> None:
    """Of equal rows; what a micro-batch has is cut as the engine cuts it, and lies as it lays it. A copy's rows may
    begin in the midst of a prompt's."""
    batch = Batch(prompts * each, Lengths((prompt,)), Lengths((answer,)), together=each)
    cut = micro_batching((batch,), budget, side, 1, SHARES)
    rows, _, beginnings = cut.largest_micro_batch_of_replica(copies)
    micro = cut.micro_batch_tokens(rows, beginnings)
    fed = Sequences.from_lists([[3 + row // each] * prompt + [50] * (answer - 1) for row in range(prompts * each)])
    lying = []
    for copy in range(copies):
        first, stop = even_range(len(fed), copies, copy)
        own = fed.take(torch.arange(first, stop))
        for block in plan_micro_batches(own.lengths + 1, budget, side, packed=True, ordered=True):
            part = own.take(block)
            found = pack_sharing_prefixes(part, torch.full((len(part),), prompt))
            lying.append(len(part.tokens if found is None else found.token_at_place))
    assert max(lying) <= micro.tokens
    if len(lying) == 1:
        assert lying == [micro.tokens]


def test_a_copy_whose_rows_begin_in_the_midst_of_a_prompt() -> None:
    """Of 120 rows in 8 copies, in two micro-batches each, the second copy begins with the last row of a prompt."""
    batch = Batch(120.0, Lengths((100.0,)), Lengths((50.0,)), together=8)
    assert micro_batching((batch,), 8 * 150, 1, 1, SHARES).largest_micro_batch_of_replica(8) == (8, 2, 2)
    assert micro_batching((batch,), 8 * 150, 1, 1, SHARES).largest_micro_batch_of_replica(3) == (8, 3, 1)
