"""A model that the ranks of a copy share out, or of which each has a part of every layer, beside one process with all of
it; real ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as groups

from rlgraph.backends.engines.base import Generation, Rank, Sampling, TrainOptions
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.transformers import replicas
from rlgraph.backends.engines.transformers.engine import TransformersEngine, open_rank
from rlgraph.catalog.models.adapters import Adapters
from rlgraph.catalog.models.families import ModelKind
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.ir.plan import ModelHolding
from tests.backends.engines.models import source
from tests.backends.engines.ranks import Ranks
from tests.backends.engines.refreshing import Coming
from tests.backends.engines.sharded import WORDS, Clipped, Task, Trained, ask, elsewhere, rows, updates, whole
from tests.backends.engines.slept import rested, same
from tests.suites import few

MESHES = {"fsdp2": make_mesh(fsdp=2), "fsdp4": make_mesh(fsdp=4), "dp2fsdp2": make_mesh(dp=2, fsdp=2)}
MESHES |= {
    "tp2": make_mesh(tp=2),
    "dp2tp2": make_mesh(dp=2, tp=2),
    "dp2": make_mesh(dp=2),
    "fsdp2tp2": make_mesh(fsdp=2, tp=2),
}
SHARED_OUT = [("llama", {}), ("qwen2", {"tie_word_embeddings": True}), ("qwen3_moe", {}), ("gpt2", {})]
SPLIT = [
    ("llama", {}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen3", {}),
    ("gemma2", {}),
    ("mixtral", {}),
    ("qwen3_moe", {}),
]
LORA = Adapters(3, 6.0)
OPTIONS = TrainOptions(lr=1e-2, clip_norm=0.5, settings={"eps": 1e-2, "weight_decay": 0.1})


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks(4)
    yield started
    started.close()


def spec_of(family: str, kind: ModelKind = "causal_lm", dtype: str = "float64", **config: Any) -> ModelSpec:
    made = source(family)
    return ModelSpec(kind, replace(made, config={**made.config, **config}, tokenizer=WORDS), dtype, generates=False)


def opened(split: Mesh, spec: ModelSpec, **how: Any) -> TransformersEngine:
    return open_rank(spec, Rank(split, dist.get_rank(), ModelHolding("", "", **how)))


def score(split: Mesh, spec: ModelSpec, sequences: Any, micro_tokens: int) -> Any:
    engine = opened(split, spec, micro_tokens=micro_tokens)
    return engine.has_results, elsewhere(ask, engine, spec.kind, sequences, (1.0, 0.7))


def train(split: Mesh, spec: ModelSpec, task: Task, recompute: bool) -> Trained:
    engine = opened(split, spec, recompute=recompute)
    own = task.blocks[split.axis_position(dist.get_rank(), "dp")]
    early: list[int] = []

    def rest(sent: Any, *given: Any) -> Any:
        early.append(len(sent._flat))
        return plain(sent, *given)

    plain = replicas._Buckets.send_remaining_buckets
    with pytest.MonkeyPatch.context() as patch:
        # Copies add gradients up in several parts, while others are computed.
        patch.setattr(replicas, "BUCKET", 2000)
        patch.setattr(replicas._Buckets, "send_remaining_buckets", rest)
        told = elsewhere(updates, engine, spec.kind, task, own)
    if split.split_axes == ("dp",) and own and own[-1] and not task.empty:
        assert [bool(each) for each in early] == [True, False, True][: task.steps]
    return Trained(told, engine.state(), engine.layout())


@pytest.mark.parametrize(
    "split,family,config",
    few(
        [
            *((split, *model) for split in ("fsdp2", "fsdp4") for model in SHARED_OUT),
            *(("tp2", *model) for model in SPLIT),
            ("fsdp2tp2", "qwen3_moe", {}),
        ],
        ("fsdp2", "gpt2", {}),
        ("tp2", "gemma2", {}),
    ),
)
def test_all_ranks_have_what_one_process_says(ranks: Ranks, split: str, family: str, config: dict[str, Any]) -> None:
    spec, sequences = spec_of(family, **config), rows(9)
    theirs = ask(TransformersEngine.open(spec), spec.kind, sequences, (1.0, 0.7))
    found = ranks.run(MESHES[split], score, spec, sequences, 16)
    assert [speaks for speaks, _ in found] == [True] + [False] * (len(found) - 1)
    for _, ours in found:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "split,family,config",
    few(
        [
            *((split, *model) for split in ("fsdp2", "dp2fsdp2", "fsdp4") for model in SHARED_OUT),
            *(("tp2", *model) for model in SPLIT),
            *(("dp2tp2", *model) for model in SPLIT[:2]),
            *(("fsdp2tp2", *SPLIT[at]) for at in (1, 2, 5)),
            *(("dp2", *model) for model in (*SHARED_OUT[1:3], ("gemma2", {}))),
        ],
        ("fsdp2", *SHARED_OUT[1]),
        ("dp2fsdp2", "gpt2", {}),
        ("tp2", "qwen3_moe", {}),
        ("dp2tp2", *SPLIT[1]),
        ("dp2", *SHARED_OUT[1]),
    ),
)
def test_an_update_is_that_of_one_process(ranks: Ranks, split: str, family: str, config: dict[str, Any]) -> None:
    spec = spec_of(family, **config)
    blocks = ((0, 1, 2), (3,), (4, 5, 6, 7)), ((8, 9), (10, 11))
    task = Task(rows(12), blocks if MESHES[split].axis_size("dp") > 1 else (blocks[0] + blocks[1],), OPTIONS)
    engine = TransformersEngine.open(spec)
    told = updates(engine, spec.kind, task, list(itertools.chain(*task.blocks)))
    trained = ranks.run(MESHES[split], train, spec, task, False)
    for rank in trained:
        for mine, other in zip(rank.told, told, strict=True):
            assert mine == pytest.approx(other, rel=1e-10)
    state = engine.state()
    found = whole(trained, state)
    for name, tensor in state.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-10)


@pytest.mark.parametrize("split", few(["dp2", "dp2fsdp2", "dp2tp2"], "dp2"))
def test_an_update_without_rows_is_none(ranks: Ranks, split: str) -> None:
    """Whole, and with gradients that are added up; the other copy has no micro-batches at all."""
    task = Task(rows(4), (((0, 1), (2, 3)), ()), OPTIONS, empty=(1, 2))
    spec = spec_of("llama")
    once = ranks.run(MESHES[split], train, spec, replace(task, steps=1), False)
    for before, after in zip(once, ranks.run(MESHES[split], train, spec, task, False), strict=True):
        assert [type(told) for told in after.told] == [dict, str, str] and "no rows" in str(after.told[1:])
        assert same(after.state, before.state)


@pytest.mark.parametrize("split", few(["fsdp2", "tp2"], "fsdp2"))
def test_models_that_sleep_between_calls_go_on_to_the_bit(ranks: Ranks, split: str) -> None:
    task = Task(rows(9), (((0, 1, 2), (3,), (4, 5, 6, 7)),), OPTIONS)
    for found in ranks.run(MESHES[split], rested, spec_of("llama", dtype="bfloat16"), task, False):
        assert same(*found.told) and same(*found.states) and found.naps > 6
        assert same(found.asleep, found.states[1]) and found.second == 0
        assert found.freed > 0.98 and found.counted == pytest.approx(1, rel=0.01)


def added(
    engine: TransformersEngine, kind: ModelKind, task: Task, blocks: Sequence[Sequence[int]]
) -> dict[str, Tensor]:
    engine.clear_gradients()
    engine.add_gradients(blocks, lambda block: task.micro(kind, 0, block))
    found = {}
    for (name, tensor), gradient in zip(engine.tensors().items(), engine._gradients, strict=True):
        found[name] = torch.zeros_like(tensor) if gradient is None else gradient
    return found


def gradients(split: Mesh, spec: ModelSpec, task: Task, recompute: bool, gather: str = "") -> Trained:
    engine = opened(split, spec, recompute=recompute, gather=gather)
    return Trained([], elsewhere(added, engine, spec.kind, task, task.blocks[0]), engine.layout())


@pytest.mark.parametrize(
    "split,family,kind,recompute",
    few(
        [
            ("fsdp2", "qwen2", "causal_lm", True),
            ("fsdp2", "llama", "value_lm", False),
            ("fsdp4", "qwen3_moe", "causal_lm", False),
            ("tp2", "llama", "causal_lm", True),
            ("tp2", "qwen2", "causal_lm", False),
            ("tp2", "qwen3", "causal_lm", False),
            ("tp2", "qwen3", "value_lm", False),
            ("tp2", "mixtral", "value_lm", False),
            ("tp2", "qwen3_moe", "causal_lm", True),
            ("fsdp2tp2", "qwen3", "value_lm", True),
        ],
        ("fsdp2", "qwen2", "causal_lm", True),
        ("fsdp2", "llama", "value_lm", False),
        ("tp2", "qwen3", "value_lm", False),
        ("tp2", "qwen3_moe", "causal_lm", True),
        ("fsdp2tp2", "qwen3", "value_lm", True),
    ),
)
def test_gradients_of_grpo_and_ppo(ranks: Ranks, split: str, family: str, kind: ModelKind, recompute: bool) -> None:
    """Some micro-batches have fewer rows than there are ranks."""
    spec = spec_of(family, kind, tie_word_embeddings=True)
    task = Clipped(rows(12), (((0, 1, 2), (5,), (4, 6, 7, 9, 10)),), OPTIONS)
    engine = TransformersEngine.open(spec)
    theirs = added(engine, kind, task, task.blocks[0])
    for name, tensor in whole(ranks.run(MESHES[split], gradients, spec, task, recompute), theirs).items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-10)


# Gathered for an update


def gathered_once(split: Mesh, spec: ModelSpec, task: Task, gather: str, recompute: bool) -> Any:
    """How often parameters are gathered in an update, what the model says before and after it and what each update
    told; and this rank's gradients."""
    calls: list[int] = []
    plain = groups.foreach_all_gather

    def counted(*given: Any) -> Any:
        calls[-1] += 1
        return plain(*given)

    engine = opened(split, spec, recompute=recompute, gather=gather)
    own = task.blocks[split.axis_position(dist.get_rank(), "dp")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "foreach_all_gather", counted)
        calls.append(0)
        found = elsewhere(added, engine, spec.kind, task, own)
        said = []
        for _ in range(2):
            calls.append(0)
            said.append(elsewhere(ask, engine, spec.kind, task.sequences, (1.0,)))
            calls.append(0)
            said.append(elsewhere(updates, engine, spec.kind, replace(task, steps=1), own))
    return calls, said, Trained([], found, engine.layout())


