"""Megatron-core on real ranks, beside the transformers engine on the same weights."""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rlgraph.backends.engines import pipelined
from rlgraph.backends.engines.base import EngineError, MissingHead, PartialUpdate, TrainOptions
from rlgraph.backends.engines.process_groups import open_store
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.catalog.models.families import ModelKind
from rlgraph.ir.mesh import Mesh, make_mesh
from tests.backends.engines.met import MetMessages
from tests.backends.engines.models import source
from tests.backends.engines.ranks import Ranks
from tests.backends.engines.sharded import (
    MODELS,
    WORDS,
    Clipped,
    Task,
    Trained,
    ask,
    elsewhere,
    layers_without_numbers,
    refusals,
    rewrite,
    rows,
    score,
    score_in_one_call,
    train,
    updates,
    whole,
    with_routes,
    write,
)
from tests.backends.engines.slept import rested, same
from tests.passes.cost.live import Live
from tests.passes.cost.trained import Case
from tests.suites import few
from tests.waits import NEVER

pytest.importorskip("megatron.core")

MESHES = {
    "tp1": make_mesh(),
    "tp2": make_mesh(tp=2),
    "pp2": make_mesh(pp=2),
    "dp2": make_mesh(dp=2),
    "tp2pp2": make_mesh(pp=2, tp=2),
    "tp2dp2": make_mesh(dp=2, tp=2),
    "pp2dp2": make_mesh(dp=2, pp=2),
    "pp2chunks2": make_mesh(pp=2, chunks=2),
    "pp2chunks4": make_mesh(pp=2, chunks=4),
    "tp2pp2chunks2": make_mesh(pp=2, tp=2, chunks=2),
    "pp2dp2chunks2": make_mesh(dp=2, pp=2, chunks=2),
    "tp4": make_mesh(tp=4),
    "pp3": make_mesh(pp=3),
    "pp4": make_mesh(pp=4),
    "ep2": make_mesh(ep=2),
    "ep4": make_mesh(ep=4),
    "ep2tp2": make_mesh(ep=2, tp=2),
    "ep2pp2": make_mesh(ep=2, pp=2),
    "ep2dp2": make_mesh(ep=2, dp=2),
    "cp2": make_mesh(cp=2),
    "cp4": make_mesh(cp=4),
    "cp2tp2": make_mesh(cp=2, tp=2),
    "cp2pp2": make_mesh(cp=2, pp=2),
    "cp2dp2": make_mesh(cp=2, dp=2),
    "cp2ep2": make_mesh(cp=2, ep=2),
}
OPTIONS = TrainOptions(lr=1e-2, clip_norm=0.5, settings={"eps": 1e-2, "weight_decay": 0.1})
"""A large eps keeps rounding in tiny gradients from being blown up to whole steps."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks(4)
    yield started
    started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def spec_of(folder: Path, model: str, kind: ModelKind = "causal_lm") -> ModelSpec:
    place = folder / f"{model}-{kind}"
    return ModelSpec(kind, str(place)) if place.exists() else write(model, kind, place)


@pytest.mark.parametrize(
    "split,models",
    few(
        [
            ("tp1", ["qwen2", "tied", "llama", "qwen3"]),
            ("tp2", ["qwen2", "tied", "llama", "mistral", "qwen3"]),
            ("pp2", ["tied", "llama"]),
            ("pp3", ["odd", "deepseek_v3"]),
            ("tp2pp2", ["tied", "qwen3", "odd"]),
            ("tp4", ["qwen2"]),
            ("tp4", ["phi3"]),
            ("tp1", ["window", "granite", "gemma2"]),
            ("tp1", ["gemma3_text"]),
            ("tp2pp2", ["window", "gemma2", "gemma3_text"]),
            ("pp2chunks2", ["tied", "gemma3_text"]),
            ("pp2chunks2", ["odd"]),
            ("tp2pp2chunks2", ["window", "deepseek_v3"]),
            ("cp2tp2", ["granite"]),
            ("tp1", ["mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3", "moonlight"]),
            ("tp2pp2", ["qwen2_moe"]),
            ("ep2tp2", ["mixtral", "qwen2_moe", "qwen3_moe"]),
            ("ep2pp2", ["qwen3_moe"]),
            ("ep4", ["mixtral"]),
            ("cp2", ["qwen3"]),
            ("cp4", ["tied"]),
            ("cp2tp2", ["qwen2", "phi3"]),
            ("cp2pp2", ["tied"]),
            ("tp2pp2", ["deepseek_v3"]),
            ("ep2tp2", ["deepseek_v3", "moonlight"]),
            ("cp2ep2", ["qwen2_moe", "deepseek_v3"]),
            ("cp2tp2", ["moonlight"]),
        ],
        ("tp1", ["window", "granite", "gemma2"]),
        ("tp4", ["qwen2"]),
        ("pp2chunks2", ["tied", "gemma3_text"]),
        ("cp2tp2", ["moonlight"]),
    ),
)
def test_logprobs_and_entropy_are_those_of_transformers(
    ranks: Ranks, folder: Path, split: str, models: list[str]
) -> None:
    """The last split has more ranks than the model has key-value heads."""
    sequences, temperatures = rows(9), (1.0, 0.7, 0.0)
    for model in models:
        spec = spec_of(folder, model)
        theirs = ask(TransformersEngine.open(spec), spec.kind, sequences, temperatures)
        spoke = 0
        for speaks, ours in ranks.run(MESHES[split], score, spec, sequences, temperatures):
            spoke += speaks
            for mine, other in zip(ours, theirs, strict=True):
                assert mine.shape == other.shape and mine.dtype == other.dtype
                if speaks:
                    torch.testing.assert_close(
                        mine, other, rtol=0, atol=1e-5, msg=lambda text, model=model: f"{model}: {text}"
                    )
        assert spoke == 1


@pytest.mark.parametrize("kind", few(["value_lm", "reward_lm"], "reward_lm"))
@pytest.mark.parametrize("split", few(["tp2", "tp2pp2", "cp2tp2", "cp4"], "cp2tp2"))
def test_values_and_scores_are_those_of_transformers(ranks: Ranks, folder: Path, kind: ModelKind, split: str) -> None:
    spec, sequences = spec_of(folder, "tied", kind), rows(9)
    (theirs,) = ask(TransformersEngine.open(spec), kind, sequences, ())
    for speaks, (mine,) in ranks.run(MESHES[split], score, spec, sequences, ()):
        if speaks:
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


def test_random_weights_and_no_rows(ranks: Ranks) -> None:
    family, config = MODELS["qwen2"]
    spec = ModelSpec("causal_lm", RandomWeights(family, config, WORDS))
    theirs = ask(TransformersEngine.open(spec), spec.kind, rows(4), (1.0,))
    for speaks, ours in ranks.run(MESHES["tp2pp2"], score, spec, rows(4), (1.0,)):
        if speaks:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    for _, ours in ranks.run(MESHES["tp2pp2"], score, spec, rows(0), (1.0,)):
        assert all(mine.shape == (0,) for mine in ours)


def task_for(split: Mesh, **other: object) -> Task:
    """Twelve rows in blocks of different sizes, and not the same number for each copy."""
    blocks = ((0, 1, 2), (3,), (4, 5, 6, 7)), ((8, 9), (10, 11))
    if split.axis_size("dp") == 1:
        blocks = (blocks[0] + blocks[1],)
    return Task(rows(12), blocks, OPTIONS, **other)


def check(spec: ModelSpec, task: Task, trained: list[Trained]) -> None:
    """As the transformers engine does it with all blocks."""
    engine = TransformersEngine.open(spec)
    told = updates(engine, spec.kind, task, list(itertools.chain(*task.blocks)))
    for rank in trained:
        assert rank.told == trained[0].told
    for mine, other in zip(trained[0].told, told, strict=True):
        if isinstance(other, str):
            assert isinstance(mine, str) and "not finite" in mine
            continue
        assert mine["lr"] == other["lr"]
        assert mine["loss"] == pytest.approx(other["loss"], rel=2e-6)
        assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=5e-6)
    theirs = engine.state()
    for name, tensor in whole(trained, theirs).items():
        torch.testing.assert_close(
            tensor, theirs[name].double(), rtol=0, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize(
    "split,model,distributed",
    few(
        [
            ("tp2", "qwen2", True),
            ("tp2", "phi3", True),
            ("tp2", "qwen3", True),
            ("tp2", "mistral", True),
            ("pp2", "tied", True),
            ("pp2", "llama", False),
            ("dp2", "qwen2", True),
            ("dp2", "qwen2", False),
            ("tp2pp2", "tied", True),
            ("tp2dp2", "qwen2", True),
            ("pp2dp2", "tied", True),
            ("tp4", "qwen2", True),
            ("pp4", "tied", True),
            ("pp3", "odd", True),
            ("pp3", "deepseek_v3", False),
            ("tp2pp2", "odd", True),
            ("pp2chunks2", "tied", True),
            ("pp2chunks2", "odd", True),
            ("tp2pp2chunks2", "gemma3_text", True),
            ("pp2dp2chunks2", "llama", True),
            ("tp2pp2", "window", True),
            ("tp2", "granite", True),
            ("tp2dp2", "gemma2", True),
            ("tp2pp2", "gemma3_text", True),
            ("tp1", "qwen2_moe", True),
            ("tp2", "qwen2_moe", True),
            ("ep2", "qwen3_moe", True),
            ("ep2tp2", "qwen2_moe", True),
            ("ep2tp2", "mixtral", False),
            ("ep2pp2", "qwen3_moe", True),
            ("ep2dp2", "mixtral", True),
            ("ep2dp2", "qwen2_moe", False),
            ("ep4", "mixtral", True),
            ("cp2", "qwen3", True),
            ("cp2", "tied", False),
            ("cp4", "qwen2", True),
            ("cp2tp2", "qwen2", True),
            ("cp2pp2", "tied", True),
            ("cp2dp2", "qwen2", True),
            ("cp2ep2", "qwen2_moe", True),
            ("cp2ep2", "mixtral", False),
            ("tp1", "deepseek_v3", True),
            ("tp2pp2", "deepseek_v3", True),
            ("ep2tp2", "deepseek_v3", True),
            ("ep2dp2", "deepseek_v3", False),
            ("tp4", "moonlight", True),
            ("cp2ep2", "deepseek_v3", True),
            ("cp2tp2", "moonlight", True),
        ],
        ("tp2", "phi3", True),
        ("pp2", "llama", False),
        ("pp2dp2", "tied", True),
        ("pp2chunks2", "tied", True),
        ("tp2dp2", "gemma2", True),
        ("ep2dp2", "mixtral", True),
        ("cp2dp2", "qwen2", True),
        ("tp1", "deepseek_v3", True),
    ),
)
def test_updates_are_those_of_transformers(
    ranks: Ranks, folder: Path, split: str, model: str, distributed: bool
) -> None:
    spec, task = spec_of(folder, model), task_for(MESHES[split])
    check(spec, task, ranks.run(MESHES[split], train, spec, task, distributed))


@pytest.mark.parametrize(
    ("split", "model", "recompute"),
    few(
        [
            ("tp1", "mixtral", False),
            ("tp1", "deepseek_v3", True),
            ("tp2pp2", "qwen2_moe", False),
            ("ep2tp2", "qwen3_moe", True),
            ("cp2tp2", "moonlight", True),
            ("ep2dp2", "deepseek_v3", False),
            ("pp2chunks2", "qwen3_moe", True),
        ],
        ("tp1", "deepseek_v3", True),
        ("cp2tp2", "moonlight", True),
        ("pp2chunks2", "qwen3_moe", True),
    ),
)
def test_experts_that_are_replayed_are_those_of_transformers(
    ranks: Ranks, folder: Path, split: str, model: str, recompute: bool
) -> None:
    """Log-probabilities and updates; layers that are computed again replay the same, too. 4 s."""
    spec, task = spec_of(folder, model), task_for(MESHES[split])
    task = replace(task, sequences=with_routes(task.sequences, model))
    theirs = TransformersEngine.open(spec)
    expected = theirs.logprobs(task.sequences).detach()
    assert float((expected - theirs.logprobs(replace(task.sequences, routes=None))).abs().max()) > 0.1
    for speaks, (mine, *_) in ranks.run(MESHES[split], score, spec, task.sequences, (1.0,)):
        if speaks:
            torch.testing.assert_close(mine, expected, rtol=0, atol=1e-5)
    arguments = True, 1 << 25, None, recompute
    check(spec, task, ranks.run(MESHES[split], train, spec, task, *arguments))


@pytest.mark.parametrize("model", ["window", "deepseek_v3"])
def test_attention_of_all_rows_in_one_call(ranks: Ranks, folder: Path, model: str) -> None:
    """With a window and fewer heads that have keys, and with keys that heads make of a few numbers. 1 s each."""
    spec = replace(spec_of(folder, model), dtype="float64")
    [(apart, together, calls)] = ranks.run(MESHES["tp1"], score_in_one_call, spec, rows(5))
    assert calls == 4
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family,layers", [("gemma2", 0), ("mixtral", 2), ("deepseek_v3", 1)])
def test_a_layer_in_training_reads_no_number(ranks: Ranks, family: str, layers: int) -> None:
    """With attention over windows and with capped scores, or with so many layers of experts, which are replayed. 1 s
    each."""
    sequences = rows(5)
    if layers:
        routes = torch.tensor([0, 3], dtype=torch.int16).expand(len(sequences.tokens), layers, 2)
        sequences = replace(sequences, routes=routes.contiguous())
    spec = ModelSpec("causal_lm", source(family), "bfloat16")
    assert ranks.run(MESHES["tp1"], layers_without_numbers, spec, sequences) == [[]]


@pytest.mark.parametrize(
    ("split", "dtype"), few([("dp2", "float32"), ("dp2", "bfloat16"), ("tp2pp2", "float32")], ("dp2", "bfloat16"))
)
def test_models_that_sleep_between_calls_go_on_to_the_bit(ranks: Ranks, folder: Path, split: str, dtype: str) -> None:
    """With the distributed optimizer, whose moments, gradients and weights lie in buffers of Megatron's."""
    spec = replace(spec_of(folder, "qwen2"), dtype=dtype)
    for found in ranks.run(MESHES[split], rested, spec, task_for(MESHES[split]), True):
        assert same(*found.told) and same(*found.states) and found.naps > 6
        assert same(found.asleep, found.states[1]) and found.second == 0
        assert found.counted == pytest.approx(1, rel=0.01)
        # Where tensor-parallel ranks put their tokens together stays.
        assert split != "dp2" or found.freed > 0.98


