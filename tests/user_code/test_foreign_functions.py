"""Reward functions of the user: how they are called, and what is said when they are wrong."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlgraph.errors import ProgramError, RlgraphError, RunError
from rlgraph.user_code import (
    RewardFunction,
    Workers,
    check_function_declaration,
    open_reward_function,
    reward_functions,
)
from rlgraph.user_code import worker as worker_module
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import CallSpec
from rlgraph.user_code.worker import Worker
from tests.waits import NEVER

Declare = Callable[[str], CallSpec]
Write = Callable[[str], Path]


@pytest.fixture
def opened(declare: Declare, rewards: Write, workers: Workers) -> Callable[..., RewardFunction]:
    def open_it(text: str, options: str = "") -> RewardFunction:
        return open_reward_function(
            declare(f'func f = python("rewards.py:f"{options})'), SearchFolders(rewards(text)), workers
        )

    return open_it


def test_only_the_columns_that_it_names_are_given(opened: Callable[..., RewardFunction]) -> None:
    f = opened(
        "def f(completions, answer, scale=2.0):\n    return [scale * (a == c) for a, c in zip(answer, completions)]\n"
    )
    assert f(["p", "q"], ["1", "2"], columns={"answer": ["1", "1"], "prompt": ["p", "q"]}) == [2.0, 0.0]


def test_kwargs_gets_every_column_but_prompt_as_in_trl(opened: Callable[..., RewardFunction]) -> None:
    f = opened(
        "def f(prompts, completions, **kwargs):\n"
        "    assert sorted(kwargs) == ['answer', 'completion_ids', 'level'], kwargs\n"
        "    return [len(ids) for ids in kwargs['completion_ids']]\n"
    )
    columns: dict[str, list[Any]] = {"prompt": ["p"], "answer": ["x"], "level": [3]}
    assert f(["p"], ["c"], completion_ids=[[1, 2, 3]], columns=columns) == [3.0]


def test_completions_of_messages_are_messages(opened: Callable[..., RewardFunction]) -> None:
    f = opened("def f(prompts, completions):\n    return [c[0]['content'] == '4' for c in completions]\n")
    prompt = [{"role": "user", "content": "2+2"}]
    assert f([prompt, prompt], ["4", "5"]) == [1.0, 0.0]


def test_what_is_no_episode_has_called_no_tools(opened: Callable[..., RewardFunction]) -> None:
    f = opened("def f(completions, calls):\n    return [len(made) for made in calls]\n")
    assert f(["p", "p"], ["4", "5"]) == [0.0, 0.0]
    assert f(["p", "p"], ["4", "5"], columns={"calls": [[{}], []]}) == [1.0, 0.0]


def test_async_functions_are_awaited_in_one_loop(opened: Callable[..., RewardFunction]) -> None:
    f = opened(
        "import asyncio\nseen = set()\n"
        "async def f(completions):\n"
        "    await asyncio.sleep(0)\n    seen.add(id(asyncio.get_running_loop()))\n"
        "    return [len(seen)]\n"
    )
    assert [f(["p"], ["c"]), f(["p"], ["c"])] == [[1.0], [1.0]]


@pytest.mark.parametrize(
    "expression",
    [
        "np.array([1, 0.5])",
        "[np.float32(1), np.array(0.5)]",
        "(True, 0.5)",
        pytest.param("torch.tensor([1, 0.5])", marks=pytest.mark.long),
    ],
)
def test_numbers_of_numpy_and_torch_are_numbers(opened: Callable[..., RewardFunction], expression: str) -> None:
    package = "torch" if "torch" in expression else "numpy as np"
    f = opened(f"import {package}\ndef f(completions):\n    return {expression}\n")
    assert f(["p", "q"], ["c", "d"]) == [1.0, 0.5]


def test_two_functions_of_a_file_share_its_module_and_siblings_can_be_imported(
    declare: Declare, rewards: Write, workers: Workers
) -> None:
    base = rewards(
        "import helper\nhelper.loaded.append(1)\n"
        "def f(completions):\n    helper.loaded.append(1)\n    return [len(helper.loaded)]\n"
        "def g(completions):\n    return [len(helper.loaded)]\n"
    )
    (base / "helper.py").write_text("loaded = []\n")
    f = open_reward_function(declare('func f = python("rewards.py:f")'), SearchFolders(base), workers)
    g = open_reward_function(declare('func g = python("rewards.py:g")'), SearchFolders(base), workers)
    assert f(["p"], ["c"]) == [2.0]
    assert g(["p"], ["c"]) == [2.0]


def test_workers_and_batch_split_the_rows_and_keep_their_order(opened: Callable[..., RewardFunction]) -> None:
    f = opened("def f(completions):\n    return [float(c) for c in completions]\n", ", workers=2, batch=3")
    rows = [str(row) for row in range(10)]
    assert f(rows, rows) == [float(row) for row in rows]


def test_batch_is_the_most_rows_of_a_call(opened: Callable[..., RewardFunction]) -> None:
    f = opened("def f(completions):\n    return [len(completions)] * len(completions)\n", ", batch=4")
    rows = [str(row) for row in range(10)]
    assert f(rows, rows) == [4.0] * 8 + [2.0] * 2


COUNTS = "def f(completions):\n    return [len(completions)] * len(completions)\n"
GROUPS = [0, 0, 0, 1, 1, 2, 2, 2, 2, 5]


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ("", [10]),
        (", batch=4", [3, 2, 4, 1]),
        (", batch=5", [5, 5]),
        (", batch=1", [3, 2, 4, 1]),
        (", over='group', workers=2", [5, 5]),
        (", over='row', batch=4", [4, 4, 2]),
        (", over='batch', workers=1", [10]),
    ],
)
def test_no_call_has_a_part_of_what_belongs_together(
    opened: Callable[..., RewardFunction], options: str, calls: list[int]
) -> None:
    rows = [str(row) for row in range(10)]
    found = opened(COUNTS, options)(rows, rows, groups=GROUPS)
    assert found == [float(size) for size in calls for _ in range(size)]


def test_groups_that_have_the_same_prompt_are_not_taken_for_one(opened: Callable[..., RewardFunction]) -> None:
    chat = [[{"role": "user", "content": text}] for text in "aabbaacc"]
    f = opened(COUNTS)
    assert f(list("aabbaacc"), ["c"] * 8, groups=[0, 0, 1, 1, 2, 2, 3, 3]) == [4.0] * 8
    assert f(chat, ["c"] * 8, groups=[0, 0, 1, 1, 2, 2, 3, 3]) == [4.0] * 8
    assert f(list("aaaa"), ["c"] * 4, groups=[0, 0, 1, 2]) == [2.0, 2.0, 1.0, 1.0]


def test_signals_work_as_in_a_script(opened: Callable[..., RewardFunction]) -> None:
    f = opened("import signal\ndef f(completions):\n    signal.alarm(9)\n    signal.alarm(0)\n    return [1]\n")
    assert f(["p"], ["c"]) == [1.0]


def test_what_a_function_prints_is_seen(
    opened: Callable[..., RewardFunction], capfd: pytest.CaptureFixture[str]
) -> None:
    opened("def f(completions):\n    print('hello')\n    return [1]\n")(["p"], ["c"])
    assert capfd.readouterr().out == "hello\n"


def test_options_that_are_parameters_are_given(opened: Callable[..., RewardFunction]) -> None:
    assert opened("def f(completions, scale):\n    return [scale]\n", ", scale=3")(["p"], ["c"]) == [3.0]


def test_no_rows_need_no_call(opened: Callable[..., RewardFunction]) -> None:
    assert opened("def f(completions):\n    raise ValueError\n")([], []) == []


def test_check_opens_no_file(declare: Declare) -> None:
    check_function_declaration(declare('func f = python("nowhere.py:f", timeout=3)'))


class Short:
    """Limits that are for what never ends: whatever else is asked has time without end, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ends: Callable[[dict[str, Any]], bool]) -> None:
        """ends: whether a call with these arguments does."""
        self.now, self.step = 0.0, 0.0
        self.asked: list[int] = []
        """How many rows each call has."""
        exchange = Worker._exchange

        def patient(worker: Worker, process: Any, operation: str, limit_s: float, arguments: Any) -> Any:
            without_end = False
            if operation == "score":
                _, rows, given, *_ = arguments
                self.asked.append(rows)
                without_end = not ends(given)
            return exchange(worker, process, operation, limit_s if without_end else NEVER, arguments)

        monkeypatch.setattr(Worker, "_exchange", patient)
        # The process ends itself, and knows the line.
        monkeypatch.setattr(worker_module, "_GRACE_S", NEVER)
        monkeypatch.setattr(reward_functions, "time", SimpleNamespace(monotonic=self.monotonic))

    def monotonic(self) -> float:
        """Each look takes a step."""
        self.now += self.step
        return self.now


