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


def test_narrow_weights_lose_what_the_spec_says_that_they_lose() -> None:
    """Of one step of AdamW, in which B has moved by the learning rate: why vLLM merges into float32 alone."""
    lora = Adapters(8, 16.0)
    trainer = TransformersEngine.open(ModelSpec("causal_lm", source("qwen2"), "bfloat16", adapters=lora))
    shape, split = replace(shape_of_model(trainer.model), adapters=lora), make_mesh(tp=1)
    places = layout(shape, split, 0)
    lost = {}
    for dtype, step in ((torch.float32, 1e-5), (torch.bfloat16, 1e-5), (torch.bfloat16, 1e-3)):
        own = {name: each.to(dtype) for name, each in filled(places, ModelWeights(trainer.model)).items()}
        merged = MergedAdapters(lora, replicated_layout(shape, split, 0), own, places)
        generator = torch.Generator().manual_seed(0)
        for name, each in merged.tensors.items():
            if ".lora_B." in name:
                each.copy_(torch.randn(each.shape, generator=generator).sign() * step)
        merged.apply_new_adapters()
        wanted = missed = 0.0
        for live, base, b, a in merged._parts:
            change = merged.scale * b.double() @ a.double()
            wanted += float(change.square().sum())
            missed += float((live.double() - base.double() - change).square().sum())
        lost[dtype, step] = (missed / wanted) ** 0.5
    assert lost[torch.float32, 1e-5] < 0.01
    assert lost[torch.bfloat16, 1e-5] == pytest.approx(1.0, abs=0.01)
    assert lost[torch.bfloat16, 1e-3] == pytest.approx(0.64, abs=0.02)
    both = {"float32": ("merged", "apart"), "bfloat16": ("apart",)}
    assert {dtype: SPEC.adapter_ways(shape, dtype, "gpu") for dtype in both} == both
    assert SPEC.adapter_ways(shape, "bfloat16", "cpu") == ("merged", "apart")