@pytest.mark.parametrize(
    "kind,split",
    few(
        [("value_lm", "tp2"), ("reward_lm", "pp2"), ("value_lm", "tp2pp2"), ("reward_lm", "tp2pp2")],
        ("value_lm", "tp2"),
        ("reward_lm", "pp2"),
    ),
)
def test_a_critic_and_a_reward_model_learn(ranks: Ranks, folder: Path, kind: ModelKind, split: str) -> None:
    spec, task = spec_of(folder, "tied", kind), task_for(MESHES[split])
    check(spec, task, ranks.run(MESHES[split], train, spec, task))


def test_a_head_that_nothing_trains_has_to_be_there(folder: Path) -> None:
    from rlgraph.backends.engines.megatron.source import read_model_source

    actor, reward = (spec_of(folder, "tied", kind).source for kind in ("causal_lm", "reward_lm"))
    read_model_source(ModelSpec("reward_lm", actor))
    read_model_source(ModelSpec("reward_lm", reward, is_trained=False))
    with pytest.raises(MissingHead, match="has no head that gives scores"):
        read_model_source(ModelSpec("reward_lm", actor, is_trained=False))


@pytest.mark.long
def test_a_copy_without_rows_takes_part(ranks: Ranks, folder: Path) -> None:
    spec, task = spec_of(folder, "qwen2"), replace(task_for(MESHES["tp2dp2"]), blocks=(((0, 1, 2), (4, 5)), ()))
    check(spec, task, ranks.run(MESHES["tp2dp2"], train, spec, task))


