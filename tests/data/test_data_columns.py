"""What is known of the columns of each source, and when: before a run, and when all rows are looked at."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlgraph.columns
from rlgraph.columns import Column, ColumnInspector, column_at, value_at, value_kind, with_value_at
from rlgraph.data import BatchReader, Cursor, open_source, source_columns
from rlgraph.data import json_lines as lines_source
from rlgraph.errors import NO_SPAN, RunError
from rlgraph.user_code import Workers
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import CallSpec

Declare = Callable[[str], CallSpec]
CHAT = [{"role": "user", "content": "a"}]


def first(found: Any) -> dict[str, dict[str, str]]:
    """Of each column its kinds, and the first row of each."""
    return {name: dict(column.first) for name, column in found.items()}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("", "text"),
        (True, "truth"),
        (np.bool_(True), "truth"),
        (-(2**63), "whole"),
        (2**63 - 1, "whole"),
        (np.int32(3), "whole"),
        (2**63, "large"),
        (-(2**63) - 1, "large"),
        (-0.5, "real"),
        (np.float32(0.5), "real"),
        (Decimal("0.5"), "real"),
        (3.4e38, "real"),
        (3.41e38, "wide"),
        (-1e300, "wide"),
        (float("nan"), "odd"),
        (float("-inf"), "odd"),
        (Decimal("nan"), "odd"),
        (None, "null"),
        (CHAT, "messages"),
        ([*CHAT, "a"], "nested"),
        ([], "nested"),
        ({"role": "user", "content": "a"}, "object"),
        (date(2000, 1, 1), "other"),
        (b"a", "other"),
    ],
)
def test_a_value_is_of_one_kind(value: Any, kind: str) -> None:
    assert value_kind(value) == kind and kind in rlgraph.columns.WORDS


ROWS: list[Mapping[str, Any]] = [
    {"prompt": "a", "x": 1},
    {"prompt": CHAT, "x": 0.5, "late": None},
    {"x": 2**70, "late": True, "prompt": "b"},
    {"prompt": "a", "x": 1},
    {"x": "c", "late": 1},
]
KINDS = {
    "prompt": {"text": 1, "messages": 2, "missing": 5},
    "x": {"whole": 1, "real": 2, "large": 3, "text": 5},
    "late": {"missing": 1, "null": 2, "truth": 3, "whole": 5},
}


@pytest.mark.parametrize("most", [1, 4096])
def test_the_first_row_of_each_kind_is_kept(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few shapes of rows are remembered."""
    monkeypatch.setattr(rlgraph.columns, "_MOST_SIGNATURES", most)
    looked = ColumnInspector(str)
    for number, row in enumerate(ROWS, 1):
        looked.add_row(row, number)
    assert first(looked.columns()) == {name: {k: str(n) for k, n in of.items()} for name, of in KINDS.items()}


