"""Reward functions of the user: how they are called, and what is said when they are wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlgraph.errors import ProgramError, RlgraphError, RunError
from rlgraph.foreign import RewardFunction, Workers, check_function, open_function
from rlgraph.foreign.files import Folders
from rlgraph.foreign.spec import Spec

Declare = Callable[[str], Spec]
Write = Callable[[str], Path]


@pytest.fixture
def opened(declare: Declare, rewards: Write, workers: Workers) -> Callable[..., RewardFunction]:
    def open_it(text: str, options: str = "") -> RewardFunction:
        return open_function(declare(f'func f = python("rewards.py:f"{options})'), Folders(rewards(text)), workers)

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
    f = open_function(declare('func f = python("rewards.py:f")'), Folders(base), workers)
    g = open_function(declare('func g = python("rewards.py:g")'), Folders(base), workers)
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
    check_function(declare('func f = python("nowhere.py:f", timeout=3)'))


def test_an_endless_regular_expression_is_ended_and_the_row_named(
    opened: Callable[..., RewardFunction],
) -> None:
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


def test_a_slow_batch_blames_no_row(opened: Callable[..., RewardFunction]) -> None:
    f = opened(
        "import time\ndef f(completions):\n    time.sleep(0.1 * len(completions))\n    return [1] * len(completions)\n",
        ", timeout=0.5",
    )
    with pytest.raises(RunError) as caught:
        f(["p"] * 9, ["c"] * 9)
    found = caught.value.diagnostics[0]
    assert found.message == "`f` did not come back within 0.5 s, on 9 rows together: row 0 to row 8"
    assert found.hint == "with `batch=1` every row has its own limit, and is named"


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
        ("[1]", "`f` gave 1 numbers for 2 rows, on 2 rows together: row 0 to row 1"),
        ("[1, None]", "`f` gave None, on row 1"),
        ("[1, 'yes']", "`f` gave 'yes', on row 1"),
        ("[1, float('nan')]", "`f` gave nan, on row 1"),
        ("[float('inf'), 1]", "`f` gave inf, on row 0"),
        ("[1, 1j]", "`f` gave a complex, on row 1"),
        ("[[1], [2]]", "`f` gave a list, on row 0"),
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
        f.check(["prompt", "answer"])
    assert str(caught.value) == (
        "error[E0724]: `f` asks for a column 'answr', which the data do not have\n"
        " --> p.rlf:1:17\n  |\n"
        '1 | func f = python("rewards.py:f")\n'
        "  |                 ^^^^^^^^^^^^^^\n"
        "help: did you mean `answer`?"
    )
    with pytest.raises(ProgramError, match="E0724"):
        f(["p"], ["c"], columns={"answer": ["x"]})


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
        'as in `python("rewards.py:exact_match")`',
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
        open_function(declare(f"func f = {call}"), Folders(folder, folder), workers)
    found = caught.value.diagnostics[0]
    assert (f"{found.code}: {found.message}", found.hint) == (message.replace("BASE", str(folder)), hint)
    assert "Traceback" not in str(caught.value)


def test_a_syntax_error_shows_its_line(declare: Declare, rewards: Write, workers: Workers) -> None:
    with pytest.raises(ProgramError) as caught:
        open_function(declare('func f = python("rewards.py:f")'), Folders(rewards("x = 1\ndef f(:\n")), workers)
    assert str(caught.value).endswith("note: it was here\n --> rewards.py:2:1\n  |\n2 | def f(:\n  | ^^^^^^^")


def test_a_process_ends_with_what_it_started(opened: Callable[..., RewardFunction], tmp_path: Path) -> None:
    f = opened(
        "import subprocess\ndef f(completions):\n    child = subprocess.Popen(['sleep', '60'])\n"
        "    open(completions[0], 'w').write(str(child.pid))\n    child.wait()\n",
        ", timeout=0.3",
    )
    with pytest.raises(RunError, match="E0727"):
        f(["p"], [str(tmp_path / "pid")])
    pid = int((tmp_path / "pid").read_text())
    for _ in range(50):
        if not _runs(pid):
            return
        time.sleep(0.02)
    raise AssertionError("it still runs")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def gym_rows(declare: Declare) -> list[dict[str, Any]]:
    from rlgraph.data import Cursor, Reader, open_source

    spec = declare('data d = reasoning_gym("spell_backward", size=4, batch=4, shuffle=False)')
    return Reader(open_source(spec, Folders(Path())), "d", 0).next(Cursor())[0]


def test_reasoning_gym_verifies_its_own_rows(declare: Declare, workers: Workers) -> None:
    rows = gym_rows(declare)
    score = open_function(declare("func f = reasoning_gym()"), Folders(Path()), workers)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    prompts = columns["prompt"]
    right = columns["answer"]
    score.check(columns)
    assert score(prompts, right, columns=columns) == [1.0] * 4
    assert score(prompts, [f"so <answer> {a}\n</answer>." for a in right], columns=columns) == [1.0] * 4
    assert score(prompts, ["", "#", "?", "!"], columns=columns) == [0.0] * 4
    chat = [[{"role": "user", "content": prompt}] for prompt in prompts]
    assert score(chat, right, columns=columns) == [1.0] * 4
    with pytest.raises(RlgraphError) as caught:
        score(prompts, right, columns={**columns, "task": ["spell_backward"] * 3 + ["spel"]})
    found = caught.value.diagnostics[0]
    assert found.message == "`reasoning_gym` raised ValueError: reasoning_gym has no task 'spel', on row 3"
    named = open_function(declare('func f = reasoning_gym("spell_backward")'), Folders(Path()), workers)
    del columns["task"]
    assert named(prompts, right, columns=columns) == [1.0] * 4


def test_an_answer_that_a_verifier_stumbles_over_scores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlgraph.foreign import verify

    monkeypatch.setattr(verify, "_verifier", lambda task: lambda answer, entry: 1.0 / (answer == entry["answer"]))
    assert verify.reasoning_gym(["p"] * 2, ["4", "no"], ["4", "4"], [{}, {}], name="t") == [1.0, 0.0]
    monkeypatch.setattr(verify, "_verifier", lambda task: lambda answer, entry: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        verify.reasoning_gym(["p"], ["4"], ["4"], [{}], name="t")


def test_reasoning_gym_needs_its_package(declare: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ProgramError) as caught:
        open_function(declare("func f = reasoning_gym()"), Folders(Path()))
    assert str(caught.value) == (
        "error[E0709]: this needs the package 'reasoning_gym', which is not installed\n"
        " --> p.rlf:1:10\n  |\n"
        "1 | func f = reasoning_gym()\n"
        "  |          ^^^^^^^^^^^^^^^\n"
        'help: pip install "rlgraph[gym]"'
    )