@pytest.mark.parametrize(("split", "distributed"), [("tp2dp2", True), ("pp2dp2", False)])
def test_an_update_without_rows_is_none(ranks: Ranks, folder: Path, split: str, distributed: bool) -> None:
    """Whole, and with gradients that are added up; the other copy has no micro-batches at all."""
    spec, task = spec_of(folder, "tied"), Task(rows(4), (((0, 1), (2, 3)), ()), OPTIONS, empty=(1, 2))
    once = ranks.run(MESHES[split], train, spec, replace(task, steps=1), distributed)
    for before, after in zip(once, ranks.run(MESHES[split], train, spec, task, distributed), strict=True):
        assert [type(told) for told in after.told] == [dict, str, str] and "no rows" in str(after.told[1:])
        assert same(after.state, before.state)


def test_two_calls_of_a_micro_batch_and_no_clipping(ranks: Ranks, folder: Path) -> None:
    options = TrainOptions(lr=1e-4, schedule="linear", warmup_steps=2, total_steps=4, settings={"eps": 1.0})
    spec, task = spec_of(folder, "tied"), replace(task_for(MESHES["pp2"]), other=rows(12, seed=5), options=options)
    task = replace(task, blocks=((*task.blocks[0], ()),))
    check(spec, task, ranks.run(MESHES["pp2"], train, spec, task))


