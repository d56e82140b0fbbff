"""Adapters of Megatron-core's layers on real ranks, beside those of the transformers engine on the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rlgraph.backends.engines.base import Rank
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.catalog.models.adapters import Adapters, find_adapter
from rlgraph.catalog.models.families import ModelKind
from rlgraph.ir.mesh import Mesh
from tests.backends.engines.ranks import Ranks
from tests.backends.engines.sharded import Task, ask, rewrite, train, updates, write
from tests.backends.engines.slept import rested, same
from tests.backends.engines.test_megatron import MESHES, check, recomputed, task_for
from tests.suites import few

pytest.importorskip("megatron.core")

LORA = Adapters(3, 6.0)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks(4)
    yield started
    started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def spec_of(folder: Path, model: str, kind: ModelKind = "causal_lm", lora: Adapters = LORA) -> ModelSpec:
    place = folder / f"{model}-{kind}"
    spec = ModelSpec(kind, str(place)) if place.exists() else write(model, kind, place)
    return replace(spec, adapters=lora)


@pytest.mark.parametrize(
    "split,model,kind",
    few(
        [
            ("tp1", "tied", "causal_lm"),
            ("tp2", "qwen2", "causal_lm"),
            ("pp2", "tied", "causal_lm"),
            ("dp2", "qwen3", "causal_lm"),
            ("tp2pp2", "tied", "value_lm"),
            ("tp4", "qwen2", "causal_lm"),
            ("tp2dp2", "phi3", "causal_lm"),
            ("tp2pp2", "gemma2", "reward_lm"),
            ("cp2tp2", "granite", "causal_lm"),
            ("pp2dp2chunks2", "llama", "causal_lm"),
            ("ep2tp2", "mixtral", "causal_lm"),
            ("ep2dp2", "qwen3_moe", "causal_lm"),
        ],
        ("tp2pp2", "tied", "value_lm"),
        ("tp4", "qwen2", "causal_lm"),
        ("tp2dp2", "phi3", "causal_lm"),
        ("pp2dp2chunks2", "llama", "causal_lm"),
        ("ep2tp2", "mixtral", "causal_lm"),
    ),
)
def test_updates_are_those_of_transformers(ranks: Ranks, folder: Path, split: str, model: str, kind: ModelKind) -> None:
    """From the same first adapters; of four ranks two have no rows of the keys' or values'."""
    spec, task = spec_of(folder, model, kind), task_for(MESHES[split])
    check(spec, task, ranks.run(MESHES[split], train, spec, task))


@pytest.mark.parametrize("targets", few(["v_proj", "q_proj up_proj", "down_proj"], "q_proj up_proj"))
def test_some_layers_have_adapters(ranks: Ranks, folder: Path, targets: str) -> None:
    spec, task = spec_of(folder, "tied", lora=replace(LORA, targets=tuple(targets.split()))), task_for(MESHES["tp2pp2"])
    check(spec, task, ranks.run(MESHES["tp2pp2"], train, spec, task))


def test_a_saved_adapter_is_a_start(ranks: Ranks, folder: Path, tmp_path: Path) -> None:
    """Of a critic, whose head is saved with it; its matrices B are no zeros."""
    spec, task = spec_of(folder, "tied", "value_lm"), task_for(MESHES["tp2"])
    engine = TransformersEngine.open(spec)
    generator = torch.Generator().manual_seed(1)
    engine.load_weights(
        {name: torch.randn(weight.shape, generator=generator) / 4 for name, weight in engine.tensors().items()}
    )
    engine.save(tmp_path)
    found = find_adapter(str(tmp_path))
    assert found is not None
    spec = replace(spec, source=found[0], adapters=found[1])
    check(spec, task, ranks.run(MESHES["tp2"], train, spec, task))
    other = replace(spec, adapters=replace(found[1], rank=2))
    with pytest.raises(AssertionError, match="the adapter in .* is another model's"):
        ranks.run(MESHES["tp1"], train, other, task)


@pytest.mark.parametrize("split", few(["pp2chunks2", "tp2"], "pp2chunks2"))
def test_layers_that_are_computed_again_train_as_they_did(ranks: Ranks, folder: Path, split: str) -> None:
    spec, task = spec_of(folder, "tied"), task_for(MESHES[split])
    found = ranks.run(MESHES[split], recomputed, spec, task)
    check(spec, task, [again for _, again in found])


@pytest.mark.parametrize("dtype", few(["float32", "bfloat16"], "bfloat16"))
def test_weights_that_others_write(ranks: Ranks, folder: Path, dtype: str) -> None:
    """A copy shares the base; adapters of narrow weights are float32."""
    spec, task = replace(spec_of(folder, "qwen2"), dtype=dtype), task_for(MESHES["dp2"])
    for found in ranks.run(MESHES["dp2"], rewrite, spec, replace(task, steps=2)):
        assert all(found.values()), found


def test_models_that_sleep_between_calls_go_on_to_the_bit(ranks: Ranks, folder: Path) -> None:
    spec = spec_of(folder, "qwen2")
    for found in ranks.run(MESHES["dp2"], rested, spec, task_for(MESHES["dp2"]), True):
        assert same(*found.told) and same(*found.states) and found.naps > 6
        assert same(found.asleep, found.states[1]) and found.second == 0


def added(mesh: Mesh, spec: ModelSpec, lr: float) -> list[tuple[float, float]]:
    """Which share of an update of B is in the output of two layers, one split by outputs and one by inputs, and the
    standard error of that."""
    from rlgraph.backends.engines.megatron.opening import open_rank

    model = open_rank(spec, Rank(mesh, dist.get_rank())).model
    generator, found = torch.Generator().manual_seed(0), []
    for name in ("self_attention.linear_proj", "mlp.linear_fc2"):
        layer = model.get_submodule(f"decoder.layers.0.{name}")
        x = torch.randn(4000, 1, layer.weight.shape[1], generator=generator).to(layer.weight)
        [pair] = layer.adapters.values()
        with torch.no_grad():
            before = layer(x)[0].double()
            pair.lora_B.copy_(torch.randn(pair.lora_B.shape, generator=generator).sign() * lr)
            wanted = 2 * (x.double() @ pair.lora_A.double().T @ pair.lora_B.double().T)
            change = layer(x)[0].double() - before
        size = wanted.square().sum()
        kept = (change * wanted).sum() / size
        found.append((float(kept), float(((change - kept * wanted) * wanted).square().sum().sqrt() / size)))
    return found


@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-9), ("float32", 1e-4), ("bfloat16", 0.04)])
def test_what_an_update_adds_is_in_the_output(ranks: Ranks, folder: Path, dtype: str, error: float) -> None:
    """As in transformers' layers: in bfloat16 in the mean."""
    spec = replace(spec_of(folder, "tied"), dtype=dtype)
    for found in ranks.run(MESHES["tp1"], added, spec, 1e-3):
        for kept, off in found:
            assert off < error and kept == pytest.approx(1.0, abs=max(5 * off, 1e-9))