@pytest.mark.parametrize(
    "split,family,kind,recompute,adapters",
    few(
        [
            ("fsdp2", "qwen2", "causal_lm", True, None),
            ("fsdp4", "qwen3_moe", "causal_lm", False, None),
            ("dp2fsdp2", "llama", "value_lm", False, None),
            ("fsdp2tp2", "qwen3", "causal_lm", False, None),
            ("fsdp2", "qwen3", "causal_lm", False, LORA),
        ],
        ("fsdp2", "qwen2", "causal_lm", True, None),
    ),
)
def test_parameters_that_are_gathered_for_an_update(
    ranks: Ranks, split: str, family: str, kind: ModelKind, recompute: bool, adapters: Adapters | None
) -> None:
    """ZeRO's second stage: gradients as of one process, and each layer's parameters come once, whatever micro-batches
    there are; who reads in between has the new ones."""
    spec = replace(spec_of(family, kind, tie_word_embeddings=True), adapters=adapters)
    blocks = ((0, 1, 2), (5,), (4, 6, 7, 9, 10)), ((3, 8), (11,))
    both = MESHES[split].axis_size("dp") > 1
    task = Task(rows(12), blocks if both else blocks[:1], OPTIONS)
    engine = TransformersEngine.open(spec)
    theirs = added(engine, kind, task, list(itertools.chain(*task.blocks)))
    layer = ranks.run(MESHES[split], gathered_once, spec, task, "layer", recompute)
    update = ranks.run(MESHES[split], gathered_once, spec, task, "update", recompute)
    # A copy has a part of the sum: it is added up with the step.
    for name, tensor in whole([each[2] for each in update], theirs).items() if not both else ():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-10)
    for (often, said, mine), (once, again, other) in zip(layer, update, strict=True):
        torch.testing.assert_close(other.state, mine.state, rtol=0, atol=1e-12)
        for one, same_one in zip(said, again, strict=True):
            if isinstance(one[0], dict):
                assert one[0] == pytest.approx(same_one[0], rel=1e-10)
            else:
                torch.testing.assert_close(one, same_one, rtol=0, atol=1e-12)
        # A unit is a layer, or what no layer has: two layers here.
        assert once[0::2] == [3, 3, 3] and min(often[0::2]) > 3
        assert once[1::2] == often[1::2]