def test_a_gradient_that_is_not_finite_leaves_the_weights(ranks: Ranks, folder: Path) -> None:
    """The other copy's rows are finite, and its ranks refuse the update all the same."""
    spec, task = spec_of(folder, "qwen2"), task_for(MESHES["tp2dp2"], poison=(1, 4))
    trained = ranks.run(MESHES["tp2dp2"], train, spec, task)
    check(spec, task, trained)
    assert [type(told) for told in trained[0].told] == [dict, str, dict]


@pytest.mark.long
def test_splits_agree_beyond_float32(ranks: Ranks, folder: Path) -> None:
    """transformers computes norms in float32 whatever its dtype; beside one another splits show what rounding hides."""
    spec = replace(spec_of(folder, "tied"), dtype="float64")
    # Not clipped: the norm, and what is scaled with it, is a float32.
    task = replace(task_for(MESHES["tp1"]), options=replace(OPTIONS, clip_norm=None))
    like = TransformersEngine.open(spec).state()
    expected = whole(ranks.run(MESHES["tp1"], train, spec, task), like)
    for name, tensor in whole(ranks.run(MESHES["tp2pp2"], train, spec, task), like).items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-12)


@pytest.mark.long
def test_rows_that_are_packed_train_as_they_do_alone(ranks: Ranks, folder: Path) -> None:
    spec, packed = replace(spec_of(folder, "qwen3", "value_lm"), dtype="float64"), task_for(MESHES["tp1"])
    packed = replace(packed, options=replace(OPTIONS, clip_norm=None))
    alone = replace(packed, blocks=(tuple((row,) for row in range(12)),))
    like = TransformersEngine.open(spec).state()
    expected = whole(ranks.run(MESHES["tp1"], train, spec, alone), like)
    for name, tensor in whole(ranks.run(MESHES["tp1"], train, spec, packed), like).items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_each_token_is_one_ranks_and_all_have_as_much_to_attend_to(ranks: int) -> None:
    from rlgraph.backends.engines.megatron.context_parallel import _bounds

    lengths = np.array([*range(1, 40), 24 * ranks])
    cuts = [_bounds(lengths, ranks, rank) for rank in range(ranks)]
    for row, length in enumerate(lengths):
        own = [[list(range(*ends)) for ends in zip(a[row], b[row], strict=True)] for a, b in cuts]
        assert sorted(itertools.chain(*itertools.chain(*own))) == list(range(length))
        sizes = [sum(map(len, each)) for each in own]
        assert max(sizes) - min(sizes) <= 2
    # In the last row all stretches are as long: so are the tokens that each rank's own see, added up.
    assert len({sum(map(sum, each)) for each in own}) == 1


