"""Adapters that are merged into the tensors of an engine, split over ranks as vLLM does it: W + alpha / rank * B A."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from rlgraph.backends.engines.merging import MergedAdapters
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.engines.vllm.layout import layout
from rlgraph.backends.engines.vllm.spec import SPEC
from rlgraph.backends.engines.weights import ModelWeights, fill_tensors, unstack_layers
from rlgraph.backends.enginespec.spec import replicated_layout
from rlgraph.catalog.models.adapters import Adapters, adapter_matrix_names
from rlgraph.ir.layout import LocalTensor
from rlgraph.ir.mesh import make_mesh
from tests.backends.engines.models import source
from tests.catalog.models.tiny import shape_of_model


@pytest.mark.parametrize("targets", [("all-linear",), ("v_proj", "down_proj")])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_each_rank_has_its_part_of_the_sum(tp: int, targets: tuple[str, ...]) -> None:
    lora = Adapters(3, 12.0, targets)
    trainer = TransformersEngine.open(ModelSpec("causal_lm", source("qwen2"), "float64", adapters=lora))
    shape = replace(shape_of_model(trainer.model), adapters=lora)
    base = ModelWeights(trainer.model)
    generator = torch.Generator().manual_seed(1)
    for rank in range(tp):
        split = make_mesh(tp=tp)
        places = layout(shape, split, rank)
        own, plain = filled(places, base), filled(places, base)
        merged = MergedAdapters(lora, replicated_layout(shape, split, rank), own, places)
        assert all(torch.equal(each, plain[name]) for name, each in own.items())
        assert merged.tensors.keys() == trainer.tensors().keys()
        assert all(torch.equal(each, trainer.tensors()[name]) for name, each in merged.tensors.items())
        for each in merged.tensors.values():
            each.copy_(torch.randn(each.shape, generator=generator))
        merged.apply_new_adapters()
        wanted = filled(places, ModelWeights(whole(trainer.model, merged)))
        changed = 0
        for name, each in own.items():
            torch.testing.assert_close(each, wanted[name], rtol=0, atol=1e-12)
            changed += not torch.equal(each, plain[name])
        assert changed == 2 * (4 if targets == ("all-linear",) else 2)
        # Nothing of the old ones is left.
        for name, each in merged.tensors.items():
            each.mul_(0 if ".lora_B." in name else 1)
        merged.apply_new_adapters()
        assert all(torch.equal(each, plain[name]) for name, each in own.items())


def filled(places: Sequence[LocalTensor], weights: ModelWeights) -> dict[str, Tensor]:
    own = {one.name: torch.empty(one.shape, dtype=torch.float64) for each in places for one in unstack_layers(each)}
    fill_tensors(own, places, weights)
    return own


def whole(model: nn.Module, merged: MergedAdapters) -> nn.Module:
    """A model whose parameters are the sums."""
    found = nn.Module()
    parameters = dict(model.named_parameters())
    for name, each in parameters.items():
        a, b = adapter_matrix_names(name.removesuffix(".weight"))
        more = merged.scale * merged.tensors[b] @ merged.tensors[a] if a in merged.tensors else 0.0
        parameters[name] = nn.Parameter(each.detach() + more)
    found.named_parameters = lambda *given, **more: iter(parameters.items())  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("step", [1e-5, 1e-4, 1e-3])
def test_narrow_weights_have_an_update_in_the_mean(step: float) -> None:
    """Of one step of AdamW, in which B has moved by the learning rate, and which is in none of them to the nearest at
    1e-5. The mean is right within 5 of its standard errors, and each is next to
    its sum."""
    lora = Adapters(8, 16.0)
    trainer = TransformersEngine.open(ModelSpec("causal_lm", source("qwen2"), "bfloat16", adapters=lora))
    shape, split = replace(shape_of_model(trainer.model), adapters=lora), make_mesh(tp=1)
    places = layout(shape, split, 0)
    for dtype in (torch.float32, torch.bfloat16):
        own = {name: each.to(dtype) for name, each in filled(places, ModelWeights(trainer.model)).items()}
        plain = {name: each.clone() for name, each in own.items()}
        merged = MergedAdapters(lora, replicated_layout(shape, split, 0), own, places)
        assert all(torch.equal(each, plain[name]) for name, each in own.items())
        generator = torch.Generator().manual_seed(0)
        for name, each in merged.tensors.items():
            if ".lora_B." in name:
                each.copy_(torch.randn(each.shape, generator=generator).sign() * step)
        merged.apply_new_adapters()
        found = {name: each.clone() for name, each in own.items()}
        merged.apply_new_adapters()
        assert all(torch.equal(each, found[name]) for name, each in own.items())
        kept = wanted = noise = nearest = 0.0
        for live, base, b, a, _ in merged._parts:
            change = merged.scale * b.double() @ a.double()
            total = base.double() + change
            got, off = live.double() - base.double(), live.double() - total
            size = base.double().abs() + change.abs()
            assert (off.abs() <= size * (2.0**-7 if dtype == torch.bfloat16 else 1e-6)).all()
            kept, wanted = kept + float((got * change).sum()), wanted + float(change.square().sum())
            noise += float((off * change).square().sum())
            nearest += float(((total.to(dtype).double() - base.double()) * change).sum())
        assert abs(kept / wanted - 1) < (5 * noise**0.5 / wanted if dtype == torch.bfloat16 else 0.01)
        if dtype == torch.bfloat16:
            assert 5 * noise**0.5 / wanted < 0.8
            assert nearest / wanted < (0.05 if step == 1e-5 else 1.2)
    both = {"float32": ("merged", "apart"), "bfloat16": ("merged",)}
    assert {dtype: SPEC.adapter_ways(shape, dtype, "gpu") for dtype in both} == both
    assert SPEC.adapter_ways(shape, "bfloat16", "cpu") == ("merged", "apart")
