"""What rows of a group begin with is read once, beside the same rows each by itself."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from rlgraph.backends.engines import varlen
from rlgraph.backends.engines.base import MicroBatch, ModelCall, TrainOptions
from rlgraph.backends.engines.norm import rms_norm
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.transformers import network, packing
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.catalog.models.families import ModelKind
from tests.backends.engines.models import engine
from tests.suites import few

WIDE = ("gemma2", "gemma3_text", "mixtral")
"""Of which transformers computes a part in float32, whatever the dtype is."""
SGD = TrainOptions(lr=0.1, settings={"eps": 1.0})
GROUPS = [(9, (6, 1, 14, 6)), (5, (3,)), (9, (7, 7, 7)), (9, (5, 5, 5)), (12, (8, 2, 2))]
"""Tokens of each prompt, and of the responses to it."""


def grouped(seed: int = 0) -> Sequences:
    """Responses side by side behind their prompts; some have a turn in the midst that the model did not write."""
    draw = random.Random(seed)
    rows, flags = [], []
    for prompt, responses in GROUPS:
        begin = [draw.randrange(3, 39) for _ in range(prompt)]
        for length in responses:
            rows.append(begin + [draw.randrange(3, 39) for _ in range(length)])
            flags.append([False] * prompt + [not 3 <= at < 5 for at in range(length)])
    return Sequences.from_lists(rows, flags)


def prompts(rows: Sequences) -> Tensor:
    return torch.tensor([flags.tolist().index(True) for flags in rows.scored.split(rows.lengths.tolist())])


ROWS = grouped()
ALONE = int(ROWS.lengths.sum())
SHARED = ALONE - 9 * 3 - 9 * 2 - 9 * 2 - 12 * 2


def fed(model: TransformersEngine) -> list[int]:
    """A list that grows by the tokens that each pass through the layers reads."""
    seen: list[int] = []
    model.model.get_input_embeddings().register_forward_hook(lambda _, given, __: seen.append(given[0].numel()))
    return seen


@pytest.mark.parametrize("seed", range(5))
def test_each_token_has_one_place(seed: int) -> None:
    rows = grouped(seed)
    found = packing.pack_sharing_prefixes(rows, prompts(rows))
    assert found is not None and len(found.token_at_place) == SHARED
    for kind in (rows.tokens, rows.token_positions):
        assert kind[found.token_at_place][found.place_of_token].equal(kind)
    lying = [
        (span.family_count * span.prefix_tokens, span.family_count * sum(r * n for r, n in span.suffixes))
        for span in found.spans
    ]
    assert sum(map(sum, lying)) == SHARED
    # Families that are alike are one call: two of three rows with as many tokens each have prompts as long.
    assert sorted(span.family_count for span in packing.pack_separately(rows).spans if span.prefix_tokens == 16) == [3]


def test_only_what_is_worth_it_is_shared() -> None:
    begin = [5, 6, 7]
    rows = Sequences.from_lists([[*begin, *[8] * 40], [*begin, *[9] * 40]])
    assert packing.pack_sharing_prefixes(rows, torch.tensor([3, 3])) is None
    assert packing.pack_sharing_prefixes(rows, torch.tensor([3, 3]), 0.03) is not None
    assert packing.pack_sharing_prefixes(rows, torch.tensor([3, 2]), 0.01) is None, "no prompt is as long as the other"
    other = Sequences.from_lists([[5, 6, 7, 8], [5, 6, 8, 8]])
    assert packing.pack_sharing_prefixes(other, torch.tensor([3, 3])) is None, "as long, and another one"


def test_long_rows_share_nothing() -> None:
    rows = Sequences.from_lists([[5] * 9000, [5] * 9000])
    assert packing.pack_sharing_prefixes(rows, torch.tensor([4000, 4000])) is None
    assert packing.pack_sharing_prefixes(rows, torch.tensor([5000, 5000])) is not None


def wide_norms(model: nn.Module) -> None:
    """transformers' compute in float32 whatever the dtype, so that it makes a difference to their gradients whether
    these are added up before or after."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") and not type(module).__name__.startswith("Gemma"):
            weight, eps = module.weight, float(module.variance_epsilon)  # type: ignore[arg-type]
            module.forward = partial(rms_norm, weight=weight, eps=eps)  # type: ignore[arg-type]


