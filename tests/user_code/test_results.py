"""What functions return for a row: several numbers, texts, nothing; how they fail; and how verl calls them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlgraph.errors import ProgramError, RlgraphError, RunError
from rlgraph.user_code import RewardFunction, Workers, check_function_declaration, open_reward_function
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import CallSpec

Declare = Callable[[str], CallSpec]
Write = Callable[[str], Path]
Opened = Callable[..., RewardFunction]


@pytest.fixture
def opened(declare: Declare, rewards: Write, workers: Workers) -> Opened:
    def open_it(text: str, options: str = "") -> RewardFunction:
        return open_reward_function(
            declare(f'func f = python("rewards.py:f"{options})'), SearchFolders(rewards(text)), workers
        )

    return open_it


ABSTAINS = "def f(completions):\n    return [float(text) if text else None for text in completions]\n"


@pytest.mark.parametrize(
    ("options", "numbers", "states"),
    [(', none="skip"', [3.0, 0.0, 4.0], [0, -1, 0]), (", none=-2", [3.0, -2.0, 4.0], [0, 1, 0])],
)
def test_a_row_for_which_it_abstains(opened: Opened, options: str, numbers: list[float], states: list[int]) -> None:
    found = opened(ABSTAINS, options).judge(["p"] * 3, ["3", "", "4"])
    assert (found.columns, found.states, found.failures) == ([numbers], states, [])


def test_none_stops_where_nothing_is_said(opened: Opened) -> None:
    with pytest.raises(RunError) as caught:
        opened(ABSTAINS)(["p"] * 3, ["3", "", "4"])
    found = caught.value.diagnostics[0]
    assert found.message == "`f` gave None, on row 1"
    assert "`none=skip` leaves such a row without a number" in found.hint and "completion = ''" in found.hint


FAILS = (
    "import os\ndef f(completions):\n"
    "    for text in completions:\n"
    "        if text == 'die':\n            os._exit(3)\n"
    "    return [float('nan') if text == 'nan' else float(text) for text in completions]\n"
)


@pytest.mark.parametrize(("outcome", "number", "state"), [('"skip"', 0.0, -2), ("-1", -1.0, 2)])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no", "it raised ValueError: could not convert string to float: 'no'"),
        ("nan", "it gave nan"),
        ("die", "its process ended with exit code 3"),
    ],
)
def test_one_row_that_fails_costs_no_other_its_number(
    opened: Opened, text: str, words: str, outcome: str, number: float, state: int
) -> None:
    f = opened(FAILS, f', over="row", failed={outcome}')
    found = f.judge(["p"] * 4, ["1", text, "3", "4"], ids=list("abcd"))
    assert found.columns == [[1.0, number, 3.0, 4.0]]
    assert found.states == [0, state, 0, 0]
    assert found.failures == [f"on b: {words}"]


def test_rows_that_belong_together_fail_together(opened: Opened) -> None:
    prompts, answers = list("ppqqr"), ["1", "no", "3", "4", "5"]
    f = opened(FAILS, ', failed="skip"')
    assert f.judge(prompts, answers, groups=[0, 0, 1, 1, 2]).states == [-2, -2, 0, 0, 0]
    f = opened(FAILS, ', failed="skip", over="batch"')
    assert f.judge(prompts, answers, groups=[0, 0, 1, 1, 2]).states == [-2] * 5


def test_a_failing_row_still_stops_who_only_may_abstain(opened: Opened) -> None:
    with pytest.raises(RunError, match=r"`f` gave nan, on row 1"):
        opened(FAILS, ', none="skip"')(["p"] * 2, ["1", "nan"])


NAMED = ', returns=["score", "form"], texts=["why"]'


@pytest.mark.parametrize(
    "returned",
    [
        "[{'score': 1, 'form': 2.5, 'why': 'so', 'more': 3}, {'score': 4, 'form': 5, 'why': None}]",
        "[(1, 2.5, 'so'), [4, 5, None]]",
        "{'score': [1, 4], 'form': np.array([2.5, 5]), 'why': ['so', None]}",
    ],
)
def test_several_values_have_names(opened: Opened, returned: str) -> None:
    f = opened(f"import numpy as np\ndef f(completions):\n    return {returned}\n", NAMED)
    assert f.judge(["p"] * 2, ["a", "b"]).columns == [[1.0, 4.0], [2.5, 5.0], ["so", ""]]
    assert f(["p"] * 2, ["a", "b"]) == [1.0, 4.0]


def test_a_row_has_all_of_its_numbers_or_none(opened: Opened) -> None:
    f = opened("def f(completions):\n    return [(1, None, 'x'), (2, 3, 'y')]\n", f'{NAMED}, none="skip"')
    found = f.judge(["p"] * 2, ["a", "b"])
    assert (found.columns, found.states) == ([[0.0, 2.0], [0.0, 3.0], ["", "y"]], [-1, 0])
    assert f.judge([], []).columns == [[], [], []]


@pytest.mark.parametrize(
    ("returned", "message", "hint"),
    [
        ("[{'score': 1, 'forms': 2, 'why': ''}] * 2", "`f` gave a dict without 'form', on row 0", "it has 'score'"),
        ("[(1, 2)] * 2", "`f` gave 2 values, on row 0", "it returns 3: score, form, why"),
        ("[1.0, 2.0]", "`f` gave 1.0, on row 0", "a dict or a tuple of score, form, why"),
        ("{'score': [1], 'form': [1, 2], 'why': ['', '']}", "`f` gave 1 entries as 'score', not a list of 2", ""),
        ("[(1, 'x', '')] * 2", "`f` gave 'x', on row 0", ""),
    ],
)
def test_values_that_are_not_those_that_are_named(opened: Opened, returned: str, message: str, hint: str) -> None:
    with pytest.raises(RunError) as caught:
        opened(f"def f(completions):\n    return {returned}\n", NAMED)(["p"] * 2, ["a", "b"])
    found = caught.value.diagnostics[0]
    assert found.message.startswith(message) and hint in found.hint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('failed="maybe"', "`failed` must be stop, skip or a number, not 'maybe'"),
        ("none=True", "`none` must be stop, skip or a number, not True"),
        ('returns=["a b"]', "`returns` has names of values, and 'a b' is none"),
        ('returns=["a"], texts=["a"]', "'a' is returned twice"),
        ('texts="why"', "`texts` come beside numbers, and `returns` names none"),
    ],
)
def test_declarations_that_say_nothing(declare: Declare, options: str, message: str) -> None:
    with pytest.raises(ProgramError) as caught:
        check_function_declaration(declare(f'func f = python("rewards.py:f", {options})'))
    assert caught.value.diagnostics[0].message == message


VERL = (
    "def f(data_source, solution_str, ground_truth, extra_info=None):\n"
    "    assert isinstance(solution_str, str) and not isinstance(ground_truth, list)\n"
    "    return {'score': float(solution_str == ground_truth), 'at': (extra_info or {}).get('index', -1)}\n"
)


def test_a_function_of_verl_is_called_a_row_at_a_time(opened: Opened) -> None:
    columns: dict[str, list[Any]] = {
        "data_source": ["gsm8k", "math"],
        "reward_model": [{"style": "rule", "ground_truth": "4"}, {"style": "rule", "ground_truth": "7"}],
        "extra_info": [{"index": 3}, None],
    }
    f = opened(VERL)
    f.check_columns(columns)
    assert [f.accepts_column(name) for name in ("reward_model", "extra_info", "prompt", "other")] == [1, 1, 0, 0]
    chat = [[{"role": "user", "content": "2+2"}]] * 2
    assert f(chat, ["4", "8"], columns=columns) == [1.0, 0.0]
    f = opened(VERL, ', returns=["score", "at"]')
    assert f.judge(chat, ["4", "8"], columns=columns).columns == [[1.0, 0.0], [3.0, -1.0]]


def test_what_verl_takes_from_its_settings_is_an_option_here(opened: Opened) -> None:
    f = opened(VERL, ', data_source="gsm8k"')
    assert f(["p", "q"], ["4", "8"], columns={"ground_truth": ["4", "7"]}) == [1.0, 0.0]


def test_its_errors_name_the_row(opened: Opened) -> None:
    text = "def f(solution_str, ground_truth):\n    return 1 / len(solution_str)\n"
    columns = {"ground_truth": ["4", "7"]}
    with pytest.raises(RlgraphError) as caught:
        opened(text)(["p", "q"], ["4", ""], columns=columns)
    found = caught.value.diagnostics[0]
    assert (found.code, found.message) == ("E0726", "`f` raised ZeroDivisionError: division by zero, on row 1")
    assert found.related[0].span.line == 2
    assert opened(text, ', failed="skip"').judge(["p", "q"], ["4", ""], columns=columns).states == [0, -2]


def test_those_that_are_awaited_wait_side_by_side(opened: Opened) -> None:
    """Each waits until all have begun."""
    f = opened(
        "import asyncio\nbegun = []\n"
        "async def f(solution_str):\n"
        "    begun.append(solution_str)\n"
        "    while len(begun) < 3:\n        await asyncio.sleep(0)\n"
        "    return float(solution_str)\n",
        ', failed="skip"',
    )
    found = f.judge(["p"] * 3, ["1", "no", "3"])
    assert (found.columns, found.states) == ([[1.0, 0.0, 3.0]], [0, -2, 0])
