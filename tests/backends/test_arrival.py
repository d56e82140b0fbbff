"""Rows that go on as they end: whichever are ready first, the numbers are those of the data's order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from test_random_programs import Writer
from tiny import EPS, Run, Seen, compile_text, data_folder, weights

from rlgraph.backends.clocks import ThreadClock
from rlgraph.backends.executor import Executor
from rlgraph.backends.frame import Frame, Part
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.row_blocks import BlockSizes
from rlgraph.backends.worker.session import Settings
from rlgraph.ir.graph import Node, Program
from tests.suites import few

HEAD = f"""algorithm t
model actor = causal_lm({weights()}, dtype="float64")
model ref = frozen(causal_lm({weights(3)}, dtype="float64"))
data prompts = jsonl("prompts.jsonl", batch=6, shuffle=false)
func spread = python("rewards.py:spread")
buffer old = fifo(capacity=5)
"""

ORDERED = f"""
step:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    score   = spread(rollout)
    adv     = center(score, prompts)
    white   = whiten(adv) * 2
    logp    = ref.logprobs(rollout)
    best    = max(score, by=prompts)
    push old(rollout, score=score)
    again   = old.sample(3)
    minibatch prompts(parts=2, shuffle=true):
        fresh  = actor.generate(prompts, n=2, max_tokens=4)
        points = max(spread(fresh), by=prompts)
        train actor(lr=0.02, eps={EPS}):
            minimize mean(-actor.logprobs(rollout) * white)
    report score = mean(score), late = sum(white * score), kl = mean(k3(rollout.logprobs, logp)), best = sum(best * best)
    report old = sum(again.score), tokens = mean(again.length), points = sum(points * best)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("arrival"))


class AnyOrder(LocalBackend):
    """Rows are sampled in parts, which come in an order of their own."""

    def __init__(self, program: Program, folder: Path, seed: int) -> None:
        super().__init__(program, Settings(folder=folder))
        self.executor = Executor(self, BlockSizes(1), ThreadClock())
        self.dice = random.Random(seed)
        self.orders: list[list[int]] = []
        self.begun: list[tuple[str, int]] = []

    def streams_output(self, node: Node, frame: Frame) -> bool:
        return node.op == "generate"

    def run_in_parts(self, node: Node, frame: Frame, sizes: Sequence[int]) -> Iterator[Part]:
        bounds = list(pairwise(accumulate(sizes, initial=0)))
        order = self.dice.sample(range(len(sizes)), len(sizes))
        self.orders.append(order)
        assert node.unit and node.unit.axis
        for number in order:
            block, _ = frame.slice_rows(node.unit.axis, np.arange(*bounds[number]), node.inputs)
            yield number, self.fire(node, block)


@cache
def in_order(folder: Path) -> list[Seen]:
    return Run(compile_text(HEAD + ORDERED), folder).steps(3)


@pytest.mark.parametrize("seed", few(range(4), 0))
def test_the_order_of_ending_changes_no_number(folder: Path, seed: int) -> None:
    plain = in_order(folder)
    with closing(AnyOrder(compile_text(HEAD + ORDERED), folder, seed)) as backend:
        steps = list(backend.run_steps(3))
        state = backend.session.models["actor"].engine.state()
    assert any(order != sorted(order) for order in backend.orders)
    for found, expected in zip(steps, plain, strict=True):
        assert found.metrics == pytest.approx(expected.metrics, rel=1e-9, abs=1e-12)
    for name, tensor in plain[-1].weights["actor"].items():
        if name in state:
            torch.testing.assert_close(state[name], tensor, rtol=1e-9, atol=1e-9)


def test_who_is_ready_first_is_worked_with_first(folder: Path) -> None:
    """Rows of the last prompt, which end first, are scored before the others are there."""
    program = compile_text(HEAD + ORDERED)

    class Backwards(AnyOrder):
        def run_in_parts(self, node: Node, frame: Frame, sizes: Sequence[int]) -> Iterator[Part]:
            made = dict(super().run_in_parts(node, frame, sizes))
            yield from sorted(made.items(), reverse=True)

    scored: list[str] = []
    with closing(Backwards(program, folder, 0)) as backend:
        backend.watch = lambda node, frame: (
            scored.extend(frame.values["rollout"].prompts) if node.name == "score" else None
        )
        list(backend.run_steps(1))
    assert scored[:2] == ["dddd"] * 2 and scored[-2:] == ["ab"] * 2


@pytest.mark.parametrize("seed", few(range(12), 0, 4, 6, 7))
def test_random_programs(folder: Path, seed: int) -> None:
    text = Writer(seed).text()
    program = compile_text(text)
    expected = Run(program, folder).steps(2)
    with closing(AnyOrder(program, folder, seed)) as backend:
        for found, plain in zip(backend.run_steps(2), expected, strict=True):
            assert found.metrics == pytest.approx(plain.metrics, rel=1e-7, abs=1e-9, nan_ok=True), text
