"""What prompts begin with in common is read once, and rows are what they are alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlgraph.backends.engines.base import Sampling
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.transformers.mixture import MixtureNetwork
from rlgraph.backends.engines.transformers.network import Network
from rlgraph.backends.engines.transformers.pace import EACH_TOKEN, FIXED, Pace
from tests.backends.engines.models import engine
from tests.backends.engines.refreshing import Coming, check
from tests.backends.engines.test_pace import check_same, generate

SYSTEM = [7, 8, 9, 10, 11, 12]
PROMPTS = {
    "ragged": [[*SYSTEM, 5, 6, 7], [*SYSTEM, 8], [*SYSTEM, 9, 10, 11, 12, 13, 14, 15], [*SYSTEM, 5, 4]],
    "even": [[*SYSTEM, 5, 6], [*SYSTEM, 8, 9], [*SYSTEM, 3, 3]],
    "alike": [SYSTEM] * 3,
    "one begins others": [SYSTEM, [*SYSTEM, 4], [*SYSTEM, 4, 5]],
}
SAMPLING = Sampling(90, temperature=0.9, stop_ids=(9, 10))
"""More tokens than a cache has spare places."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what is read at once."""
    shapes, step = [], Network.decode_step

    def noted(network: Network, ids: torch.Tensor, *others: Any) -> torch.Tensor:
        shapes.append(tuple(ids.shape))
        return step(network, ids, *others)

    monkeypatch.setattr(Network, "decode_step", noted)
    return shapes


@pytest.mark.parametrize("family", ["qwen2", "llama", "gpt2", "mixtral"])
@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("pace", [EACH_TOKEN, FIXED], ids=["each", "fixed"])
def test_rows_are_what_they_are_alone(
    family: str, name: str, pace: Pace, read: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, prompts = engine(family)._network, Sequences.from_lists(PROMPTS[name])
    assert network.can_pad_left and network.can_read_on
    read.clear()
    made = generate(network, prompts, SAMPLING, pace)
    common = 5 if name in ("alike", "one begins others") else 6
    assert read[:2] == [(1, common), (len(prompts), int(prompts.lengths.max()) - common)]
    monkeypatch.setattr(network, "can_read_on", False)
    check_same(made, generate(network, prompts, SAMPLING, EACH_TOKEN), 1e-10)


@pytest.mark.parametrize(
    "prompts",
    [
        [[*SYSTEM, 5, 6, 7]],
        [[5, *SYSTEM], [6, *SYSTEM]],
        [[5], [5], [5]],
        [[5, *range(10, 20)], [5, *range(20, 30)]],
    ],
    ids=["one row", "nothing in common", "one token each", "one token of many"],
)
def test_little_in_common_is_read_with_the_rest(prompts: list[list[int]], read: list[tuple[int, ...]]) -> None:
    network = engine()._network
    assert network.can_pad_left and network.can_read_on
    read.clear()
    generate(network, Sequences.from_lists(prompts), Sampling(2), EACH_TOKEN)
    assert read[0] == (len(prompts), len(prompts[0]))


def test_windows_and_states_are_read_as_a_whole() -> None:
    """Padding in a row's midst would take places of its window."""
    assert not engine("gemma2")._network.can_read_on


def test_a_mixture_reads_it_once_with_each_model(read: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = Sequences.from_lists(PROMPTS["ragged"])
    parts = [engine(seed=seed)._network for seed in (0, 1)]
    mixed = MixtureNetwork(parts, [0.7, 0.3])
    assert mixed.can_pad_left and mixed.can_read_on
    read.clear()
    made = generate(mixed, prompts, SAMPLING, EACH_TOKEN)
    assert read[:4] == [(1, 6), (1, 6), (4, 7), (4, 7)]
    monkeypatch.setattr(parts[0], "can_read_on", False)
    check_same(made, generate(mixed, prompts, SAMPLING, EACH_TOKEN), 1e-10)


def test_new_weights_read_it_again() -> None:
    model, others = engine(seed=0), {version: engine(seed=version) for version in range(3)}
    assert model._network.can_read_on

    def write(version: int) -> None:
        model.model.load_state_dict(others[version].model.state_dict())

    sampling = Sampling(12, min_tokens=12)
    coming = Coming(write, (4, 9))
    made = generate(model._network, Sequences.from_lists(PROMPTS["ragged"]), sampling, EACH_TOKEN, refresh=coming)
    assert coming.version == 2
    check(made, others, sampling, 1e-10)
