"""The transformers engine against Hugging Face's own forward pass, and its training against itself in other blocks."""

from __future__ import annotations

import itertools
import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from rlgraph.backends.engines.base import (
    EngineError,
    MicroBatch,
    MissingHead,
    ModelCall,
    NoRows,
    Sampling,
    TrainOptions,
)
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights, load
from rlgraph.backends.engines.tokenizers import CharTokenizer
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.engines.transformers.gradients import _answers
from rlgraph.backends.engines.weights import overwrite_weights
from tests.backends.engines.models import FAMILIES, by_hand, engine, source
from tests.suites import few

# Several turns, a row without a response, one whose only token is a prompt, and ends at different places.
ROWS = Sequences.from_lists(
    [
        [5, 6, 7, 8, 9, 10],
        [11, 12],
        [13, 14, 15, 16, 17, 18, 19, 20, 21],
        [22],
        [23, 24, 25],
        [30, 1, 5, 6, 7],
    ],
    [[0, 0, 1, 1, 0, 1], [0, 0], [0, 1, 1, 1, 1, 1, 1, 1, 1], [0], [0, 1, 0], [0, 1, 1, 0, 1]],
)
SGD = TrainOptions(lr=0.1, settings={"eps": 1.0})


def own_outputs(model: TransformersEngine) -> list[Tensor]:
    """What Hugging Face's model says at every place, a row at a time: [length, outputs] for each."""
    return [model.model(input_ids=torch.tensor([row]), use_cache=False).logits[0] for row in ROWS.rows()]


def scored_places() -> list[list[int]]:
    flags = ROWS.scored.split(ROWS.lengths.tolist())
    return [row.nonzero()[:, 0].tolist() for row in flags]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_and_entropy(family: str, dtype: str, temperature: float) -> None:
    model = engine(family, dtype=dtype)
    with torch.no_grad():
        logs = [(out.double() / temperature).log_softmax(1) for out in own_outputs(model)]
        places = scored_places()
        wanted = [logs[i][t - 1, ROWS.rows()[i][t]] for i in range(len(ROWS)) for t in places[i]]
        entropies = [-(logs[i][t - 1].exp() * logs[i][t - 1]).sum() for i in range(len(ROWS)) for t in places[i]]
        logp, entropy = model.logprobs_and_entropy(ROWS, temperature)
        tolerance = {"float32": 2e-4, "float64": 1e-9, "bfloat16": 0.2}[dtype]
        torch.testing.assert_close(logp.double(), torch.stack(wanted), rtol=0, atol=tolerance)
        torch.testing.assert_close(entropy.double(), torch.stack(entropies), rtol=0, atol=tolerance)
        torch.testing.assert_close(model.logprobs(ROWS, temperature), logp)
        torch.testing.assert_close(model.entropy(ROWS, temperature), entropy)