def test_jsonl_is_looked_at_by_line(declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker sees the beginning of a large file, the run all of it."""
    lines = [json.dumps(row) for row in ROWS]
    (tmp_path / "d.jsonl").write_text("\n" + "\n".join(lines) + "\n")
    spec, folders = declare('data d = jsonl("d.jsonl")'), SearchFolders(tmp_path)
    wanted = {name: {k: f"d.jsonl:{n + 1}" for k, n in of.items()} for name, of in KINDS.items()}
    assert first(source_columns(spec, folders)) == first(open_source(spec, folders).columns) == wanted
    monkeypatch.setattr(lines_source, "_PEEK_BYTES", len(lines[0]) + len(lines[1]) + 10)
    assert first(source_columns(spec, folders)) == {
        "prompt": {"text": "d.jsonl:2", "messages": "d.jsonl:3"},
        "x": {"whole": "d.jsonl:2", "real": "d.jsonl:3"},
        "late": {"missing": "d.jsonl:2", "null": "d.jsonl:3"},
    }
    assert first(open_source(spec, folders).columns) == wanted


def test_rows_beyond_the_limit_are_not_looked_at(declare: Declare, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "tasks.py").write_text(f"def f():\n    return {ROWS!r}\n")
    spec, folders = declare('data d = jsonl("d.jsonl", limit=1)'), SearchFolders(tmp_path)
    wanted = {"prompt": {"text": "d.jsonl:1"}, "x": {"whole": "d.jsonl:1"}}
    assert first(source_columns(spec, folders)) == first(open_source(spec, folders).columns) == wanted


def test_a_table_says_what_its_columns_are(declare: Declare, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    table = pa.table(
        {
            "text": pa.array(["a", None, "c"]),
            "code": pa.array(["a", "a", "b"]).dictionary_encode(),
            "whole": pa.array([1, 2, 3], pa.int16()),
            "large": pa.array([1, 2, 2**63], pa.uint64()),
            "real": pa.array([None, 1.5, float("nan")]),
            "wide": pa.array([1.0, 1e39, 1.0]),
            "price": pa.array([Decimal("1.5")] * 3),
            "truth": [True, False, True],
            "chat": [CHAT, CHAT, CHAT],
            "list": [[1], [2], []],
            "date": [date(2000, 1, 1)] * 3,
            "none": pa.nulls(3),
        }
    )
    pa.parquet.write_table(table, tmp_path / "d.parquet")
    spec, folders = declare('data d = parquet("d.parquet")'), SearchFolders(tmp_path)
    kinds = ["text", "text", "whole", "whole", "real", "real", "real", "truth", "messages", "nested", "other", "null"]
    assert [list(column.first) for column in (source_columns(spec, folders) or {}).values()] == [
        [kind] for kind in kinds
    ]

    def row(place: int) -> str:
        return f"row {place} of 'd.parquet'"

    found = first(open_source(spec, folders).columns)
    assert found == {
        **{name: {kind: row(0)} for name, kind in zip(table.column_names, kinds, strict=True)},
        "text": {"null": row(1), "text": row(0)},
        "large": {"whole": row(0), "large": row(2)},
        "real": {"null": row(0), "real": row(1), "odd": row(2)},
        "wide": {"real": row(0), "wide": row(1)},
    }
    assert first(open_source(declare('data d = parquet("d.parquet", limit=1)'), folders).columns)["text"] == {
        "text": row(0)
    }


@pytest.mark.parametrize("table", [True, False])
def test_a_data_set_of_the_hub_is_looked_at(declare: Declare, monkeypatch: pytest.MonkeyPatch, table: bool) -> None:
    """As the table that it is, or row by row where it is none."""
    import pyarrow as pa

    rows = [{"prompt": "a", "level": 1}, {"prompt": "b", "level": None}]

    class Loaded(list[Any]):
        data = types.SimpleNamespace(table=pa.Table.from_pylist(rows)) if table else None

    module = types.ModuleType("datasets")
    module.load_dataset = lambda *args, **options: Loaded(rows)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: module)
    spec = declare('data d = hub("some/set")')
    assert source_columns(spec, SearchFolders(Path())) is None, "nothing is loaded before a run"
    assert first(open_source(spec, SearchFolders(Path())).columns) == {
        "prompt": {"text": "row 0 of 'some/set'"},
        "level": {"whole": "row 0 of 'some/set'", "null": "row 1 of 'some/set'"},
    }


def test_tasks_of_reasoning_gym_have_columns_of_known_kinds(declare: Declare) -> None:
    pytest.importorskip("reasoning_gym")
    spec, folders = declare('data d = reasoning_gym("spell_backward", size=2, max_word_len=4)'), SearchFolders(Path())
    source = open_source(spec, folders)
    looked = ColumnInspector(str)
    looked.add_row(source.rows[0], 0)  # type: ignore[index]
    kinds = {name: list(column.first) for name, column in looked.columns().items()}
    for found in (source_columns(spec, folders), source.columns):
        assert {name: list(column.first) for name, column in (found or {}).items()} == kinds


def test_a_list_is_looked_at_and_a_stream_is_not(declare: Declare, tmp_path: Path, workers: Workers) -> None:
    (tmp_path / "tasks.py").write_text(f"def listed():\n    return {ROWS!r}\ndef yielded():\n    yield from {ROWS!r}\n")
    folders = SearchFolders(tmp_path)
    listed = open_source(declare('data d = python("tasks.py:listed")'), folders, workers)
    assert first(listed.columns) == {
        name: {k: f"row {n - 1} of `listed`" for k, n in of.items()} for name, of in KINDS.items()
    }
    assert open_source(declare('data d = python("tasks.py:yielded", batch=2)'), folders, workers).columns is None


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"a": 1, "b": 1}, {"a": 1}], "row 1 that `f` yields has no column 'b', which row 0 has"),
        ([{"a": 1}, {"a": 1}, {"a": 1, "b": 1}], "row 0 that `f` yields has no column 'b', which row 2 has"),
    ],
)
def test_all_rows_of_a_stream_have_the_same_columns(
    declare: Declare, tmp_path: Path, workers: Workers, rows: list[Any], said: str
) -> None:
    (tmp_path / "tasks.py").write_text(f"def f():\n    yield from {rows!r}\n")
    reader = BatchReader(
        open_source(declare('data d = python("tasks.py:f", batch=1)'), SearchFolders(tmp_path), workers), "d", 0
    )
    with pytest.raises(RunError) as caught:
        cursor = Cursor()
        for _ in rows:
            cursor = reader.read_batch(cursor)[2]
    assert f"E0711]: {said}" in str(caught.value) and "`None` where there is no value" in str(caught.value)


def test_a_default_stands_for_a_column_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "n": 2}\n{"prompt": "b", "answer": "4", "n": null}\n')
    spec = CallSpec("jsonl", ("a.jsonl",), {"shuffle": False, "defaults": {"answer": "", "n": 7, "by": 1}}, NO_SPAN)
    source = open_source(spec, SearchFolders(tmp_path))
    rows, _, _ = BatchReader(source, "a", 0).read_batch(Cursor())
    assert rows == [{"answer": "", "n": 2, "by": 1, "prompt": "a"}, {"answer": "4", "n": None, "by": 1, "prompt": "b"}]
    known = first(source.columns)
    assert known["answer"] == {"text": "a.jsonl:2"} and known["by"] == {"whole": ""}
    assert known["n"] == {"whole": "a.jsonl:1", "null": "a.jsonl:2"}, "null is a value, for which no default stands"
    assert first(source_columns(spec, SearchFolders(tmp_path))) == known


VERL: list[dict[str, Any]] = [
    {"prompt": CHAT, "reward_model": {"style": "rule", "ground_truth": "4"}, "extra_info": {"index": 0}},
    {"prompt": CHAT, "reward_model": {"style": "rule", "ground_truth": "\u00e9"}, "extra_info": None},
    {"prompt": CHAT, "reward_model": {"style": "rule"}, "extra_info": {"index": 1.5, "more": {"deep": [1]}}},
]
"""Rows as verl publishes them."""
NESTED = {
    "reward_model": {"object": 1},
    "reward_model.ground_truth": {"text": 1, "missing": 3},
    "extra_info": {"object": 1, "null": 2},
    "extra_info.index": {"whole": 1, "null": 2, "real": 3},
    "extra_info.more": {"missing": 1, "null": 2, "object": 3},
    "extra_info.more.deep": {"missing": 1, "null": 2, "nested": 3},
}


def kinds(found: Mapping[str, Column] | None, name: str) -> dict[str, str]:
    column = column_at(found or {}, name)
    assert column is not None, name
    return dict(column.first)


def test_what_objects_hold_is_known_by_name(declare: Declare, tmp_path: Path, workers: Workers) -> None:
    """Before a run and in one, in files of lines and in a function's list."""
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in VERL))
    (tmp_path / "tasks.py").write_text(f"def f():\n    return {VERL!r}\n")
    spec, folders = declare('data d = jsonl("d.jsonl")'), SearchFolders(tmp_path)
    for known in (source_columns(spec, folders), open_source(spec, folders).columns):
        assert {name: kinds(known, name) for name in NESTED} == {
            name: {kind: f"d.jsonl:{number}" for kind, number in of.items()} for name, of in NESTED.items()
        }
    longest = column_at(open_source(spec, folders).columns or {}, "reward_model.ground_truth")
    assert longest is not None and longest.longest == 4, "a bound on its bytes"
    listed = open_source(declare('data d = python("tasks.py:f")'), folders, workers).columns
    assert {name: set(kinds(listed, name)) for name in NESTED} == {name: set(of) for name, of in NESTED.items()}
    assert column_at(listed or {}, "reward_model.truth") is None and column_at(listed or {}, "prompt.role") is None


