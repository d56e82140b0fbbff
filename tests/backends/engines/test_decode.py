"""Generation: against Hugging Face's own, and that rows are sampled independently of their batch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from rlgraph.backends.engines.base import EngineError, Sampling
from rlgraph.backends.engines.sampling import sample, uniform_numbers
from rlgraph.backends.engines.sequences import Sequences
from tests.backends.engines.models import FAMILIES, engine
from tests.backends.engines.refreshing import Coming, check
from tests.suites import few

PROMPTS = Sequences.from_lists([[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15], [16, 17, 18], [4, 4]])


def keys(count: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.uint64)


@pytest.mark.parametrize(
    "dtype, family",
    few(
        itertools.product(["float32", "float64"], FAMILIES),
        ("float32", "llama"),
        ("float32", "gpt2"),
        ("float64", "gemma2"),
    ),
)
def test_greedy_is_what_hugging_face_generates(family: str, dtype: str) -> None:
    model = engine(family, dtype=dtype)
    made = model.generate(PROMPTS, 1, Sampling(12, temperature=0), keys(5))
    for prompt, row in zip(PROMPTS.rows(), made.sequences.rows(), strict=True):
        ids = torch.tensor([prompt])
        theirs = model.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=12,
            pad_token_id=0,
            eos_token_id=1,
        )
        assert row == theirs[0].tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_logprobs_of_generation_are_the_trainers(family: str, temperature: float) -> None:
    model = engine(family)
    made = model.generate(PROMPTS, 2, Sampling(9, temperature=temperature, top_p=0.9, top_k=20, min_tokens=3), keys(10))
    with torch.no_grad():
        again = model.logprobs(made.sequences, temperature)
    assert made.logprobs.shape == (int(made.sequences.scored_counts().sum()),)
    torch.testing.assert_close(made.logprobs, again, rtol=0, atol=1e-10)


@pytest.mark.parametrize("limits", [{"cache_tokens": 1}, {"cache_tokens": 60}, {"threads": 2}])
def test_splitting_the_batch_changes_nothing(limits: dict[str, int]) -> None:
    sampling = Sampling(12, stop_ids=(9,))
    whole = engine().generate(PROMPTS, 4, sampling, keys(20))
    split = engine(**limits).generate(PROMPTS, 4, sampling, keys(20))
    assert split.sequences.rows() == whole.sequences.rows()
    assert split.finished.equal(whole.finished)
    torch.testing.assert_close(split.logprobs, whole.logprobs, rtol=0, atol=1e-10)


def test_order_and_number_of_samples_change_nothing() -> None:
    model, sampling = engine(), Sampling(12)
    rows = model.generate(PROMPTS, 4, sampling, keys(20)).sequences.rows()
    order = torch.tensor([3, 0, 4, 1, 2])
    shuffled = model.generate(PROMPTS.take(order), 4, sampling, keys(20).reshape(5, 4)[order.numpy()].ravel())
    assert shuffled.sequences.rows() == [rows[4 * i + k] for i in order.tolist() for k in range(4)]
    fewer = model.generate(PROMPTS, 2, sampling, keys(20).reshape(5, 4)[:, 1:3].ravel())
    assert fewer.sequences.rows() == [rows[4 * i + k] for i in range(5) for k in (1, 2)]
    alone = model.generate(PROMPTS.take(torch.tensor([2])), 1, sampling, keys(1, start=9))
    assert alone.sequences.rows() == [rows[9]]


def test_keys_decide() -> None:
    model = engine()
    made = model.generate(PROMPTS, 2, Sampling(12), np.array([7, 7, *range(8)], dtype=np.uint64)).sequences.rows()
    assert made[0] == made[1] and made[2] != made[3]


def test_a_row_ends_at_its_first_end_token_and_keeps_it() -> None:
    made = engine().generate(PROMPTS, 30, Sampling(20, stop_ids=(20, 21)), keys(150))
    responses = made.sequences.scored_tokens_by_row()
    ends = {1, 20, 21}
    for response, finished in zip(responses, made.finished.tolist(), strict=True):
        assert not ends & set(response[:-1])
        assert finished == (response[-1] in ends)
        assert finished or len(response) == 20
    assert 0 < int(made.finished.sum()) < 150
    starts = [prompt for prompt in PROMPTS.rows() for _ in range(30)]
    assert all(row[: len(start)] == start for row, start in zip(made.sequences.rows(), starts, strict=True))


def test_min_tokens_forbids_the_end() -> None:
    made = engine().generate(PROMPTS, 30, Sampling(8, min_tokens=8, stop_ids=(20,)), keys(150))
    assert made.sequences.scored_counts().tolist() == [8] * 150
    assert not {1, 20} & {token for row in made.sequences.scored_tokens_by_row() for token in row[:-1]}
    fewer = engine().generate(PROMPTS, 30, Sampling(8, min_tokens=3, stop_ids=(20,)), keys(150))
    assert min(fewer.sequences.scored_counts().tolist()) == 4, "the token that ends it comes behind them, at once"


def test_no_tokens_and_no_prompts() -> None:
    none = engine().generate(PROMPTS, 2, Sampling(0), keys(10))
    assert none.sequences.rows() == [row for row in PROMPTS.rows() for _ in range(2)]
    assert none.logprobs.shape == (0,) and not none.finished.any()
    assert len(engine().generate(Sequences.from_lists([]), 2, Sampling(4), keys(0)).sequences) == 0


def test_an_empty_prompt_starts_with_the_token_that_ends_a_text() -> None:
    made = engine().generate(Sequences.from_lists([[], [5, 6]]), 1, Sampling(4, min_tokens=4), keys(2))
    assert made.sequences.rows()[0][0] == 1 and made.sequences.scored_counts().tolist() == [4, 4]


def test_generated_values_may_enter_a_loss() -> None:
    model = engine()
    made = model.generate(PROMPTS, 1, Sampling(5), keys(5))
    loss = ((model.logprobs(made.sequences) - made.logprobs).exp() * made.logprobs).sum()
    loss.backward()


def test_the_cache_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    roomy = engine().generate(PROMPTS, 3, Sampling(30), keys(15))
    monkeypatch.setattr("rlgraph.backends.engines.transformers.cache._FIRST_ROOM", 1)
    tight = engine().generate(PROMPTS, 3, Sampling(30), keys(15))
    assert tight.sequences.rows() == roomy.sequences.rows()
    torch.testing.assert_close(tight.logprobs, roomy.logprobs, rtol=0, atol=1e-10)


def test_wrong_number_of_keys() -> None:
    with pytest.raises(EngineError, match="10 row keys"):
        engine().generate(PROMPTS, 2, Sampling(4), keys(5))


def test_uniforms_are_uniform_and_belong_to_key_and_place() -> None:
    numbers = torch.stack([uniform_numbers(keys(500), place) for place in range(40)])
    assert float(numbers.min()) >= 0 and float(numbers.max()) < 1
    assert abs(float(numbers.mean()) - 0.5) < 0.01 and abs(float(numbers.var()) - 1 / 12) < 0.005
    assert numbers.unique().numel() == numbers.numel()
    # Neighbours in key and in place are unrelated.
    for one, other in ((numbers[1:], numbers[:-1]), (numbers[:, 1:], numbers[:, :-1])):
        assert abs(float(torch.corrcoef(torch.stack([one.ravel(), other.ravel()]))[0, 1])) < 0.03
    assert uniform_numbers(keys(500), 3)[17:20].equal(uniform_numbers(keys(3, start=17), 3))


def test_keys_a_step_of_the_generator_apart_are_unrelated() -> None:
    step = np.array([0x9E3779B97F4A7C15], dtype=np.uint64)
    assert not uniform_numbers(step, 3).equal(uniform_numbers(keys(1), 4))


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (0.5, 3), (1.0, 3)])
def test_a_uniform_on_a_border_takes_no_token_without_weight(
    monkeypatch: pytest.MonkeyPatch, uniform: float, token: int
) -> None:
    monkeypatch.setattr(
        "rlgraph.backends.engines.sampling.uniform_numbers", lambda keys, place: torch.tensor([uniform])
    )
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    assert sample(logits, keys(1), 0, Sampling(1), None)[0].tolist() == [token]


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(1), [0, 1, 2, 3, 4]),
        (Sampling(1, top_k=2), [0, 3]),
        # 0.4 + 0.3 is the smallest set that holds 0.65.
        (Sampling(1, top_p=0.65), [0, 3]),
        (Sampling(1, top_p=0.75), [0, 1, 3]),
        # Of the two likeliest, renormalized to 4/7 and 3/7, the first alone holds half.
        (Sampling(1, top_k=2, top_p=0.5), [0]),
        # At least 0.3 times 0.4.
        (Sampling(1, min_p=0.3), [0, 1, 3]),
        (Sampling(1, min_p=0.3, top_k=2), [0, 3]),
    ],
)
def test_the_sampled_distribution(sampling: Sampling, kept: list[int]) -> None:
    p = torch.tensor([0.4, 0.15, 0.1, 0.3, 0.05], dtype=torch.float64)
    count = 40_000
    token, logprob = sample(p.log().repeat(count, 1), keys(count), 5, sampling, None)
    wanted = torch.zeros(5, dtype=torch.float64)
    wanted[kept] = p[kept] / p[kept].sum()
    torch.testing.assert_close(token.bincount(minlength=5) / count, wanted, rtol=0, atol=0.01, check_dtype=False)
    torch.testing.assert_close(logprob, p.log()[token])


def test_a_banned_token_is_not_sampled_but_counts_in_the_logprob() -> None:
    # Nearly all weight is on the banned token: nothing may underflow.
    logits = torch.tensor([[900.0, 0.0, 0.0]]).repeat(1000, 1)
    token, logprob = sample(logits, keys(1000), 0, Sampling(1), torch.tensor([0]))
    assert set(token.tolist()) == {1, 2}
    torch.testing.assert_close(logprob, torch.full((1000,), -900.0))


def test_a_token_of_no_weight_is_never_sampled() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 0.0, -torch.inf]]).repeat(100_000, 1)
    token, _ = sample(logits, keys(100_000), 0, Sampling(1), None)
    assert set(token.tolist()) == {0, 2}


def test_diverged_weights_are_reported() -> None:
    model = engine()
    next(iter(model.model.parameters())).data.fill_(torch.nan)
    with pytest.raises(EngineError, match="not finite"):
        model.generate(PROMPTS, 1, Sampling(3), keys(5))


@pytest.mark.parametrize(
    "limits, family",
    few(
        itertools.product([{}, {"threads": 2}, {"cache_tokens": 60}], FAMILIES),
        ({}, "gpt2"),
        ({"threads": 2}, "qwen2"),
        ({"cache_tokens": 60}, "gemma2"),
    ),
)
def test_weights_that_change_between_two_tokens(family: str, limits: dict[str, int]) -> None:
    """Rows of several lengths, some of which have ended before."""
    models = {version: engine(family, seed=version) for version in range(3)}
    mine = engine(family, **limits)
    coming = Coming(lambda version: mine.load_weights(models[version].state()), after=(12, 14))
    sampling = Sampling(20, temperature=0.8, stop_ids=(9, 10, 11))
    made = mine.generate(PROMPTS, 4, sampling, keys(20), refresh=coming)
    check(made, models, sampling, 1e-10)
    assert made.versions is not None
    counts = made.sequences.scored_counts().tolist()
    assert any(len(set(part.tolist())) == 3 for part in made.versions.split(counts)), "some rows have all three"
    # What was sampled before the change is what no change gives, and what comes after is made of the same numbers.
    before = models[0].generate(PROMPTS, 4, sampling, keys(20)).sequences.scored_tokens_by_row()
    for row, old, versions in zip(
        made.sequences.scored_tokens_by_row(), before, made.versions.split(counts), strict=True
    ):
        first = int((versions == 0).sum())
        assert row[:first] == old[:first]
    again = engine(family, **limits)
    coming = Coming(lambda version: again.load_weights(models[0].state()), after=(12, 14))
    made = again.generate(PROMPTS, 4, sampling, keys(20), refresh=coming)
    assert made.sequences.scored_tokens_by_row() == before, "reading the same weights again changes nothing"


def test_weights_that_cannot_be_taken_end_the_call() -> None:
    def fail(version: int) -> None:
        raise EngineError("the sender is gone")

    for limits in ({}, {"threads": 2}):
        with pytest.raises(EngineError, match="the sender is gone"):
            engine(**limits).generate(PROMPTS, 2, Sampling(12), keys(10), refresh=Coming(fail, after=(3,)))