@pytest.mark.parametrize("family", FAMILIES)
def test_values_are_of_the_state_before_the_token(family: str) -> None:
    model = engine(family, "value_lm")
    with torch.no_grad():
        outputs = own_outputs(model)
        wanted = [outputs[i][t - 1, 0] for i, places in enumerate(scored_places()) for t in places]
        torch.testing.assert_close(model.values(ROWS), torch.stack(wanted), rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_score_is_read_at_the_last_token(family: str) -> None:
    model = engine(family, "reward_lm")
    # No padding token: Hugging Face then reads a single row at its last token, whatever that is.
    model.model.config.pad_token_id = None
    with torch.no_grad():
        wanted = [model.model(input_ids=torch.tensor([row])).logits[0, 0] for row in ROWS.rows()]
        torch.testing.assert_close(model.score(ROWS), torch.stack(wanted), rtol=0, atol=1e-9)


def test_a_score_does_not_mistake_a_token_for_padding() -> None:
    model = engine("qwen2", "reward_lm")
    with torch.no_grad():
        alone = model.score(Sequences.from_lists([[5, 6, 0, 0]]))
        assert not torch.allclose(alone, model.score(Sequences.from_lists([[5, 6]])))
        torch.testing.assert_close(alone[0], model.score(Sequences.from_lists([[5, 6, 0, 0], [5] * 9]))[0])


@pytest.mark.parametrize(
    "limits, family",
    few(
        itertools.product(
            [{"block_tokens": 1}, {"block_tokens": 20, "logit_numbers": 90}, {"threads": 2}], ["qwen2", "gemma2"]
        ),
        ({"block_tokens": 1}, "qwen2"),
        ({"block_tokens": 20, "logit_numbers": 90}, "gemma2"),
        ({"threads": 2}, "qwen2"),
    ),
)
def test_blocks_without_gradient_change_nothing(family: str, limits: dict[str, int]) -> None:
    with torch.no_grad():
        whole = engine(family, block_tokens=10_000).logprobs(ROWS)
        torch.testing.assert_close(engine(family, **limits).logprobs(ROWS), whole, rtol=0, atol=1e-10)
        scores = engine(family, "reward_lm", block_tokens=10_000).score(ROWS)
        torch.testing.assert_close(engine(family, "reward_lm", **limits).score(ROWS), scores, rtol=0, atol=1e-10)


def test_nothing_scored() -> None:
    rows = Sequences.from_lists([[5, 6], [7]])
    assert engine().logprobs(rows).shape == (0,)
    assert engine(kind="value_lm").values(rows).shape == (0,)
    assert engine(kind="reward_lm").score(Sequences.from_lists([])).shape == (0,)


def test_a_first_token_has_no_logprob() -> None:
    with pytest.raises(EngineError, match="first token"):
        engine().logprobs(Sequences.from_lists([[5, 6]], [[True, True]]))


def test_kinds_know_what_they_give() -> None:
    with pytest.raises(EngineError, match="needs a value_lm"):
        engine().values(ROWS)


# --- training


@pytest.mark.parametrize("asked", [("logprobs", "entropy"), ("entropy", "logprobs")])
def test_a_loss_is_told_what_it_asks_in_the_order_of_its_questions(asked: tuple[str, str]) -> None:
    """Both are of one pass."""
    model = engine()
    with torch.no_grad():
        found = _answers(model, [ModelCall(op, ROWS) for op in asked])
        for op, answer in zip(asked, found, strict=True):
            torch.testing.assert_close(answer, getattr(model, op)(ROWS), rtol=0, atol=1e-10)


def trained(
    model: TransformersEngine, parts: int, budget: int | None = None
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """One update on all rows in `parts` blocks, or in blocks of `budget` tokens."""
    blocks = (
        model.plan_micro_batches(ROWS.lengths, budget) if budget else list(torch.arange(len(ROWS)).tensor_split(parts))
    )
    weights = torch.linspace(-1, 2, int(ROWS.scored_counts().sum()), dtype=torch.float64)
    starts = ROWS.scored_counts().cumsum(0) - ROWS.scored_counts()

    def micro(rows: Tensor) -> MicroBatch:
        mine = torch.cat([weights[starts[i] : starts[i] + ROWS.scored_counts()[i]] for i in rows.tolist()])
        part = ROWS.take(rows)
        return MicroBatch(
            (ModelCall("entropy", part), ModelCall("logprobs", part), ModelCall("logprobs", part, 0.5)),
            lambda said: (mine * said[1]).sum() / weights.shape[0] - 0.1 * said[0].sum() + 0.01 * said[2].sum(),
        )

    return model.train_step(blocks, micro, SGD, 0), model.state()


@pytest.mark.parametrize(
    ("family", "parts", "budget", "threads"),
    few(
        [
            (family, *how)
            for how in [(3, None, 1), (6, None, 1), (0, 12, 1), (0, 12, 2), (6, None, 2)]
            for family in FAMILIES
        ],
        ("gemma2", 3, None, 1),
        ("qwen2", 6, None, 1),
        ("llama", 0, 12, 1),
        ("gpt2", 0, 12, 2),
        ("llama", 6, None, 2),
    ),
)
def test_blocks_and_threads_do_not_change_the_update(family: str, parts: int, budget: int | None, threads: int) -> None:
    # transformers computes gemma2's softmax in float32, whatever the model's dtype.
    tolerance = 1e-7 if family == "gemma2" else 1e-10
    told, weights = trained(engine(family), 1)
    other_told, other = trained(engine(family, threads=threads), parts, budget)
    assert told["loss"] == pytest.approx(other_told["loss"], abs=tolerance)
    assert told["grad_norm"] == pytest.approx(other_told["grad_norm"], abs=tolerance)
    for name, tensor in weights.items():
        torch.testing.assert_close(other[name], tensor, rtol=0, atol=tolerance)
    start = engine(family).state()
    assert any(not torch.equal(start[name], tensor) for name, tensor in weights.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_in_chunks_does_not_change_the_update(family: str) -> None:
    """Three places at a time; that of gemma2, which caps its logits, too."""
    told, weights = trained(engine(family), 1)
    model = engine(family, logit_numbers=120)
    assert model._network._head is not None and model.model.config.vocab_size == 40
    other_told, other = trained(model, 1)
    assert other_told == pytest.approx(told, abs=1e-10)
    for name, tensor in weights.items():
        torch.testing.assert_close(other[name], tensor, rtol=0, atol=1e-10)


def test_gradients_that_are_added_up_make_the_update_of_all_of_them() -> None:
    """What was there before is forgotten, and half of twice the gradient is the gradient."""
    model, twin = engine(), engine()
    options = replace(SGD, clip_norm=0.01)
    expected = twin.train_step([ROWS], by_hand(lambda rows: -twin.logprobs(rows).sum()), options, 0)
    half = len(ROWS) // 2
    parts = [ROWS.take(rows) for rows in torch.arange(len(ROWS)).split(half)]
    model.add_gradients(parts[:1], by_hand(lambda rows: model.logprobs(rows).sum()))
    model.clear_gradients()
    for part in parts:
        model.add_gradients([part], by_hand(lambda rows: -2 * model.logprobs(rows).sum()))
    assert model.apply_gradients(options, 0, 0.5) == pytest.approx(expected)
    for name, tensor in twin.state().items():
        torch.testing.assert_close(model.state()[name], tensor, rtol=0, atol=1e-10)


def test_threads_are_bit_identical_to_no_threads_on_the_same_blocks() -> None:
    one, two = (trained(engine(dtype="float32", threads=threads), 4)[1] for threads in (1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("family", ["qwen2", "llama", "gpt2"])
def test_faster_float32_layers_have_the_gradient_of_the_plain_ones(family: str) -> None:
    """The float64 model uses none of them: it is the reference."""
    wide = RandomWeights(family, source(family).config, source(family).tokenizer, 3)
    big = {"hidden_size": 128, "intermediate_size": 160} if family != "gpt2" else {"n_embd": 128}
    wide = RandomWeights(family, {**wide.config, **big}, wide.tokenizer, 3)
    rows = Sequences.from_lists(
        [[3 + (7 * i + j * j) % 36 for j in range(40)] for i in range(8)], [[0] * 4 + [1] * 36] * 8
    )
    gradients = []
    for dtype in ("float32", "float64"):
        model = TransformersEngine.open(ModelSpec("causal_lm", wide, dtype))
        changed = {type(module).__name__ for module in model.model.modules()}
        assert ("_Linear" in changed or "_Conv1D" in changed) == (dtype == "float32")
        value = (model.logprobs(rows) * torch.linspace(-1, 1, 8 * 36, dtype=torch.float64)).mean()
        gradients.append(torch.autograd.grad(value, list(model.model.parameters())))
    for narrow, exact in zip(*gradients, strict=True):
        torch.testing.assert_close(narrow.double(), exact, rtol=1e-3, atol=2e-5 * float(exact.abs().max()) + 1e-9)


def test_adamw_and_clipping_are_torchs() -> None:
    model, twin = engine("gpt2"), engine("gpt2")
    options = TrainOptions(0.01, clip_norm=0.5, settings={"beta1": 0.8, "beta2": 0.9, "eps": 1e-2, "weight_decay": 0.1})
    adam = torch.optim.AdamW(twin.model.parameters(), lr=0.01, weight_decay=0.1, betas=(0.8, 0.9), eps=1e-2)
    for step in range(3):
        told = model.train_step([ROWS], by_hand(lambda rows: -model.logprobs(rows).mean()), options, step)
        (-twin.logprobs(ROWS).mean()).backward()
        norm = torch.nn.utils.clip_grad_norm_(twin.model.parameters(), 0.5)
        assert told["grad_norm"] == pytest.approx(float(norm)) and float(norm) > 0.5
        adam.step()
        adam.zero_grad()
    # torch adds 1e-6 to the norm that it divides by: 1e-6 of a gradient, and at most a quarter of that of an update.
    for name, tensor in twin.state().items():
        torch.testing.assert_close(model.state()[name], tensor, rtol=0, atol=1e-8)


def test_schedules() -> None:
    linear = TrainOptions(1.0, schedule="linear", warmup_steps=2, total_steps=6)
    assert [linear.learning_rate(step) for step in range(8)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    ending = TrainOptions(1.0, schedule="linear", total_steps=2, final_lr=0.5)
    assert [ending.learning_rate(step) for step in range(4)] == [1.0, 0.75, 0.5, 0.5]
    cosine = TrainOptions(2.0, schedule="cosine", total_steps=4)
    assert [round(cosine.learning_rate(step), 6) for step in (0, 2, 4)] == [2.0, 1.0, 0.0]
    with pytest.raises(EngineError, match="total_steps"):
        TrainOptions(1.0, schedule="cosine")


def test_a_gradient_that_is_not_finite_is_named_and_changes_nothing() -> None:
    model = engine()
    before = model.state()
    with pytest.raises(EngineError, match=r"gradient of .*weight.* is not finite"):
        model.train_step([ROWS], by_hand(lambda rows: model.logprobs(rows).sum() * torch.inf), SGD, 0)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state().items())


def test_a_block_without_gradient_counts_as_zero() -> None:
    model, twin = engine(), engine()
    told = model.train_step(
        [ROWS, None], by_hand(lambda b: torch.zeros(()) if b is None else model.logprobs(b).sum()), SGD, 0
    )
    assert told == pytest.approx(twin.train_step([ROWS], by_hand(lambda b: twin.logprobs(b).sum()), SGD, 0))


@pytest.mark.parametrize("blocks", [[], [torch.zeros(0, dtype=torch.long)]])
def test_an_update_without_rows_is_none(blocks: list[Tensor]) -> None:
    """Decay and momentum would move the weights all the same."""
    model, twin = engine(), engine()
    options = TrainOptions(1e-2, settings={"weight_decay": 0.5, "eps": 1.0})

    def micro(rows: Tensor) -> MicroBatch:
        return MicroBatch((ModelCall("logprobs", ROWS.take(rows)),), lambda said: said[0].sum())

    every = [torch.arange(len(ROWS))]
    model.train_step(every, micro, options, 0)
    with pytest.raises(NoRows):
        model.train_step(blocks, micro, options, 1)
    model.clear_gradients()
    model.add_gradients(blocks, micro)
    with pytest.raises(NoRows):
        model.apply_gradients(options, 1, 0.5)
    model.train_step(every, micro, options, 1)
    for step in range(2):
        twin.train_step(every, micro, options, step)
    assert all(torch.equal(tensor, twin.state()[name]) for name, tensor in model.state().items())


def test_narrow_weights_keep_small_updates() -> None:
    model = engine(dtype="bfloat16")
    before = model.state()
    for step in range(60):
        model.train_step([ROWS], by_hand(lambda rows: -model.logprobs(rows).mean()), TrainOptions(1e-4), step)
    moved = sum(int((before[name] != tensor).sum()) for name, tensor in model.state().items())
    assert moved > 0.5 * sum(tensor.numel() for tensor in before.values())


# --- weights


def test_state_is_a_copy_and_goes_back() -> None:
    model = engine()
    start = model.state()
    trained(model, 1)
    changed = model.state()
    assert any(not torch.equal(start[name], changed[name]) for name in start)
    with model.temporary_weights(start), torch.no_grad():
        torch.testing.assert_close(model.logprobs(ROWS), engine().logprobs(ROWS))
    assert all(torch.equal(changed[name], tensor) for name, tensor in model.state().items())
    model.load_weights(start)
    assert all(torch.equal(start[name], tensor) for name, tensor in model.state().items())


def test_generation_with_older_weights() -> None:
    model = engine()
    prompts, keys = Sequences.from_lists([[5, 6], [7]]), np.arange(8, dtype=np.uint64)
    before = model.generate(prompts, 4, Sampling(8), keys)
    old = model.state()
    trained(model, 1)
    assert model.generate(prompts, 4, Sampling(8), keys, weights=old).sequences.rows() == before.sequences.rows()
    assert not torch.equal(model.generate(prompts, 4, Sampling(8), keys).logprobs, before.logprobs)


def test_blend_moves_towards_the_other() -> None:
    one, other = engine(seed=1), engine(seed=2)
    wanted = {name: 0.9 * tensor + 0.1 * other.state()[name] for name, tensor in one.state().items()}
    one.blend(other.state(), 0.9)
    for name, tensor in one.state().items():
        torch.testing.assert_close(tensor, wanted[name])
    with pytest.raises(EngineError, match="another model's"):
        one.load_weights(engine("gpt2").state())


def test_a_copy_has_weights_of_its_own() -> None:
    model = engine()
    frozen = model.copy()
    trained(model, 1)
    with torch.no_grad():
        torch.testing.assert_close(frozen.logprobs(ROWS), engine().logprobs(ROWS))


def test_optimizer_state_continues_a_run() -> None:
    model = engine()
    trained(model, 1)
    resumed = engine()
    resumed.load_weights(model.state())
    moments = model.moments()
    made = resumed.allocate_moments(moments.tensors_by_kind.keys(), moments.steps)
    assert (moments.steps, moments.layout) == (1, made.layout)
    for kind, tensors in moments.tensors_by_kind.items():
        overwrite_weights(made.tensors_by_kind[kind], tensors)
    trained(model, 1)
    trained(resumed, 1)
    assert all(torch.equal(resumed.state()[name], tensor) for name, tensor in model.state().items())


# --- sources


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_folder_loads(family: str, tmp_path: Path) -> None:
    model = engine(family, dtype="float32")
    trained(model, 1)
    model.save(tmp_path)
    again = TransformersEngine.open(ModelSpec("causal_lm", str(tmp_path)))
    # Torch's kernel, which transformers takes by itself, does not cap the scores of gemma2.
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        torch.testing.assert_close(again.logprobs(ROWS), model.logprobs(ROWS), rtol=0, atol=1e-5)
        ids = torch.tensor([[5, 6, 7]])
        torch.testing.assert_close(plain(ids).logits, model.model(ids).logits, rtol=1e-4, atol=1e-4)
    assert again.codec.encode_text("t5 t6") == model.codec.encode_text("t5 t6") and again.eos_ids == (1,)


def test_a_value_model_from_a_language_model_keeps_its_backbone(tmp_path: Path) -> None:
    actor = engine(dtype="float32")
    actor.save(tmp_path / "actor")
    critic = TransformersEngine.open(ModelSpec("value_lm", str(tmp_path / "actor")))
    assert critic.new_parameters == ("score.bias", "score.weight")
    with torch.no_grad():
        assert critic.values(ROWS).abs().max() == 0
        theirs = actor.model.base_model(torch.tensor([[5, 6]])).last_hidden_state
        torch.testing.assert_close(critic.model.base_model(torch.tensor([[5, 6]])).last_hidden_state, theirs)
    critic.train_step([ROWS], by_hand(lambda rows: (critic.values(rows) - 1).square().mean()), TrainOptions(0.1), 0)
    critic.save(tmp_path / "critic")
    assert AutoModelForTokenClassification.from_pretrained(tmp_path / "critic").score.weight.abs().max() > 0
    again = TransformersEngine.open(ModelSpec("value_lm", str(tmp_path / "critic")))
    assert again.new_parameters == ()
    with torch.no_grad():
        torch.testing.assert_close(again.values(ROWS), critic.values(ROWS), rtol=0, atol=1e-6)


def test_a_head_that_nothing_trains_has_to_be_there(tmp_path: Path) -> None:
    """It would give 0 for every row."""
    engine(dtype="float32").save(tmp_path / "actor")
    for kind in ("value_lm", "reward_lm"):
        spec = ModelSpec(kind, str(tmp_path / "actor"), is_trained=False)
        with pytest.raises(MissingHead, match="has no head that gives .*, and nothing trains one"):
            load(spec)
        TransformersEngine.open(replace(spec, is_trained=True)).save(tmp_path / kind)
        load(replace(spec, source=str(tmp_path / kind)))
    # The scorer's head is one of a value model, too, but for its bias.
    load(ModelSpec("value_lm", str(tmp_path / "reward_lm"), is_trained=False))


def test_a_reward_model_that_lacks_a_layer_is_none(tmp_path: Path) -> None:
    engine(dtype="float32").save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["num_hidden_layers"] += 1
    config.pop("layer_types", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineError, match=r"lacks the weights model\.layers\."):
        load(ModelSpec("reward_lm", str(tmp_path)))


def test_random_models_depend_on_their_seed_alone() -> None:
    torch.manual_seed(1)
    first = torch.rand(3)
    torch.manual_seed(1)
    one, other = engine(seed=5), engine(seed=5)
    assert torch.equal(first, torch.rand(3))
    assert all(torch.equal(one.state()[name], tensor) for name, tensor in other.state().items())
    assert not torch.equal(one.model.lm_head.weight, engine(seed=6).model.lm_head.weight)
    value = engine(seed=5, kind="value_lm")
    assert torch.equal(value.model.base_model.embed_tokens.weight, one.model.base_model.embed_tokens.weight)


def test_loading_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"no model.*config\.json|no tokenizer.*config\.json"):
        load(ModelSpec("causal_lm", str(tmp_path)))
    with pytest.raises(EngineError, match="random 'no-such-family'"):
        load(ModelSpec("causal_lm", RandomWeights("no-such-family", {}, CharTokenizer("ab"))))
    with pytest.raises(EngineError, match="vocab_size is 4"):
        load(ModelSpec("causal_lm", RandomWeights("qwen2", {"vocab_size": 4}, CharTokenizer("ab"))))
    with pytest.raises(EngineError, match="no dtype"):
        load(ModelSpec("causal_lm", source(), dtype="float7"))


@pytest.mark.parametrize(
    ("name", "meant"), [("hiden_size", "; did you mean `hidden_size`"), ("layers", ".*`num_hidden_layers`")]
)
def test_what_no_configuration_has_is_not_taken_for_it(name: str, meant: str) -> None:
    """transformers keeps any name, and makes a model of its own sizes."""
    wrong = RandomWeights("qwen2", {"hidden_size": 32, "num_hidden_layers": 1, name: 1}, CharTokenizer("ab"))
    with pytest.raises(EngineError, match=f"the configuration of 'qwen2' has no {name}{meant}"):
        load(ModelSpec("causal_lm", wrong))


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("qwen3_moe", {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}),
        ("gpt2", {"hidden_size": 32, "num_hidden_layers": 1, "n_head": 2}),
        (
            "qwen2",
            {
                "hidden_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "rope_theta": 5e2,
            },
        ),
    ],
)
def test_configurations_know_other_names_too(family: str, config: dict[str, object]) -> None:
    load(ModelSpec("causal_lm", RandomWeights(family, config, CharTokenizer("ab"))))


def test_a_missing_model_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EngineError, match=r"no/such-model"):
        load(ModelSpec("causal_lm", "no/such-model"))


def test_the_end_tokens_of_the_generation_settings_count(tmp_path: Path) -> None:
    model = engine(dtype="float32")
    model.model.generation_config.eos_token_id = [1, 7]
    model.save(tmp_path)
    assert TransformersEngine.open(ModelSpec("causal_lm", str(tmp_path))).eos_ids == (1, 7)


@pytest.mark.parametrize("family", few(FAMILIES, "gpt2"))
def test_nothing_is_printed(family: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), torch.no_grad():
        engine(family).logprobs(Sequences.from_lists([[0, 5, 0]], [[0, 1, 1]]))
        engine(family, "reward_lm").score(ROWS)
    assert capfd.readouterr().err == "" and not caplog.records