# Adapters


def adapted(kind: ModelKind = "causal_lm", **config: Any) -> ModelSpec:
    return replace(spec_of("qwen3", kind, **config), adapters=LORA)


@pytest.mark.parametrize(
    "split,kind,recompute",
    few(
        [
            ("tp2", "causal_lm", False),
            ("tp2", "value_lm", True),
            ("fsdp2", "causal_lm", True),
            ("fsdp2", "value_lm", False),
            ("fsdp2tp2", "causal_lm", False),
        ],
        ("tp2", "value_lm", True),
    ),
)
def test_adapters_are_trained_as_in_one_process(ranks: Ranks, split: str, kind: ModelKind, recompute: bool) -> None:
    """From the second update on A has a gradient, too."""
    spec = adapted(kind)
    task = Task(rows(12), (((0, 1, 2), (3,), (4, 5, 6, 7)),), OPTIONS)
    engine = TransformersEngine.open(spec)
    told = updates(engine, kind, task, task.blocks[0])
    trained = ranks.run(MESHES[split], train, spec, task, recompute)
    for rank in trained:
        for mine, other in zip(rank.told, told, strict=True):
            assert mine == pytest.approx(other, rel=1e-10)
    state = engine.state()
    found = whole(trained, state)
    assert all(".lora_" in name or name.startswith("score") for name in state)
    for name, tensor in state.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-10)