def gradients(mesh: Mesh, spec: ModelSpec, task: Task, recompute: bool) -> Trained:
    """Those of each copy's blocks, added up over all ranks."""
    return each_gradients(mesh, spec, [task], recompute)[0]


def each_gradients(
    mesh: Mesh, spec: ModelSpec, tasks: Sequence[Task], recompute: bool = False, last: bool = False
) -> list[Trained]:
    """Those of one task after the other, which takes less than to lay out ranks and open the model for each; last:
    buckets travel while others are computed."""
    from rlgraph.backends.engines.megatron.engine import MegatronEngine, add_joint_gradients
    from rlgraph.backends.engines.megatron.shim import redirect_cuda_to_cpu

    engine = MegatronEngine.open(spec, mesh, recompute=recompute)
    found = []
    for task in tasks:
        with redirect_cuda_to_cpu():
            engine.clear_gradients()
            own = task.blocks[mesh.axis_position(dist.get_rank(), "dp")]
            add_joint_gradients([(engine, own, partial(task.micro, spec.kind, 0))], last=last)
            assert engine._trainer
            overlap = engine._trainer._overlap
            # What a loss leaves out waits for the end, with all that comes behind it.
            travels = last and own and own[-1] and mesh.axis_size("ep") == 1
            assert not travels or overlap._started == len(overlap._groups)
            assert last or not overlap._started
            engine._trainer.sum_gradients()
        # Zeros for what is not trained.
        grads = {
            name: weight.main_grad.clone() if weight.requires_grad else torch.zeros_like(weight)
            for name, weight in engine.tensors().items()
        }
        found.append(Trained([], grads, engine.layout()))
    return found


@pytest.mark.parametrize(
    "model,splits,kind",
    few(
        [
            ("tied", ["cp4"], "value_lm"),
            ("tied", ["cp2tp2"], "causal_lm"),
            ("tied", ["cp2", "cp4", "cp2pp2", "cp2dp2"], "causal_lm"),
            ("tied", ["cp2", "cp2tp2", "cp2pp2", "cp2dp2"], "value_lm"),
            ("qwen3_moe", ["cp2ep2"], "causal_lm"),
            ("qwen3_moe", ["cp2ep2"], "value_lm"),
        ],
        ("tied", ["cp4"], "value_lm"),
        ("tied", ["cp2tp2"], "causal_lm"),
    ),
)
def test_gradients_of_grpo_and_ppo_with_tokens_shared_out(
    ranks: Ranks, folder: Path, kind: ModelKind, model: str, splits: list[str]
) -> None:
    """Some rows have fewer tokens than there are stretches, and some micro-batches no scored one."""
    spec = replace(spec_of(folder, model, kind), dtype="float64")

    def task(split: Mesh) -> Task:
        plain = task_for(split)
        return Clipped(plain.sequences, plain.blocks, plain.options)

    like = TransformersEngine.open(spec_of(folder, model, kind)).state()
    expected = whole(ranks.run(MESHES["tp1"], gradients, spec, task(MESHES["tp1"]), False), like)
    for split in splits:
        again = split == "cp2tp2"
        found = whole(ranks.run(MESHES[split], gradients, spec, task(MESHES[split]), again), like)
        for name, tensor in found.items():
            assert expected[name].abs().max() > 0
            torch.testing.assert_close(
                tensor, expected[name], rtol=0, atol=1e-10, msg=lambda text, at=(split, name): f"{at}: {text}"
            )


def overlapped(mesh: Mesh, spec: ModelSpec, tasks: Sequence[Task]) -> list[Trained]:
    """In buckets of a layer or less."""
    from rlgraph.backends.engines.megatron import training

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "BUCKET", 2000)
        return each_gradients(mesh, spec, tasks, last=True)


def in_buckets(mesh: Mesh, spec: ModelSpec, task: Task) -> Trained:
    from rlgraph.backends.engines.megatron import training

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "BUCKET", 2000)
        return train(mesh, spec, task)


@pytest.mark.parametrize("split", few(["dp2", "tp2dp2"], "dp2"))
def test_an_optimizer_that_is_shared_out_in_several_buckets(ranks: Ranks, folder: Path, split: str) -> None:
    spec, task = spec_of(folder, "tied"), task_for(MESHES[split])
    check(spec, task, ranks.run(MESHES[split], in_buckets, spec, task))


