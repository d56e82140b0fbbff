"""Where rows come from, and what is said when a file, an option or a row is wrong."""

from __future__ import annotations

import json
import os
import struct
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rlgraph.data import BatchReader, Cursor, check_source, column_values, open_source, source_columns
from rlgraph.data.base import numbered_rows
from rlgraph.data.json_lines import JsonLines
from rlgraph.errors import NO_SPAN, ProgramError, RlgraphError, RunError
from rlgraph.user_code import Workers
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import CallSpec

Declare = Callable[[str], CallSpec]


def jsonl(folder: Path, *rows: Any, name: str = "d.jsonl") -> Path:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def first(spec: CallSpec, base: Path) -> list[dict[str, Any]]:
    """All rows of the first epoch in the order of the data."""
    rows, ids, _ = BatchReader(open_source(spec, SearchFolders(base)), "d", 0).read_batch(Cursor())
    return [row for _, row in sorted(zip(ids, rows, strict=True), key=lambda pair: pair[0])]


def test_jsonl_skips_blank_lines_a_bom_and_windows_line_ends(declare: Declare, tmp_path: Path) -> None:
    text = '\ufeff{"prompt": "é\u2028x"}\r\n\r\n   \n{"prompt": [{"role": "user", "content": "b"}]}'
    (tmp_path / "d.jsonl").write_bytes(text.encode())
    spec = declare('data d = jsonl("d.jsonl")')
    assert first(spec, tmp_path) == [{"prompt": "é\u2028x"}, {"prompt": [{"role": "user", "content": "b"}]}]
    assert tuple(source_columns(spec, SearchFolders(tmp_path)) or ()) == ("prompt",)


def test_paths_may_be_absolute(declare: Declare, tmp_path: Path) -> None:
    jsonl(tmp_path, {"a": 1})
    assert first(declare(f'data d = jsonl("{tmp_path}/d.jsonl")'), Path("/nowhere")) == [{"a": 1}]


def test_limit_keeps_the_first_rows(declare: Declare, tmp_path: Path) -> None:
    jsonl(tmp_path, *({"a": place} for place in range(5)))
    assert first(declare('data d = jsonl("d.jsonl", limit=2)'), tmp_path) == [{"a": 0}, {"a": 1}]
    assert len(first(declare('data d = jsonl("d.jsonl", limit=9)'), tmp_path)) == 5


