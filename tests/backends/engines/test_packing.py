"""Rows that lie one behind the other, beside the same rows with padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rlgraph.backends.engines import varlen
from rlgraph.backends.engines.base import EngineError, MicroBatch, ModelCall, TrainOptions
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.transformers import network
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.enginespec.registry import engine as named
from rlgraph.catalog.models.config_shape import FAMILIES
from rlgraph.catalog.models.families import ModelKind
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.lengths import Lengths
from tests.backends.engines.models import engine
from tests.passes.cost.live import Live
from tests.passes.cost.trained import Case
from tests.suites import few

LENGTHS = (20, 14, 9, 9, 5, 3, 2)
ROWS = Sequences.from_lists(
    [[3 + (7 * i + j * j) % 36 for j in range(length)] for i, length in enumerate(LENGTHS)],
    # Some rows end with tokens of which no score is asked.
    [[False] + [True] * (length - 2) + [length % 2 == 0] for length in LENGTHS],
)
SGD = TrainOptions(lr=0.1, settings={"eps": 1.0})
EXACT = ["llama", "qwen2", "qwen3", "phi3", "mistral", "olmo2", "granite", "gpt_neox", "gpt2", "mixtral"]
WIDE = ["gemma2", "gemma3_text", "qwen3_moe", "deepseek_v3"]
"""Of which transformers computes a part in float32, whatever the dtype is."""


@pytest.fixture(params=[0.0, 1e9], ids=["packed", "padded"])
def padding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(network, "_PADDED", request.param)
    return float(request.param)


def ways(monkeypatch: pytest.MonkeyPatch, work: Callable[[], list[Tensor]]) -> list[list[Tensor]]:
    """What comes of packed rows, and of padded ones. Rows are longer than the parts in which windows are taken."""
    monkeypatch.setattr(varlen, "QUERIES", 4)
    found = []
    for share in (0.0, 1e9):
        monkeypatch.setattr(network, "_PADDED", share)
        found.append(work())
    return found


def grpo(model: TransformersEngine, rows: Sequences) -> MicroBatch:
    """A clipped ratio, a distance to a reference, and the entropy."""
    old = torch.linspace(-4, -1, int(rows.scored.sum()), dtype=torch.float64)
    advantage = torch.linspace(-1, 2, len(old), dtype=torch.float64)

    def loss(said: object) -> Tensor:
        logp, entropy = said  # type: ignore[misc]
        ratio = (logp - old).exp()
        clipped = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        k3 = (old - logp).exp() - (old - logp) - 1
        return (-clipped + 0.1 * k3 - 0.01 * entropy).mean()

    return MicroBatch((ModelCall("logprobs", rows), ModelCall("entropy", rows)), loss)


def ppo(model: TransformersEngine, rows: Sequences) -> MicroBatch:
    """The critic's: squared distance to targets."""
    target = torch.linspace(-1, 2, int(rows.scored.sum()), dtype=torch.float64)
    return MicroBatch((ModelCall("values", rows),), lambda said: (said[0] - target).square().mean())


def trained(family: str, kind: ModelKind, recompute: bool = False) -> list[Tensor]:
    """The weights and the losses after two steps."""
    model, told = engine(family, kind, recompute=recompute), []
    make = grpo if kind == "causal_lm" else ppo
    for number in range(2):
        found = model.train_step([ROWS], lambda rows: make(model, rows), SGD, number)
        told.append(torch.tensor([found["loss"], found["grad_norm"]]))
    return [*told, *model.state().values()]