def on_their_way(mesh: Mesh, spec: ModelSpec, task: Task, later: bool, recompute: bool) -> list[Any]:
    """What each of several updates told; and between them what the model says of rows, what it is to whoever asks for
    its weights at once, and its gradients."""
    from rlgraph.backends.engines.megatron import training
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    found: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "BUCKET", 2000)
        engine = MegatronEngine.open(spec, mesh, recompute=recompute, later=later)
        own = task.blocks[mesh.axis_position(dist.get_rank(), "dp")]

        def update(step: int) -> None:
            told = elsewhere(engine.train_step, own, partial(task.micro, spec.kind, step), task.options, step)
            found.append(told)
            arrival = engine._trainer._arrival if engine._trainer else None
            assert (arrival is not None) == later
            if arrival:
                # Nobody can read an old weight meanwhile: there is none.
                assert len(arrival._pending) == len(arrival._groups)
                assert not any(weight.numel() for group in arrival._groups for weight in group.params)

        # A pass of a training, or two steps with nothing between them where a copy has no rows.
        update(0)
        update(1)
        assert not later or engine._trainer._arrival._pending
        # Whoever takes the weights themselves: a transfer, a disk, a moving average, a copy.
        found.append(engine.state())
        update(2)
        # A pass that only reads.
        if spec.kind == "causal_lm":
            found.append(engine.logprobs(task.sequences))
        else:
            found.append(engine.values(task.sequences))
        assert not later or not engine._trainer._arrival._pending
        held = engine.tensors().values()
        found.append([weight.main_grad.clone() for weight in held if weight.requires_grad])
        update(3)
        before = engine.copy().state()
        update(4)
        engine.blend(before, 0.5)
        found.append(engine.state())
        update(5)
        engine.sleep()
        asleep = {name: tensor.clone() for name, tensor in engine.tensors().items()}
        engine.wake()
        assert same(asleep, engine.state())
        found.append(asleep)
        update(6)
        moments = engine.moments()
        found += [moments.tensors_by_kind["exp_avg"], engine.state()]
    return found


@pytest.mark.parametrize(
    "split,model,kind,dtype",
    few(
        [
            ("dp2", "qwen2", "causal_lm", "float32"),
            ("dp2", "tied", "value_lm", "bfloat16"),
            ("tp2dp2", "moonlight", "causal_lm", "float32"),
            ("pp2dp2", "tied", "causal_lm", "float32"),
            ("ep2dp2", "qwen3_moe", "causal_lm", "float32"),
            ("cp2dp2", "tied", "causal_lm", "bfloat16"),
        ],
        ("pp2dp2", "tied", "causal_lm", "float32"),
    ),
)
def test_weights_that_are_on_their_way_are_waited_for(
    ranks: Ranks, folder: Path, split: str, model: str, kind: ModelKind, dtype: str
) -> None:
    """To the bit what it is where each update waits for them: float64 has no optimizer that is shared out. One copy has
    no rows in the end."""
    spec, task = replace(spec_of(folder, model, kind), dtype=dtype), task_for(MESHES[split])
    task = replace(task, blocks=(task.blocks[0], ())) if split == "pp2dp2" else task
    recompute = split == "tp2dp2"
    waiting = ranks.run(MESHES[split], on_their_way, spec, task, False, recompute)
    later = ranks.run(MESHES[split], on_their_way, spec, task, True, recompute)
    torch.testing.assert_close(later, waiting, rtol=0, atol=0, equal_nan=True)


def left_alone(rank: int, address: str, spec: ModelSpec, task: Task, told: Any) -> None:
    """The second copy ends after its part of the second update, before the first one has it."""
    from rlgraph.backends.engines.megatron.engine import MegatronEngine
    from rlgraph.backends.engines.process_groups import join_process_group

    torch.set_num_threads(1)
    join_process_group(rank, 2, address, NEVER)
    engine = MegatronEngine.open(spec, make_mesh(dp=2))

    def update(step: int) -> Any:
        return engine.train_step(task.blocks[rank], partial(task.micro, spec.kind, step), task.options, step)

    def failed(do: Any) -> str:
        try:
            do()
        except PartialUpdate as error:
            return str(error)
        return ""

    update(0)
    if rank:
        assert engine._trainer and engine._trainer._arrival
        engine._trainer._arrival.start_gather = lambda: os._exit(0)  # type: ignore[method-assign]
    # Where the other one is gone at once the update fails, else who asks for its weights, each time.
    told.put([failed(lambda: update(1)), failed(engine.tensors), failed(lambda: update(2)), failed(engine.state)])


def test_weights_that_do_not_come_are_nobodys(folder: Path) -> None:
    spec, task, meeting = spec_of(folder, "qwen2"), task_for(MESHES["dp2"]), open_store("127.0.0.1")
    context = multiprocessing.get_context("forkserver")
    told = context.Queue()
    both = [
        context.Process(target=left_alone, args=(rank, meeting.address, spec, task, told), daemon=True)
        for rank in range(2)
    ]
    try:
        for process in both:
            process.start()
        at_once, *later = told.get(timeout=NEVER)
    finally:
        for process in both:
            process.kill()
    assert all("have not come from other copies" in each for each in later) or "ended in the midst" in at_once


