"""Training in float32, where the faster products and normalizations are in use: against plain transformers and
torch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from rlgraph.backends.engines.base import TrainOptions
from rlgraph.backends.engines.norm import rms_norm
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights, load
from rlgraph.backends.engines.tokenizers import WordTokenizer
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.engines.transformers.linear import _WORTH, _apply
from tests.backends.engines.models import by_hand

ROWS, LONG = 48, 24


def spec(family: str, **config: int) -> ModelSpec:
    # Large enough for the faster products to be worth it, so that this is about them.
    return ModelSpec("causal_lm", RandomWeights(family, config, WordTokenizer(" ".join(f"w{i}" for i in range(93)))))


SPECS = {
    "qwen2": spec(
        "qwen2",
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    ),
    "gpt2": spec("gpt2", n_embd=64, n_layer=2, n_head=4, n_positions=64),
}


@pytest.mark.parametrize("family", SPECS)
def test_three_updates_are_those_of_plain_torch(family: str) -> None:
    """The fused optimizer walks over memory, not over strides: a transposed gradient would move the wrong weights."""
    loaded = load(SPECS[family])
    plain = copy.deepcopy(loaded.model)
    engine = TransformersEngine(loaded, SPECS[family])
    assert ROWS * LONG * 64 * 64 > _WORTH
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(3, 90, (ROWS, LONG), generator=generator)
    sequences = Sequences.from_pairs([row[:4].tolist() for row in rows], [row[4:].tolist() for row in rows])
    weight = torch.randn(ROWS * (LONG - 4), generator=generator)
    # A large eps keeps rounding in tiny gradients from being blown up to whole steps.
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, eps=1e-2, weight_decay=0.1, foreach=False, fused=False)
    options = TrainOptions(lr=1e-2, clip_norm=0.5, settings={"eps": 1e-2, "weight_decay": 0.1})

    def loss(_: object) -> Tensor:
        return -(engine.logprobs(sequences) * weight).mean()

    for step in range(3):
        optimizer.zero_grad()
        logits = plain(rows).logits[:, 3:-1].log_softmax(-1)
        theirs = -(logits.gather(-1, rows[:, 4:, None])[..., 0].reshape(-1) * weight).mean()
        theirs.backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        told = engine.train_step([None], by_hand(loss), options, step)
        assert told["loss"] == pytest.approx(theirs.item(), abs=1e-5)
        assert told["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
        for (name, mine), other in zip(engine.model.named_parameters(), plain.parameters(), strict=True):
            assert (mine - other).abs().max() < 2e-6, f"{name} after update {step + 1}"


def test_ranks_add_products_up_in_place() -> None:
    """As the tensor-parallel plans of transformers do."""
    torch.manual_seed(0)
    x, weight = torch.randn(4, 80, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    assert x.numel() * 64 > _WORTH
    found = torch.autograd.grad(_apply(x, weight, None).mul_(2).square().sum(), (x, weight))
    expected = torch.autograd.grad((x @ weight.t()).mul_(2).square().sum(), (x, weight))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-2)


def test_norms_say_the_same_with_gradients_and_without() -> None:
    """To the bit: with another order of sums the log-probabilities of a step are not those that were read before it."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(40, 64, generator=generator), torch.randn(64, generator=generator)
    for scale in (1e-3, 1.0, 1e3):
        assert rms_norm(scale * x, weight, 1e-6).equal(torch.nn.functional.rms_norm(scale * x, (64,), weight, 1e-6))
