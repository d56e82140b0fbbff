"""A little of `make fuzz` with each run of the tests, and that it would notice."""

from __future__ import annotations

import json
import os
import random
import re
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError, Related
from tests.fuzz import __main__ as main
from tests.fuzz import counts, tables
from tests.fuzz.cases import Failure, made, minimized, outcome
from tests.fuzz.mutators import splice, tokens
from tests.fuzz.targets import TARGETS, Target
from tests.suites import few
from tests.waits import NEVER

CASES = 12


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_diagnostic_or_a_result(target: Target, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """In `make test` the same texts, else from another number each time; a failure prints it for `python -m tests.fuzz
    --case`."""
    first = 0 if pytestconfig.option.markexpr == "not long" else random.SystemRandom().randrange(1 << 32)
    for number in range(first, first + CASES):
        found = outcome(target, made(target, number), tmp_path, 60)
        assert not isinstance(found, Failure), f"--kind {target.name} --case {number}\n{found.told}"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_number_is_a_text(target: Target) -> None:
    assert [made(target, number) for number in range(6)] == [made(target, number) for number in range(6)]
    assert len({made(target, number) for number in range(40)}) > 20


@pytest.mark.parametrize("step", few([1, 3], 3))
def test_most_good_texts_are_accepted(tmp_path: Path, step: int) -> None:
    """Else nothing behind the first check would be tried. step: through them."""
    for target in TARGETS:
        good = target.good()[::step]
        assert sum(outcome(target, text, tmp_path, 60) is True for text in good) >= 0.8 * len(good), target.name


def test_a_wrong_number_of_a_table_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that is one too large, and one of rows that have none."""
    runs = next(target for target in TARGETS if target.name == "table-runs")
    good = b'0\n{"x": 1}\n{"x": 2}\n'
    assert outcome(runs, good, tmp_path, 60) is True
    assert outcome(runs, b'0\n{"x": 1}\n{"x": "2"}\n', tmp_path, 60) is False
    right = tables.numbers
    monkeypatch.setattr(tables, "numbers", lambda *given: [value + 1 for value in right(*given)])
    failed = outcome(runs, good, tmp_path, 60)
    assert isinstance(failed, Failure) and "is 3.0, and should be" in failed.told

    def none(*_: object) -> None:
        raise tables.Refused

    monkeypatch.setattr(tables, "numbers", none)
    failed = outcome(runs, good, tmp_path, 60)
    assert isinstance(failed, Failure) and "of rows that have none" in failed.told


def _target(read: object) -> Target:
    return Target("own", ".txt", lambda: [b"a = 1\nb = 2\n", b"c = [3]\n"], read)  # type: ignore[arg-type]


def test_what_fails_is_noticed_and_made_small(tmp_path: Path) -> None:
    def read(raw: bytes, folder: Path) -> None:
        if b"7" in raw:
            raise KeyError("7")

    target = _target(read)
    text = b"".join(b"x = %d\n" % number for number in range(100, 200))
    failed = outcome(target, text, tmp_path)
    assert isinstance(failed, Failure) and failed.where.startswith("KeyError")
    assert len(minimized(target, text, failed, tmp_path)) < 10
    assert outcome(target, b"x", tmp_path) is True


def test_what_takes_too_long_is_noticed_whatever_it_catches(tmp_path: Path) -> None:
    def read(raw: bytes, folder: Path) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                time.sleep(0.01)
            except Exception:
                continue

    failed = outcome(_target(read), b"x", tmp_path, 0.1)
    assert isinstance(failed, Failure) and failed.where == "TooSlow"


def test_a_text_is_given_up_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(main, "time", SimpleNamespace(monotonic=lambda: now[0]))
    board = main.Board(1)
    assert not board.late
    board.begin(0, 7, 5.0)
    for seconds, late in ((0.0, False), (4.9, False), (5.1, True), (1000.0, True)):
        now[0] = 100.0 + seconds
        assert board.late == late
    board.begin(0, 8, 5.0)
    assert not board.late


@pytest.mark.parametrize(
    ("end", "given_up", "said"),
    [(lambda: os._exit(3), False, "ended (3)"), (lambda: re.match("(a+)+$", "a" * 60 + "b"), True, "ended (-6)")],
    ids=["exit", "no signal is heard"],
)
def test_the_end_of_a_process_is_noticed_and_the_others_are_read(
    end: Callable[[], object],
    given_up: bool,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(main, "STUCK", NEVER)
    begun = tmp_path / "begun"
    if given_up:
        # Of the process that reads this text, and not of the one that comes after it.
        late = property(lambda board: begun.exists() and board.begun and board.now[1] == 105)
        monkeypatch.setattr(main.Board, "late", late)
    # These tests may have more loaded than the fuzzer has.
    monkeypatch.setattr(main, "MEMORY", -1)

    def read(raw: bytes, folder: Path) -> None:
        if raw == made(target, 105):
            begun.touch()
            end()

    target = replace(_target(read), share=8)
    assert main._supervise([target], Namespace(out=tmp_path, seed=100, minutes=1, rounds=1))
    assert f"own-105: the process {said}" in capfd.readouterr().out
    assert (tmp_path / "own-105.txt").read_bytes() == made(target, 105)
    assert json.loads((tmp_path / "counts.json").read_text()) == {"own": [[100, 108, 7]]}


def test_no_text_is_counted_twice(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    for first, end in ((0, 10), (20, 30), (10, 20), (5, 8), (28, 40), (40, 40), (50, 51)):
        found = counts.add(path, {"plans": counts.Read(first, end, 1), "rows": counts.Read(first, end, 0)})
    assert found["plans"] == [counts.Read(0, 30, 3), counts.Read(50, 51, 1)]
    assert counts.texts(found["plans"]) == 31


def test_a_round_has_of_each_kind_its_share() -> None:
    kinds = [replace(_target(None), share=share) for share in (100, 10, 1)]
    turns = list(main._turns(kinds, [range(7, 7 + 2 * target.share) for target in kinds]))
    assert [sum(kind == at for kind, _ in turns) for at in range(3)] == [200, 20, 2]
    assert len(set(turns)) == 222
    # None has to wait until the others are done.
    assert {kind for kind, _ in turns[:15]} == {0, 1, 2}


@pytest.mark.parametrize(("message", "notes", "said"), [("", 0, "says nothing"), ("x", 20_000, "without an end")])
def test_a_bad_diagnostic_is_noticed(message: str, notes: int, said: str, tmp_path: Path) -> None:
    def read(raw: bytes, folder: Path) -> None:
        raise ProgramError(Diagnostic("E0101", message, NO_SPAN, related=(Related(NO_SPAN, "y"),) * notes))

    failed = outcome(_target(read), b"x", tmp_path)
    assert isinstance(failed, Failure) and said in failed.told


def test_two_texts_become_one() -> None:
    rng = random.Random(0)
    found = {splice(b"a\nb\nc\n", b"1\n2\n3\n", rng) for _ in range(200)}
    assert any(b"a" in each and b"3" in each for each in found)
    grafts = {splice(b'{"a": 1}', b'{"b": [2, 3]}', rng) for _ in range(200)}
    assert b'{\n "a": [\n  2,\n  3\n ]\n}' in grafts
    assert {tokens(b"", random.Random(number)) for number in range(20)}
