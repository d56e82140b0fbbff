"""Sums over the vocabulary of two models that real ranks split, beside one process with all of both. It takes as long
as two ranks take to start, some five seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from rlgraph.backends.engines.base import Rank
from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.likeliest import KeptRows, KeptTokens, PlacedNumbers
from rlgraph.backends.engines.records import MicroBatch, ModelCall, TrainOptions
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.transformers.engine import TransformersEngine, open_rank
from rlgraph.backends.engines.vocabulary_sums import OtherModel
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.ir.plan import ModelHolding
from tests.backends.engines.models import source
from tests.backends.engines.ranks import Ranks
from tests.backends.engines.sharded import WORDS, elsewhere, rows, write

M = "(0.3 * p1 + (1 - 0.3) * p0)"
JSD = f"0.3 * p1 * log(p1 / {M}) + (1 - 0.3) * p0 * log(p0 / {M})"
OPTIONS = TrainOptions(lr=1e-2, settings={"eps": 1e-2})


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks(2)
    yield started
    started.close()


def spec_of(family: str) -> ModelSpec:
    made = source(family)
    return ModelSpec("causal_lm", replace(made, tokenizer=WORDS), "float64", generates=False)


def opened(split: Mesh, spec: ModelSpec) -> TransformersEngine:
    return open_rank(spec, Rank(split, dist.get_rank(), ModelHolding("", "")))


def distill(student: TransformersEngine, teacher: TransformersEngine) -> tuple[Tensor, list[dict[str, float]]]:
    """What is said of some rows, and two updates in micro-batches, with a KL beside the JSD."""
    sequences = rows(9)

    def micro(block: Sequence[int]) -> MicroBatch:
        part = sequences.take(torch.tensor(block))
        numbers = torch.linspace(-1, 1, int(sequences.scored.sum()), dtype=torch.float64)
        by_row = KeptRows(PlacedNumbers(numbers), sequences.scored_counts()).take(torch.tensor(block))
        beside, others = (OtherModel(teacher, part), OtherModel(None, by_row)), (OtherModel(teacher, part),)
        calls = [ModelCall("distribution", part, 0.8, formula, others) for formula in (JSD, "p0 * log(p0 / p1)")]
        for reduce in ("sum", "mean", "max"):
            calls.append(ModelCall("distribution", part, 0.8, "x2 * p0 * log(p0) - p1", beside, reduce=reduce))
        return MicroBatch(tuple(calls), lambda answers: answers[0].sum() + 0.2 * sum(a.square().sum() for a in answers))

    with torch.no_grad():
        said = student.distribution(sequences, 0.8, JSD, (OtherModel(teacher, sequences),))
    blocks = [[0, 1, 2], [4, 5, 6, 7, 8]]
    return said, [student.train_step(blocks, micro, OPTIONS, step) for step in range(2)]


def test_heads_in_parts() -> None:
    """Three tokens at a time, which are computed again for their gradients."""
    engines = [
        [TransformersEngine.open(spec_of(family), logit_numbers=numbers) for family in ("llama", "qwen2")]
        for numbers in (1 << 25, 6 * 44)
    ]
    (whole, told), (parts, again) = (distill(student, teacher) for student, teacher in engines)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-12)
    for one, other in zip(again, told, strict=True):
        assert one == pytest.approx(other, rel=1e-10)


def distill_split(split: Mesh, student: ModelSpec, teacher: ModelSpec) -> Any:
    return elsewhere(distill, opened(split, student), opened(split, teacher))


def test_two_models_that_ranks_split(ranks: Ranks) -> None:
    student, teacher = spec_of("llama"), spec_of("qwen2")
    said, told = distill(TransformersEngine.open(student), TransformersEngine.open(teacher))
    assert said.min() >= 0 and said.max() > 1e-3
    for mine, updates in ranks.run(make_mesh(tp=2), distill_split, student, teacher):
        torch.testing.assert_close(mine, said, rtol=0, atol=1e-10)
        for one, other in zip(updates, told, strict=True):
            assert one == pytest.approx(other, rel=1e-8)


CUTS = ({"top_k": 5, "top_p": 0.9, "min_p": 0.01}, {"top_p": 0.6}, {"min_p": 0.3}, {"min_p": 0.1, "top_p": 0.9})


def read_likeliest(student: TransformersEngine, teacher: TransformersEngine) -> tuple[list[Tensor], Any]:
    """Likeliest tokens of a teacher, what a student says of them, and an update of the student with them."""
    sequences, said = rows(9), []
    for cut in CUTS:
        with torch.no_grad():
            kept = teacher.likeliest(sequences, 0.8, **cut)
            of_rows = KeptRows(kept, sequences.scored_counts())
            beside = (OtherModel(None, of_rows),)
            formulas = "p1 * log(p1 / p0)", "where(p1 > 0.0, p0, 0.0)"
            said += [kept.counts, kept.ids, kept.logs]
            said += [student.distribution(sequences, 0.8, formula, beside) for formula in formulas]

    def micro(block: Sequence[int]) -> MicroBatch:
        part = sequences.take(torch.tensor(block))
        others = (OtherModel(None, of_rows.take(torch.tensor(block))),)
        call = ModelCall("distribution", part, 0.8, "p1 * log(p1 / p0)", others)
        return MicroBatch((call,), lambda answers: answers[0].sum())

    return said, student.train_step([[0, 1, 2], [4, 5, 6, 7, 8]], micro, OPTIONS, 0)


def read_likeliest_split(split: Mesh, student: ModelSpec, teacher: ModelSpec) -> Any:
    return elsewhere(read_likeliest, opened(split, student), opened(split, teacher))


def read_likeliest_megatron(split: Mesh, student: ModelSpec, teacher: ModelSpec) -> Any:
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    return elsewhere(read_likeliest, MegatronEngine.open(student, split), MegatronEngine.open(teacher, split))


@pytest.fixture(scope="module")
def read_whole() -> tuple[list[Tensor], Any]:
    return read_likeliest(*(TransformersEngine.open(spec_of(family)) for family in ("llama", "qwen2")))


def test_as_many_tokens_are_kept_as_there_are(read_whole: tuple[list[Tensor], Any]) -> None:
    """They are those of a plain ranking, and have the probabilities of the whole distribution."""
    said, _ = read_whole
    assert len({*said[5].tolist()}) > 3, "else the counts would be alike"
    sequences, teacher = rows(9), TransformersEngine.open(spec_of("qwen2"))
    with torch.no_grad():
        top = teacher.distribution(sequences, 0.8, "p0", reduce="max")
        beside = (OtherModel(None, KeptRows(PlacedNumbers(top), sequences.scored_counts())),)
        share = teacher.distribution(sequences, 0.8, "where(p0 >= 0.3 * x1, p0, 0.0)", beside)
    kept = KeptTokens(*said[10:13])
    torch.testing.assert_close(kept.shares(), share, rtol=0, atol=1e-12)
    nucleus = KeptTokens(*said[5:8])
    last = nucleus.logs[nucleus.counts.cumsum(0) - 1].exp()
    assert bool((nucleus.shares() >= 0.6).all()) and bool((nucleus.shares() - last < 0.6).all())


@pytest.mark.parametrize(
    ("read", "mesh", "close"),
    [
        (read_likeliest_split, {"tp": 2}, 1e-10),
        (read_likeliest_split, {"fsdp": 2}, 1e-10),
        (read_likeliest_megatron, {"tp": 2}, 1e-5),
        (read_likeliest_megatron, {"cp": 2}, 1e-5),
    ],
)
def test_likeliest_tokens_that_ranks_split(
    ranks: Ranks, read_whole: tuple[list[Tensor], Any], read: Any, mesh: dict[str, int], close: float
) -> None:
    if read is read_likeliest_megatron:
        pytest.importorskip("megatron.core")
    said, update = read_whole
    for split, updated in ranks.run(make_mesh(**mesh), read, spec_of("llama"), spec_of("qwen2")):
        for mine, expected in zip(split, said, strict=True):
            torch.testing.assert_close(mine, expected, rtol=0, atol=close)
        assert updated == pytest.approx(update, rel=100 * close)


def distill_megatron(split: Mesh, student: ModelSpec, teacher: ModelSpec) -> Any:
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    return elsewhere(distill, MegatronEngine.open(student, split), MegatronEngine.open(teacher, split))


@pytest.mark.parametrize("split", ["tp2", "dp1"])
def test_two_models_of_megatron(ranks: Ranks, tmp_path: Path, split: str) -> None:
    pytest.importorskip("megatron.core")
    student, teacher = (write(name, "causal_lm", tmp_path / name) for name in ("granite", "gemma2"))
    said, told = distill(TransformersEngine.open(student), TransformersEngine.open(teacher))
    mesh = make_mesh(tp=2) if split == "tp2" else make_mesh()
    for mine, updates in ranks.run(mesh, distill_megatron, student, teacher):
        torch.testing.assert_close(mine, said, rtol=0, atol=1e-5)
        for one, other in zip(updates, told, strict=True):
            assert one == pytest.approx(other, rel=1e-5)


def refuse(split: Mesh, student: ModelSpec, teacher: ModelSpec) -> str:
    try:
        distill(opened(split, student), opened(split, teacher))
    except EngineError as error:
        return str(error)
    return ""


def test_two_models_whose_parameters_are_sharded(ranks: Ranks) -> None:
    """Plans have none; an engine says so all the same."""
    for said in ranks.run(make_mesh(fsdp=2), refuse, spec_of("llama"), spec_of("qwen2")):
        assert "without `fsdp`" in said or "no `fsdp`" in said