def test_a_table_says_what_its_objects_hold(declare: Declare, tmp_path: Path) -> None:
    """A name that an object lacks is null there."""
    import pyarrow as pa
    import pyarrow.parquet

    pa.parquet.write_table(pa.Table.from_pylist(VERL), tmp_path / "d.parquet")
    spec, folders = declare('data d = parquet("d.parquet")'), SearchFolders(tmp_path)
    schema, known = source_columns(spec, folders), open_source(spec, folders).columns
    for name, of in NESTED.items():
        [kind] = {"real" if kind == "whole" else kind for kind in of} - {"null", "missing"}
        assert [*kinds(schema, name)] == [kind]
        absent = min((number for k, number in of.items() if k in ("null", "missing")), default=None)
        places = kinds(known, name)
        assert places[kind] and places.get("null") == (None if absent is None else f"row {absent - 1} of 'd.parquet'")


@pytest.mark.parametrize(
    "value",
    [
        {str(number): 1 for number in range(257)},
        {1: "a"},
        {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": 1}}}}}}}}},
    ],
)
def test_of_objects_of_any_names_nothing_is_remembered(value: Any) -> None:
    looked = ColumnInspector(str)
    looked.add_row({"x": {"a": 1}}, 1)
    looked.add_row({"x": value}, 2)
    names, found = "x" + ".a" * 8 if "a" in value else "x", looked.columns()
    column = column_at(found, names)
    assert column is not None and "object" in column.first and column.fields is None
    assert column_at(found, f"{names}.a") is None


def test_rows_of_names_of_their_own_are_forgotten() -> None:
    """Each is small, and together they would be many."""
    looked = ColumnInspector(str)
    for number in range(300):
        looked.add_row({"x": {f"n{number}": 1}}, number)
    assert looked.columns()["x"].fields is None


def test_a_value_is_reached_by_name() -> None:
    row = {"a": {"b": {"c": 1}}, "none": None, "text": "t", "flat.name": 2}
    assert value_at(row, "a.b.c") == 1 and value_at(row, "none.x.y") is None and value_at(row, "flat.name") == 2
    for name in ("x", "a.x", "a.b.x"):
        with pytest.raises(KeyError):
            value_at(row, name)
    for name, outer in {"text.x": "text", "a.b.c.d.e": "a.b.c"}.items():
        with pytest.raises(TypeError, match=f"^{outer}$"):
            value_at(row, name)
    assert with_value_at(row, "a.b.c", 5) == {**row, "a": {"b": {"c": 5}}} and row["a"] == {"b": {"c": 1}}
    assert with_value_at(row, "flat.name", 5) == {**row, "flat.name": 5}


def test_a_default_stands_for_what_objects_lack(tmp_path: Path, declare: Declare) -> None:
    lines = [{"prompt": "a", **row} for row in ({"o": {"x": 1}}, {"o": {"y": "b"}}, {"o": None}, {})]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    options = {"shuffle": False, "defaults": {"o": {"x": 7}, "p": {"q": ""}}}
    source = open_source(CallSpec("jsonl", ("d.jsonl",), options, NO_SPAN), SearchFolders(tmp_path))
    rows, _, _ = BatchReader(source, "a", 0).read_batch(Cursor())
    assert [row["o"] for row in rows] == [{"x": 1}, {"x": 7, "y": "b"}, None, {"x": 7}]
    assert all(row["p"] == {"q": ""} for row in rows)
    assert kinds(source.columns, "o.x") == {"null": "d.jsonl:3", "whole": "d.jsonl:1"}
    assert kinds(source.columns, "o.y") == {"missing": "d.jsonl:1", "null": "d.jsonl:3", "text": "d.jsonl:2"}
    assert kinds(source.columns, "o") == {"null": "d.jsonl:3", "object": "d.jsonl:1"}
    assert kinds(source.columns, "p.q") == {"text": ""}
