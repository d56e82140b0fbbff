"""Every algorithm that ships computes the same numbers in ten random choices of micro-batch, token budget, block and
threads, in float64."""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import Run, Seen, compile_text, data_folder, weights

from benchmarks.zoo import flat_programs, replaced
from benchmarks.zoo_on_ray import MODELS, REPLACED
from tests.suites import few

STEPS = 2
NAMES = sorted(flat_programs())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("splits"))


@cache
def program_text(name: str) -> str:
    text = replaced(flat_programs()[name].text, REPLACED)
    return re.sub(r"((?:causal|value|reward)_lm\(\w+)\)", r'\1, dtype="float64")', text)


def run(name: str, folder: Path, **settings: Any) -> list[Seen]:
    text = program_text(name)
    sources = {model: weights(seed) for seed, model in enumerate(MODELS) if re.search(rf"^param {model}\b", text, re.M)}
    return Run(compile_text(text, sources), folder, **settings).steps(STEPS)


@cache
def whole(name: str, folder: Path) -> list[Seen]:
    return run(name, folder)


@pytest.mark.parametrize("choice", few(range(10), 0))
@pytest.mark.parametrize("name", few(NAMES, "agent", "archer", "cispo"))
def test_numbers_do_not_depend_on_how_rows_are_split(name: str, choice: int, folder: Path) -> None:
    """Each costs a fifth of a second."""
    rng = random.Random(f"{name} {choice}")
    settings = {
        "micro_rows": rng.choice([0, 1, 2, 3]),
        "token_budget": rng.choice([8, 20, 60]),
        "block": rng.choice([None, 1, 2, 3]),
        "threads": rng.choice([1, 1, 2]),
    }
    for mine, theirs in zip(run(name, folder, **settings), whole(name, folder), strict=True):
        assert mine.metrics.keys() == theirs.metrics.keys()
        for metric, value in theirs.metrics.items():
            if metric == "accuracy":
                # Of signs, which are rounding's own as long as a model is its reference.
                continue
            assert mine.metrics[metric] == pytest.approx(value, abs=1e-10, rel=1e-10), (metric, settings)
        for model, found in theirs.weights.items():
            for weight, value in found.items():
                assert torch.allclose(mine.weights[model][weight], value, atol=1e-10, rtol=0), (model, weight, settings)
