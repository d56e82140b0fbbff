"""Random numbers of rows: the same in any block and plan, others in each step, and draws made of them."""

from __future__ import annotations

import hashlib
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
import torch
from scheduled import compiled
from tiny import Run, Seen, compile_text, data_folder, weights

from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.step import Step
from rlgraph.backends.worker.session import Settings
from rlgraph.ops.reference import REFERENCE

TEXT = f"""algorithm draws
model actor  = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=5)
func spread  = python("rewards.py:spread", over=row)
step:
    rollout = actor.generate(prompts, n=4, max_tokens=5)
    score   = spread(rollout)
    u       = uniform(rollout)
    v       = uniform(rollout)
    report u = sum(u * rollout.length), off = mean(abs(u - v)), asked = sum(uniform(prompts) * mean(score, by=prompts))
    keep rollout where top(log(u) / exp(score), 2, by=prompts)
    report kept = size(score), drawn = sum(v * score), again = sum(uniform(rollout) * score)
    train actor(lr=0.01, eps=0.01):
        minimize mean(-actor.logprobs(rollout) * u)
    report then = mean(actor.logprobs(rollout))
"""
SCHEDULE = """pool play   = 1 devices
pool judges = 2 cpus
place actor on play(engine=transformers)
place spread on judges
stream rollout(block={})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("draws"))


@cache
def whole(folder: Path) -> list[Seen]:
    """All rows at once."""
    return Run(compile_text(TEXT), folder).steps(3)


def test_numbers_by_hand(folder: Path) -> None:
    """A number is the hash of the row, however the row came into its place."""
    seen = whole(folder)[1]
    table = seen.table("rollout")
    digests = [hashlib.blake2b(f"0/u/2//{row!r}".encode(), digest_size=8).digest() for row in table.ids]
    u = [(int.from_bytes(digest, "little") >> 11) / 2**53 for digest in digests]
    lengths = [sum(scored) for scored in table.scored]
    assert seen.metrics["u"] == pytest.approx(sum(a * b for a, b in zip(u, lengths, strict=True)), rel=1e-12)
    assert seen.metrics["kept"] == 10


def test_another_number_in_each_step_and_place(folder: Path) -> None:
    first, second, third = (seen.metrics for seen in whole(folder))
    assert len({first["u"], second["u"], third["u"]}) == 3, "the third step has the rows of the first"
    assert first["off"] > 0.1 and first["drawn"] != first["again"]


@pytest.mark.parametrize("block", [1, 3])
def test_blocks(folder: Path, block: int) -> None:
    for seen, expected in zip(Run(compile_text(TEXT), folder, block=block).steps(3), whole(folder), strict=True):
        assert seen.metrics == pytest.approx(expected.metrics, rel=1e-9)


@pytest.mark.parametrize("block", [1, 6])
def test_rows_that_stream_to_cpus(folder: Path, block: int) -> None:
    made = compiled(TEXT, {}, SCHEDULE.format(block), folder)
    with closing(RayBackend(made.program, made.plan, Settings(folder=folder), debug=True)) as backend:
        found = list(backend.run_steps(2))
    for step, expected in zip(found, whole(folder)[:2], strict=True):
        assert step.metrics == pytest.approx(expected.metrics, rel=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_are_below_1(folder: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest hash that there is, which a float32 would round to 1."""
    monkeypatch.setattr("rlgraph.backends.step.hashlib.blake2b", lambda *_, digest_size: Largest())
    text = f"{TEXT.split('step:')[0]}step:\n    report u = max(uniform(prompts))\n".replace('"float64"', f'"{dtype}"')
    [seen] = Run(compile_text(text), folder).steps(1)
    assert 0.9999 < seen.metrics["u"] == 1 - torch.finfo(getattr(torch, dtype)).eps / 2 < 1


class Largest:
    def digest(self) -> bytes:
        return b"\xff" * 8


def test_draws_with_weights() -> None:
    """`top(log(u) / weight, 2)`: the first of a group is drawn in proportion to its weight, and so is the second of
    those that are left."""
    bits = Step(1, "step").row_random_numbers(
        "u", [("prompts", 0, row, sample) for row in range(5000) for sample in range(3)]
    )
    u, weight = torch.from_numpy((bits >> 11) / 2.0**53), torch.tensor([1.0, 2.0, 5.0]).repeat(5000)
    index = torch.arange(5000).repeat_interleave(3)
    order = REFERENCE["rank"](u.log() / weight, index, 5000).view(5000, 3)
    share = (order == 0).double().mean(0)
    assert share.tolist() == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.02)
    left = order[order[:, 2] == 0]
    assert (left[:, 1] == 1).double().mean().item() == pytest.approx(2 / 3, abs=0.03)