def shared(mesh: Mesh, spec: ModelSpec, task: Task) -> dict[str, bool]:
    """What is so of a model, of one on its base that is trained, and of a copy of that."""
    from rlgraph.backends.engines.megatron.opening import open_rank

    ref = open_rank(replace(spec, adapters=None), Rank(mesh, dist.get_rank()))
    actor = open_rank(spec, Rank(mesh, dist.get_rank(), base_engine=ref))
    alone = open_rank(spec, Rank(mesh, dist.get_rank()))
    copy = actor.copy()
    places = [{weight.data_ptr() for weight in engine.model.parameters()} for engine in (ref, actor, copy)]
    head = {weight.data_ptr() for name, weight in ref.model.named_parameters() if name.startswith("output_layer.")}
    base = places[0] - head if spec.kind != "causal_lm" else places[0]
    before, own = ask(ref, spec.kind, task.sequences, (1.0,)), copy.state()
    found = {
        "the base is there once": base <= places[1] and base <= places[2] and len(places[1] & places[2]) == len(base)
    }
    blocks = task.blocks[mesh.axis_position(dist.get_rank(), "dp")]
    found["training is as with a base of its own"] = same(
        *(updates(engine, spec.kind, task, blocks) for engine in (actor, alone))
    )
    found["the base stays"] = same(ask(ref, spec.kind, task.sequences, (1.0,)), before)
    found["a copy stays"] = same(copy.state(), own)
    found["adapters change"] = not any(torch.equal(own[name], weight) for name, weight in actor.state().items())
    return found


@pytest.mark.parametrize("split,kind", few([("tp2pp2", "causal_lm"), ("tp2pp2", "value_lm")], "tp2pp2"))
def test_models_of_one_base_share_its_tensors(ranks: Ranks, folder: Path, split: str, kind: ModelKind) -> None:
    for found in ranks.run(MESHES[split], shared, spec_of(folder, "tied", kind), task_for(MESHES[split])):
        assert all(found.values()), found


def test_what_cannot_be_done_is_said(ranks: Ranks, folder: Path) -> None:
    task = task_for(MESHES["tp1"])
    for model, lora, message in (
        ("tied", replace(LORA, targets=("w1",)), "no linear layer of qwen2 models is called `w1`: there are down_proj"),
        ("deepseek_v3", LORA, "megatron has no adapters of down_proj, gate_proj, kv_a_proj_with_mqa, "),
        ("qwen2_moe", replace(LORA, targets=("q_proj", "shared_expert.up_proj")), "no adapters of up_proj here yet"),
    ):
        with pytest.raises(AssertionError, match=message):
            ranks.run(MESHES["tp1"], train, spec_of(folder, model, lora=lora), task)
