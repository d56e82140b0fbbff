"""Tables of data that nobody wrote, and what small programs have to say of them, computed in plain Python.

A case is a line with the number of a program, and behind it a file of rows. Where the program runs, what it reports is
what Python makes of the rows, which are parsed here once more; where Python makes nothing of them, because a text has no
sum, the program has to be refused: a zero for each row would be a number like any other.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import rlgraph
from rlgraph.columns import WIDEST
from rlgraph.data.base import DataSource, Row, make_source
from rlgraph.data.sources import open_source
from rlgraph.errors import NO_SPAN, ProgramError, Source
from rlgraph.passes.compilation.compile import check_program
from rlgraph.passes.compilation.read_program import OpenedProgram
from rlgraph.user_code.spec import CallSpec

Rows = Sequence[Row]
Number = float | int
DEEPEST = 100
"""Lists and objects in each other, in a row that is read."""
CLOSE = 1e-5
"""Real numbers have 24 bits in a run without a model of more; sums of a few of them are as close as this, of the size
of what is added."""


class Refused(Exception):
    """Python makes nothing of these rows."""


class TooLarge(Refused):
    """What comes out has more than 64 bits, which is seen where it is computed."""


@dataclass(frozen=True)
class Made:
    """What a program has to report."""

    value: Number
    size: float = 0.0
    """Of what was added on the way: real numbers are as exact as that allows, and infinite beyond `WIDEST`."""


@dataclass(frozen=True)
class Use:
    """How a program uses its data, and what it has to report."""

    report: str
    made: Callable[[Rows], Made]
    before: str = ""
    """Statements before the report."""
    declared: str = ""
    looked: str = ""
    """Columns of which all rows hold numbers where all are looked at, whichever are read then."""
    alone: bool = False
    """Rows are read one at a time, as many as are needed."""


# What a column holds


def column(rows: Rows, name: str) -> list[Any]:
    if any(name not in row for row in rows):
        raise Refused
    return [row[name] for row in rows]


def numbers(rows: Rows, name: str = "x") -> list[Number]:
    """A column that one calculates with: whole numbers where all are, otherwise what 32 bits hold."""
    values = column(rows, name)
    for value in values:
        if not isinstance(value, int | float) or not math.isfinite(value) or abs(value) >= WIDEST:
            raise Refused
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise Refused
    return [narrow(value) for value in values] if any(isinstance(value, float) for value in values) else values


def narrow(value: Number) -> float:
    found: float = struct.unpack("f", struct.pack("f", value))[0]
    return found


def whole(values: Sequence[Number]) -> bool:
    return all(isinstance(value, int) for value in values)


def exact(value: Number) -> Made:
    """A number that has no error where it is whole."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise TooLarge
    return Made(value, 0.0 if isinstance(value, int) else abs(value))


def total(values: Sequence[Number]) -> Made:
    """A sum, of which 64 bits have to hold no more than what comes out."""
    if whole(values):
        return exact(sum(values))
    return Made(math.fsum(values), math.fsum(map(abs, values)))


def average(values: Sequence[Number]) -> Made:
    return Made(math.fsum(values) / len(values), math.fsum(map(abs, values)) / len(values)) if values else Made(0.0)


def spread(values: Sequence[Number]) -> Made:
    if len(values) < 2:
        return Made(0.0)
    size = max(map(abs, values))
    # Beyond these its squares have no place in 32 bits.
    return Made(statistics.stdev(map(float, values)), math.inf if size > 1e18 else size)


def share(truths: Sequence[bool]) -> Made:
    return Made(sum(truths) / len(truths) if truths else 0.0)


def text_or_numbers(rows: Rows, name: str) -> list[Any]:
    values = column(rows, name)
    return values if all(isinstance(value, str) for value in values) else numbers(rows, name)


def equal_columns(rows: Rows) -> Made:
    left, right = text_or_numbers(rows, "x"), text_or_numbers(rows, "y")
    if isinstance(left[0], str) != isinstance(right[0], str):
        raise Refused
    if isinstance(left[0], str):
        return share([one == other for one, other in zip(left, right, strict=True)])
    return share([one == other for one, other in compared(rows)])


def equal_text(rows: Rows) -> Made:
    values = column(rows, "x")
    if not all(isinstance(value, str) for value in values):
        raise Refused
    return share([value == "a" for value in values])


