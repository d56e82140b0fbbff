"""Decoding with shapes that stay: the same tokens as a token at a time, and nothing that waits for the device."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rlgraph.backends.engines.base import EngineError, Generation, Sampling
from rlgraph.backends.engines.sampling import key_bits, uniform_numbers
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.transformers import decode
from rlgraph.backends.engines.transformers.attention import decode_with_mask
from rlgraph.backends.engines.transformers.decode import SpecialTokens
from rlgraph.backends.engines.transformers.decode_block import DecodeBlock
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.engines.transformers.mixture import Decodes, MixtureNetwork
from rlgraph.backends.engines.transformers.pace import CAPTURED, EACH_TOKEN, FIXED, Pace
from rlgraph.passes.cost.decoding_steps import decoding_steps
from tests.backends.engines.models import PAIRS, engine
from tests.backends.engines.recorded import use_recorded_graphs
from tests.backends.engines.refreshing import Coming, check
from tests.suites import few

RAGGED = Sequences.from_lists([[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15], [16, 17, 18], [4, 4]])
EVEN = Sequences.from_lists([[5, 6, 7], [8, 9, 10], [16, 17, 18]])
SHORT = Pace(ask_every=3, span=8, drop_at=0.8)
"""So that all that can change does in a few tokens: spans, rows, and whether an end is forbidden."""
WAYS = {
    "greedy": Sampling(20, temperature=0, stop_ids=(9, 10)),
    "plain": Sampling(20),
    "ends": Sampling(20, temperature=0.7, stop_ids=(9, 10, 11, 20, 21), min_tokens=5),
    "cut": Sampling(20, top_k=20, top_p=0.9, min_p=0.02, stop_ids=(9, 10, 11)),
    "first": Sampling(20, stop_ids=tuple(range(20, 28)), samples_wanted=2),
    "texts": Sampling(20, stop_texts=PAIRS, min_tokens=4),
    "one": Sampling(1),
}


def generate(
    network: Decodes, prompts: Sequences, sampling: Sampling, pace: Pace | None, n: int = 4, **more: Any
) -> Generation:
    keys = np.arange(n * len(prompts), dtype=np.uint64)
    return decode.generate(network, prompts, n, sampling, keys, SpecialTokens((1, 3), 0, 1), pace=pace, **more)


def check_same(made: Generation, expected: Generation, bound: float) -> None:
    assert made.sequences.rows() == expected.sequences.rows()
    assert made.sequences.scored_counts().equal(expected.sequences.scored_counts())
    assert made.finished.equal(expected.finished)
    torch.testing.assert_close(made.logprobs, expected.logprobs, rtol=0, atol=bound)


@pytest.mark.parametrize(
    "family, way, prompts, pace",
    few(
        itertools.product(["qwen2", "llama", "gpt2"], WAYS, ["ragged", "even"], ["short", "fixed"]),
        *[("qwen2", way, "ragged", "short") for way in WAYS],
        ("qwen2", "ends", "even", "short"),
        ("gpt2", "cut", "even", "short"),
        ("llama", "ends", "ragged", "fixed"),
    ),
)
def test_the_same_tokens_as_one_at_a_time(family: str, way: str, prompts: str, pace: str) -> None:
    network, rows = engine(family)._network, {"ragged": RAGGED, "even": EVEN}[prompts]
    assert network.can_fix_spans
    made = generate(network, rows, WAYS[way], {"short": SHORT, "fixed": FIXED}[pace])
    check_same(made, generate(network, rows, WAYS[way], EACH_TOKEN), 1e-10)


def test_the_same_in_float32() -> None:
    """As near to float64 as one token at a time is: how near that is differs from processor to processor."""
    narrow, wide = engine(dtype="float32"), engine()
    wide.load_weights({name: weight.double() for name, weight in narrow.state().items()})
    each = generate(narrow._network, RAGGED, WAYS["ends"], EACH_TOKEN)
    made = generate(narrow._network, RAGGED, WAYS["ends"], SHORT)
    exact = generate(wide._network, RAGGED, WAYS["ends"], EACH_TOKEN)
    rounding = float((each.logprobs - exact.logprobs).abs().max())
    assert 0 < rounding < 1e-4
    check_same(replace(made, logprobs=made.logprobs.double()), exact, 2 * rounding)


def test_blocks_and_mixtures() -> None:
    networks = [engine(seed=seed)._network for seed in (0, 1)]
    mixed = MixtureNetwork(networks, [1.5, -0.5])
    assert mixed.can_fix_spans and mixed.can_capture
    expected = generate(mixed, RAGGED, WAYS["ends"], EACH_TOKEN)
    check_same(generate(mixed, RAGGED, WAYS["ends"], SHORT, block_tokens=60), expected, 1e-10)


def test_weights_that_come_between_two_tokens() -> None:
    models = {version: engine(seed=version) for version in range(3)}
    mine, sampling = engine(), replace(WAYS["ends"], temperature=1.0)
    coming = Coming(lambda version: mine.load_weights(models[version].state()), after=(4, 11))
    made = generate(mine._network, RAGGED, sampling, SHORT, refresh=coming)
    check(made, models, sampling, 1e-10)
    assert made.versions is not None and made.versions.unique().tolist() == [0, 1, 2]


@pytest.mark.parametrize("way", ["greedy", "ends", "cut", "first", "texts"])
@pytest.mark.parametrize("prompts", [RAGGED, EVEN], ids=["ragged", "even"])
def test_what_is_captured_is_all_that_a_token_is(monkeypatch: pytest.MonkeyPatch, way: str, prompts: Sequences) -> None:
    """A number that was no tensor while it was recorded would be the same for each token."""
    network = engine()._network
    expected = generate(network, prompts, WAYS[way], EACH_TOKEN)
    graphs = use_recorded_graphs(monkeypatch)
    check_same(generate(network, prompts, WAYS[way], replace(SHORT, captured=True)), expected, 1e-10)
    assert graphs and max(graph.replays for graph in graphs) >= 2


def test_new_weights_are_captured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    models = {version: engine(seed=version) for version in range(2)}
    mine = engine()
    graphs = use_recorded_graphs(monkeypatch)
    coming = Coming(lambda version: mine.load_weights(models[version].state()), after=(8,))
    pace = replace(CAPTURED, span=64)
    made = generate(mine._network, RAGGED, WAYS["plain"], pace, refresh=coming)
    check(made, models, WAYS["plain"], 1e-10)
    assert made.versions is not None and made.versions.unique().tolist() == [0, 1] and len(graphs) >= 4


def test_a_model_that_cannot_be_captured_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts of a product each wait for how many tokens each has."""
    network = engine("mixtral")._network
    expected = generate(network, RAGGED, WAYS["ends"], EACH_TOKEN)
    use_recorded_graphs(monkeypatch)
    with pytest.warns(UserWarning, match="sampling is not captured, and slower: the model waits for its device"):
        made = generate(network, RAGGED, WAYS["ends"], replace(SHORT, captured=True))
    check_same(made, expected, 1e-10)


