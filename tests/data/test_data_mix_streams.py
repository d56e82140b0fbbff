"""Generators and streams in a mixture: they take turns as lists of rows do, and begin again where they end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlgraph.data import BatchReader, Cursor, open_source
from rlgraph.errors import NO_SPAN, ProgramError, RunError
from rlgraph.user_code import Workers
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import CallSpec

TASKS = """
def endless():
    number = 0
    while True:
        yield {"prompt": f"e{number}"}
        number += 1

def few(count=3):
    for number in range(count):
        yield {"prompt": f"f{number}"}

calls = []

def fewer():
    calls.append(1)
    yield from few(5 - len(calls))
"""


def part(path: str, kind: str = "python", **options: Any) -> dict[str, Any]:
    return {"kind": kind, "args": (path,), "options": options, "span": NO_SPAN, "spans": {}}


LISTED = part("a.jsonl", "jsonl")
ENDLESS, FEW = part("tasks.py:endless"), part("tasks.py:few")


def mix(*parts: Any, **options: Any) -> CallSpec:
    given = {"batch": 4, **options}
    return CallSpec("mix", parts, {name: value for name, value in given.items() if value is not None}, NO_SPAN)


@pytest.fixture
def folders(tmp_path: Path) -> SearchFolders:
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "a.jsonl").write_text("".join(f'{{"prompt": "a{number}"}}\n' for number in range(5)))
    (tmp_path / "c.csv").write_text("prompt,level\n" + "".join(f"c{number},1\n" for number in range(4)))
    return SearchFolders(tmp_path)


def read(spec: CallSpec, folders: SearchFolders, workers: Workers, count: int) -> list[str]:
    """Return prompts, read in one go, and see that a reader that begins anew at each batch reads the same."""
    whole, ids, _ = BatchReader(open_source(spec, folders, workers), "d", 3).read_batch(Cursor(), count)
    assert len(ids) == len(set(ids)), "every row has an identity of its own"
    again: list[Any] = []
    cursor = Cursor()
    while len(again) < count:
        rows, _, cursor = BatchReader(open_source(spec, folders, workers), "d", 3).read_batch(cursor, 7)
        again += rows
    assert again[:count] == whole
    return [row["prompt"] for row in whole]


def test_streams_take_turns_and_begin_again(folders: SearchFolders, workers: Workers) -> None:
    got = read(mix(LISTED, ENDLESS, FEW, weights=[0.5, 0.3, 0.2]), folders, workers, 40)
    assert Counter(prompt[0] for prompt in got) == {"a": 20, "e": 12, "f": 8}
    assert [prompt for prompt in got if prompt[0] == "e"] == [f"e{number}" for number in range(12)]
    assert [prompt for prompt in got if prompt[0] == "f"] == [f"f{number % 3}" for number in range(8)]
    listed = [prompt for prompt in got if prompt[0] == "a"]
    assert all({*listed[at : at + 5]} == {f"a{number}" for number in range(5)} for at in (0, 5, 10, 15))
    assert listed != [f"a{number % 5}" for number in range(20)], "lists of rows are shuffled"
    still = mix(LISTED, ENDLESS, weights=[0.5, 0.5], shuffle=False)
    assert [prompt for prompt in read(still, folders, workers, 14) if prompt[0] == "a"] == [
        f"a{number % 5}" for number in range(7)
    ]


def test_files_that_are_streamed_limits_and_defaults(folders: SearchFolders, workers: Workers) -> None:
    streamed = part("c.csv", "files", streaming=True)
    spec = mix(streamed, part("tasks.py:endless", limit=3), weights=[0.5, 0.5], defaults={"level": "0"})
    got = read(spec, folders, workers, 22)
    assert got[::2] == [f"c{number % 4}" for number in range(11)]
    assert got[1::2] == [f"e{number % 3}" for number in range(11)]
    rows = BatchReader(open_source(spec, folders, workers), "d", 3).read_batch(Cursor(), 2)[0]
    assert [row["level"] for row in rows] == ["1", "0"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (mix(LISTED, ENDLESS), "help: say its share: `weights=[0.5, 0.5]` for example"),
        (mix(LISTED, ENDLESS, weights=[0.5, 0.5], shuffle=True), "help: leave `shuffle` out"),
        (mix(LISTED, ENDLESS, weights=[0.5, 0.5], batch=None), "add `batch=64`"),
        (mix(LISTED, ENDLESS, weights=[0.5, 0.5], max_prompt=3), "cannot be counted before the first step"),
    ],
)
def test_what_streams_cannot_do_is_said(spec: CallSpec, said: str, folders: SearchFolders, workers: Workers) -> None:
    with pytest.raises(ProgramError) as told:
        open_source(spec, folders, workers)
    assert said in str(told.value), str(told.value)


def test_a_stream_that_has_no_rows_or_others_the_next_time(folders: SearchFolders, workers: Workers) -> None:
    for stream, count, said in [
        (part("tasks.py:few", count=0), 4, "E0707]: `tasks.py:few` has no rows"),
        (part("tasks.py:fewer"), 20, "E0718]: `tasks.py:fewer` ended after 3 rows, and after 4 the first time"),
    ]:
        reader = BatchReader(open_source(mix(LISTED, stream, weights=[0.5, 0.5]), folders, workers), "d", 3)
        with pytest.raises(RunError) as told:
            reader.read_batch(Cursor(), count)
        assert said in str(told.value), str(told.value)
