"""Nothing in the settings changes what is computed: not the micro-batches, not the threads, not the executor's
blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import Run, Seen, compile_text, data_folder, shipped, weights

from rlgraph.backends.engines.transformers.gradients import compute_gradient_sum
from tests.suites import few

CLOSE = 1e-10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("exactness"))


CAUSAL = 'causal_lm(base, dtype="float64")'
VALUE = 'value_lm(base, dtype="float64")'
JUDGE = 'frozen(reward_lm(judge, dtype="float64"))'

PROGRAMS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "grpo": (
        {"max_tokens=1024": "max_tokens=5", "lr=1e-6": "lr=0.02", "parts=4": "parts=2"},
        {"base": weights(0), "actor": CAUSAL, "n": "4", "prompts": 'jsonl("gsm8k.jsonl", batch=5)', "beta": "0.05"},
    ),
    "ppo": (
        {"max_tokens=512": "max_tokens=5", "lr=1e-6": "lr=0.02", "lr=5e-6": "lr=0.03", "parts=8": "parts=2"},
        {
            "base": weights(0),
            "judge": weights(7),
            "actor": CAUSAL,
            "critic": VALUE,
            "reward": JUDGE,
            "prompts": 'jsonl("prompts.jsonl", batch=9)',
        },
    ),
    "dapo": (
        # Two batches are begun at once.
        {"prompts(512)": "prompts(4, ahead=2, rest=drop)", "parts=16": "parts=2", "lr=1e-6": "lr=0.02"},
        {
            "base": weights(0),
            "actor": CAUSAL,
            "n": "3",
            "limit": "6",
            "cushion": "4",
            "prompts": 'jsonl("dapo-math-17k.jsonl", batch=5)',
        },
    ),
    "online_dpo": (
        {"max_tokens=512": "max_tokens=5", "lr=5e-7": "lr=0.02", "every 200": "every 2", "parts=4": "parts=2"},
        {
            "base": weights(0),
            "judge": weights(7),
            "actor": CAUSAL,
            "reward": JUDGE,
            "n": "3",
            "prompts": 'jsonl("prompts.jsonl", batch=5)',
        },
    ),
    "agent": (
        {
            "max_tokens=4096": "max_tokens=9",
            "n=8": "n=3",
            "lr=1e-6": "lr=0.02",
            "every 20": "every 2",
            "parts=4": "parts=2",
        },
        {
            "base": weights(0),
            "actor": CAUSAL,
            "tasks": 'jsonl("tasks.jsonl", batch=5)',
            "unseen": 'jsonl("tasks.jsonl", batch=4)',
        },
    ),
    "async_grpo": (
        {"max_tokens=8192": "max_tokens=5", "lr=1e-6": "lr=0.02", "parts=4": "parts=2"},
        {"base": weights(0), "actor": CAUSAL, "n": "3", "prompts": 'jsonl("gsm8k.jsonl", batch=5)'},
    ),
    "safe_rlhf": (
        {"max_tokens=512": "max_tokens=5", "lr=1e-6": "lr=0.02", "lr=5e-6": "lr=0.03", "parts=8": "parts=2"},
        {
            "base": weights(0),
            "helpful": weights(1),
            "harmful": weights(2),
            "actor": CAUSAL,
            "v_gain": VALUE,
            "v_cost": VALUE,
            "reward": 'frozen(reward_lm(helpful, dtype="float64"))',
            "cost": 'frozen(reward_lm(harmful, dtype="float64"))',
            "prompts": 'jsonl("prompts.jsonl", batch=5)',
        },
    ),
    "remax": (
        {"max_tokens=512": "max_tokens=5", "lr=1e-6": "lr=0.02"},
        {
            "base": weights(0),
            "judge": weights(7),
            "actor": CAUSAL,
            "reward": JUDGE,
            "prompts": 'jsonl("prompts.jsonl", batch=5)',
        },
    ),
    "reward_model": (
        {"lr=1e-5": "lr=0.02"},
        {
            "base": weights(3),
            "reward": 'reward_lm(base, dtype="float64")',
            "pairs": 'jsonl("preferences.jsonl", batch=5)',
        },
    ),
    "dpo": (
        {"lr=5e-7": "lr=0.02"},
        {
            "base": weights(0),
            "actor": CAUSAL,
            # Of a copy all margins of the first step are 0 but for rounding, which decides `margin > 0`.
            "ref": f'frozen(causal_lm({weights(1)}, dtype="float64"))',
            "pairs": 'jsonl("preferences.jsonl", batch=5)',
        },
    ),
    "distill": (
        # Of five samples those three that end first.
        {"max_tokens=1024": "max_tokens=5", "n=4": "n=5, first=3", "lr=1e-5": "lr=0.02"},
        {
            "student": weights(0),
            "master": weights(5),
            "actor": 'causal_lm(student, dtype="float64")',
            "teacher": 'frozen(causal_lm(master, dtype="float64"))',
            "prompts": 'jsonl("prompts.jsonl", batch=5)',
        },
    ),
    "sft": (
        {"lr=1e-5": "lr=0.02"},
        {"base": weights(0), "actor": CAUSAL, "pairs": 'jsonl("sft.jsonl", batch=7)'},
    ),
}
"""Every program, with the pieces of its text and the declarations that make it small."""

STEPS = 2


def run(name: str, folder: Path, **settings: Any) -> list[Seen]:
    swaps, changes = PROGRAMS[name]
    return Run(compile_text(shipped(name, swaps), changes), folder, **settings).steps(STEPS)


_whole: dict[str, list[Seen]] = {}


def whole(name: str, folder: Path) -> list[Seen]:
    """The run with one micro-batch for a mini-batch and one block for a batch: the classical one."""
    if name not in _whole:
        _whole[name] = run(name, folder, micro_rows=10_000)
    return _whole[name]


def same(found: list[Seen], expected: list[Seen]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert sampled(one) == sampled(other)
        close(one.metrics, other.metrics)
        close(one.losses, other.losses)
        close(one.weights, other.weights)


def sampled(seen: Seen) -> dict[str, list[Any]]:
    """Which rows were sampled and with what tokens; how they came, in how many blocks, is left out."""
    rows: dict[str, list[Any]] = {}
    for table in seen.sampled:
        rows.setdefault(table.name, []).extend(zip(table.ids, table.tokens, table.scored, strict=True))
    return rows


def close(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            close(found[name], value)
    else:
        torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(expected), rtol=CLOSE, atol=CLOSE)


SPLITS: dict[str, dict[str, int]] = {
    "1 row": {"micro_rows": 1},
    "3 rows": {"micro_rows": 3},
    "7 rows": {"micro_rows": 7},
    "16 tokens": {"token_budget": 16},
    "40 tokens": {"token_budget": 40},
    "two threads": {"threads": 2},
    "two threads, 3 rows": {"threads": 2, "micro_rows": 3},
    "the engine's own": {},
}


@pytest.mark.parametrize(
    ("name", "split"),
    few(
        ((name, split) for name in ("grpo", "ppo") for split in SPLITS),
        ("grpo", "3 rows"),
        ("grpo", "16 tokens"),
        ("grpo", "two threads, 3 rows"),
        ("grpo", "the engine's own"),
        ("ppo", "1 row"),
        ("ppo", "40 tokens"),
    ),
)
def test_micro_batches(folder: Path, name: str, split: str) -> None:
    same(run(name, folder, **SPLITS[split]), whole(name, folder))


@pytest.mark.parametrize(
    ("name", "split"),
    few(
        ((name, split) for name in ("grpo", "ppo") for split in ("1 row", "3 rows", "7 rows", "16 tokens")),
        ("grpo", "3 rows"),
        ("ppo", "1 row"),
        ("ppo", "16 tokens"),
    ),
)
def test_gradient_of_one_step(folder: Path, name: str, split: str) -> None:
    """The gradients themselves, before an optimizer can hide a factor: Adam does not see the gradient's length."""
    found, expected = gradients(name, folder, **SPLITS[split]), gradients(name, folder, micro_rows=10_000)
    assert found.keys() == expected.keys()
    for model, values in expected.items():
        assert any(float(value.abs().max()) > 1e-4 for value in values)
        close(dict(enumerate(found[model])), dict(enumerate(values)))