def trained(family: str, kind: ModelKind, shares: bool, **how: object) -> list[Tensor]:
    """Losses and weights after two steps on all rows in two blocks."""
    model, told = engine(family, kind, **how), []  # type: ignore[arg-type]
    wide_norms(model.model)
    seen = fed(model)
    weights = torch.linspace(-1, 2, int(ROWS.scored.sum()), dtype=torch.float64)
    starts = ROWS.scored_counts().cumsum(0) - ROWS.scored_counts()

    def micro(rows: Tensor) -> MicroBatch:
        part = ROWS.take(rows)
        mine = torch.cat([weights[starts[i] : starts[i] + ROWS.scored_counts()[i]] for i in rows.tolist()])
        if kind == "value_lm":
            return MicroBatch((ModelCall("values", part),), lambda said: (said[0] - mine).square().sum() / len(weights))
        calls = ModelCall("logprobs", part), ModelCall("entropy", part)
        return MicroBatch(calls, lambda said: ((said[0] * mine).sum() - 0.1 * said[1].sum()) / len(weights))

    for number in range(2):
        blocks = model.plan_micro_batches(ROWS.lengths, 130)
        assert len(blocks) == 2
        found = model.train_step(blocks, micro, SGD, number)
        told.append(torch.tensor([found["loss"], found["grad_norm"]]))
    # The last scored token of a row is not fed, and a group may lie in both blocks.
    assert (sum(seen[:2]) < 0.75 * ALONE) == shares
    return [*told, *model.state().values()]


CASES: list[tuple[str, ModelKind, dict[str, object]]] = [
    *((family, "causal_lm", {}) for family in ("llama", "qwen2", "qwen3", "phi3", "mistral", "gpt_neox", "gpt2")),
    ("mixtral", "causal_lm", {}),
    ("gemma2", "causal_lm", {}),
    ("gemma3_text", "causal_lm", {}),
    ("qwen2", "value_lm", {}),
    ("qwen2", "causal_lm", {"threads": 2}),
    ("mistral", "causal_lm", {"recompute": True}),
]


@pytest.mark.parametrize(("family", "kind", "how"), few(CASES, *CASES[2:3], *CASES[6:9], *CASES[10:]))
def test_two_steps_are_those_of_rows_by_themselves(
    family: str, kind: ModelKind, how: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "QUERIES", 4)
    together = trained(family, kind, True, **how)
    monkeypatch.setattr(network, "pack_sharing_prefixes", lambda *_: None)
    apart = trained(family, kind, False)
    tolerance = 1e-6 if family in WIDE else 1e-10
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("family", ["qwen2", "gemma2", "mistral"])
def test_a_row_says_what_it_says_alone(family: str) -> None:
    model = engine(family)
    with torch.no_grad():
        together = model.logprobs(ROWS)
        alone = [model.logprobs(ROWS.take(torch.tensor([row]))) for row in range(len(ROWS))]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-6 if family in WIDE else 1e-10)


@pytest.mark.parametrize(("dtype", "step"), [("bfloat16", 2**-8), ("float32", 2**-20), ("float64", 2**-40)])
def test_trials_ask_for_no_more_than_a_dtype_holds(dtype: str, step: float) -> None:
    """Kernels of other sizes round otherwise, as a GPU's do for rows that lie together."""
    found = engine("qwen2", dtype=dtype)._network
    found.model.model.norm.register_forward_hook(lambda _, __, out: out * (1 + step) if out.shape[1] > 8 else out)
    for trial in ("packs", "shares"):
        found.__dict__.pop(trial, None)
    # Parts in float32 are no fault of a model in float64: DeepSeek's routers are such.
    assert (found.can_pack, found.can_share_prefixes) == (True, True)