def lent(split: Mesh, task: Task) -> Any:
    """A model with adapters on another one's base, and this one; what they say before and after updates."""
    ref = opened(split, spec_of("qwen3"))
    actor = open_rank(adapted(), Rank(split, dist.get_rank(), ModelHolding("", ""), base_engine=ref))
    once = {tensor.data_ptr() for tensor in ref.tensors().values()}
    alike = sum(tensor.data_ptr() in once for tensor in actor.model.parameters()) == len(once)
    before = ask(actor, "causal_lm", task.sequences, (1.0,))
    told = updates(actor, "causal_lm", task, task.blocks[0])
    said = [ask(each, "causal_lm", task.sequences, (1.0,)) for each in (actor, ref)]
    return alike, before, said, Trained(told, actor.state(), actor.layout())


def test_a_base_that_ranks_split_is_lent(ranks: Ranks) -> None:
    task = Task(rows(9), (((0, 1, 2), (3,), (4, 5, 6, 7)),), OPTIONS)
    engine = TransformersEngine.open(adapted())
    first = ask(engine, "causal_lm", task.sequences, (1.0,))
    told = updates(engine, "causal_lm", task, task.blocks[0])
    then = ask(engine, "causal_lm", task.sequences, (1.0,))
    found = ranks.run(MESHES["tp2"], lent, task)
    for alike, before, (actor, ref), trained in found:
        assert alike
        torch.testing.assert_close([before, actor, ref], [first, then, first], rtol=0, atol=1e-12)
        assert trained.told == [pytest.approx(other, rel=1e-10) for other in told]
    torch.testing.assert_close(whole([rank for *_, rank in found], engine.state()), engine.state(), rtol=0, atol=1e-10)


# Sampling

PROMPTS = Sequences.from_lists([[3, 4, 5], [6], [4, 4, 7, 3]])
KEYS = np.arange(12, dtype=np.uint64)
SAMPLINGS = (Sampling(10), Sampling(6, min_tokens=3, temperature=0.8, top_k=9), Sampling(12, samples_wanted=2))


def sampled(split: Mesh, spec: ModelSpec) -> Any:
    engine = opened(split, spec)
    return elsewhere(lambda: [_plain(engine.generate(PROMPTS, 4, each, KEYS)) for each in SAMPLINGS])


def _plain(made: Generation) -> tuple[list[list[int]], Tensor, Tensor]:
    return made.sequences.rows(), made.logprobs, made.finished


@pytest.mark.parametrize(
    "family,config",
    few(
        [("qwen2", {"tie_word_embeddings": True}), ("gemma2", {}), ("qwen3_moe", {}), ("llama", {})],
        ("llama", {}),
    ),
)
def test_ranks_that_split_a_model_sample_the_same(ranks: Ranks, family: str, config: dict[str, Any]) -> None:
    spec = replace(spec_of(family, **config), generates=True, adapters=LORA if family == "llama" else None)
    engine = TransformersEngine.open(spec)
    theirs = [_plain(engine.generate(PROMPTS, 4, each, KEYS)) for each in SAMPLINGS]
    for found in ranks.run(MESHES["tp2"], sampled, spec):
        for (tokens, logprobs, finished), (others, wanted, ended) in zip(found, theirs, strict=True):
            assert tokens == others and torch.equal(finished, ended)
            torch.testing.assert_close(logprobs, wanted, rtol=0, atol=1e-10)


def refreshed(split: Mesh, spec: ModelSpec) -> Any:
    """New weights wait at one rank before they do at the other. Then the older ones are lent."""
    engine = opened(split, spec)
    old = engine.state()

    def write(version: int) -> None:
        for tensor in engine.tensors().values():
            tensor.mul_(0.9)
        engine.note_weights_written()

    coming = Coming(write, after=(3 + 2 * dist.get_rank(),))
    made = engine.generate(PROMPTS, 4, SAMPLINGS[0], KEYS, refresh=coming)
    again = engine.generate(PROMPTS, 4, SAMPLINGS[0], KEYS, weights=old)
    return _plain(made), made.versions, _plain(again)


def test_ranks_take_new_weights_before_the_same_token(ranks: Ranks) -> None:
    spec = replace(spec_of("llama"), generates=True)
    engine = TransformersEngine.open(spec)
    plain = _plain(engine.generate(PROMPTS, 4, SAMPLINGS[0], KEYS))
    one, other = ranks.run(MESHES["tp2"], refreshed, spec)
    assert one[0][0] == other[0][0] and torch.equal(one[1], other[1]) and one[1].unique().tolist() == [0, 1]
    assert one[0][0] != plain[0]
    for _, _, again in (one, other):
        assert again[0] == plain[0]
        torch.testing.assert_close(again[1], plain[1], rtol=0, atol=1e-10)
