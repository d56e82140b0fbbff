"""Tools: how calls are read from what a model has written, what a function has to be to be one, and what a call that is
wrong is answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlgraph.errors import ProgramError
from rlgraph.user_code import Environment, Workers, open_environment
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import CallSpec
from rlgraph.user_code.tool_calls import WrittenCall, written_calls
from tests.waits import NEVER

Declare = Callable[[str], CallSpec]
Write = Callable[[str], Path]

TOOLS = '''
import os, time
from pathlib import Path
from typing import Literal

def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: One of them.
        b: The other.
    """
    return a + b

async def colour(of: Literal["sky", "sea"]) -> dict:
    """Say of which colour something is.

    Args:
        of: What it is.
    """
    return {"colour": "blau" if of == "sky" else "grün"}

def breaks(how: str) -> str:
    """Break.

    Args:
        how: In which way.
    """
    if how == "raise":
        raise LookupError("nothing there")
    if how == "end":
        os._exit(3)
    while how == "hang":
        pass
    return "half a pair: \\ud800"

def meet(who: str) -> str:
    """Wait until the other one is called.

    Args:
        who: Who is waiting.
    """
    Path(__file__).with_name(f"met-{who}").touch()
    while len(list(Path(__file__).parent.glob("met-*"))) < 2:
        time.sleep(0.01)
    return f"{who} was here"

def plain(x):
    """Without a type."""

def silent(x: int):
    """Without a word on x."""
