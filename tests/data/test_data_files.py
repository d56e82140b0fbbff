"""`files(...)`: the same rows in every format, in which order files are read, and what is said of those that are
wrong."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlgraph.columns import column_at
from rlgraph.data import BatchReader, Cursor, open_source, source_columns
from rlgraph.data.sources import source_files
from rlgraph.errors import NO_SPAN, ProgramError, RunError
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import CallSpec

Declare = Callable[[str], CallSpec]
ROWS: list[dict[str, Any]] = [
    {"prompt": "2+2=", "code": "007", "level": 4, "share": 0.5, "hard": True},
    {"prompt": 'é, "q"\nx', "code": "None", "level": None, "share": 1e-3, "hard": False},
    {"prompt": "NA", "code": "1", "level": -3, "share": 2.0, "hard": True},
]
KINDS = {"prompt": {"text"}, "code": {"text"}, "level": {"whole", "null"}, "share": {"real"}, "hard": {"truth"}}


def as_csv(rows: Sequence[dict[str, Any]], delimiter: str = ",") -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    for row in rows:
        cells = {name: "" if value is None else value for name, value in row.items()}
        writer.writerow({**cells, "hard": str(row["hard"]).lower()})
    return text.getvalue().encode()


def as_arrow(rows: Sequence[dict[str, Any]]) -> bytes:
    table, sink = pa.Table.from_pylist(list(rows)), io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def as_parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), sink)
    return sink.getvalue()


def as_lines(rows: Sequence[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def zst(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, "zstd", asbytes=True)
    return packed


WRITERS: dict[str, Callable[[Sequence[dict[str, Any]]], bytes]] = {
    "jsonl": as_lines,
    "ndjson": as_lines,
    "json": lambda rows: json.dumps(rows, indent=2).encode(),
    "csv": as_csv,
    "tsv": lambda rows: as_csv(rows, "\t"),
    "parquet": as_parquet,
    "arrow": as_arrow,
}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zst,
}
NAMES = [*WRITERS, *(f"jsonl.{end}" for end in PACKERS), "json.gz", "json.zst", "csv.gz"]


def written(folder: Path, name: str, rows: Sequence[dict[str, Any]] = tuple(ROWS)) -> Path:
    _, ending, *packed = name.split(".")
    data = WRITERS[ending](list(rows))
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(PACKERS[packed[0]](data) if packed else data)
    return file


def spec_of(paths: Any, **options: Any) -> CallSpec:
    return CallSpec("files", (paths,), {"shuffle": False, **options}, NO_SPAN)


def read(spec: CallSpec, folder: Path) -> list[dict[str, Any]]:
    return BatchReader(open_source(spec, SearchFolders(folder)), "d", 0).read_batch(Cursor())[0]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_has_the_same_rows(tmp_path: Path, name: str) -> None:
    """In csv what is written as a number in every row is one, and nothing else: no leading zeros, no `None`."""
    written(tmp_path, f"d.{name}")
    source = open_source(spec_of(f"d.{name}"), SearchFolders(tmp_path))
    assert BatchReader(source, "d", 0).read_batch(Cursor())[0] == ROWS
    known = source.columns or {}
    assert {column: set(known[column].first) for column in known} == KINDS
    before = source_columns(spec_of(f"d.{name}"), SearchFolders(tmp_path))
    assert tuple(before or ()) == tuple(KINDS)


@pytest.mark.skipif(find_spec("zstandard") is None, reason="zstandard is not installed")
def test_a_table_may_be_packed_by_zstd(tmp_path: Path) -> None:
    written(tmp_path, "d.csv.zst")
    assert read(spec_of("d.csv.zst"), tmp_path) == ROWS


def test_lines_of_text_are_rows(tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_text("one\n\ntwo")
    assert read(spec_of("d.txt"), tmp_path) == [{"text": "one"}, {"text": ""}, {"text": "two"}]
    assert column_at(source_columns(spec_of("d.txt"), SearchFolders(tmp_path)) or {}, "text")


def test_a_json_file_may_have_lines_or_its_rows_under_a_name(tmp_path: Path) -> None:
    (tmp_path / "lines.json").write_bytes(as_lines(ROWS))
    assert read(spec_of("lines.json"), tmp_path) == ROWS
    for ending, pack in PACKERS.items():
        (tmp_path / f"lines.json.{ending}").write_bytes(pack(as_lines(ROWS)))
        assert read(spec_of(f"lines.json.{ending}"), tmp_path) == ROWS
    (tmp_path / "d.json").write_text(json.dumps({"version": 1, "data": ROWS}))
    assert read(spec_of("d.json", field="data"), tmp_path) == ROWS
    nested = {"a": [{"o": {"x": 1}}, {"o": {}}]}
    (tmp_path / "n.json").write_text(json.dumps(nested))
    known = open_source(spec_of("n.json", field="a"), SearchFolders(tmp_path)).columns or {}
    column = column_at(known, "o.x")
    assert column and column.first == {"whole": "row 0 of 'n.json'", "missing": "row 1 of 'n.json'"}


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "json", "csv", "parquet"])
def test_many_files_are_read_in_the_order_of_their_names_or_of_a_list(tmp_path: Path, ending: str) -> None:
    """And a stored cursor goes on with the same rows."""
    rows = [{**ROWS[place % 3], "code": f"c{place}"} for place in range(9)]
    for part, name in enumerate(("b", "sub/c", "a")):
        written(tmp_path, f"data/{name}.{ending}", rows[3 * part : 3 * part + 3])
    (tmp_path / "data" / ".hidden.jsonl").write_text("no")
    (tmp_path / "data" / "README.txt").write_text("no")
    (tmp_path / "data" / "dataset_info.json").write_text("{}")

    def codes(paths: Any) -> str:
        return "".join(row["code"] for row in read(spec_of(paths), tmp_path)).replace("c", "")

    assert codes("data") == codes("data/") == codes(f"data/**/*.{ending}") == "678012345"
    assert codes(f"data/*.{ending}") == "678012" and codes(f"data/[b].{ending}") == "012"
    assert codes([f"data/b.{ending}", "data/sub"]) == "012345"
    assert codes([f"data/sub/c.{ending}", f"data/a.{ending}"]) == "345678"
    names = [file.relative_to(tmp_path).as_posix() for file in source_files(spec_of("data"), SearchFolders(tmp_path))]
    assert names == [f"data/{name}.{ending}" for name in ("a", "b", "sub/c")]

    spec = spec_of("data", batch=4, shuffle=True)
    every, cursor = [], Cursor()
    reader = BatchReader(open_source(spec, SearchFolders(tmp_path)), "d", 3)
    for _ in range(6):
        rows_read, ids, cursor_after = reader.read_batch(cursor)
        again = BatchReader(open_source(spec, SearchFolders(tmp_path)), "d", 3).read_batch(cursor)
        assert again == (rows_read, ids, cursor_after)
        every += rows_read
        cursor = cursor_after
    assert sorted(row["code"] for row in every[:9]) == sorted(row["code"] for row in rows)


def test_messages_name_the_file_of_a_row(tmp_path: Path) -> None:
    written(tmp_path, "a.jsonl", [{"x": 1}, {"x": 2}])
    (tmp_path / "b.jsonl").write_text('\n{"y": 1}\n{"x": "t"}\n')
    source = open_source(spec_of("*.jsonl"), SearchFolders(tmp_path))
    known = source.columns or {}
    assert known["x"].first == {"whole": "a.jsonl:1", "missing": "b.jsonl:2", "text": "b.jsonl:3"}
    limited = open_source(spec_of("*.jsonl", limit=3), SearchFolders(tmp_path))
    assert (limited.columns or {})["x"].first == {
        "whole": "a.jsonl:1",
        "missing": "b.jsonl:2",
    } and limited.row_count == 3
    (tmp_path / "b.jsonl").write_text('{"x": 1}\n{"x": \n')
    with pytest.raises(ProgramError, match="b.jsonl:2: broken JSON: Expecting value at column 6"):
        open_source(spec_of("*.jsonl"), SearchFolders(tmp_path))


def test_a_folder_of_splits_is_read_by_its_split(tmp_path: Path) -> None:
    """So is what `save_to_disk` of `datasets` writes."""
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation", "test"):
        written(tmp_path, f"data/{name}.jsonl", [{"x": name}])
    with pytest.raises(ProgramError, match="E0763.*several splits, `test`, `train` and `validation`") as told:
        read(spec_of("data"), tmp_path)
    assert 'split="test"' in str(told.value)
    got = read(spec_of("data", split="train"), tmp_path)
    assert [row["x"] for row in got] == ["train-00000-of-00002", "train-00001-of-00002"]
    assert [row["x"] for row in read(spec_of("data/*.jsonl", split="val"), tmp_path)] == ["validation"]
    with pytest.raises(ProgramError, match="no files of the split 'other'"):
        read(spec_of("data", split="other"), tmp_path)

    import datasets

    saved = datasets.DatasetDict({part: datasets.Dataset.from_list(ROWS) for part in ("train", "test")})
    saved.save_to_disk(str(tmp_path / "saved"))
    assert read(spec_of("saved", split="test"), tmp_path) == read(spec_of("saved/train"), tmp_path) == ROWS


@pytest.mark.parametrize("ending", ["csv", "parquet", "arrow"])
def test_a_table_may_be_streamed(tmp_path: Path, ending: str) -> None:
    """Rows come in the order of the files, and a restart in the middle reads the same."""
    for name in ("b", "a"):
        written(tmp_path, f"{name}.{ending}", [{**row, "code": f"{name}{place}"} for place, row in enumerate(ROWS)])
    spec = CallSpec("files", (f"*.{ending}",), {"batch": 4, "streaming": True}, NO_SPAN)
    reader, cursor = BatchReader(open_source(spec, SearchFolders(tmp_path)), "d", 0), Cursor()
    for wanted in (["a0", "a1", "a2", "b0"], ["b1", "b2", "a0", "a1"], ["a2", "b0", "b1", "b2"]):
        rows, ids, after = reader.read_batch(cursor)
        assert [row["code"] for row in rows] == wanted
        assert BatchReader(open_source(spec, SearchFolders(tmp_path)), "d", 0).read_batch(cursor) == (rows, ids, after)
        cursor = after


WRONG: list[tuple[dict[str, bytes], Any, dict[str, Any], str]] = [
    ({}, "*.jsonl", {}, "E0703]: no file matches '*.jsonl' in"),
    ({}, "none.csv", {}, "E0703]: there is no data file 'none.csv'"),
    ({"d/a.bin": b""}, "d", {}, "E0703]: the folder 'd' has no file with rows"),
    ({"a.bin": b""}, "a.bin", {}, "E0762]: the ending of 'a.bin' does not say what it holds"),
    ({"a.parquet.gz": b""}, "a.parquet.gz", {}, "E0762]: the ending of 'a.parquet.gz' does not say"),
    (
        {"a.csv": b"", "a.jsonl": b""},
        "a.*",
        {},
        "E0762]: these files are of several formats: 'a.csv' is csv, 'a.jsonl'",
    ),
    ({"a.jsonl.gz": b"{}"}, "a.jsonl.gz", {}, "E0761]: 'a.jsonl.gz' cannot be unpacked: Not a gzipped file"),
    ({"a.jsonl.zst": b"{}"}, "a.jsonl.zst", {}, "E0761]: 'a.jsonl.zst' cannot be unpacked"),
    ({"a.jsonl.gz": gzip.compress(b"{}" * 99)[:-9]}, "a.jsonl.gz", {}, "E0761]: 'a.jsonl.gz' cannot be unpacked"),
    ({"a.jsonl.gz": gzip.compress(b"{}\n{")}, "a.jsonl.gz", {}, "E0706]: a.jsonl.gz:2: broken JSON"),
    (
        {"a.json": b'[{"a": 1},\n {"a" 1}]'},
        "a.json",
        {},
        "E0764]: a.json:2: broken JSON: Expecting ':' delimiter at column 7",
    ),
    (
        {"a.json": b'[{"a": "\\ud83d\\ude00"}, {"a": "\\ud83d"}]'},
        "a.json",
        {},
        "E0705]: row 1 of 'a.json': '\\ud83d' is half of a surrogate pair",
    ),
    ({"a.json": b'[{"a": 1}, 3]'}, "a.json", {}, "E0764]: row 1 of 'a.json' is no object"),
    ({"a.json": b'{"v": 1,\n "data": []}'}, "a.json", {}, 'say where they are: `field="data"`'),
    ({"a.json": b'{"data": []}'}, "a.json", {"field": "dta"}, "has no field 'dta'\nhelp: did you mean `data`?"),
    ({"a.json": b"[]"}, "a.json", {}, "E0707]: 'a.json' has no rows"),
    ({"a.json": b"\xff"}, "a.json", {}, "E0764]: 'a.json' is not a text in UTF-8"),
    ({"a.csv": b""}, "a.csv", {}, "E0765]: the first line of 'a.csv' is empty"),
    ({"a.csv": b"a,b\n"}, "a.csv", {}, "E0707]: 'a.csv' has no rows"),
    ({"a.txt": b""}, "a.txt", {}, "E0707]: 'a.txt' has no rows"),
    ({"a.csv": b"a\n\xe9\n"}, "a.csv", {}, "help: save the file as UTF-8"),
    ({"a.csv": b"a,b,a\n1,2,3\n"}, "a.csv", {}, "E0765]: the first line of 'a.csv' names the column 'a' twice"),
    ({"a.csv": b"a,b\n1,2,3\n"}, "a.csv", {}, "E0765]: a.csv:2 has 3 cells, and the first line names 2"),
    ({"a.csv": b"a,b\n1,2\n1,2,3\n"}, "a.csv", {}, "Expected 2 fields in line 3, saw 3"),
    (
        {"a.csv": b"a\n1\n", "b.csv": b"a,b\n1,2\n"},
        "*.csv",
        {},
        "E0765]: 'b.csv' has a column 'b', and 'a.csv' has none",
    ),
    ({"a.parquet": b"a"}, "a.parquet", {}, "E0710]: 'a.parquet' is not a parquet table: "),
    ({"a.jsonl": b"{}"}, "a.jsonl", {"streaming": True}, "E0702]: `streaming` is nothing for 'a.jsonl'"),
    ({"a.csv": b"a\n1\n"}, "a.csv", {"streaming": True}, "so they cannot be shuffled"),
    ({"a.csv": b"a\n1\n"}, "a.csv", {"field": "a"}, "E0702]: `field` is nothing for 'a.csv'"),
    ({}, [], {}, "E0702]: `files` takes a path, or a list of paths"),
    ({}, 3, {}, "E0702]: `files` takes a path, or a list of paths"),
]


@pytest.mark.parametrize(("contents", "paths", "options", "said"), WRONG)
def test_what_is_wrong_is_said(
    tmp_path: Path, contents: dict[str, bytes], paths: Any, options: dict[str, Any], said: str
) -> None:
    for name, data in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    spec = CallSpec("files", (paths,), {"shuffle": "streaming" in options, **options}, NO_SPAN)
    source_columns(spec, SearchFolders(tmp_path))  # raises nothing
    source_files(spec, SearchFolders(tmp_path))
    with pytest.raises(ProgramError) as told:
        open_source(spec, SearchFolders(tmp_path))
    assert said in str(told.value), str(told.value)


def test_a_hub_s_data_set_may_be_streamed(declare: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[Any] = []

    def load_dataset(*args: Any, **options: Any) -> Any:
        asked.append(options)
        return datasets.Dataset.from_list(ROWS).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    source = open_source(declare('data d = hub("some/set", batch=2, streaming=True)'), SearchFolders(Path()))
    assert asked == [{"split": "train", "revision": None, "streaming": True}]
    rows, _, cursor = BatchReader(source, "d", 0).read_batch(Cursor(0, 1))
    assert rows == ROWS[1:] and cursor == Cursor(0, 3)


def test_a_stream_that_breaks_off_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "a.csv")
    source = open_source(
        CallSpec("files", ("a.csv",), {"batch": 2, "streaming": True}, NO_SPAN), SearchFolders(tmp_path)
    )
    (tmp_path / "a.csv").unlink()
    with pytest.raises(RunError, match="E0710.*'a.csv' cannot be read on from row 0"):
        BatchReader(source, "d", 0).read_batch(Cursor())
