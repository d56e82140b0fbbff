"""Files and modules that a program names: where they are looked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlgraph.dsl.check import check as check_program
from rlgraph.dsl.outside_signatures import OUTSIDE
from rlgraph.errors import ProgramError, RunError, Source
from rlgraph.passes.compilation.read_program import make_python_reference_checker
from rlgraph.user_code import Workers, open_reward_function
from rlgraph.user_code.files import SearchFolders, find_file, find_module_file
from rlgraph.user_code.spec import CallSpec
from rlgraph.user_code.static_checks import python_reference_faults

Declare = Callable[[str], CallSpec]


@pytest.fixture
def folders(tmp_path: Path) -> SearchFolders:
    found = SearchFolders(tmp_path / "program", tmp_path / "here")
    for folder in found.all_folders():
        folder.mkdir()
    return found


def test_beside_the_program_comes_first_and_then_the_folder_of_the_command(
    declare: Declare, folders: SearchFolders
) -> None:
    span = declare('data d = jsonl("d.jsonl")').span
    with pytest.raises(ProgramError) as caught:
        find_file("d.jsonl", folders, span, "data file")
    [found] = caught.value.diagnostics
    assert found.message == f"there is no data file 'd.jsonl' in '{folders.program}' or in '{folders.here}'"
    for folder in (folders.here, folders.program):
        (folder / "d.jsonl").write_text("{}")
        assert find_file("d.jsonl", folders, span, "data file") == folder / "d.jsonl"
    assert find_file(str(folders.here / "d.jsonl"), folders, span, "data file") == folders.here / "d.jsonl"


def test_what_may_have_been_meant_is_of_the_same_kind(declare: Declare, folders: SearchFolders) -> None:
    (folders.program / "reward_model.png").write_text("")
    span = declare('func f = python("rewards.py:f")').span

    def hint() -> str:
        with pytest.raises(ProgramError) as caught:
            find_file("rewards.py", folders, span, "Python file")
        return caught.value.diagnostics[0].hint

    assert hint() == ""
    (folders.here / "reward.py").write_text("")
    assert hint() == "did you mean `reward.py`?"


def test_a_module_is_found_without_importing_what_it_lies_in(folders: SearchFolders) -> None:
    package = folders.here / "judges_of_mine"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "inner" / "sums.py").write_text("")
    assert find_module_file("judges_of_mine.inner.sums", folders) == package / "inner" / "sums.py"
    assert find_module_file("judges_of_mine.inner.sum", folders) is None
    assert find_module_file("judges_of_yours", folders) is None
    assert not any(name.startswith("judges_of_mine") for name in sys.modules)
    found = find_module_file("rlgraph.rewards", folders)
    assert found is not None and found.name == "rewards.py"


def test_a_function_of_a_module_is_called(declare: Declare, folders: SearchFolders, workers: Workers) -> None:
    package = folders.here / "judges_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("from .sums import f\n")
    (package / "sums.py").write_text("def f(completions):\n    return [len(each) for each in completions]\n")
    for reference in ("judges_of_mine:f", "judges_of_mine.sums:f"):
        opened = open_reward_function(declare(f'func f = python("{reference}")'), folders, workers)
        assert opened(["p", "q"], ["a", "bc"]) == [1.0, 2.0]


def test_the_reward_that_ships(declare: Declare, folders: SearchFolders, workers: Workers) -> None:
    correct = open_reward_function(declare('func f = python("rlgraph.rewards:exact_match")'), folders, workers)

    def score(completion: str, answer: str | int) -> float:
        [found] = correct(["p"], [completion], columns={"answer": [answer]})
        return found

    assert score("so 3 + 4 = 7", "7") == score("7.0", 7) == score("It is $1,000.", "1000") == 1
    assert score("It is 1000", "first 500, then twice that #### 1,000") == 1
    assert score("7 or 8", "7") == score("seven", "7") == score("", "7") == score("17", "7") == 0
    assert score("The capital is Paris.", "paris") == score("x = a + b", "a + b") == 1
    assert score("Paris is the capital", "paris") == score("", "paris") == score("x", "") == 0
    message = [{"role": "assistant", "content": "it is 4"}]
    assert correct([[{"role": "user", "content": "2+2"}]], ["it is 4"], columns={"answer": ["4"]}) == [1.0], message
    with pytest.raises(RunError) as caught:
        correct(["p", "q"], ["4", "it is None"], columns={"answer": ["4", None]})
    assert "`exact_match` gave None, on row 1" in str(caught.value) and "answer = 'None'" in str(caught.value)


# What is checked without running anything


def said(declare: Declare, folders: SearchFolders, reference: str) -> list[tuple[str, str, str]]:
    return [
        (d.code, d.message, d.hint)
        for d in python_reference_faults(declare(f'func f = python("{reference}")'), folders)
    ]


def test_a_name_that_a_file_or_a_module_lacks(declare: Declare, folders: SearchFolders) -> None:
    text = "import os as system\nif True:\n    try:\n        from math import fsum\n    except ImportError:\n"
    text += "        fsum = None\ndef vowels(completions):\n    inner = 1\nraise RuntimeError('it was run')\n"
    (folders.here / "rewards.py").write_text(text)
    for name in ("vowels", "fsum", "system"):
        assert said(declare, folders, f"rewards.py:{name}") == said(declare, folders, f"rewards:{name}") == []
    wrong = ("E0722", "there is no 'vowel' in 'rewards.py'", "did you mean `vowels`?")
    assert said(declare, folders, "rewards.py:vowel") == [wrong]
    assert [code for code, _, _ in said(declare, folders, "rewards.py:inner")] == ["E0722"]
    assert [code for code, _, _ in said(declare, folders, "rlgraph.rewards:exact")] == ["E0722"]
    assert said(declare, folders, "rlgraph.rewards:exact_match") == []


@pytest.mark.parametrize(
    "text", ["from os.path import *", "globals()['f'] = 1", "def __getattr__(name): ...", "def f(:"]
)
def test_names_that_a_text_does_not_show(declare: Declare, folders: SearchFolders, text: str) -> None:
    (folders.program / "rewards.py").write_text(text)
    assert said(declare, folders, "rewards.py:anything") == []


CALLED = """
class Plain: ...
class Shell:
    def __init__(self, image, turns=3): self.turns = turns