@pytest.mark.parametrize("family", ["qwen2", "gpt2", "gemma2", "mixtral"])
def test_recomputation_changes_nothing(family: str, padding: float) -> None:
    for one, other in zip(trained(family, "causal_lm", True), trained(family, "causal_lm"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


CASES: list[tuple[str, ModelKind]] = [
    *((family, "causal_lm") for family in EXACT + WIDE),
    *((family, "value_lm") for family in ("qwen2", "gemma2", "mixtral")),
]


SHORT = [("qwen2", "causal_lm"), ("mistral", "causal_lm"), ("gpt2", "causal_lm"), ("gpt_neox", "causal_lm")]
SHORT += [("mixtral", "causal_lm"), ("gemma2", "causal_lm"), ("deepseek_v3", "causal_lm"), ("qwen2", "value_lm")]


@pytest.mark.parametrize(("family", "kind"), few(CASES, *SHORT))
def test_two_steps_are_those_of_padded_rows(family: str, kind: ModelKind, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, padded = ways(monkeypatch, lambda: trained(family, kind))
    tolerance = 1e-10 if family in EXACT else 1e-6
    for one, other in zip(packed, padded, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    assert engine(family, kind)._network.can_pack


@pytest.mark.parametrize("family", ["gpt2", "mistral", "gemma2", "qwen3_moe"])
def test_each_row_sees_itself_alone(family: str, padding: float) -> None:
    """What is said of a row does not depend on those beside it."""
    model = engine(family)
    with torch.no_grad():
        together = model.logprobs(ROWS)
        alone = [model.logprobs(ROWS.take(torch.tensor([row]))) for row in range(len(ROWS))]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-6 if family in WIDE else 1e-10)


def test_scores_are_capped_as_written_out(padding: float) -> None:
    """Torch's kernel does not cap them, and says nothing."""
    model = engine("gemma2")
    plain = AutoModelForCausalLM.from_config(model.model.config, attn_implementation="eager").double().eval()
    plain.load_state_dict(model.model.state_dict())
    with torch.no_grad():
        wanted = []
        for row, flags in zip(ROWS.rows(), ROWS.scored.split(ROWS.lengths.tolist()), strict=True):
            logp = plain(input_ids=torch.tensor([row]), use_cache=False).logits[0].log_softmax(1)
            wanted.append(logp[torch.arange(len(row) - 1), row[1:]][flags[1:]])
        torch.testing.assert_close(model.logprobs(ROWS), torch.cat(wanted), rtol=0, atol=1e-6)


def test_what_mixes_places_in_another_way_is_padded() -> None:
    assert not engine("bloom", dtype="float32")._network.can_pack
    model = engine("llama")
    model.model.config.layer_types = ["full_attention", "chunked_attention"]
    assert not network.Network(model.model, 0).can_pack


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {*EXACT, *WIDE}))
def test_models_of_which_plans_are_made_pack_as_plans_say(family: str) -> None:
    assert named("transformers").packs_rows() and engine(family)._packs


def test_attention_is_computed_as_it_is_asked_for() -> None:
    """Written out, with weights in float32, it gives the same, of padded rows, as plans say; what is not there is
    refused."""
    spec = replace(engine("llama").spec, generates=False)
    eager = TransformersEngine.open(spec, attention="eager")
    assert eager._packs == named("transformers").packs_rows("eager")
    with torch.no_grad():
        torch.testing.assert_close(eager.logprobs(ROWS), engine("llama").logprobs(ROWS), rtol=1e-6, atol=1e-6)
    # An engine on the same base has its own way.
    again = TransformersEngine.open(spec, beside=eager, attention="sdpa")
    assert again._packs and eager.model.config._attn_implementation == "eager"
    if not torch.cuda.is_available():
        with pytest.raises(EngineError, match="LlamaForCausalLM cannot compute attention by flash_attention_2: "):
            TransformersEngine.open(spec, attention="flash_attention_2")


@pytest.mark.parametrize("budget", [18, 30, 64])
def test_blocks_are_filled_as_plans_count_them(budget: int) -> None:
    """By tokens, without padding; by padded tokens where a model cannot be packed."""
    model, lengths = TransformersEngine.open(engine("llama").spec, block_tokens=budget), ROWS.lengths
    plan = model.plan_micro_batches(lengths)
    assert all(int(lengths[rows].sum()) <= budget or len(rows) == 1 for rows in plan)
    counted, _ = Batch(7, Lengths((0.0,)), Lengths(tuple(map(float, LENGTHS)))).micro_batches_per_row(
        budget, packed=True
    )
    assert abs(len(plan) - 7 * counted) < 1.5
    model._packs = False
    padded = [len(rows) * int(lengths[rows].max()) for rows in model.plan_micro_batches(lengths)]
    assert all(size <= budget or size == 20 for size in padded) and len(padded) >= len(plan)


@pytest.mark.parametrize("family", few(["qwen2", "mistral", "gemma2"], "qwen2", "mistral"))
def test_memory_grows_with_the_tokens(family: str, padding: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a layer with full attention, with a window, and with capped scores."""
    monkeypatch.setattr(varlen, "QUERIES", 64)

    def peak(length: int) -> int:
        shape = {"head_dim": 16, "sliding_window": 64} if family != "qwen2" else {}
        if family == "gemma2":
            shape["layer_types"] = ["full_attention"]  # type: ignore[assignment]
        case = Case(family, rows=1, length=length, scored=4, fields=tuple(shape.items()))
        model = TransformersEngine.open(case.spec(1))
        rows = Sequences.concat(
            [replace(case, length=each).micro().calls[0].sequences for each in (length, length - 32)]
        )
        with Live(model.model.parameters()) as live:
            model.add_gradients(
                [rows], lambda block: MicroBatch((ModelCall("logprobs", block),), lambda said: said[0].sum())
            )
        return live.peak

    one, two, four = (peak(length) for length in (512, 1024, 2048))
    assert four - two < 2.1 * (two - one)
