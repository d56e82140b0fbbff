"""The checks for GPUs go through their motions on a CPU, and can fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as program
from benchmarks.gpu import correctness, links, memory, throughput
from benchmarks.gpu.measure import Row, Setting
from tests.suites import few

HERE = Setting("cpu", small=True)


@pytest.mark.parametrize("part", few([memory, throughput, links], memory), ids=lambda part: part.__name__)
def test_a_part_measures(part: object) -> None:
    rows = list(part.rows(HERE))  # type: ignore[attr-defined]
    assert rows and all(row.good and row.measured > 0 for row in rows)


@pytest.mark.long
def test_a_part_that_is_a_rank_of_its_own_measures() -> None:
    """In its own process, as all parts are when asked for: a process is in one group at a time, and this one may be."""
    found = program.alone("sleeping", HERE)
    assert not found["error"] and len(found["rows"]) == 8
    assert all(row["good"] and row["measured"] > 0 for row in found["rows"])


@pytest.mark.long
def test_the_device_is_compared_with_the_cpu() -> None:
    rows = [*correctness._models("qwen2", "float32", HERE), correctness._program("grpo", HERE)]
    assert all(row.good for row in rows)
    # Two times the same machine: only what is computed in another order is not the same to the bit.
    assert {row.what for row in rows if row.measured} <= {"qwen2, float32: sampled and read"}


@pytest.mark.long
def test_what_is_not_the_same_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    made = correctness.engine

    def other(fields: dict[str, int], device: str, *more: object, **named: object) -> object:
        found = made(fields, device, *more, **named)  # type: ignore[arg-type]
        if next(calls) % 2:
            # As on a device that computes one layer wrongly.
            next(found.model.parameters()).data.mul_(1.01)
        return found

    calls = iter(range(100))
    monkeypatch.setattr(correctness, "engine", other)
    bad = {row.what for row in correctness._models("qwen2", "float32", HERE) if not row.good}
    assert {f"qwen2, float32: {what}" for what in ("logprobs", "gradient", "values")} <= bad


def test_a_figure_and_what_is_asked_of_it() -> None:
    assert [Row("", value, least=1, most=2).good for value in (0.5, 1, 2, 2.5, float("nan"))] == [
        False,
        True,
        True,
        False,
        False,
    ]


def test_parts_that_cannot_be_done(tmp_path: Path) -> None:
    assert program.part("demo", HERE, tmp_path / "demo.json") == 0
    assert json.loads((tmp_path / "demo.json").read_text()) == [[], "it has one size"]


@pytest.mark.long
def test_parts_that_fail(capsys: pytest.CaptureFixture[str]) -> None:
    found = program.alone("memory", Setting("no such device"))
    told = capsys.readouterr().out
    assert found["error"] == "ended with status 1" and "## memory" in told and "ended with status 1" in told