def pairs(rows: Rows) -> list[tuple[Number, Number]]:
    left, right = numbers(rows, "x"), numbers(rows, "y")
    if not (whole(left) and whole(right)):
        left, right = [narrow(value) for value in left], [narrow(value) for value in right]
    return list(zip(left, right, strict=True))


def compared(rows: Rows) -> list[tuple[Number, Number]]:
    """Whole numbers beside real ones are as exact as 64 bits of a real number are."""
    left, right = numbers(rows, "x"), numbers(rows, "y")
    if not (whole(left) and whole(right)):
        left, right = list(map(float, left)), list(map(float, right))
    return list(zip(left, right, strict=True))


def added(rows: Rows) -> Made:
    found = pairs(rows)
    sums = [exact(one + other).value for one, other in found]
    size = math.fsum(abs(one) + abs(other) for one, other in found)
    return total(sums) if whole(sums) else Made(math.fsum(sums), size)


def kept(rows: Rows) -> Made:
    left = [row for row, value in zip(rows, numbers(rows), strict=True) if value > 1]
    return total(numbers(left, "y")) if left else Made(0.0)


def keyed(rows: Rows) -> Made:
    """Each key has the mean of its rows."""
    keys, values = column(rows, "k"), numbers(rows)
    real = all(isinstance(key, int | float) and math.isfinite(key) for key in keys if not _huge(key))
    if not real and not all(isinstance(key, str) for key in keys):
        raise Refused
    means = {key: average([x for other, x in zip(keys, values, strict=True) if other == key]).value for key in keys}
    return Made(average([means[key] for key in keys]).value, average([abs(value) for value in values]).value)


def _huge(key: Any) -> bool:
    """Keys are compared, and not computed with: they may have any size."""
    return isinstance(key, int) and abs(key) >= 2**63


def first_above(rows: Rows) -> Made:
    """Of rows that are read one after the other, and each for itself where nobody has looked at all."""
    for row in rows:
        (value,) = numbers([row])
        if value > 1:
            return exact(value)
    raise Refused


def middle(values: list[Number]) -> Made:
    return Made(statistics.median(map(float, values)), max(map(abs, values)))


USES = (
    Use("sum(rows.x)", lambda rows: total(numbers(rows))),
    Use('mean(rows.x == "a")', equal_text),
    Use('mean(rows.x != "a")', lambda rows: Made(1 - equal_text(rows).value)),
    Use("max(rows.x)", lambda rows: exact(max(numbers(rows)))),
    Use("min(rows.x)", lambda rows: exact(min(numbers(rows)))),
    Use("mean(rows.x)", lambda rows: average(numbers(rows))),
    Use("count(rows.x)", lambda rows: Made(sum(value != 0 for value in numbers(rows)))),
    Use("size(rows.x)", lambda rows: Made(len(numbers(rows)))),
    Use("any(rows.x)", lambda rows: Made(any(numbers(rows)))),
    Use("all(rows.x)", lambda rows: Made(all(numbers(rows)))),
    Use("std(rows.x)", lambda rows: spread(numbers(rows))),
    Use("quantile(rows.x, 0.5)", lambda rows: middle(numbers(rows))),
    Use("sum(abs(rows.x))", lambda rows: total([exact(abs(value)).value for value in numbers(rows)])),
    Use("sum(-rows.x)", lambda rows: total([exact(-value).value for value in numbers(rows)])),
    Use("mean(rows.x == 1)", lambda rows: share([value == 1 for value in numbers(rows)])),
    Use("mean(rows.x == true)", lambda rows: share([value == 1 for value in numbers(rows)])),
    Use("mean(rows.x == 9007199254740993)", lambda rows: share([equals(value, 2**53 + 1) for value in numbers(rows)])),
    Use("mean(rows.x > 0)", lambda rows: share([value > 0 for value in numbers(rows)])),
    Use("mean(not rows.x)", lambda rows: share([not value for value in numbers(rows)])),
    Use("mean(where(rows.x > 0, 1, 0))", lambda rows: share([value > 0 for value in numbers(rows)])),
    Use("mean(rows.x == rows.y)", equal_columns),
    Use("sum(rows.x + rows.y)", added),
    Use("max(max(rows.x, rows.y))", lambda rows: exact(max(map(max, pairs(rows))))),
    Use("mean(rows.x < rows.y)", lambda rows: share([one < other for one, other in compared(rows)])),
    Use("sum(rows.y)", kept, "keep rows where rows.x > 1", looked="y"),
    Use("mean(s[rows.k])", keyed, "s[rows.k] := rows.x", "state s[key] = 0\n"),
    Use("sum(rows.x)", first_above, "collect rows(1):\n        keep rows where rows.x > 1", looked="x", alone=True),
)
"""What the language does with a column, each by itself, so that no error hides another."""