def test_an_endless_regular_expression_is_ended_and_the_row_named(
    opened: Callable[..., RewardFunction], monkeypatch: pytest.MonkeyPatch
) -> None:
    Short(monkeypatch, lambda given: "a" * 60 + "b" not in given["completions"])
    f = opened(
        "import re\ndef f(completions):\n    return [bool(re.match(r'(a+)+$', c)) for c in completions]\n",
        ", timeout=0.6",
    )
    with pytest.raises(RunError) as caught:
        f(["p", "q"], ["b", "a" * 60 + "b"])
    assert str(caught.value) == (
        "error[E0727]: `f` did not come back within 0.6 s, on row 1\n"
        " --> p.rlf:1:17\n  |\n"
        '1 | func f = python("rewards.py:f", timeout=0.6)\n'
        "  |                 ^^^^^^^^^^^^^^\n"
        "note: it was here\n"
        " --> rewards.py:3:5\n  |\n"
        "3 |     return [bool(re.match(r'(a+)+$', c)) for c in completions]\n"
        "  |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "help: if it only needs longer, give it a longer `timeout=`, in seconds; "
        "there: prompt = 'q', completion = 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...'"
    )
    assert f(["p"], ["b"]) == [0.0], "the next call has a new process"


@pytest.mark.parametrize("row", [None, 1])
def test_a_slow_batch_blames_no_row(
    row: int | None, opened: Callable[..., RewardFunction], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search ends with its time; neither is a row blamed that has the end of it alone, and does not come back."""
    clock = Short(monkeypatch, lambda given: given["completions"] == ["c"])
    clock.step = 0.2
    f = opened("def f(completions):\n    while completions != ['c']:\n        pass\n    return [1]\n", ", timeout=0.5")
    with pytest.raises(RunError) as caught:
        f(["p"] * 9, ["slow" if at == row else "c" for at in range(9)])
    # It looks at the clock before each row: 0.3 s are left for the first, 0.1 s for the second.
    assert clock.asked == [9, 1, 1]
    found = caught.value.diagnostics[0]
    assert found.message == "`f` did not come back within 0.5 s, on 9 rows together: row 0 to row 8"
    assert found.hint == "with `over=row, batch=1` every row has its own limit, and is named"


def test_an_exception_names_the_row_and_the_line(opened: Callable[..., RewardFunction]) -> None:
    f = opened("def f(completions):\n    return [1 / len(c) for c in completions]\n")
    with pytest.raises(RunError) as caught:
        f(["p", "q"], ["b", ""], ids=["row 7 of epoch 0", "row 9 of epoch 0"])
    assert str(caught.value) == (
        "error[E0726]: `f` raised ZeroDivisionError: division by zero, on row 9 of epoch 0\n"
        " --> p.rlf:1:17\n  |\n"
        '1 | func f = python("rewards.py:f")\n'
        "  |                 ^^^^^^^^^^^^^^\n"
        "note: it was here\n"
        " --> rewards.py:2:5\n  |\n"
        "2 |     return [1 / len(c) for c in completions]\n"
        "  |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "help: there: prompt = 'q', completion = ''"
    )


def test_the_line_is_the_user_s_own_not_the_library_s(opened: Callable[..., RewardFunction]) -> None:
    f = opened("import json\ndef f(completions):\n    return [json.loads(c) for c in completions]\n")
    with pytest.raises(RunError) as caught:
        f(["p"], ["{"])
    place = caught.value.diagnostics[0].related[0].span
    assert (place.source.path, place.line) == ("rewards.py", 3)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (
            "raise RuntimeError('no verdict') from KeyError('grade')",
            "RuntimeError: no verdict (from KeyError: 'grade')",
        ),
        ("raise ExceptionGroup('several', [ValueError('first'), TypeError('second')])", "ValueError: first"),
        ("raise Mute", "Mute"),
    ],
)
def test_an_exception_says_where_it_comes_from(opened: Callable[..., RewardFunction], raised: str, told: str) -> None:
    mute = "class Mute(Exception):\n    def __str__(self):\n        return 1 / 0\n"
    with pytest.raises(RunError) as caught:
        opened(f"{mute}def f(completions):\n    {raised}\n")(["p"], ["a"])
    [found] = caught.value.diagnostics
    assert found.message == f"`f` raised {told}, on row 0"
    assert found.related[0].span.line == 5


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_of_processes_imports_what_it_is_to_do(opened: Callable[..., RewardFunction], method: str) -> None:
    f = opened(
        "import multiprocessing\ndef grade(text):\n    return len(text)\n"
        "def f(completions):\n"
        f"    with multiprocessing.get_context({method!r}).Pool(1) as pool:\n"
        "        return pool.map(grade, completions)\n"
    )
    assert f(["p", "q"], ["a", "bc"]) == [1.0, 2.0]


def test_a_class_is_no_function(opened: Callable[..., RewardFunction]) -> None:
    with pytest.raises(ProgramError) as caught:
        opened("class f:\n    def __call__(self, completions):\n        return [1]\n")
    [found] = caught.value.diagnostics
    assert (found.code, found.message) == ("E0722", "`f` is a class, not a function")
    assert found.hint == "make an object of it in 'rewards.py', `reward = f()`, and name that"


def test_an_exception_of_the_batch_alone_says_so(opened: Callable[..., RewardFunction]) -> None:
    f = opened("def f(completions):\n    assert len(completions) < 2, 'too many'\n    return [1]\n")
    with pytest.raises(RunError) as caught:
        f(["p", "q"], ["b", "c"])
    message = "`f` raised AssertionError: too many, on 2 rows together: row 0 to row 1"
    assert caught.value.diagnostics[0].message == message


def test_a_crash_of_the_process_is_an_error_with_its_row(opened: Callable[..., RewardFunction]) -> None:
    f = opened(
        "import os, signal\ndef f(completions):\n"
        "    if 'b' in completions:\n        os.kill(os.getpid(), signal.SIGSEGV)\n    return [1] * len(completions)\n"
    )
    with pytest.raises(RunError) as caught:
        f(["p", "q"], ["a", "b"])
    found = caught.value.diagnostics[0]
    assert found.message == "the process of `f` ended by signal SIGSEGV, on row 1"
    assert found.related[0].span.line == 4


@pytest.mark.parametrize(("times", "told"), [(1, ""), (2, "E0740")])
def test_who_is_killed_from_outside_is_asked_again_once(
    times: int, told: str, opened: Callable[..., RewardFunction], tmp_path: Path
) -> None:
    """As the system does it, when memory runs out."""
    log = tmp_path / "calls"
    f = opened(
        "import os, signal\nfrom pathlib import Path\n"
        f"log = Path({str(log)!r})\n"
        "def f(completions):\n"
        "    with log.open('a') as file:\n        file.write('x')\n"
        f"    if len(log.read_text()) <= {times}:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return [2] * len(completions)\n"
    )
    if told:
        with pytest.raises(RunError) as caught:
            f(["p"], ["a"])
        found = caught.value.diagnostics[0]
        assert (found.code, found.message) == (told, "the process of `f` ended by signal SIGKILL, on row 0")
        assert "memory runs out" in found.hint
    assert f(["p"], ["a"]) == [2.0]
    assert len(log.read_text()) == times + 1


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("1.0", "`f` gave 1.0, not a list with a number for each row, on 2 rows together: row 0 to row 1"),
        ("None", "`f` gave None, not a list with a number for each row, on 2 rows together: row 0 to row 1"),
        ("{'a': 1}", "`f` gave a dict, not a list with a number for each row, on 2 rows together: row 0 to row 1"),
        (
            "(x for x in 'ab')",
            "`f` gave a generator, not a list with a number for each row, on 2 rows together: row 0 to row 1",
        ),
        ("[1]", "`f` gave 1 number for 2 rows, on 2 rows together: row 0 to row 1"),
        ("[1, None]", "`f` gave None, on row 1"),
        ("[1, 'yes']", "`f` gave 'yes', on row 1"),
        ("[1, float('nan')]", "`f` gave nan, on row 1"),
        ("[float('inf'), 1]", "`f` gave inf, on row 0"),
        ("[1, 1j]", "`f` gave a complex, on row 1"),
        ("[[1], [2]]", "`f` gave a list, on row 0"),
        (
            "__import__('numpy').ones((2, 1))",
            "`f` gave a ndarray of shape [2, 1], on 2 rows together: row 0 to row 1",
        ),
    ],
)
def test_values_that_are_not_numbers(opened: Callable[..., RewardFunction], returned: str, message: str) -> None:
    with pytest.raises(RunError) as caught:
        opened(f"def f(completions):\n    return {returned}\n")(["p", "q"], ["a", "b"])
    assert caught.value.diagnostics[0].message == message
    assert caught.value.diagnostics[0].code == "E0725"


def test_a_column_that_the_data_lack(opened: Callable[..., RewardFunction]) -> None:
    f = opened("def f(completions, answr):\n    return [1]\n")
    with pytest.raises(ProgramError) as caught:
        f.check_columns(["prompt", "answer"])
    assert str(caught.value) == (
        "error[E0724]: `f` asks for a column 'answr', which the data do not have\n"
        " --> p.rlf:1:17\n  |\n"
        '1 | func f = python("rewards.py:f")\n'
        "  |                 ^^^^^^^^^^^^^^\n"
        "help: did you mean `answer`?"
    )
    with pytest.raises(ProgramError, match="E0724"):
        f(["p"], ["c"], columns={"answer": ["x"]})


OTHERS = [
    (
        "def f(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n",
        "asks for a column 'data_source'",
        "`f(rollout, ground_truth=rollout.answer)`",
    ),
    ("def f(data_source, solution_str):\n    return 1.0\n", "a column 'data_source'", 'data_source="gsm8k"'),
    ("def f(queries, prompts, labels):\n    return [1.0]\n", "a column 'queries'", "OpenRLHF's `queries`"),
    ("def f(samples, prompts, outputs):\n    return [1.0]\n", "a column 'samples'", "trlX's `samples`"),
    ("def f(prompts, responses):\n    return [1.0]\n", "a column 'responses'", "rename `responses` to `completions`"),
    (
        "def f(completions):\n    return [len(each[0]['content']) for each in completions]\n",
        "raised TypeError",
        'completions are texts, since the prompts are: `completion` in place of `completion[0]["content"]`',
    ),
    ("def f(completions):\n    return (1.0 for _ in completions)\n", "gave a generator", "`return list(...)`"),
    ("def f(completions):\n    yield 1.0\n", "gave a generator", "in place of `(...)` or `yield`"),
    (
        "def f(completions):\n    return [None, 1.0]\n",
        "gave None, on row 0",
        "`none=skip` leaves such a row without a number",
    ),
    ("def f(completions):\n    return [{'score': 1.0}] * 2\n", "gave a dict, on row 0", "`found['score']`"),
    ("def f(completions):\n    return {'rewards': [1.0] * 2}\n", "gave a dict, not", "`return found['rewards']`"),
    ("def f(completions):\n    return 1.0\n", "gave 1.0, not a list", "called on many rows at a time"),
    ("def f(completions):\n    pass\n", "gave None, not a list", "end with `return`"),
]


@pytest.mark.parametrize(("text", "message", "hint"), OTHERS)
def test_functions_as_other_systems_have_them(
    opened: Callable[..., RewardFunction], text: str, message: str, hint: str
) -> None:
    with pytest.raises(RlgraphError) as caught:
        opened(text)(["p", "q"], ["a", "b"], columns={"answer": ["1", "2"]})
    found = caught.value.diagnostics[0]
    assert message in found.message and hint in found.hint


CHAT = [{"role": "user", "content": "2+2"}]


@pytest.mark.parametrize(
    ("body", "prompt", "answer", "message", "hint"),
    [
        ("len(each[0]['content'])", "p", "", "raised IndexError", "completions are texts"),
        ("float(each.strip())", CHAT, "4", "raised AttributeError", "completions are lists of messages"),
        ("[1.0][len(each)]", "p", "abc", "raised IndexError", "there: prompt = 'p'"),
    ],
)
def test_texts_and_messages_are_told_apart(
    opened: Callable[..., RewardFunction], body: str, prompt: Any, answer: str, message: str, hint: str
) -> None:
    f = opened(f"def f(completions):\n    return [{body} for each in completions]\n")
    with pytest.raises(RunError) as caught:
        f([prompt], [answer])
    found = caught.value.diagnostics[0]
    assert message in found.message and found.hint.startswith(hint)


BAD: list[tuple[str, str, str, str]] = [
    ('python("reward.py:f")', "", "E0703: there is no Python file 'reward.py' in 'BASE'", "did you mean `rewards.py`?"),
    ('python("rewards.py:g")', "def gee(): ...", "E0722: there is no 'g' in 'rewards.py'", "it has: gee"),
    (
        'python("rewards.py:exact")',
        "def exakt(): ...",
        "E0722: there is no 'exact' in 'rewards.py'",
        "did you mean `exakt`?",
    ),
    (
        'python("rewards.py:f")',
        "",
        "E0722: there is no 'f' in 'rewards.py'",
        "the file defines no function and no class",
    ),
    ('python("rewards.py:f")', "f = 3", "E0722: 'f' in 'rewards.py' is 3, which cannot be called", ""),
    (
        'python("rewards.py")',
        "",
        "E0702: `python` takes a file or a module and a name in it, with a colon between, not 'rewards.py'",
        'as in `python("rewards.py:exact_match")`; a cell of a notebook becomes that file by `%%writefile rewards.py` in '
        "its first line",
    ),
    (
        'python("__main__:f")',
        "",
        "E0703: there is no module '__main__'",
        'it runs in a process of its own: write it into a file, `python("rewards.py:f")`; a cell of a notebook becomes '
        "that file by `%%writefile rewards.py` in its first line",
    ),
    (
        "python()",
        "",
        "E0702: `python` takes one text: a file and a function in it",
        'as in `python("rewards.py:exact_match")`',
    ),
    ('pyton("rewards.py:f")', "", "E0702: there are no functions of kind 'pyton'", "did you mean `python`?"),
    (
        'python("rewards.py:f", timeout=-1)',
        "",
        "E0702: `timeout` must be a number of seconds up to a million, 0 for no limit, not -1",
        "",
    ),
    ('python("rewards.py:f", batch=0)', "", "E0702: `batch` must be a whole number of at least 1, not 0", ""),
    (
        'python("rewards.py:f", over="rows")',
        "",
        "E0702: `over` must be row, group or batch, not 'rows'",
        "did you mean `row`?",
    ),
    (
        'python("rewards.py:f", over="batch", batch=8)',
        "",
        "E0702: `over=batch` has one call for all rows, and `batch` would cut them",
        "leave `batch` out, or write `over=group` if a row's number depends on those of its prompt alone",
    ),
    (
        'python("rewards.py:f", timout=3)',
        "def f(completions, **kwargs): ...",
        "E0702: 'timout' is neither an option of `python` nor a parameter of `f`",
        "did you mean `timeout`?",
    ),
    (
        'python("rewards.py:f")',
        "def f(:",
        "E0723: 'rewards.py' cannot be loaded: it is not valid Python: invalid syntax",
        "",
    ),
    (
        'python("rewards.py:f")',
        "import nopackage",
        "E0723: 'rewards.py' cannot be loaded: No module named 'nopackage'",
        "install it where rlgraph runs, or put it beside the file",
    ),
    (
        'python("no.such.module:f")',
        "",
        "E0703: there is no module 'no.such.module'",
        'install it where rlgraph runs; a file is named with its ending: `python("no.such.module.py:f")`',
    ),
    ('python("rewards.py:f")', "x = {}['key']", "E0723: 'rewards.py' cannot be loaded: KeyError: 'key'", ""),
    ('python("rewards.py:f")', "import sys; sys.exit(3)", "E0723: 'rewards.py' cannot be loaded: SystemExit: 3", ""),
    (
        'python("rewards.py:f")',
        "import os; os._exit(3)",
        "E0723: 'rewards.py' cannot be loaded: its process ended with exit code 3",
        "",
    ),
    (
        'python("rewards.py:f")',
        "def f(prompts, completions, /): ...",
        "E0724: `f` takes 'prompts' by position only, but arguments are given by name",
        "remove the `/` after 'prompts' in its definition",
    ),
]


@pytest.mark.parametrize(("call", "text", "message", "hint"), BAD)
def test_bad_declarations(
    declare: Declare, rewards: Write, workers: Workers, call: str, text: str, message: str, hint: str
) -> None:
    with pytest.raises(ProgramError) as caught:
        folder = rewards(text)
        open_reward_function(declare(f"func f = {call}"), SearchFolders(folder, folder), workers)
    found = caught.value.diagnostics[0]
    assert (f"{found.code}: {found.message}", found.hint) == (message.replace("BASE", str(folder)), hint)
    assert "Traceback" not in str(caught.value)


def test_a_syntax_error_shows_its_line(declare: Declare, rewards: Write, workers: Workers) -> None:
    with pytest.raises(ProgramError) as caught:
        open_reward_function(
            declare('func f = python("rewards.py:f")'), SearchFolders(rewards("x = 1\ndef f(:\n")), workers
        )
    assert str(caught.value).endswith("note: it was here\n --> rewards.py:2:1\n  |\n2 | def f(:\n  | ^^^^^^^")


def test_a_process_ends_with_what_it_started(opened: Callable[..., RewardFunction], tmp_path: Path) -> None:
    """What it has started has a pipe, whose end is read when all who had it are gone."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ours = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    text = (
        "import subprocess\ndef f(completions):\n    pipe = open(completions[0], 'wb', buffering=0)\n"
        "    child = subprocess.Popen(['sleep', '3600'], stdout=pipe)\n"
        "    pipe.write(b'x')\n    child.wait()\n"
    )
    try:
        # As long as it needs to start it.
        for limit in (0.3, 3, 30, 300):
            with pytest.raises(RunError, match="E0727"):
                opened(text, f", timeout={limit}")(["p"], [str(pipe)])
            begun = _read(ours)
            if begun:
                break
        assert begun == b"x"
        assert select.select([ours], [], [], NEVER)[0] and _read(ours) == b"", "it still runs"
    finally:
        os.close(ours)