@pytest.mark.parametrize("way", ["greedy", "ends", "cut", "first"])
@pytest.mark.parametrize("prompts", [RAGGED, EVEN], ids=["ragged", "even"])
def test_a_token_reads_no_number(monkeypatch: pytest.MonkeyPatch, way: str, prompts: Sequences) -> None:
    """On `meta` there are none: what asks for one, or for a copy on the host, fails."""
    # Which knows no `meta`.
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    block = on_meta(WAYS[way], prompts)
    with torch.inference_mode():
        for forbids in (True, False):
            block.choose(forbids)
            block.set_span(16)
            block.advance()
    with pytest.raises((RuntimeError, NotImplementedError)):
        block.ask()


def on_meta(sampling: Sampling, prompts: Sequences) -> DecodeBlock:
    network = engine(dtype="float32")._network
    network.model.to("meta")
    network.device = torch.device("meta")
    ids, mask = decode._padded(prompts, 0, 0)
    cache, positions = network.make_cache(20), torch.arange(ids.shape[1], device="meta")[None]
    with torch.inference_mode():
        logits = network.decode_step(ids.to("meta"), cache, positions, None)
        keys, rows = key_bits(np.arange(len(prompts), dtype=np.uint64)), torch.arange(len(prompts))
        return DecodeBlock(network, sampling, SHORT, keys, mask, rows, torch.tensor([1, 9]), 0, logits, cache)