def test_parquet(declare: Declare, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": None}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "d.parquet")
    spec = declare('data d = parquet("d.parquet")')
    assert first(spec, tmp_path) == rows
    assert tuple(source_columns(spec, SearchFolders(tmp_path)) or ()) == ("prompt", "answer")


def test_parquet_of_values_that_python_has_and_that_it_has_not(declare: Declare, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    def written(values: Any) -> list[Any]:
        pyarrow.parquet.write_table(pyarrow.table({"x": values}), tmp_path / "d.parquet")
        return [row["x"] for row in first(declare('data d = parquet("d.parquet")'), tmp_path)]

    assert written(pyarrow.array([2**64 - 1], pyarrow.uint64())) == [2**64 - 1]
    assert written(pyarrow.array(["a", "b", "a"]).dictionary_encode()) == ["a", "b", "a"]
    assert written(pyarrow.array([[[1, 2], []], [[3]]])) == [[[1, 2], []], [[3]]]
    assert written(pyarrow.array([Decimal("1.25")], pyarrow.decimal128(10, 2))) == [Decimal("1.25")]
    # A day two million years ago, and bytes that are said to be a text.
    latin = pyarrow.StringArray.from_buffers(1, pyarrow.py_buffer(struct.pack("<2i", 0, 1)), pyarrow.py_buffer(b"\xff"))
    for values, kind in (
        (pyarrow.array([-(2**30)], pyarrow.int32()).cast(pyarrow.date32()), "date32"),
        (latin, "string"),
    ):
        with pytest.raises(RunError, match=rf"E0715.*`x` of row 0 of 'd.parquet' \({kind}") as told:
            written(values)
        assert "^" in str(told.value)


def test_reasoning_gym_start_holds_rows_out(declare: Declare) -> None:
    whole = first(declare('data d = reasoning_gym("spell_backward", size=6, seed=3, max_word_len=4)'), Path())
    held = first(declare('data d = reasoning_gym("spell_backward", size=2, seed=3, start=4, max_word_len=4)'), Path())
    assert [row["prompt"] for row in held] == [row["prompt"] for row in whole[4:]]
    assert [row["index"] for row in held] == [4, 5]
    assert all(len(row["answer"]) <= 4 and row["task"] == "spell_backward" for row in whole)
    assert tuple(
        source_columns(declare('data d = reasoning_gym("spell_backward")'), SearchFolders(Path())) or ()
    ) == tuple(whole[0])


def test_hub_needs_its_package(declare: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ProgramError) as caught:
        open_source(declare('data d = hub("openai/gsm8k")'), SearchFolders(Path()))
    [found] = caught.value.diagnostics
    assert (found.code, found.message) == ("E0709", "this needs the package 'datasets', which is not installed")
    assert found.hint == "pip install 'rlgraph-compiler[datasets]'"


def test_hub_loads_one_split(declare: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*args: Any, **options: Any) -> list[dict[str, Any]]:
        asked.append((args, options))
        if options["split"] == "far":
            raise ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub")
        if options["split"] == "tran":
            raise ValueError("Unknown split 'tran'.\nIt should be one of ['train'].")
        return [{"prompt": "a"}, {"prompt": "b"}]

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: module)
    monkeypatch.setattr("rlgraph.data.hub.hub_failure", lambda: "")
    spec = declare('data d = hub("openai/gsm8k", config="main", batch=2)')
    assert first(spec, Path()) == [{"prompt": "a"}, {"prompt": "b"}]
    assert asked == [(("openai/gsm8k", "main"), {"split": "train", "revision": None})]
    with pytest.raises(ProgramError) as caught:
        open_source(declare('data d = hub("openai/gsm8k", split="tran")'), SearchFolders(Path()))
    assert str(caught.value) == (
        "error[E0710]: 'openai/gsm8k' cannot be loaded from the hub: "
        "ValueError: Unknown split 'tran'. It should be one of ['train'].\n"
        " --> p.rlf:1:14\n  |\n"
        '1 | data d = hub("openai/gsm8k", split="tran")\n'
        "  |              ^^^^^^^^^^^^^^"
    )
    with pytest.raises(ProgramError, match=r"help: store it where .*`hf download openai/gsm8k --repo-type dataset`"):
        open_source(declare('data d = hub("openai/gsm8k", split="far")'), SearchFolders(Path()))


def test_a_hub_that_does_not_answer_is_asked_once(declare: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    module = types.ModuleType("datasets")
    module.config = types.SimpleNamespace(HF_HUB_OFFLINE=False)  # type: ignore[attr-defined]
    stored = {"here": [{"prompt": "a"}]}

    def load_dataset(name: str, *args: Any, **options: Any) -> list[dict[str, Any]]:
        assert module.config.HF_HUB_OFFLINE and constants.HF_HUB_OFFLINE, "it would ask, and try again and again"
        if name not in stored:
            raise ConnectionError(f"Couldn't reach '{name}' on the Hub (OfflineModeIsEnabled)")
        return stored[name]

    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: module)
    monkeypatch.setattr("rlgraph.data.hub.hub_failure", lambda: "the hub does not answer: no route")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert first(declare('data d = hub("here", batch=1)'), Path()) == stored["here"]
    message = "'far' cannot be loaded from the hub: it is not stored here, and the hub does not answer: no route"
    with pytest.raises(ProgramError, match=message):
        open_source(declare('data d = hub("far")'), SearchFolders(Path()))
    assert not module.config.HF_HUB_OFFLINE and not constants.HF_HUB_OFFLINE


def test_python_list_and_generator(declare: Declare, tmp_path: Path, workers: Workers) -> None:
    (tmp_path / "tasks.py").write_text(
        "def listed(n=3):\n    return [{'prompt': i} for i in range(n)]\n"
        "def yielded(n=3):\n    for i in range(n):\n        yield {'prompt': i}\n"
    )
    listed = open_source(declare('data d = python("tasks.py:listed", n=4)'), SearchFolders(tmp_path), workers)
    assert (listed.row_count, listed.shuffle) == (4, True)
    spec = declare('data d = python("tasks.py:yielded", batch=2)')
    one, two = open_source(spec, SearchFolders(tmp_path), workers), open_source(spec, SearchFolders(tmp_path), workers)
    reader, other = BatchReader(one, "d", 0), BatchReader(two, "d", 0)
    rows, ids, cursor = reader.read_batch(Cursor())
    again, _, after = other.read_batch(Cursor(0, 2))
    assert ([row["prompt"] for row in rows], ids, cursor) == ([0, 1], [(0, 0), (0, 1)], Cursor(0, 2))
    rows, ids, cursor = reader.read_batch(cursor)
    assert ([row["prompt"] for row in rows], ids, cursor) == ([2, 0], [(0, 2), (1, 0)], Cursor(1, 1))
    assert (again, after) == (rows, cursor), "a restart in the middle reads the same"
    assert reader.read_batch(Cursor())[0] == [{"prompt": 0}, {"prompt": 1}], "and so does going back"


def test_generators_may_be_endless_and_limited(declare: Declare, tmp_path: Path, workers: Workers) -> None:
    (tmp_path / "tasks.py").write_text(
        "import itertools\ndef f():\n    for i in itertools.count():\n        yield {'prompt': i}\n"
    )
    reader = BatchReader(
        open_source(declare('data d = python("tasks.py:f", batch=2)'), SearchFolders(tmp_path), workers), "d", 0
    )
    assert reader.read_batch(Cursor(0, 3000))[1] == [(0, 3000), (0, 3001)]
    limited = open_source(declare('data d = python("tasks.py:f", batch=2, limit=3)'), SearchFolders(tmp_path), workers)
    assert BatchReader(limited, "d", 0).read_batch(Cursor(0, 2))[1] == [(0, 2), (1, 0)]


def test_check_runs_and_imports_nothing(declare: Declare, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("raise SystemExit")
    loaded = set(sys.modules)
    spec = declare('data d = python("tasks.py:f", batch=2)')
    check_source(spec)
    assert source_columns(spec, SearchFolders(tmp_path)) is None
    jsonl(tmp_path, {"a": 1})
    assert tuple(source_columns(declare('data d = jsonl("d.jsonl", batch=2)'), SearchFolders(tmp_path)) or ()) == ("a",)
    assert not {name for name in set(sys.modules) - loaded if not name.startswith("rlgraph.data")}


@pytest.mark.parametrize(
    "call",
    [
        'jsonl("none.jsonl")',
        'jsonl(".")',
        'jsonl("/dev/zero")',
        'jsonl("bad.jsonl")',
        'jsonl("empty.jsonl")',
        'parquet("bad.jsonl")',
        'hub("x")',
        'jason("x")',
        "jsonl(3)",
    ],
)
def test_unknown_columns_are_none(declare: Declare, tmp_path: Path, call: str) -> None:
    (tmp_path / "bad.jsonl").write_text('{"a": ')
    (tmp_path / "empty.jsonl").write_text("")
    assert source_columns(declare(f"data d = {call}"), SearchFolders(tmp_path)) is None


A_ROW = 'a row is an object of JSON, {"prompt": ...}, on a line'
NO_ROWS = "write rows into it, or name another: `--data FILE`"
FILES: list[tuple[bytes, str, str]] = [
    (b'{"a": 1}\n{"a": \n', "E0706: d.jsonl:2: broken JSON: Expecting value at column 6", A_ROW),
    (b'{"a": 1}\n\n{"a" 1}\n', "E0706: d.jsonl:3: broken JSON: Expecting ':' delimiter at column 6", A_ROW),
    (
        b'{"a": 1}\n\0\0\0\n',
        "E0706: d.jsonl:2: broken JSON: Expecting value at column 1",
        "the line has bytes of 0, as a disk leaves them where writing was broken off: take it out",
    ),
    (
        b"{'a': 1}\n",
        "E0706: d.jsonl:1: broken JSON: Expecting property name enclosed in double quotes at column 2",
        "JSON takes double quotes",
    ),
    (
        b'{\n  "a": 1\n}\n',
        "E0706: d.jsonl:1: broken JSON: Expecting property name enclosed in double quotes at column 2",
        "write each row on one line of its own, without line breaks in it",
    ),
    (
        b'{"a": 1} {"a": 2}\n',
        "E0706: d.jsonl:1: broken JSON: Extra data at column 10",
        "write each row on a line of its own",
    ),
    (
        b'[{"a": 1}]\n',
        "E0706: d.jsonl:1: this line is a list, not a row",
        "the file seems to be one JSON array: use `files(...)`, and let its name end in .json",
    ),
    (
        b'[\n{"a": 1},\n{"a": 2}\n]\n',
        "E0706: d.jsonl:1: broken JSON: Expecting value at column 2",
        "the file seems to be one JSON array: use `files(...)`, and let its name end in .json",
    ),
    (
        b'{"a": "b\nc"}\n',
        "E0706: d.jsonl:1: broken JSON: Invalid control character at column 9",
        "a line break in a text is written `\\n`, and a tab `\\t`",
    ),
    (
        b'{"a": "b',
        "E0706: d.jsonl:1: broken JSON: Unterminated string starting at column 7",
        "the file ends within a row: was it cut off?",
    ),
    (
        b'{"a": "\\uD83D\\ude00"}\n{"a": [{"b": "\\uD83D..."}]}\n',
        "E0705: d.jsonl:2: '\\ud83d' is half of a surrogate pair, which is no character",
        "an emoji or the like was cut in two: write it whole",
    ),
    (b'{"a": 1}\n"text"\n', "E0706: d.jsonl:2: this line is a text, not a row", 'write {"prompt": ...} on each line'),
    (b"null\n", "E0706: d.jsonl:1: this line is null, not a row", 'write {"prompt": ...} on each line'),
    (
        b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}\n",
        "E0706: d.jsonl:1: lists and objects are nested more than 100 deep",
        "write what is deeper as a text that holds JSON",
    ),
    (
        b"[" * 200000 + b"\n",
        "E0706: d.jsonl:1: broken JSON: nested too deeply",
        "write what is deeper as a text that holds JSON",
    ),
    (
        b'{"a": ' + b"9" * 5000 + b"}\n",
        "E0706: d.jsonl:1: broken JSON: a number is too long",
        "write a number of so many digits as a text, in quotes",
    ),
    (b'{"a": "\xe9"}\n', "E0705: d.jsonl:1: not a text in UTF-8 (byte 0xe9 at position 8)", "save the file as UTF-8"),
    (
        b"\x1f\x8b\x08abc",
        "E0705: d.jsonl:1: not a text in UTF-8 (byte 0x8b at position 2)",
        "the file is compressed: let its name end in .gz, .zst, .bz2 or .xz, or unpack it",
    ),
    (
        '{"a": 1}'.encode("utf-16"),
        "E0705: d.jsonl:1: not a text in UTF-8 (byte 0xff at position 1)",
        "the file is in UTF-16; save it as UTF-8",
    ),
    (
        b"version https://git-lfs.github.com/spec/v1\n",
        "E0706: d.jsonl:1: broken JSON: Expecting value at column 1",
        "this is the pointer of a file in git LFS: run `git lfs pull`",
    ),
    (b"", "E0707: 'd.jsonl' has no rows", NO_ROWS),
    (b"\n \n", "E0707: 'd.jsonl' has no rows", NO_ROWS),
]


@pytest.mark.parametrize(("content", "message", "hint"), FILES)
def test_bad_files(declare: Declare, tmp_path: Path, content: bytes, message: str, hint: str) -> None:
    (tmp_path / "d.jsonl").write_bytes(content)
    with pytest.raises(ProgramError) as caught:
        open_source(declare('data d = jsonl("d.jsonl")'), SearchFolders(tmp_path))
    code, text = message.split(": ", 1)
    lines = [f"error[{code}]: {text}", " --> p.rlf:1:16", "  |", '1 | data d = jsonl("d.jsonl")']
    lines += ["  |                ^^^^^^^^^"] + ([f"help: {hint}"] if hint else [])
    assert str(caught.value).split("\n") == lines


CALLS: list[tuple[str, str, str]] = [
    (
        'jsonl("https://h.org/e.jsonl")',
        "E0703: there is no data file 'https://h.org/e.jsonl' in 'BASE' or in 'HERE'",
        "files are read from disk: `curl -LO https://h.org/e.jsonl` first",
    ),
    (
        'files("s3://bucket/e.jsonl")',
        "E0703: there is no data file 's3://bucket/e.jsonl' in 'BASE' or in 'HERE'",
        "files are read from disk: copy it here first",
    ),
    (
        'files("hf://datasets/openai/gsm8k/main/train.parquet")',
        "E0703: there is no data file 'hf://datasets/openai/gsm8k/main/train.parquet' in 'BASE' or in 'HERE'",
        'a data set of the hub is `hub("openai/gsm8k", batch=64)`',
    ),
    ('jsonl("dd.jsonl")', "E0703: there is no data file 'dd.jsonl' in 'BASE' or in 'HERE'", "did you mean `d.jsonl`?"),
    # Names are not alike for their ending.
    (
        'jsonl("e.jsonl")',
        "E0703: there is no data file 'e.jsonl' in 'BASE' or in 'HERE'",
        "in 'BASE' there is: d.jsonl",
    ),
    (
        'jsonl("zzzzzzzz.jsonl")',
        "E0703: there is no data file 'zzzzzzzz.jsonl' in 'BASE' or in 'HERE'",
        "in 'BASE' there is: d.jsonl",
    ),
    (
        'jsonl("no/e.jsonl")',
        "E0703: there is no data file 'no/e.jsonl' in 'BASE' or in 'HERE'",
        "there is no folder 'BASE/no' either",
    ),
    (
        'jsonl("qqqqqqqq")',
        "E0703: there is no data file 'qqqqqqqq' in 'BASE' or in 'HERE'",
        "in 'BASE' there is: bad.parquet, d.jsonl, folder",
    ),
    ('jsonl("folder")', "E0703: 'folder' is a folder, not a data file", "in 'BASE/folder' there is: train.jsonl"),
    ('jsonl("/dev/zero")', "E0703: '/dev/zero' is not a regular file", ""),
    (
        'parquet("d.jsonl")',
        "E0710: 'd.jsonl' is not a parquet table: Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file",
        "use `files(...)` for it",
    ),
    (
        'parquet("bad.parquet")',
        "E0710: 'bad.parquet' is not a parquet table: Parquet file size is 0 bytes",
        "was it copied whole? write it again",
    ),
    ('hub("openai/gsm8k", split=3)', "E0702: `split` must be a text, not 3", ""),
    ('jsn("d.jsonl")', "E0701: there is no data source 'jsn'", "did you mean `jsonl`?"),
    (
        'csv("d.csv")',
        "E0701: there is no data source 'csv'",
        "there are: files, jsonl, parquet, hub, python, reasoning_gym, mix",
    ),
    ("jsonl()", "E0702: `jsonl` takes one text: the path of a file", 'as in `jsonl("prompts.jsonl", batch=64)`'),
    ('jsonl("d.jsonl", btch=3)', "E0702: `jsonl` has no option 'btch'", "did you mean `batch`?"),
    (
        'jsonl("d.jsonl", colour=3)',
        "E0702: `jsonl` has no option 'colour'",
        "its options are: batch, shuffle, limit, max_prompt, overlong, defaults",
    ),
    ('jsonl("d.jsonl", batch=0)', "E0702: `batch` must be a whole number of at least 1, not 0", ""),
    ('jsonl("d.jsonl", batch=1.5)', "E0702: `batch` must be a whole number of at least 1, not 1.5", ""),
    ('jsonl("d.jsonl", batch=True)', "E0702: `batch` must be a whole number of at least 1, not True", ""),
    ('jsonl("d.jsonl", shuffle=1)', "E0702: `shuffle` must be true or false, not 1", ""),
    ('jsonl("d.jsonl", limit="3")', "E0702: `limit` must be a whole number of at least 1, not '3'", ""),
    (
        'jsonl("d.jsonl", batch=4)',
        "E0708: a batch of 4 rows is more than 'd.jsonl' has: 2 rows",
        "take `batch=2` or less",
    ),
    (
        'jsonl("d.jsonl", batch=2, limit=1)',
        "E0708: a batch of 2 rows is more than 'd.jsonl' has: 1 row, of which `limit` keeps no more",
        "take `batch=1` or less",
    ),
    (
        'reasoning_gym("spell_backwards")',
        "E0713: reasoning_gym has no task 'spell_backwards'",
        "did you mean `spell_backward`?",
    ),
    (
        'reasoning_gym("spell_backward", min_word_length=3)',
        "E0702: the task 'spell_backward' has no option 'min_word_length'",
        "did you mean `min_word_len`?",
    ),
    (
        'reasoning_gym("spell_backward", min_word_len=9, max_word_len=3)',
        "E0713: reasoning_gym does not accept these options for 'spell_backward': max_word_len must be >= min_word_len",
        "",
    ),
    (
        'reasoning_gym("spell_backward", size=5, batch=6)',
        "E0708: a batch of 6 rows is more than 'spell_backward' has: 5 rows",
        "take `batch=5` or less",
    ),
    ('reasoning_gym("spell_backward", seed=-1)', "E0702: `seed` must be a whole number of at least 0, not -1", ""),
    (
        'python("tasks.py:f")',
        "E0703: there is no Python file 'tasks.py' in 'BASE' or in 'HERE'",
        "",
    ),
]


@pytest.mark.parametrize(("call", "message", "hint"), CALLS)
def test_bad_declarations(
    declare: Declare, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, call: str, message: str, hint: str
) -> None:
    here = tmp_path_factory.mktemp("here")
    jsonl(tmp_path, {"a": 1}, {"a": 2})
    (tmp_path / "folder").mkdir()
    jsonl(tmp_path / "folder", {"a": 1}, name="train.jsonl")
    (tmp_path / "bad.parquet").write_bytes(b"")
    with pytest.raises(ProgramError) as caught:
        open_source(declare(f"data d = {call}"), SearchFolders(tmp_path, here))
    found = caught.value.diagnostics[0]
    message, hint = (text.replace("BASE", str(tmp_path)).replace("HERE", str(here)) for text in (message, hint))
    assert (f"{found.code}: {found.message}", found.hint) == (message, hint)


def test_permission_denied(declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jsonl(tmp_path, {"a": 1})
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may read everything
    with pytest.raises(ProgramError) as caught:
        open_source(declare('data d = jsonl("d.jsonl")'), SearchFolders(tmp_path))
    assert str(caught.value) == (
        "error[E0704]: 'd.jsonl' cannot be read: permission denied\n"
        " --> p.rlf:1:16\n  |\n"
        '1 | data d = jsonl("d.jsonl")\n'
        "  |                ^^^^^^^^^\n"
        "help: the user who runs this needs the right to read it"
    )


def test_a_file_that_changes_during_the_run(declare: Declare, tmp_path: Path) -> None:
    jsonl(tmp_path, {"a": 1}, {"a": 2})
    source = open_source(declare('data d = jsonl("d.jsonl")'), SearchFolders(tmp_path))
    jsonl(tmp_path, {"a": 11}, {"a": 2})
    with pytest.raises(RunError) as caught:
        BatchReader(source, "d", 0).read_batch(Cursor())
    assert caught.value.diagnostics[0].message == "'d.jsonl' was changed while the run reads it"
    (tmp_path / "d.jsonl").unlink()
    with pytest.raises(RunError) as caught:
        BatchReader(source, "d", 0).read_batch(Cursor())
    assert caught.value.diagnostics[0].message == "'d.jsonl' cannot be read: No such file or directory"


def test_a_column_that_a_row_lacks(declare: Declare) -> None:
    spec = declare('data d = jsonl("d.jsonl")')
    rows = [{"answer": 1}, {"answr": 2}]
    ids = ["row 4 of epoch 0", "row 2 of epoch 1"]
    assert column_values(rows[:1], ids[:1], "answer", spec.span) == [1]
    with pytest.raises(RunError) as caught:
        column_values(rows, ids, "answer", spec.span)
    assert str(caught.value) == (
        "error[E0711]: row 2 of epoch 1 has no column 'answer'\n"
        " --> p.rlf:1:10\n  |\n"
        '1 | data d = jsonl("d.jsonl")\n'
        "  |          ^^^^^^^^^^^^^^^^\n"
        "help: did you mean `answr`?"
    )


PYTHON: list[tuple[str, str, str, str]] = [
    ("def f():\n    return []", "", "E0707: `f` has no rows", ""),
    (
        "def f():\n    return 3",
        "",
        "E0725: `f` gave 3, not a list of rows and not a generator of them, while it made rows",
        "",
    ),
    (
        "def f():\n    return [1]",
        "",
        "E0714: row 0 that `f` made is a int, not a dict of columns",
        'as in {"prompt": "2 + 2 =", "answer": "4"}',
    ),
    (
        "def f():\n    yield {1: 2}",
        ", batch=1",
        "E0714: row 0 that `f` made is a dict with names that are not texts, not a dict of columns",
        'as in {"prompt": "2 + 2 =", "answer": "4"}',
    ),
    (
        "def f():\n    yield {}",
        "",
        "E0702: `f` yields its rows one after the other, so it must be said how many a step takes",
        "add `batch=64`",
    ),
    (
        "def f():\n    yield {}",
        ", batch=1, shuffle=True",
        "E0702: `f` yields its rows one after the other, so they cannot be shuffled",
        "return a list of rows instead",
    ),
    (
        "def f():\n    yield {'a': 1}",
        ", batch=2",
        "E0708: a batch of 2 rows is more than `tasks.py:f` has: 1 row",
        "take `batch=1` or less",
    ),
    ("def f():\n    yield from ()", ", batch=2", "E0707: `tasks.py:f` has no rows", ""),
    ("def f():\n    raise KeyError('k')", "", "E0726: `f` raised KeyError: 'k', while it made rows", ""),
    (
        "def f():\n    yield {}\n    1 / 0",
        ", batch=2",
        "E0726: `f` raised ZeroDivisionError: division by zero, while it made rows",
        "",
    ),
    (
        "def f():\n    while True: pass",
        ", timeout=0.3",
        "E0727: `f` did not come back within 0.3 s, while it made rows",
        "if it only needs longer, give it a longer `timeout=`, in seconds",
    ),
    (
        "class Row: ...\ndef f():\n    return [{'a': Row()}]",
        "",
        "E0725: `f` gave a value that only its own file knows (No module named 'rlgraph_foreign_tasks'), while it made rows",
        "",
    ),
    ("def f():\n    return [{'a': lambda: 1}]", "", "E0725: `f` gave a value that cannot leave its process (", ""),
    (
        "def f(level):\n    return [{}]",
        ", levl=1",
        "E0702: 'levl' is neither an option of `python` nor a parameter of `f`",
        "did you mean `level`?",
    ),
    (
        "def f(level):\n    return [{}]",
        "",
        "E0724: `f` cannot be called without 'level'",
        'give it as an option: python("tasks.py:f", level=...)',
    ),
]


@pytest.mark.parametrize(("text", "options", "message", "hint"), PYTHON)
def test_bad_rows_of_python(
    declare: Declare, tmp_path: Path, workers: Workers, text: str, options: str, message: str, hint: str
) -> None:
    (tmp_path / "tasks.py").write_text(text)
    spec = declare(f'data d = python("tasks.py:f"{options})')
    with pytest.raises(RlgraphError) as caught:
        BatchReader(open_source(spec, SearchFolders(tmp_path), workers), "d", 0).read_batch(Cursor())
    found = caught.value.diagnostics[0]
    assert found.hint == hint
    assert f"{found.code}: {found.message}".startswith(message)
    assert found.span.covered_text == {"E0724": '"tasks.py:f"'}.get(found.code, found.span.covered_text)


def test_rows_of_a_file_in_their_order(tmp_path: Path) -> None:
    """Read at one go they are those that are read one by one, whatever lies between them."""
    (tmp_path / "d.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n  \r\n{"a": 2}\r\n{"a": 3}')
    spec = CallSpec("jsonl", ("d.jsonl",), {"limit": 2}, NO_SPAN)
    source = open_source(spec, SearchFolders(tmp_path))
    assert isinstance(source.rows, JsonLines)
    assert [*source.rows.iterate_rows()] == [source.rows[place] for place in range(3)] == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert [*numbered_rows(source)] == [(0, {"a": 1}), (1, {"a": 2})]
    assert [*numbered_rows(replace(source, kept=[1]))] == [(1, {"a": 2})]
    (tmp_path / "d.jsonl").write_bytes(b'{"a": 1}\n')
    with pytest.raises(RunError, match="E0712"):
        next(source.rows.iterate_rows())