'''


@pytest.fixture
def opened(declare: Declare, rewards: Write, workers: Workers) -> Callable[..., Environment]:
    def open_it(*names: str, options: str = "") -> Environment:
        named = ", ".join(f'"rewards.py:{name}"' for name in names)
        return open_environment(declare(f"env e = tools({named}{options})"), SearchFolders(rewards(TOOLS)), workers)

    return open_it


def call(name: str, **arguments: Any) -> str:
    import json

    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def replies(environment: Environment, action: str) -> list[str]:
    said, reward, over = environment("row 0").step(action)
    assert isinstance(said, list) and reward == 0.0 and over == (not said)
    assert {message["role"] for message in said} <= {"tool"}
    return [message["content"] for message in said]


ADD = WrittenCall("add", {"a": 1})


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        ("It is 4.", []),
        ('{"answer": 4}', []),
        ("{4}", []),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', [ADD]),
        ('Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' * 2, [ADD, ADD]),
        ('<tool_call>[{"name": "add", "arguments": {"a": 1}}, {"name": "add", "parameters": {"a": 1}}]', [ADD, ADD]),
        ('<think>Not <tool_call>{"name": "add"}</tool_call>!</think>\nNo.', []),
        (
            '<tool_call>{"type": "function", "function": {"name": "add", "arguments": "{\\"a\\": 1}"}}</tool_call>',
            [ADD],
        ),
        ('{"name": "add", "parameters": {"a": 1}}', [ADD]),
        ('<|python_tag|>{"name": "add", "parameters": {"a": 1}}', [ADD]),
        ('[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]', [ADD]),
        ('[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]add[ARGS]{"a": 1}', [ADD, ADD]),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
            '{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            [ADD],
        ),
        (
            "<tool_call></tool_call>",
            [WrittenCall(error="the call is no JSON: Expecting value: line 1 column 1 (char 0)")],
        ),
        ("<tool_call>[]</tool_call>", [WrittenCall(error="there is nothing in the call")]),
        (
            '<tool_call>{"arguments": {}}</tool_call>',
            [WrittenCall(error='a call is {"name": ..., "arguments": {...}}')],
        ),
    ],
)
def test_calls_are_read_as_families_write_them(answer: str, calls: list[WrittenCall]) -> None:
    assert written_calls(answer) == calls


def test_deep_json_is_no_call() -> None:
    assert written_calls("<tool_call>" + "[" * 100_000)[0].error.startswith("the call is no JSON")
    assert written_calls('{"name":' + "[" * 100_000) == []


def test_a_function_is_shown_and_its_calls_are_answered_in_their_order(opened: Callable[..., Environment]) -> None:
    tools = opened("add", "colour")
    add, colour = tools.tools
    assert add["function"]["description"] == "Add two numbers."
    assert add["function"]["parameters"]["properties"]["b"] == {"type": "integer", "description": "The other."}
    assert add["function"]["parameters"]["required"] == ["a"]
    assert colour["function"]["parameters"]["properties"]["of"]["enum"] == ["sky", "sea"]
    answer = call("add", a=2, b=3) + "\n" + call("colour", of="sea")
    assert replies(tools, answer) == ["5", '{"colour": "grün"}']
    episode = tools("row 0")
    assert episode.reset({}) == ""
    episode.step(call("add", a=2))
    assert [(made.name, made.result, made.failed) for made in episode.last_calls] == [("add", "3", False)]
    assert episode.step("It is 5.") == ([], 0.0, True) and episode.last_calls == ()


def test_a_wrong_call_is_answered_with_its_error(opened: Callable[..., Environment]) -> None:
    tools = opened("add", "colour", "breaks", options=f", timeout={NEVER}")
    wrong = {
        "<tool_call>{'name': 1}</tool_call>": "the call is no JSON: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)",
        call("ad"): "there is no tool `ad`; there are: add, colour, breaks",
        call("add"): "the argument `a` is missing",
        call("add", a=1, c=2): "there is no argument `c`; it takes a, b",
        call("add", a="1"): 'the argument `a` must be of type integer, and is "1"',
        call("add", a=True): "the argument `a` must be of type integer, and is true",
        call("colour", of="sun"): 'the argument `of` must be one of ["sky", "sea"], and is "sun"',
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>': "the arguments are no JSON object: [1]",
        call("breaks", how="raise"): "LookupError: nothing there",
        call("breaks", how="end"): "its process ended with exit code 3",
    }
    for answer, error in wrong.items():
        assert replies(tools, answer + call("add", a=1)) == [f"error: {error}", "2"]
    assert replies(tools, call("breaks", how="no")) == ["half a pair: ?"]
    # Alone: on a busy machine another call may take as long.
    short = opened("breaks", options=", timeout=0.3")
    assert replies(short, call("breaks", how="hang")) == ["error: it did not come back within 0.3 s"]
    many = replies(tools, call("add", a=1) * 18)
    assert many == ["2"] * 16 + ["error: only 16 calls of an answer are run"] * 2


def test_calls_run_beside_each_other(opened: Callable[..., Environment]) -> None:
    tools = opened("meet", options=f", workers=2, timeout={NEVER}")
    assert replies(tools, call("meet", who="a") + call("meet", who="b")) == ["a was here", "b was here"]


def test_a_function_that_is_no_tool_is_refused(opened: Callable[..., Environment]) -> None:
    refused = {
        ("plain",): ("E0863", "`plain` cannot be shown to a model as a tool: Argument x is missing a type hint"),
        ("silent",): ("E0863", "the docstring has no description for the argument 'x'"),
        ("add", "ad"): ("E0722", "there is no 'ad' in 'rewards.py'"),
        ("add", "add"): ("E0864", "'rewards.py:add' is named twice"),
    }
    for names, (code, said) in refused.items():
        with pytest.raises(ProgramError) as caught:
            opened(*names)
        [found] = caught.value.diagnostics
        assert found.code == code and said in found.message and found.hint
        assert found.span.covered_text == f'"rewards.py:{names[-1]}"'


def test_tools_of_two_files_are_refused(declare: Declare, rewards: Write, workers: Workers) -> None:
    spec = declare('env e = tools("rewards.py:add", "others.py:add")')
    with pytest.raises(ProgramError, match="E0864.*is of another file"):
        open_environment(spec, SearchFolders(rewards(TOOLS)), workers)