def test_how_often_the_host_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ask = [], DecodeBlock.ask
    monkeypatch.setattr(DecodeBlock, "ask", lambda block: asked.append(block) or ask(block))
    made = generate(engine()._network, RAGGED, Sampling(20, min_tokens=20), FIXED)
    assert made.sequences.scored_counts().tolist() == [20] * 20 and len(asked) == 3
    assert len({id(block.rows) for block in asked}) == 1


@pytest.mark.parametrize("tokens", [1, 5])
def test_steps_are_those_that_are_predicted(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """The pass over prompts gives the first token."""
    taken, advance = [], DecodeBlock.advance
    monkeypatch.setattr(DecodeBlock, "advance", lambda block: taken.append(block) or advance(block))
    generate(engine()._network, RAGGED, Sampling(tokens, min_tokens=tokens), EACH_TOKEN)
    assert len(taken) == decoding_steps(tokens)


def test_rows_that_ended_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, advance = [], DecodeBlock.advance
    monkeypatch.setattr(DecodeBlock, "advance", lambda block: counts.append(len(block.rows)) or advance(block))
    generate(engine()._network, RAGGED, WAYS["ends"], SHORT, n=8)
    assert counts == sorted(counts, reverse=True) and len(set(counts)) > 2
    assert all(len(set(counts[at : at + 3])) == 1 for at in range(2, len(counts) - 2, 3))


def test_which_pace_is_taken() -> None:
    network, windows, experts = (engine(family)._network for family in ("qwen2", "gemma2", "mixtral"))
    assert decode._pace(network, Sampling(4)) == EACH_TOKEN, "a CPU does what is needed, and no more"
    assert network.can_fix_spans and experts.can_fix_spans and not windows.can_fix_spans
    network.device = windows.device = torch.device("cuda")
    assert decode._pace(network, Sampling(4)) == CAPTURED and decode._pace(windows, Sampling(4)) == EACH_TOKEN
    assert decode._pace(network, Sampling(4, top_k=3, keeps_support=True)) == EACH_TOKEN
    network.can_capture = False
    assert decode._pace(network, Sampling(4)) == FIXED, "what ranks have together is not captured"


def test_diverged_weights_are_reported() -> None:
    model: TransformersEngine = engine()
    assert model._network.can_fix_spans
    next(iter(model.model.parameters())).data.fill_(torch.nan)
    with pytest.raises(EngineError, match="not finite"):
        generate(model._network, RAGGED, Sampling(3), SHORT)


def test_uniforms_are_those_of_splitmix64() -> None:
    """Written out with numbers of any length."""
    most = (1 << 64) - 1

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & most
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & most
        return x ^ (x >> 31)

    keys = [0, 1, 2, 12345, (1 << 63) - 1, 1 << 63, most]
    for place in (0, 1, 7, 100_000):
        bits = [mix((mix(key) + (place + 1) * 0x9E3779B97F4A7C15) & most) >> 11 for key in keys]
        assert uniform_numbers(np.array(keys, dtype=np.uint64), place).tolist() == [x * 2.0**-53 for x in bits]


def test_attention_of_one_query_with_a_mask() -> None:
    shapes = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(3, heads, places, 8, dtype=torch.float64, generator=shapes)
        for heads, places in ((6, 1), (2, 10), (2, 10))
    )
    seen = torch.rand(3, 1, 1, 12, generator=shapes) < 0.6
    seen[..., 0] = True
    scores = query @ key.repeat_interleave(3, 1).transpose(2, 3) * 0.3
    expected = scores.masked_fill(~seen[..., :10], -torch.inf).softmax(-1) @ value.repeat_interleave(3, 1)
    for mask, wanted in ((seen, expected), (seen[:1].expand(3, 1, 1, 12), None)):
        found = decode_with_mask(query, key, value, mask, 0.3)
        assert found.shape == (3, 1, 6, 8)
        if wanted is not None:
            torch.testing.assert_close(found, wanted.transpose(1, 2), rtol=0, atol=1e-12)