def equals(value: Number, other: int) -> bool:
    return value == other if isinstance(value, int) else value == narrow(other)


READ = ("shuffle=false", "batch=2, shuffle=false", "batch=2, limit=3, shuffle=false", "stream")
"""How rows are read: at once, in two steps, some of them, and from a generator, which nobody looks at before."""


def program(number: int) -> tuple[Use, str]:
    """The use, and how the rows are read."""
    return USES[number % len(USES)], READ[number // len(USES) % len(READ)]


PROGRAMS = len(USES) * len(READ)


def text_of(use: Use, read: str) -> str:
    options = "batch=1, shuffle=false" if use.alone else read
    source = f'python("rows.py:rows", batch={1 if use.alone else 2})' if read == "stream" else ""
    source = source or f'jsonl("rows.jsonl", {options})'
    before = f"    {use.before}\n" if use.before else ""
    return f"algorithm a\ndata rows = {source}\n{use.declared}step:\n{before}    report v = {use.report}\n"


def expected(rows: Rows, use: Use, read: str) -> list[Made]:
    """What each step reports. Raises Refused."""
    rows = rows[:3] if "limit" in read and not use.alone else rows
    for name in use.looked if read != "stream" else ():
        numbers(rows, name)
    if use.alone:
        return [use.made(rows)]
    if len(rows) < (1 if read == READ[0] else 2):
        raise Refused
    if read == READ[0]:
        return [use.made(rows)]
    if read != "stream":
        # All rows are looked at before the first step, also those that no step reads.
        with suppress(TooLarge):
            use.made(rows)
    read_rows = [rows[at % len(rows)] for at in range(4)]
    if use.declared and len({isinstance(key, str) for key in column(read_rows, "k")}) > 1:
        # Keys of a later step are of the kind of those before.
        raise Refused
    return [use.made(read_rows[:2]), use.made(read_rows[2:])]


# Reading and running


def parsed(raw: bytes) -> list[Row] | None:
    """The rows of a file; None where it is none."""
    rows = []
    for line in raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode())
        except (ValueError, RecursionError):
            return None
        if not isinstance(row, dict) or _deep(row) > DEEPEST + 1:
            return None
        rows.append(row)
    return rows


def _deep(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_deep, inner), default=0)


def case(raw: bytes) -> tuple[Use, str, bytes]:
    head, _, table = raw.partition(b"\n")
    number = int(head) if head.isdigit() and len(head) < 5 else 0
    return *program(number), table


def check_table(raw: bytes, folder: Path) -> object:
    """Checks a program beside its rows, reads all of them, and compares both with what is parsed here."""
    use, read, table = case(raw)
    read = READ[0] if read == "stream" else read
    (folder / "rows.jsonl").write_bytes(table)
    rows = parsed(table)
    opened = OpenedProgram(Source("a.rlf", text_of(use, read)), folder)
    try:
        source = open_source(CallSpec("jsonl", ("rows.jsonl",), {}, NO_SPAN), opened.search_folders)
    except ProgramError:
        assert not rows, "rows that are none"
        raise
    assert rows is not None and len(source.rows) == len(rows), "how many rows there are"  # type: ignore[arg-type]
    for number, row in enumerate(rows):
        assert repr(source.rows[number]) == repr(row), "what a row holds"  # type: ignore[index]
    check_program(opened, {})
    # Where a sum is too large the run says it.
    return rows