def _read(pipe: int) -> bytes:
    """What is there: nothing, where there is nothing to be read, or nobody who could write."""
    try:
        return os.read(pipe, 100)
    except BlockingIOError:
        return b""


def gym_rows(declare: Declare) -> list[dict[str, Any]]:
    from rlgraph.data import BatchReader, Cursor, open_source

    spec = declare('data d = reasoning_gym("spell_backward", size=4, batch=4, shuffle=False)')
    return BatchReader(open_source(spec, SearchFolders(Path())), "d", 0).read_batch(Cursor())[0]


def test_reasoning_gym_verifies_its_own_rows(declare: Declare, workers: Workers) -> None:
    rows = gym_rows(declare)
    score = open_reward_function(declare("func f = reasoning_gym()"), SearchFolders(Path()), workers)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    prompts = columns["prompt"]
    right = columns["answer"]
    score.check_columns(columns)
    assert score(prompts, right, columns=columns) == [1.0] * 4
    assert score(prompts, [f"so <answer> {a}\n</answer>." for a in right], columns=columns) == [1.0] * 4
    assert score(prompts, ["", "#", "?", "!"], columns=columns) == [0.0] * 4
    chat = [[{"role": "user", "content": prompt}] for prompt in prompts]
    assert score(chat, right, columns=columns) == [1.0] * 4
    with pytest.raises(RlgraphError) as caught:
        score(prompts, right, columns={**columns, "task": ["spell_backward"] * 3 + ["spel"]})
    found = caught.value.diagnostics[0]
    assert found.message == "`reasoning_gym` raised ValueError: reasoning_gym has no task 'spel', on row 3"
    named = open_reward_function(declare('func f = reasoning_gym("spell_backward")'), SearchFolders(Path()), workers)
    del columns["task"]
    assert named(prompts, right, columns=columns) == [1.0] * 4


def test_an_answer_that_a_verifier_stumbles_over_scores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlgraph.user_code import reasoning_gym_rewards

    monkeypatch.setattr(
        reasoning_gym_rewards, "_verifier", lambda task: lambda answer, entry: 1.0 / (answer == entry["answer"])
    )
    assert reasoning_gym_rewards.reasoning_gym(["p"] * 2, ["4", "no"], ["4", "4"], [{}, {}], name="t") == [1.0, 0.0]
    monkeypatch.setattr(reasoning_gym_rewards, "_verifier", lambda task: lambda answer, entry: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        reasoning_gym_rewards.reasoning_gym(["p"], ["4"], ["4"], [{}], name="t")


def test_reasoning_gym_needs_its_package(declare: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ProgramError) as caught:
        open_reward_function(declare("func f = reasoning_gym()"), SearchFolders(Path()))
    assert str(caught.value) == (
        "error[E0709]: this needs the package 'reasoning_gym', which is not installed\n"
        " --> p.rlf:1:10\n  |\n"
        "1 | func f = reasoning_gym()\n"
        "  |          ^^^^^^^^^^^^^^^\n"
        "help: pip install 'rlgraph-compiler[gym]'"
    )