@pytest.mark.parametrize(
    "model,split,kind",
    few(
        [
            (model, split, kind)
            for model, split in [
                ("qwen2", "dp2"),
                ("tied", "pp2dp2"),
                ("tied", "pp2dp2chunks2"),
                ("qwen3_moe", "ep2dp2"),
            ]
            for kind in ("causal_lm", "value_lm")
        ],
        ("tied", "pp2dp2", "value_lm"),
    ),
)
def test_gradients_of_grpo_and_ppo_that_travel_while_others_are_computed(
    ranks: Ranks, folder: Path, kind: ModelKind, model: str, split: str
) -> None:
    """Where both copies have rows; where one has none; and where the last loss of one does not depend on the model."""
    spec = replace(spec_of(folder, model, kind), dtype="float64")
    like = TransformersEngine.open(spec_of(folder, model, kind)).state()
    one, other = task_for(MESHES[split]).blocks
    alone = Clipped(rows(12), (one + other,), OPTIONS)
    expected = whole(ranks.run(MESHES["tp1"], gradients, spec, alone, False), like)
    both = [replace(alone, blocks=blocks) for blocks in ((one, other), (one + other, ()), (one, (*other, ())))]
    for each in zip(*ranks.run(MESHES[split], overlapped, spec, both), strict=True):
        for name, tensor in whole(each, like).items():
            assert expected[name].abs().max() > 0
            torch.testing.assert_close(
                tensor, expected[name], rtol=0, atol=1e-10, msg=lambda text, at=name: f"{at}: {text}"
            )


@pytest.mark.parametrize(
    "model,split,kind",
    few(
        [
            ("tied", "pp2chunks2", "causal_lm"),
            ("tied", "pp2chunks2", "value_lm"),
            ("deep", "pp2chunks2", "causal_lm"),
            ("deep", "pp2chunks4", "causal_lm"),
            ("deep", "tp2pp2chunks2", "value_lm"),
            ("odd", "pp3", "value_lm"),
            ("odd", "tp2pp2", "value_lm"),
            ("odd", "pp4", "causal_lm"),
            ("odd", "pp2chunks2", "causal_lm"),
            ("odd", "pp2chunks2", "value_lm"),
            ("odd", "tp2pp2chunks2", "causal_lm"),
            ("tied", "pp3", "causal_lm"),
        ],
        ("odd", "pp2chunks2", "value_lm"),
        ("odd", "pp3", "value_lm"),
    ),
)
def test_gradients_of_stages_with_several_parts_of_a_model_or_unlike_numbers_of_layers(
    ranks: Ranks, folder: Path, kind: ModelKind, model: str, split: str
) -> None:
    """With fewer micro-batches than stages, with as many, and with numbers of them that stages do not divide."""
    spec = replace(spec_of(folder, model, kind), dtype="float64")
    like = TransformersEngine.open(spec_of(folder, model, kind)).state()
    counts = (1, 2, 3, 5)
    blocks = [tuple(tuple(range(at, 12, count)) for at in range(count)) for count in counts]
    tasks = [Clipped(rows(12), (each,), OPTIONS) for each in blocks]
    alone, split_up = (zip(*ranks.run(MESHES[at], each_gradients, spec, tasks), strict=True) for at in ("tp1", split))
    for one, other in zip(alone, split_up, strict=True):
        expected = whole(one, like)
        for name, tensor in whole(other, like).items():
            assert expected[name].abs().max() > 0
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-10)


def together(mesh: Mesh, specs: tuple[ModelSpec, ...], task: Task, turned: bool, meet: bool = False) -> list[Trained]:
    """The gradients of several models' trainings in one pipeline, every other model's stages the other way round. meet:
    as on GPUs neither end of a message goes on before both are at it."""
    from rlgraph.backends.engines.megatron import groups
    from rlgraph.backends.engines.megatron.engine import MegatronEngine, add_joint_gradients
    from rlgraph.backends.engines.megatron.shim import redirect_cuda_to_cpu

    # On GPUs messages have groups of their own, one for each direction.
    with patch.object(groups, "carries_both_directions", lambda group: not meet):
        engines = [MegatronEngine.open(spec, mesh, turned=turned and at % 2 == 1) for at, spec in enumerate(specs)]
    own = task.blocks[mesh.axis_position(dist.get_rank(), "dp")]
    losses = [partial(task.micro, spec.kind, 0) for spec in specs]
    found = []
    with redirect_cuda_to_cpu():
        for engine in engines:
            engine.clear_gradients()
        # The second one has a micro-batch fewer.
        with patch.object(pipelined, "dist", MetMessages() if meet else dist):
            add_joint_gradients(list(zip(engines, (own, own[1:]), losses, strict=True)))
        for engine in engines:
            assert engine._trainer
            engine._trainer.sum_gradients()
            grads = {name: weight.main_grad.clone() for name, weight in engine.tensors().items()}
            found.append(Trained([], grads, engine.layout()))
    return found


@pytest.mark.parametrize(
    "split,turned",
    few(
        [("pp2", True), ("pp2", False), ("tp2pp2", True), ("pp2dp2", True), ("pp2chunks2", True), ("pp3", True)],
        ("pp2chunks2", True),
    ),
)
def test_an_actor_and_a_critic_in_one_pipeline_have_the_gradients_that_they_have_alone(
    ranks: Ranks, folder: Path, split: str, turned: bool
) -> None:
    specs = tuple(replace(spec_of(folder, "tied", kind), dtype="float64") for kind in ("causal_lm", "value_lm"))
    plain = task_for(MESHES[split])
    task = Clipped(plain.sequences, plain.blocks, plain.options)
    found = ranks.run(MESHES[split], together, specs, task, turned, True)
    plainly = ranks.run(MESHES[split], together, specs, task, turned)
    for one, other in zip(itertools.chain(*found), itertools.chain(*plainly), strict=True):
        assert all(torch.equal(tensor, other.state[name]) for name, tensor in one.state.items()), "to the bit"
    for at, spec in enumerate(specs):
        blocks = tuple(itertools.chain(*(own[at:] for own in task.blocks)))
        alone = ranks.run(MESHES["tp1"], gradients, spec, replace(task, blocks=(blocks,)), False)
        like = TransformersEngine.open(spec_of(folder, "tied", spec.kind)).state()
        expected = whole(alone, like)
        for name, tensor in whole([each[at] for each in found], like).items():
            assert expected[name].abs().max() > 0
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-10)


