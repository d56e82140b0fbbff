"""The tools of the two suites: what tests cost, and lines that are broken to see whether a test notices."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests import times
from tests.suites import few

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tools" / "mutants.py")
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = found
    spec.loader.exec_module(found)
    return found


def test_every_mutant_breaks_one_line_that_there_is(mutants: ModuleType) -> None:
    every = mutants.mutants()
    assert len({mutant.what for mutant in every}) == len(every) >= 60
    for mutant in every:
        text = (ROOT / mutant.file).read_text("utf-8")
        broken = mutant.broken(text)
        assert len(mutant.was.splitlines()) == 1
        assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(text)), mutant.what
        ast.parse(mutants.probed(text, mutant))


def test_a_probe_stands_before_the_statement(mutants: ModuleType) -> None:
    text = "def f(a):\n    if a:\n        return 1\n    elif a is None:\n        return [\n            2,\n        ]\n"
    one = mutants.Mutant(7, "f.py", "", "            2", "            3")
    assert mutants.probed(text, one).splitlines()[4].strip() == '__import__("rlgraph._reached")._reached.hit(7)'
    other = mutants.Mutant(8, "f.py", "", "elif a is None", "elif a is not None")
    assert mutants.probed(text, other).splitlines()[1].strip() == '__import__("rlgraph._reached")._reached.hit(8)'


def test_a_folder_that_has_grown_is_told_on_a_slower_machine() -> None:
    before = {"tests/a": 10.0, "tests/b": 20.0, "tests/c": 30.0, "tests/d": 1.0}
    twice = {"tests/a": 20.0, "tests/b": 40.0, "tests/c": 60.0, "tests/d": 4.0, "tests/new": 50.0}
    assert times.grown(twice, before) == {}, "all take twice as long; a second more is little"
    assert times.grown(twice | {"tests/b": 64.0}, before) == {"tests/b": pytest.approx(1.6)}


def test_seconds_are_of_the_folder() -> None:
    taken = {"tests/test_a.py::test_1": 1.0, "tests/b/test_c.py::test_2[x/y]": 2.0, "tests/b/test_c.py::test_3": 3.0}
    assert times.by_folder(taken) == {"tests": 1.0, "tests/b": 5.0}


def test_all_but_a_few_are_long() -> None:
    plain, pair = few([1, 2], 2), few([("a", 1), ("b", 2)], "a")
    assert plain[1] == 2 and plain[0].values == (1,) and [mark.name for mark in plain[0].marks] == ["long"]
    assert pair[0] == ("a", 1) and pair[1].values == ("b", 2)
    with pytest.raises(AssertionError, match="none of the values"):
        few([1, 2], 3)