def run_table(raw: bytes, folder: Path) -> object:
    """Runs a program on its rows, and compares what it reports with what Python makes of them."""
    use, read, table = case(raw)
    (folder / "rows.jsonl").write_bytes(table)
    (folder / "rows.py").write_text("def rows():\n    yield {}\n")
    (folder / "a.rlf").write_text(text_of(use, read))
    rows = parsed(table)
    if read == "stream" and not rows:
        return None
    try:
        should: list[Made] | None = expected(rows or [], use, read) if rows is not None else None
    except Refused:
        should = None
    except OverflowError:
        return None
    try:
        made = rlgraph.compile(folder / "a.rlf")
        steps = 2 if "batch" in read or read == "stream" else 1
        steps = 1 if use.alone else steps
        if read == "stream":
            with patch("rlgraph.backends.worker.session.open_source", lambda spec, *_: _streamed(spec, rows or [])):
                found = made.run(steps=steps, progress=False, threads=1)
        else:
            found = made.run(steps=steps, progress=False, threads=1)
    except rlgraph.RlgraphError:
        assert should is None, f"`{use.report}` ({read}) is refused, and could be {should}"
        raise
    values = [metrics["v"] for metrics in found.metrics]
    assert should is not None, f"`{use.report}` ({read}) is {values}, of rows that have none"
    assert len(values) == len(should), "how many steps there are"
    for value, right in zip(values, should, strict=True):
        assert agrees(value, right), f"`{use.report}` ({read}) is {value!r}, and should be {right}"
    return values


ASKED = (
    'a = actor.generate(rows.prompt, n=2, max_tokens=2)\n    report v = size(a.length), w = mean(a.text == "a")',
    "a = actor.generate(rows, n=2, max_tokens=1)\n    report v = size(a.length), w = mean(a.y), u = mean(a.text == a.k)",
    "a = encode(rows.prompt, rows.y)\n    report v = size(a.length), w = mean(actor.logprobs(a))",
    "a = actor.generate(rows, n=2, max_tokens=2)\n    train actor(lr=1e-3):\n"
    "        minimize mean(-actor.logprobs(a) * a.y)\n    report v = size(a.length)",
)
MODEL = """model actor = causal_lm(random("qwen2", hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=200000, tokenizer=bytes()))
"""


def ask_table(raw: bytes, folder: Path) -> object:
    """A model that answers a column, or is trained with another one: it answers all rows, or is refused."""
    head, _, table = raw.partition(b"\n")
    # A model reads so long a text, but not in the time of a case.
    table = table.replace(b'"x":', b'"prompt":').replace(b"a" * 100_000, b"a" * 1000)
    (folder / "rows.jsonl").write_bytes(table)
    asked = ASKED[int(head) % len(ASKED) if head.isdigit() and len(head) < 5 else 0]
    text = f'algorithm a\n{MODEL}data rows = jsonl("rows.jsonl")\nstep:\n    {asked}\n'
    (folder / "a.rlf").write_text(text)
    found = rlgraph.compile(folder / "a.rlf").run(steps=1, progress=False, threads=1, device="cpu").metrics[0]
    rows = parsed(table)
    assert rows is not None, "rows that are none"
    assert all(isinstance(value, str | list) and value for value in column(rows, "prompt") if value != ""), "no prompt"
    if "a.y" in asked:
        numbers(rows, "y")
    assert found["v"] == len(rows) * (1 if "encode" in asked else 2), "rows that nobody answered"
    assert all(math.isfinite(value) for value in found.values()), f"{found}"
    return found


def agrees(value: float, right: Made) -> bool:
    if not right.size:
        return math.isclose(value, right.value, rel_tol=1e-6)
    if right.size >= 0.999 * WIDEST:
        return True
    return abs(value - right.value) <= CLOSE * right.size + 1e-37


