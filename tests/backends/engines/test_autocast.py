"""Products in bfloat16 (`autocast`) against the same model in float32; on every processor, whether it is fast or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from rlgraph.backends.engines.base import MicroBatch, ModelCall, Sampling, TrainOptions
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.transformers.autocast import Bfloat16Copy
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.engines.weights import overwrite_weights
from rlgraph.catalog.models.adapters import Adapters
from rlgraph.dsl.check import check
from rlgraph.errors import Source
from rlgraph.ir.graph import Program
from rlgraph.passes.compilation.compile import autocast_notes, resolve_auto_autocast
from tests.backends.engines.models import FAMILIES, source
from tests.suites import few

ROWS = Sequences.from_lists(
    [[5, 6, 7, 8, 9, 10], [11, 12, 13], [13, 14, 15, 16, 17, 18, 19, 20, 21]],
    [[flag == "1" for flag in flags] for flags in ("001101", "011", "011111111")],
)
LORA = Adapters(rank=4, alpha=8.0)


def opened(autocast: str | None, family: str = "qwen2", adapters: Adapters | None = None) -> TransformersEngine:
    return TransformersEngine.open(ModelSpec("causal_lm", source(family), adapters=adapters, autocast=autocast))


def gradient(engine: TransformersEngine) -> Tensor:
    """The direction of the gradient of the mean log-probability."""
    engine.add_gradients([0], lambda _: MicroBatch((ModelCall("logprobs", ROWS),), lambda answers: answers[0].mean()))
    flat = torch.cat([part.flatten() for part in engine._gradients if part is not None])
    engine.clear_gradients()
    assert flat.dtype == torch.float32
    direction: Tensor = flat / flat.norm()
    return direction


@pytest.mark.parametrize("family", few(FAMILIES, "qwen2", "gpt2"))
@pytest.mark.parametrize("adapters", [None, LORA])
def test_near_float32_but_not_it(family: str, adapters: Adapters | None) -> None:
    wide, narrow = opened(None, family, adapters), opened("bfloat16", family, adapters)
    gap = (wide.logprobs(ROWS) - narrow.logprobs(ROWS)).detach().abs()
    assert 0 < float(gap.max()) < 0.25, "bfloat16 has 8 bits"
    assert float(gradient(wide) @ gradient(narrow)) > 0.98
    assert all(tensor.dtype == torch.float32 for tensor in narrow.tensors().values())
    assert narrow.logprobs(ROWS).dtype == torch.float32


def test_the_head_is_float32() -> None:
    narrow = opened("bfloat16")
    hidden = narrow._network.hidden_at(ROWS, torch.arange(3)).detach()
    exact = hidden.double() @ narrow.model.get_output_embeddings().weight.detach().double().t()
    assert float((narrow._network.apply_head(hidden).detach() - exact).abs().max()) < 1e-4 * float(exact.abs().max())


@pytest.mark.parametrize("adapters", [None, LORA])
def test_what_samples_and_what_reads_agree(adapters: Adapters | None) -> None:
    narrow = opened("bfloat16", adapters=adapters)
    prompts, keys = Sequences.from_lists([[5, 6, 7], [8, 9, 10, 11]]), np.arange(32, dtype=np.uint64)
    made = narrow.generate(prompts, 16, Sampling(max_tokens=8), keys)
    ratio = (narrow.logprobs(made.sequences) - made.logprobs).exp()
    assert float((ratio - 1).abs().max()) < 0.2
    assert abs(float(ratio.mean()) - 1) < 0.01


def test_copies_follow_the_weights() -> None:
    """An update, a state that is written, and one that is only lent: none leaves old copies behind."""
    narrow = opened("bfloat16")
    before = narrow.logprobs(ROWS)
    first = {name: tensor.detach().clone() for name, tensor in narrow.tensors().items()}
    micro = MicroBatch((ModelCall("logprobs", ROWS),), lambda answers: -answers[0].mean())
    narrow.train_step([0], lambda _: micro, TrainOptions(lr=0.05), 0)
    after = narrow.logprobs(ROWS)
    fresh = opened("bfloat16")
    overwrite_weights(fresh.tensors(), narrow.tensors())
    fresh.note_weights_written()
    assert torch.equal(fresh.logprobs(ROWS), after)
    assert not torch.equal(before, after)
    with narrow.temporary_weights(first):
        assert torch.equal(narrow.logprobs(ROWS), before)
    assert torch.equal(narrow.logprobs(ROWS), after)


def test_a_copy_is_made_once() -> None:
    held, weight = Bfloat16Copy(), torch.ones(2, 2)
    copy = held.get_copy(weight)
    assert held.get_copy(weight) is copy
    weight.add_(1)
    assert torch.equal(held.get_copy(weight), torch.full((2, 2), 2.0, dtype=torch.bfloat16))


def program(option: str) -> Program:
    text = f"""algorithm a
model actor  = causal_lm("m", autocast="{option}")
model ref    = frozen(actor)
data prompts = jsonl("p.jsonl", batch=2)
step:
    rollout = actor.generate(prompts, max_tokens=4)
    report kl = mean(k3(rollout.logprobs, ref.logprobs(rollout)))
"""
    return check(Source("a.rlf", text))[0]


@pytest.mark.parametrize(
    ("option", "flags", "chosen", "note"),
    [
        ("auto", {"avx2", "amx_bf16", "avx512_bf16"}, "bfloat16", "bfloat16 (AMX, AVX512-BF16), weights float32"),
        ("auto", {"avx512_bf16"}, "bfloat16", "bfloat16 (AVX512-BF16), weights float32"),
        ("auto", {"avx2"}, None, "float32: this processor multiplies bfloat16 no faster"),
        ("bfloat16", set(), "bfloat16", "bfloat16 (slow: this processor has no units for it), weights float32"),
    ],
)
def test_the_processor_decides_where_nobody_does(option: str, flags: set[str], chosen: str | None, note: str) -> None:
    asked = program(option)
    decided = resolve_auto_autocast(asked, flags)
    assert {decided.autocast_of_model(model) for model in decided.models} == {chosen}
    assert autocast_notes(asked, flags) == [f"products of `actor`, `ref`: {note}"]