class Derived(Shell): ...
def reward(completions, scale=1.0, *, bonus=0, **columns): ...
async def later(completions, scale): ...
@decorated
def wrapped(): ...
def rows(level, count=8): ...
if True:
    def twice(): ...
else:
    def twice(timout): ...
"""


@pytest.mark.parametrize(
    ("declaration", "code", "message", "hint"),
    [
        ('func f = python("r.py:reward", timout=60)', "E0702", "'timout' is neither", "did you mean `timeout`?"),
        ('func f = python("r.py:reward", scal=2)', "E0702", "'scal' is neither", "did you mean `scale`?"),
        ('func f = python("r.py:later", columns=2)', "E0702", "nor a parameter of `later`", "the options are: timeout"),
        ('env f = python("r.py:Shell", image="a", batch=2)', "E0702", "'batch' is neither", "the options are: timeout"),
        ('env f = python("r.py:Plain", image="a")', "E0702", "'image' is neither", "the options are: timeout"),
        (
            'env f = python("r.py:Shell", turns=2)',
            "E0724",
            "cannot be called without 'image'",
            'r.py:Shell", image=...',
        ),
        ('data f = python("r.py:rows", batch=2)', "E0724", "cannot be called without 'level'", 'r.py:rows", level=...'),
        ('func f = python("r.py:reward", scale=2, bonus=1, timeout=60, batch=2)', "", "", ""),
        ('env f = python("r.py:Shell", image="a", workers=2)', "", "", ""),
        ('data f = python("r.py:rows", level=2, limit=3)', "", "", ""),
        ('env f = python("r.py:Derived", any=1)', "", "", ""),
        ('func f = python("r.py:wrapped", any=1)', "", "", ""),
        ('func f = python("r.py:twice", any=1)', "", "", ""),
    ],
)
def test_options_that_nothing_takes_are_seen_without_running_it(
    declare: Declare, folders: SearchFolders, declaration: str, code: str, message: str, hint: str
) -> None:
    (folders.here / "r.py").write_text(CALLED + "raise RuntimeError('it was run')\n")
    word = declaration.split()[0]
    known = [option.name for option in OUTSIDE[word]["python"].options]
    found = python_reference_faults(declare(declaration), folders, known, alone=word != "func")
    assert [each.code for each in found] == [code] * bool(code)
    assert all(message in each.message and hint in each.hint for each in found)


def test_a_check_points_at_the_option(folders: SearchFolders) -> None:
    (folders.here / "r.py").write_text(CALLED)
    text = 'algorithm a\nfunc f = python("r.py:reward", timout=60)\ndata d = jsonl("d.jsonl")\nstep:\n'
    text += "    report x = mean(f(d))\n"
    with pytest.raises(ProgramError) as caught:
        check_program(Source("p.rlf", text), faults=make_python_reference_checker(folders))
    first, *_ = caught.value.diagnostics
    assert (first.code, first.span.covered_text) == ("E0702", "timout=60")


def test_what_is_not_here_may_be_where_the_run_is(declare: Declare, folders: SearchFolders) -> None:
    assert said(declare, folders, "rewards.py:f") == []
    [(code, message, hint)] = said(declare, folders, "no_such_module:verify")
    assert (code, message) == ("W0703", "there is no module 'no_such_module'")
    assert hint.endswith('`python("no_such_module.py:verify")`')
    [(code, message, _)] = said(declare, folders, "rewards.vowels")
    assert code == "E0702" and message.endswith("with a colon between, not 'rewards.vowels'")


@pytest.mark.parametrize("path", ["~nosuchuser/d.jsonl", "x" * 5000, "a\0b"])
def test_paths_that_no_file_can_have(declare: Declare, folders: SearchFolders, path: str) -> None:
    with pytest.raises(ProgramError, match="there is no data file"):
        find_file(path, folders, declare('data d = jsonl("d.jsonl")').span, "data file")