class Streamed:
    """Rows that nobody has looked at."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def read_rows(self, start: int, count: int) -> list[Row]:
        return list(self._rows[start : start + count])


def _streamed(spec: CallSpec, rows: Rows) -> DataSource:
    return make_source(spec, Streamed(rows), "`rows`")


# Making tables


WHOLE = ("0", "1", "2", "3", "-1", "7")
REAL = ("0.5", "1.0", "-0.0", "2.5", "1e-3", "-7.25", "1e10", "0.1")
TEXT = ('"a"', '"b"', '"1"', '""', '"true"', '"a "')
WIDE = ("9007199254740993", "9007199254740992", "16777217", str(2**63 - 1), str(-(2**63)), str(2**62))
LARGE_REAL = ("1e38", "-3e38", "1e19", "1e-45", "1e-320", "9007199254740992.0", "16777217.0", "3.4028234e38")
FLAVOURS = (WHOLE, WHOLE, REAL, TEXT, TEXT, WIDE + WHOLE, LARGE_REAL, ("true", "false"), (*WHOLE, "true", "false"))
MIXED = ((*WHOLE, *REAL), (*WIDE, *REAL, "true"), (*WHOLE, *TEXT))
ODD = (
    *("NaN", "Infinity", "-Infinity", "null", "1e400", "-0", "1e308", "1" + "0" * 400, "9" * 5000),
    *(str(2**63), str(2**64), str(-(2**63) - 1), "3.4028235677973366e38", "3.4028236e38", "[]", "{}", "[1]"),
    *('{"a": 1}', '[{"role": "user", "content": "a"}]', '[{"role": "user"}]', "[" * 99 + "]" * 99),
    *("[" * 100 + "]" * 100, "[" * 5000 + "]" * 5000, '{"a":' * 200 + "1" + "}" * 200, '"' + "a" * 100_000 + '"'),
    *('"\\ud800"', '"\\u0000"', '"\u202e\u2028"', '"\x1b[2J"', "01", "1.", "tru", "'a'", '"a', "", "\ufeff1"),
)
LINES = ("null", "[]", "1", '"a"', "true", "{}", "", "   ", "\x00", "[", "{", '{"x": 1', '{"x": 1} {"x": 2}', "// no")


def table(rng: random.Random) -> bytes:
    """A case: mostly of columns that are of a kind, with an accident or none."""
    flavours = {name: rng.choice(rng.choice((FLAVOURS, FLAVOURS, FLAVOURS, MIXED))) for name in "xyk"}
    rows = [{name: rng.choice(pool) for name, pool in flavours.items()} for _ in range(rng.choice((1, 2, 3, 4, 6)))]
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        row = rng.choice(rows)
        name = rng.choice("xxyk")
        if rng.random() < 0.25:
            row.pop(name, None)
        else:
            row[name] = rng.choice(rng.choice((ODD, ODD, *FLAVOURS)))
    lines = [_line(row, rng) for row in rows]
    end = b"\r\n" if rng.random() < 0.1 else b"\n"
    if rng.random() < 0.1:
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(LINES).encode())
    text = end.join(lines) + (end if rng.random() < 0.8 else b"")
    fate = rng.random()
    if fate < 0.03:
        text = text[: rng.randrange(len(text) + 1)]
    elif fate < 0.06:
        text = rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\x1f\x8b", b"\n\n", b"\xef\xbb\xbf\n")) + text
    elif fate < 0.07:
        text = rng.choice((b"", b"\n", b"\xef\xbb\xbf"))
    return b"%d\n" % rng.randrange(PROGRAMS) + text


def _line(row: dict[str, str], rng: random.Random) -> bytes:
    parts = [f'"{name}": {value}' for name, value in row.items()]
    if parts and rng.random() < 0.02:
        parts.insert(rng.randrange(len(parts)), f'"x": {rng.choice((*WHOLE, *TEXT))}')
    rng.shuffle(parts)
    return ("{" + ", ".join(parts) + "}").encode()


GOOD = tuple(
    b'%d\n{"x": %s, "y": %s, "k": 1}\n{"x": %s, "y": 2, "k": 1}\n' % (number, value, value, value)
    for number in range(PROGRAMS)
    for value in [b'"a"' if '"a"' in program(number)[0].report else b"3"]
)
"""One for each program, which it accepts."""


def asking(rng: random.Random) -> bytes:
    """A case in which prompts are mostly texts."""
    text = table(rng)
    if rng.random() < 0.3:
        return text
    kinds = (TEXT, TEXT, TEXT, ('"a"', '[{"role": "user", "content": "b"}]', '[{"role": 1, "content": null}]'), ODD)
    flavours = {"x": rng.choice(kinds), "y": rng.choice((WHOLE, REAL, TEXT, LARGE_REAL)), "k": TEXT}
    rows = [{name: rng.choice(pool) for name, pool in flavours.items()} for _ in range(rng.choice((1, 2, 3)))]
    return b"%d\n" % rng.randrange(100) + b"\n".join(_line(row, rng) for row in rows)


ASKING = tuple(
    b'%d\n{"x": "a", "y": %s, "k": "b"}\n{"x": "bb", "y": %s, "k": ""}\n' % (number, value, value)
    for number in range(len(ASKED))
    for value in [b'"c"' if "encode" in ASKED[number] else b"2"]
)
"""One for each of `ASKED`."""
