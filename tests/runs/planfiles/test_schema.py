"""The JSON Schema of plan files against their reader: what the schema refuses the reader refuses, and where a plan file
is of another form than the reader wants, the schema refuses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import rlgraph
from rlgraph.errors import ProgramError, Source
from rlgraph.runs.planfiles.file import read_plan_file
from rlgraph.runs.planfiles.format import document_schema
from tests.suites import few

ALGORITHMS = sorted((Path(rlgraph.__file__).parent / "algorithms").glob("*.rlf"))
FILE = Path(rlgraph.__file__).parent / "runs" / "planfiles" / "plan.schema.json"

FORM = {"E0950", "E0951", "E0952", "E0953"}
"""The codes of what a schema can say: fields, kinds of values, their bounds."""
ONLY_READ = "count up"
"""Of a range whose end is before its beginning."""

OTHERS = (None, True, -1, 0, 2.5, 1 << 70, "", "actor", "0-3,5", "\0", [], ["a"], [[]], [1], {}, {"a": 1}, {"a": "b"})

TEXT = """
algorithm small
model actor  = causal_lm("Qwen/Qwen2.5-0.5B-Instruct")
data prompts = jsonl("prompts.jsonl", batch=16)
step:
    rollout = actor.generate(prompts, n=4, max_tokens=64)
    train actor(lr=1e-6):
        minimize mean(-actor.logprobs(rollout) * center(rollout.length, prompts))
"""


@cache
def valid() -> Any:
    return jsonschema.Draft202012Validator(json.loads(FILE.read_text("utf-8")))


def refused(document: Any) -> str:
    """What the schema says against it."""
    return next((f"{list(error.absolute_path)}: {error.message:.200}" for error in valid().iter_errors(document)), "")


def problems(document: Any) -> list[tuple[str, str]]:
    """What the reader says against it: codes and messages."""
    try:
        read_plan_file(Source("p.json", json.dumps(document)))
    except ProgramError as error:
        return [(found.code, found.message) for found in error.diagnostics]
    return []


@cache
def documents() -> dict[str, Any]:
    """A plan that was searched for, and one that a schedule says; together they have every field."""
    small = rlgraph.compile(TEXT, cluster="1x2:a100-80gb")
    streamed = "schedule small\npool a = 2 devices\nplace actor on a\nstream rollout(block=8)\n"
    return {
        "searched": json.loads(small.plan_json()),
        "scheduled": json.loads(rlgraph.compile(TEXT, schedule=streamed).plan_json()),
    }


def test_the_file_is_made_of_the_readers_own_declaration(request: pytest.FixtureRequest) -> None:
    made = json.dumps(document_schema(), indent=1) + "\n"
    if request.config.getoption("--update-golden"):
        FILE.write_text(made, "utf-8")
    assert FILE.read_text("utf-8") == made
    jsonschema.Draft202012Validator.check_schema(document_schema())


@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda path: path.stem)
def test_the_plan_of_every_algorithm_is_valid(path: Path) -> None:
    schedule = path.with_suffix(".rls")
    compiled = rlgraph.compile(path, schedule=schedule if schedule.exists() else None, devices=4)
    assert not refused(json.loads(compiled.plan_json()))


@pytest.mark.parametrize("name", few(["searched", "scheduled"], "scheduled"))
def test_schema_and_reader_refuse_the_same(name: str) -> None:
    """Each field is dropped, added to, and of every other kind."""
    document = documents()[name]
    assert not refused(document) and not problems(document)
    tried = 0
    for path, changed in changes(document):
        said, found = refused(changed), problems(changed)
        form = [message for code, message in found if code in FORM]
        assert not said or found, f"{path}: the schema says {said}, and the reader nothing"
        assert said or not form or all(ONLY_READ in message for message in form), f"{path}: only the reader says {form}"
        tried += bool(said)
    assert tried > 500


def changes(document: Any) -> Iterator[tuple[str, Any]]:
    for path in ways(document):
        if path[:2] == ("program", "graph") and len(path) > 2 and path[2] != 0:
            continue  # the lines of the graph are all alike
        yield from (
            (f"{path} = {other!r}", put(document, path, other)) for other in OTHERS if other != at(document, path)
        )
        yield f"{path} is dropped", put(document, path)
        if isinstance(at(document, path), dict):
            yield f"{path} has one more", put(document, (*path, "more"), 1)


def ways(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """To all that is inside a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield (*path, name)
        yield from ways(each, (*path, name))


def at(document: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


def put(document: Any, path: tuple[str | int, ...], *value: Any) -> Any:
    """The document with another value there, or without any."""
    changed = deepcopy(document)
    holder = at(changed, path[:-1])
    if value:
        holder[path[-1]] = value[0]
    else:
        del holder[path[-1]]
    return changed