@pytest.mark.parametrize("split", few(["tp2", "tp2pp2", "cp2"], "tp2"))
def test_a_head_in_parts_trains_as_a_whole_one(ranks: Ranks, folder: Path, split: str) -> None:
    """Three tokens at a time, of a vocabulary that two ranks share."""
    spec, task = spec_of(folder, "tied"), task_for(MESHES[split])
    check(spec, task, ranks.run(MESHES[split], train, spec, task, True, 64))


def recomputed(mesh: Mesh, spec: ModelSpec, task: Task) -> list[Trained]:
    """A task with everything kept, and by a copy of a model whose layers are computed again."""
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    own = task.blocks[mesh.axis_position(dist.get_rank(), "dp")]
    engines = [MegatronEngine.open(spec, mesh), MegatronEngine.open(spec, mesh, recompute=True).copy()]
    return [Trained(updates(each, spec.kind, task, own), each.state(), each.layout()) for each in engines]


@pytest.mark.parametrize("split", few(["tp2", "pp2", "pp2chunks2", "tp2dp2", "cp2"], "pp2chunks2"))
def test_layers_that_are_computed_again_train_as_they_did(ranks: Ranks, folder: Path, split: str) -> None:
    spec, task = spec_of(folder, "tied"), task_for(MESHES[split])
    found = ranks.run(MESHES[split], recomputed, spec, task)
    check(spec, task, [again for _, again in found])
    for kept, again in found:
        assert again.told == [pytest.approx(told, rel=1e-6) for told in kept.told]
        for name, tensor in kept.state.items():
            torch.testing.assert_close(again.state[name], tensor, rtol=0, atol=1e-6)


def peak(mesh: Mesh, case: Case, layers: int) -> int:
    """Bytes of a pass forward and back with layers computed again; weights and the buffers of gradients are there."""
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    engine = MegatronEngine.open(case.spec(layers), mesh, recompute=True)
    micro = case.micro()
    engine.clear_gradients()
    assert engine._trainer
    gradients = (buffer.grad_data for buffer in engine._trainer.chunk.buffers)
    with Live(itertools.chain(engine.model.parameters(), gradients)) as live:
        engine.add_gradients([0], lambda block: micro)
    return live.peak


def test_layers_that_are_computed_again_keep_their_inputs_only(ranks: Ranks) -> None:
    case = Case()
    (few,), (many,) = (ranks.run(MESHES["tp1"], peak, case, layers) for layers in (2, 6))
    tokens = case.rows * (case.length - 1)
    assert (many - few) / 4 == pytest.approx(tokens * case.shape().hidden * torch.float32.itemsize, rel=0.001)


@pytest.mark.parametrize("dtype", few(["float32", "bfloat16"], "bfloat16"))
def test_weights_that_others_write(ranks: Ranks, folder: Path, dtype: str) -> None:
    spec, task = replace(spec_of(folder, "qwen2"), dtype=dtype), task_for(MESHES["dp2"])
    for found in ranks.run(MESHES["dp2"], rewrite, spec, task):
        assert all(found.values()), found


def test_what_cannot_be_done_is_said(ranks: Ranks, folder: Path) -> None:
    said = ranks.run(MESHES["tp2"], refusals, spec_of(folder, "qwen2"), rows(3))
    assert said[0] == said[1]
    expected = [
        "of its own",
        "needs a process group of 8 ranks",
        "that needs a value_lm",
        "first token cannot be scored",
        "another model's",
        "no dtype is called 'int4'",
        "the family `gpt2` are not known",
    ]
    for part, message in zip(expected, said[0], strict=True):
        assert part in message


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("rlgraph.backends.engines.megatron")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "megatron.core.optimizer", None)
    with pytest.raises(EngineError, match=r"pip install 'rlgraph-compiler\[megatron\]'"):
        importlib.import_module("rlgraph.backends.engines.megatron.opening").import_megatron()


def test_the_shim_leaves_nothing_behind_and_is_off_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    shim = importlib.import_module("rlgraph.backends.engines.megatron.shim")
    own = torch.cuda.current_device, torch.cuda.synchronize
    with shim.redirect_cuda_to_cpu(), shim.redirect_cuda_to_cpu():
        assert torch.zeros(1, device="cuda").device.type == "cpu" and torch.cuda.current_device() == "cpu"
    assert (torch.cuda.current_device, torch.cuda.synchronize) == own
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with shim.redirect_cuda_to_cpu():
        assert (torch.cuda.current_device, torch.cuda.synchronize) == own