def gradients(name: str, folder: Path, **settings: Any) -> dict[str, list[torch.Tensor]]:
    """Of each trained model, that of its first update."""
    swaps, changes = PROGRAMS[name]
    watched = Run(compile_text(shipped(name, swaps), changes), folder, **settings)
    kept: dict[str, list[torch.Tensor]] = {}
    names = {id(state.engine): model for model, state in watched.backend.session.models.items()}

    def spy(engine: Any, *rest: Any) -> Any:
        total, busy, found = compute_gradient_sum(engine, *rest)
        kept.setdefault(names[id(engine)], [torch.zeros(1) if one is None else one.clone() for one in found])
        return total, busy, found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlgraph.backends.engines.transformers.training.compute_gradient_sum", spy)
        watched.steps(1)
    return kept


BLOCKS = [(name, block) for name in PROGRAMS for block in ((1, 2, 3, 5, 7) if name in ("grpo", "ppo") else (1, 3))]


KEPT = [("grpo", 1), ("grpo", 2), ("ppo", 5), *((name, 3) for name in PROGRAMS)]


@pytest.mark.parametrize(("name", "block"), few(BLOCKS, *KEPT))
def test_blocks(folder: Path, name: str, block: int) -> None:
    same(run(name, folder, block=block), whole(name, folder))


def test_another_seed_is_another_run(folder: Path) -> None:
    """The comparisons above would mean nothing if all runs were alike."""
    assert sampled(run("grpo", folder, seed=1)[0]) != sampled(whole("grpo", folder)[0])


def test_one_seed_is_one_run(folder: Path) -> None:
    first, second = run("grpo", folder), run("grpo", folder)
    assert [seen.metrics for seen in first] == [seen.metrics for seen in second]
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(value, other.weights["actor"][name]) for name, value in one.weights["actor"].items())
