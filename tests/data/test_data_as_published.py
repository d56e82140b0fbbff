"""Files as spreadsheets, pandas and other systems write them: what they hold is read, or it is said what to write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlgraph.columns import TEXT_COLUMNS
from rlgraph.conversations import ASKED, SHAPES, OddRow, parse_content
from rlgraph.data import open_source, source_columns
from rlgraph.errors import NO_SPAN, ProgramError
from rlgraph.user_code.conventions import hint_for_missing_parameters
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import CallSpec

USER, CALL = {"role": "user", "content": "2+2?"}, {"function": {"name": "sum", "arguments": "{}"}}


def rows_of(folder: Path, **files: str) -> list[dict[str, Any]]:
    """Return the rows of files, which are written first; `_` in a name is the dot before its ending."""
    names = [name.replace("_", ".") for name in files]
    for name, text in zip(names, files.values(), strict=True):
        (folder / name).write_text(text, "utf-8")
    spec = CallSpec("files", (names,), {"shuffle": False}, NO_SPAN)
    known = source_columns(spec, SearchFolders(folder))
    source = open_source(spec, SearchFolders(folder))
    assert source.row_count is not None and source.columns is not None
    assert known is None or [*known] == [*source.columns]
    return [source.rows[number] for number in range(source.row_count)]  # type: ignore[index]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_first_line_of_a_csv_file_says_what_separates_cells(tmp_path: Path, separator: str) -> None:
    text = "\ufeffprompt;answer\r\n2+2=;4\r\n".replace(";", separator)
    assert rows_of(tmp_path, a_csv=text) == [{"prompt": "2+2=", "answer": 4}]


def test_the_index_that_pandas_writes_has_a_name(tmp_path: Path) -> None:
    assert rows_of(tmp_path, a_csv=",prompt\n0,a\n1,b\n") == [
        {"Unnamed: 0": 0, "prompt": "a"},
        {"Unnamed: 0": 1, "prompt": "b"},
    ]


@pytest.mark.parametrize(("yes", "no"), [("true", "false"), ("True", "False"), ("TRUE", "FALSE")])
def test_truths_are_those_of_pandas_and_spreadsheets(tmp_path: Path, yes: str, no: str) -> None:
    text = f"prompt,label,said\na,{yes},{yes}\nb,{no},No\nc,,\n"
    assert [(row["label"], row["said"]) for row in rows_of(tmp_path, a_csv=text)] == [
        (True, yes),
        (False, "No"),
        (None, None),
    ]


def test_what_is_read_as_tokens_is_text_where_it_looks_like_a_number(tmp_path: Path) -> None:
    asked = {*ASKED} - {"history"}
    assert {name for shape in SHAPES for name in shape.columns} | {"chosen", "rejected"} | asked == TEXT_COLUMNS
    alpaca = {"instruction": "Add.", "input": "2", "output": "4"}
    assert rows_of(tmp_path, b_csv="instruction,input,output\nAdd.,2,4\n") == [alpaca]
    text = "prompt,completion,chosen,score\n1,2.50,true,3\n"
    assert rows_of(tmp_path, a_csv=text) == [{"prompt": "1", "completion": "2.50", "chosen": "true", "score": 3}]


def test_a_json_file_with_a_line_for_each_row_may_have_one(tmp_path: Path) -> None:
    row = {"messages": [USER], "tools": [{"name": "sum"}], "tags": ["a", "b"]}
    assert rows_of(tmp_path, a_json="\ufeff" + json.dumps(row)) == [row]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a_json": '{"data": [{"a": 1}]}'}, 'help: say where they are: `field="data"`'),
        ({"a_json": '{"a": [1, 2], "b": [3, 4]}'}, "E0764]: 'a.json' holds columns, and no list of rows"),
        ({"a_json": '{"a": {"0": 1}, "b": {"0": 3}}'}, 'to_json(FILE, orient="records", lines=True)'),
        ({"a_jsonl": '{"a": 1},\n{"a": 2},\n'}, "help: take the comma behind the row away"),
        ({"a_jsonl": '{"a": 1}{"a": 2}\n'}, "help: write each row on a line of its own"),
        ({"a_csv": "a,b\n1,2\n", "b_csv": "a;b\n1;2\n"}, "cells of 'b.csv' are separated by another sign than those"),
        ({"a_xlsx": "PK"}, "help: save the sheet as csv"),
    ],
)
def test_files_that_hold_rows_otherwise(tmp_path: Path, files: dict[str, str], said: str) -> None:
    with pytest.raises(ProgramError) as told:
        rows_of(tmp_path, **files)
    assert said in str(told.value), str(told.value)


def test_content_in_parts_is_one_text() -> None:
    parts = [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]
    assert parse_content([{"role": "user", "content": parts}], "prompt") == [USER]
    calls = [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
    assert parse_content(calls, "messages") == calls, "templates tell by null what is a call alone"


def test_conversations_may_be_json_in_a_cell() -> None:
    assert parse_content(json.dumps([USER]), "messages") == [USER]
    assert parse_content(json.dumps([USER]), "prompt") == json.dumps([USER]), "a text is a text elsewhere"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("[{'role': 'user'}]", "begins as a list, and no JSON of messages"),
        ([{"role": "user", "content": None}], "message of role 'user' that says nothing: its content is null"),
        ([{"role": "user", "content": [{"type": "image", "url": "a"}]}], "a part that is no text: 'image'"),
    ],
)
def test_messages_that_would_be_written_as_python_writes_them(value: Any, said: str) -> None:
    with pytest.raises(OddRow, match=said):
        parse_content(value, "messages")


@pytest.mark.parametrize(
    ("missing", "columns", "said"),
    [
        (["answer"], ["reward_model", "reward_model.ground_truth"], "f(rollout, answer=rollout.reward_model.ground_"),
        (["answer"], ["solution"], "`f(rollout, answer=rollout.solution)`"),
        (["answer"], ["level"], ""),
        (["trainer_state"], [], "with a default, `trainer_state=None`, it may be missing"),
        (
            ["data_source", "ground_truth"],
            [],
            '`data_source="gsm8k"` in its declaration, and `f(rollout, ground_truth=',
        ),
    ],
)
def test_a_function_of_another_system_is_told_what_to_write(missing: list[str], columns: list[str], said: str) -> None:
    hint = hint_for_missing_parameters("f", missing, columns)
    assert said in hint and bool(said) == bool(hint)
