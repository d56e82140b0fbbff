"""`check` says of a file without rows what the run would say."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import rlgraph

PROGRAM = """algorithm t
model actor = causal_lm("base")
data q = {}
step:
    r = actor.generate(q, max_tokens=2)
    report n = mean(r.length)
"""


def said(folder: Path, data: str) -> list[str]:
    (folder / "t.rlf").write_text(PROGRAM.format(data))
    return [f"{d.code}: {d.message}" for d in rlgraph.check(folder / "t.rlf") if d.code[0] == "E"]


@pytest.mark.parametrize(
    ("name", "held", "code"),
    [
        ("q.jsonl", b"", "E0707"),
        ("q.jsonl", b"\n \n", "E0707"),
        ("q.jsonl.gz", gzip.compress(b"", mtime=0), "E0707"),
        ("q.json", b" []\n", "E0707"),
        ("q.csv", b"prompt\n", "E0707"),
        ("q.csv", b"", "E0765"),
        ("q.txt", b"", "E0707"),
        ("d/q.jsonl", b"", "E0707"),
        ("q.jsonl", b'{"prompt": "a"}\n', ""),
        ("q.jsonl", b"{", ""),
        ("q.csv", b"prompt\na\n", ""),
    ],
)
def test_a_file_without_rows(tmp_path: Path, name: str, held: bytes, code: str) -> None:
    """What else is wrong with a file is a matter of the run."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(held)
    data = f'files("{name.rpartition("/")[0] or name}")'
    assert [line[:5] for line in said(tmp_path, data)][:1] == [code] * bool(code)


def test_an_empty_table(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), tmp_path / "q.parquet")
    assert said(tmp_path, 'parquet("q.parquet")') == ["E0707: 'q.parquet' has no rows"]


def test_an_empty_part_of_a_mixture_and_files_that_are_elsewhere(tmp_path: Path) -> None:
    """One of two files may be empty; one that is not here may be where the run will be."""
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "b.jsonl").write_text("")
    assert said(tmp_path, 'mix(jsonl("a.jsonl"), jsonl("b.jsonl"), weights=[0.5, 0.5], batch=2)') == [
        "E0707: 'b.jsonl' has no rows"
    ]
    assert not said(tmp_path, 'files(["a.jsonl", "b.jsonl"])')
    assert not said(tmp_path, 'files("c.jsonl")') and not said(tmp_path, 'python("c.py:rows")')
