"""Programs that are wrong, and all that is said about each, caret included.

The cases are in `wrong/*.txt` (see `tests/golden.py`). A line `## file NAME` begins another file of the case, and
`## set NAME = EXPRESSION` changes a declaration. A case that begins with `## schedule ppo` is a schedule of that
algorithm. Some rows of data are there: `rows.jsonl` has the columns prompt and answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import rlgraph
from rlgraph.columns import Column
from rlgraph.data import source_columns
from rlgraph.dsl.check import check
from rlgraph.dsl.parse import parse, parse_expression
from rlgraph.dsl.schedule import check_schedule
from rlgraph.errors import ProgramError, Source
from rlgraph.ir.graph import ConstructorCall
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import CallSpec
from tests import golden

WRONG = sorted((Path(__file__).parent / "wrong").glob("*.txt"))


def data_columns(record: ConstructorCall) -> Mapping[str, Column] | None:
    args, options = record.plain_arguments()
    return source_columns(CallSpec(record.name, args, options, record.span), SearchFolders(Path()))


def said(text: str) -> str:
    """Everything that is said about a case; its files are in the working directory."""
    changes = {}
    for name, value in re.findall(r"^## set (\w+) = (.*)$", text, flags=re.MULTILINE):
        changes[name] = parse_expression(Source("--set", value))
    text = re.sub(r"^## set .*\n", "", text, flags=re.MULTILINE)
    shipped = re.match(r"## schedule (\w+)\n", text)
    if shipped:
        return said_of_schedule(shipped[1], text[shipped.end() :])
    program, *others = re.split(r"^## file ", text, flags=re.MULTILINE)
    for other in others:
        name, _, body = other.partition("\n")
        Path(name).write_text(body, "utf-8")
    try:
        _, found = check(Source("a.rlf", program), changes, columns=data_columns)
    except ProgramError as error:
        found = list(error.diagnostics)
    return "\n\n".join(d.render() for d in found)


def said_of_schedule(algorithm: str, text: str) -> str:
    path = Path(rlgraph.__file__).parent / "algorithms" / f"{algorithm}.rlf"
    program, _ = check(Source(path.name, path.read_text("utf-8")))
    source = Source("a.rls", text)
    try:
        check_schedule(parse(source), program, source)
    except ProgramError as error:
        return "\n\n".join(d.render() for d in error.diagnostics)
    return ""


@pytest.fixture
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": "1 + 1 =", "answer": "2"}]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_what_is_said_about_wrong_programs(path: Path, request: pytest.FixtureRequest) -> None:
    golden.check(path, said, update=request.config.getoption("--update-golden"))


@pytest.mark.usefixtures("_folder")
def test_every_wrong_program_is_refused() -> None:
    for path in WRONG:
        for text, _ in golden.cases(path):
            assert re.search(r"^(error|warning)\[", said(text), flags=re.MULTILINE), text


@pytest.mark.parametrize(
    "path", sorted((Path(rlgraph.__file__).parent / "algorithms").glob("*.rlf")), ids=lambda p: p.stem
)
def test_what_ships_is_not_warned_about(path: Path) -> None:
    assert check(Source(path.name, path.read_text("utf-8")))[1] == []
