"""What is tried when a model is loaded: real architectures that this engine would compute wrongly are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlgraph.backends.engines.base import ModelRefused
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.engines.transformers.probe import logits_distance, rounding_tolerance
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.worker.session import Settings
from rlgraph.catalog.models.families import ModelKind
from rlgraph.errors import ProgramError
from tests.backends.engines.models import DECODER, FAMILIES, WORDS, engine
from tests.backends.tiny import compile_text, data_folder

GOOD: dict[str, dict[str, Any]] = {
    "qwen3": DECODER,
    "mistral": DECODER,
    "gemma": DECODER | {"head_dim": 8},
    "mixtral": DECODER | {"num_local_experts": 4, "num_experts_per_tok": 2},
}
WRONG: dict[str, dict[str, Any]] = {
    "bert": {name: value for name, value in DECODER.items() if name != "num_key_value_heads"},
    "rwkv": {"hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2, "context_length": 64},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
    "qwen3_next": DECODER
    | {
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
    },
}
FAILS = {
    "bert": "BertLMHeadModel is no causal model: a later token changes what an earlier one gives",
    "rwkv": "RwkvForCausalLM does not decode with a cache: a token at a time it gives other numbers",
    "mamba": "a few tokens were tried, and MambaForCausalLM failed: AttributeError: .*batch_select_indices",
    "qwen3_next": "a few tokens were tried, and Qwen3NextForCausalLM failed: AttributeError: .*batch_select_indices",
}


def opened(
    family: str, dtype: str = "float32", kind: ModelKind = "causal_lm", generates: bool = True
) -> TransformersEngine:
    shape = (GOOD | WRONG)[family]
    return TransformersEngine.open(ModelSpec(kind, RandomWeights(family, shape, WORDS), dtype, generates=generates))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", WRONG)
def test_what_comes_out_wrong_is_refused(family: str, dtype: str) -> None:
    with pytest.raises(ModelRefused, match=FAILS[family]):
        opened(family, dtype)


@pytest.mark.parametrize("family", GOOD)
def test_what_agrees_is_taken(family: str) -> None:
    assert opened(family).new_parameters == () == opened(family, "bfloat16").new_parameters


@pytest.mark.parametrize("family", FAMILIES)
def test_what_agrees_is_taken_in_float64(family: str) -> None:
    assert engine(family).new_parameters == ()


@pytest.mark.parametrize(
    ("family", "fields"),
    [("granite", {"logits_scaling": 1.02}), ("gemma2", {"head_dim": 8, "final_logit_softcapping": 30.0})],
)
def test_in_a_narrow_dtype_a_head_is_not_taken_for_one_that_scales_or_caps_its_logits(
    family: str, fields: dict[str, Any]
) -> None:
    """Of small logits both change less than bfloat16 shows."""
    shape = DECODER | fields | {"initializer_range": 0.02}
    model = TransformersEngine.open(ModelSpec("causal_lm", RandomWeights(family, shape, WORDS), "bfloat16"))
    hidden = 1000 * torch.randn(5, 32, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model.model.lm_head(hidden)
        wanted = logits / 1.02 if family == "granite" else 30 * torch.tanh(logits / 30)
        found = model._network.apply_head(hidden)
    torch.testing.assert_close(found, wanted, rtol=0.01, atol=0.01)


def test_a_model_that_only_reads_needs_no_cache() -> None:
    assert opened("mamba", generates=False).model.config.model_type == "mamba"
    with pytest.raises(ModelRefused, match="no causal model"):
        opened("bert", generates=False)


PROGRAM = """\
algorithm tried
model actor = causal_lm(random("mamba", hidden_size=32, num_hidden_layers=2, state_size=8, tokenizer=chars("abcd>")))
model ref   = frozen(actor)
data pairs  = jsonl("sft.jsonl", batch=4)
step:
    """


def test_a_program_that_generates_is_refused_at_its_model_and_one_that_reads_is_not(tmp_path: Path) -> None:
    data_folder(tmp_path)
    reads = "answer = encode(pairs.prompt, pairs.response)\n    report nll = mean(-actor.logprobs(answer))\n"
    metrics = next(iter(LocalBackend(compile_text(PROGRAM + reads), Settings(folder=tmp_path)).run_steps(1))).metrics
    assert metrics["nll"] > 0
    # A copy has what was loaded for its original.
    generates = "said = ref.generate(pairs, max_tokens=4)\n    report length = mean(said.length)\n" + "    " + reads
    with pytest.raises(ProgramError) as caught:
        LocalBackend(compile_text(PROGRAM + generates), Settings(folder=tmp_path))
    (told,) = caught.value.diagnostics
    assert told.code == "E0746" and (told.span.line, told.span.covered_text[:14]) == (2, 'random("mamba"')
    assert told.message.startswith("`actor` would come out wrong: a few tokens were tried, and MambaForCausalLM failed")


def test_values_of_a_model_that_looks_to_the_right_are_refused_whatever_its_head() -> None:
    with pytest.raises(ModelRefused, match="BertForTokenClassification is no causal model"):
        opened("bert", kind="value_lm")


def test_the_distance_is_a_share_of_the_spread_at_the_middle_place() -> None:
    logits = torch.tensor([[1.0, -1.0], [30.0, 10.0], [0.0, 0.2]])
    assert logits_distance(logits, logits) == 0
    # One of three places is far off: the middle one is not.
    off = logits + torch.tensor([[0.5, 0.5], [1.0, 1.0], [9.0, 0.0]])
    assert logits_distance(off, logits) == pytest.approx(0.5)
    assert not logits_distance(logits * torch.nan, logits) <= rounding_tolerance(torch.bfloat16)


def test_the_tolerance_follows_the_dtype() -> None:
    assert (
        rounding_tolerance(torch.float64) == rounding_tolerance(torch.float32) < rounding_tolerance(torch.bfloat16) < 1
    )
