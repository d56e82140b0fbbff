"""Text to syntax tree; and what is said about texts that are no programs, whole, caret included.

`syntax_errors.txt` holds programs and, after `---`, all that is said about them. `python tests/dsl/test_parse.py`
writes what is said now; read the difference before you keep it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lark import Token

from rlgraph.dsl import lark_parser, tree, words
from rlgraph.dsl.names import BUILT_IN
from rlgraph.dsl.parse import MAX_DIAGNOSTICS, parse, parse_expression
from rlgraph.dsl.signatures import METHODS
from rlgraph.errors import ProgramError, Source
from tests.counting import grows_with_its_size

CASES = Path(__file__).with_name("syntax_errors.txt")
SHIPPED = sorted((Path(__file__).parents[2] / "rlgraph").glob("*/*.rl[fs]"))


def cases() -> list[tuple[str, str]]:
    """The programs of `syntax_errors.txt` and what is said about each."""
    blocks = CASES.read_text(encoding="utf-8").split("\n===\n")
    pairs = (block.strip("\n").split("\n---\n") for block in blocks)
    return [(program, said) for program, said in pairs]


def said(program: str) -> str:
    with pytest.raises(ProgramError) as caught:
        parse(Source("a.rlf", program + "\n"))
    return "\n\n".join(d.render() for d in caught.value.diagnostics)


def expr(text: str) -> tree.Expr:
    return parse_expression(Source("<text>", text))


def file(text: str) -> tree.File:
    return parse(Source("a.rlf", text))


def step_of(text: str) -> tree.Phase:
    (step,) = file(text).declarations
    assert isinstance(step, tree.Phase)
    return step


def body(text: str) -> Any:
    """The statements of a step with these lines."""
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    return shape(step_of("step:\n" + lines).body)


def shape(node: Any) -> Any:
    """A tree without its spans, as tuples that begin with the name of the node."""
    if isinstance(node, tuple):
        return tuple(shape(item) for item in node)
    if not is_dataclass(node):
        return node
    values = [getattr(node, field.name) for field in fields(node) if field.compare]
    return (type(node).__name__, *shape(tuple(values)))


def node(kind: str) -> Callable[..., Any]:
    """The shape of a node, from those of its fields."""
    return lambda *values: (kind, *values)


Assign = node("Assign")
Attribute = node("Attribute")
Binary = node("Binary")
Bool = node("Bool")
Call = node("Call")
Collect = node("Collect")
Declaration = node("Declaration")
Def = node("Def")
OnSteps = node("OnSteps")
Index = node("Index")
Keep = node("Keep")
List = node("List")
Minimize = node("Minimize")
Name = node("Name")
Option = node("Option")
Phase = node("Phase")
Place = node("Place")
Pool = node("Pool")
Push = node("Push")
Report = node("Report")
Return = node("Return")
Refresh = node("Refresh")
Schedule = node("Schedule")
State = node("State")
Store = node("Store")
Send = node("Send")
Stream = node("Stream")
String = node("String")
Train = node("Train")
Unary = node("Unary")
Update = node("Update")

A, B, C = Name("a"), Name("b"), Name("c")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_program_parses(path: Path) -> None:
    assert parse(Source(str(path), path.read_text(encoding="utf-8"))).declarations


@pytest.mark.parametrize(("program", "expected"), cases(), ids=lambda text: text.splitlines()[0])
def test_a_mistake_is_told_in_full(program: str, expected: str) -> None:
    assert said(program) == expected


# Expressions


@pytest.mark.parametrize(
    ("text", "grouped"),
    [
        ("a or b and c", "a or (b and c)"),
        ("not a == b", "not (a == b)"),
        ("not a and b", "(not a) and b"),
        ("a + b * c", "a + (b * c)"),
        ("a - b - c", "(a - b) - c"),
        ("a / b // c % a", "((a / b) // c) % a"),
        ("-a**b", "-(a**b)"),
        ("a**-b", "a**(-b)"),
        ("a**b**c", "a**(b**c)"),
        ("-a * b", "(-a) * b"),
        ("a + b < c", "(a + b) < c"),
        ("a < b and b < c", "(a < b) and (b < c)"),
        ("a.b(c)[b].c", "(((a.b)(c))[b]).c"),
    ],
)
def test_operators_bind_as_in_python(text: str, grouped: str) -> None:
    assert expr(text) == expr(grouped)


def test_expressions() -> None:
    x, y, t = Option("x", A), Option("step", B), True
    assert shape(expr("a(b, x=a, step=b,)")) == Call(A, (B,), (x, y))
    assert shape(expr("a.train[b]")) == Index(Attribute(A, "train"), B)
    assert shape(expr("[a, [true, False],]")) == List((A, List((Bool(t), Bool(False)))))
    assert shape(expr("not -a")) == Unary("not", Unary("-", A))
    assert shape(expr("where(a >= b, a, c)")) == Call(Name("where"), (Binary(">=", A, B), A, C), ())
    assert shape(expr("(\n  a\n  +  # why\n  b)")) == Binary("+", A, B)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1_000", 1000), ("1e-6", 1e-6), ("1.", 1.0), (".5", 0.5), ("2.5E+3", 2500.0)],
)
def test_numbers(text: str, value: float) -> None:
    found = expr(text)
    assert isinstance(found, tree.Number)
    assert (found.value, type(found.value), found.text) == (value, type(value), text)


def test_strings() -> None:
    assert shape(expr(r"""'a\n\t"\x41\u00e9\\'""")) == String('a\n\t"Aé\\', ())
    assert shape(expr('"# no comment"')) == String("# no comment", ())


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [("(a + b) * c", 1, 12), ("f(a, (b))", 1, 10), ("a.train", 1, 8), ("-(a)", 1, 5), ("[a]", 1, 4)],
)
def test_a_span_covers_its_brackets(text: str, start: int, end: int) -> None:
    span = expr(text).span
    assert (span.line, span.column, span.end_line, span.end_column) == (1, start, 1, end)


def test_the_left_side_of_a_product_is_spanned_with_its_brackets() -> None:
    found = expr("(a + b) * c")
    assert isinstance(found, tree.Binary)
    assert found.left.span.covered_text == "(a + b)"


@pytest.mark.parametrize("text", ["", "a b", "a\nb", "x = 3", "(", '"a', "keep", "a +", "\0", "a if b else c", "#"])
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(ProgramError):
        expr(text)


# Statements and declarations


def test_statements() -> None:
    assert body("a = b") == (Assign("a", B),)
    assert body("a := b\na[b] := c") == (Store(A, B), Store(Index(A, B), C))
    assert body("minimize a") == (Minimize(A),)
    assert body("report step = a, b") == (Report((Option("step", A), Option("b", B))),)
    assert body("keep a where b") == (Keep(A, B),)
    assert body("push a(b, c=c)") == (Push(A, (B,), (Option("c", C),)),)
    assert body("update a from b\nupdate a from b(c=c)") == (
        Update(A, B, ()),
        Update(A, B, (Option("c", C),)),
    )
    assert body("train a(b=b):\n    minimize c") == (Train(A, (Option("b", B),), (Minimize(C),)),)
    assert body("train a:\n    minimize c") == (Train(A, (), (Minimize(C),)),)
    assert body("collect a(b):\n    keep a where c") == (Collect(A, (B,), (), (Keep(A, C),)),)
    assert body("every a:\n    report b") == (OnSteps("every", A, (Report((Option("b", B),)),)),)


def declared(text: str) -> Any:
    return shape(file(text).declarations)


def test_declarations() -> None:
    assert declared("param a = b\nstate a = b\nstate a[c] = b\n") == (
        Declaration("param", "a", B),
        State("a", None, B),
        State("a", "c", B),
    )
    assert declared("def f(a, b):\n\tc = a\n\treturn c\n") == (Def("f", (A, B), (Assign("c", A), Return(C))),)
    assert declared("step async(a=b):\n  minimize a\nphase a(b=c):\n minimize b") == (
        Phase("step", True, (Option("a", B),), (Minimize(A),)),
        Phase("a", False, (Option("b", C),), (Minimize(B),)),
    )


def test_schedules() -> None:
    lines = [
        "pool a = b devices",
        "place a.train, c on a(b=c)",
        "stream a(b=c)",
        "send a to b(b=c)",
        "refresh a on b(b=c)",
    ]
    option = (Option("b", C),)
    placed = (
        Pool("a", B, "devices"),
        Place((Attribute(A, "train"), C), A, option),
        Stream(A, option),
        Send(A, B, option),
        Refresh(A, B, option),
    )
    assert shape(file("schedule a\n" + "\n".join(lines)).declarations) == (Schedule("a", placed),)
    block = "".join(f"    {line}\n" for line in lines)
    both = file(f"schedule:\n{block}param a = b\n").declarations
    assert shape(both) == (Schedule("", placed), Declaration("param", "a", B))


def test_spans_of_a_block_are_of_its_header() -> None:
    step = step_of("step async(lag=2):\n    train actor(lr=1):\n        minimize a\n")
    assert step.span.covered_text == "step async(lag=2)"
    assert step.body[0].span.covered_text == "train actor(lr=1)"


def test_comments_are_kept() -> None:
    comments = file("# one  \nparam a = b  # two\n").comments
    found = [(c.text, c.line, c.column, c.alone) for c in comments]
    assert found == [("# one", 1, 1, True), ("# two", 2, 14, False)]


@pytest.mark.parametrize("text", ["", "\n\n", "  \n\t\n", "# only this", "\ufeff", "\r\n"])
def test_an_empty_file_is_a_file(text: str) -> None:
    assert file(text) == tree.File(())


def test_line_ends_of_other_systems() -> None:
    unix = "step:\n    a = b\n\n    c = (a +\n b)\n"
    assert file(unix) == file(unix.replace("\n", "\r\n")) == file(unix.replace("\n", "\r")) == file("\ufeff" + unix)


# Any text at all


@pytest.mark.parametrize(
    "inner",
    [
        "(" * 10_000,
        "(" * 10_000 + "a" + ")" * 10_000,
        "-" * 10_000 + "a",
        "not " * 10_000 + "a",
        "a" + ".b" * 10_000,
    ]
    + [
        "**".join("a" * 10_000),
        "+".join("a" * 10_000),
        "a" + "(a)" * 10_000,
        "9" * 10_000,
        "f(" + "a " * 10_000,
    ],
    ids=lambda text: text[:5],
)
def test_no_text_is_too_deep_for_a_diagnostic(inner: str) -> None:
    assert said(f"step:\n    x = {inner}").count("error[") == 1


def test_blocks_too_deep() -> None:
    nested = "".join(" " * level + "every 1:\n" for level in range(1, 100))
    assert "E0120" in said("step:\n" + nested + " " * 100 + "a = b")


@pytest.mark.parametrize("char", ["\0", "\x0c", "\x1b", "\u2028", "\x85", "\ud800"])
def test_invisible_characters_are_named(char: str) -> None:
    assert said(f'step:\n    x = "a{char}b"').startswith(f"error[E0121]: the character U+{ord(char):04X}")


def test_mistakes_are_limited() -> None:
    with pytest.raises(ProgramError) as caught:
        file("step:\n" + "    x = = 3\n" * 1000)
    assert len(caught.value.diagnostics) == MAX_DIAGNOSTICS


def test_two_mistakes_of_one_kind_on_a_line_are_two() -> None:
    with pytest.raises(ProgramError) as caught:
        parse(Source("p.rlf", "algorithm p\nstep:\n    a = f(b=1, b=2, c=1, c=2)\n"))
    assert [(d.code, d.span.column) for d in caught.value.diagnostics] == [("E0119", 16), ("E0119", 26)]


def test_mistakes_come_in_the_order_of_the_text() -> None:
    program = "step:\n    x = f(a=1, a=2)\n    y = 3 +\n    z = 'a\n    x = a(b=1, 2)"
    lines = re.findall(r"a.rlf:(\d+)", said(program))
    assert lines == ["2", "2", "3", "4", "5", "5"]


def test_a_long_file_takes_no_longer_by_line() -> None:
    def work(lines: int) -> None:
        assert len(file("step:\n" + "    x = f(a, b=3) + 1\n" * lines).declarations) == 1

    assert grows_with_its_size(work, 100)


PIECES = st.sampled_from(
    [
        *words.KEYWORDS,
        *words.PYTHON,
        *"()[]{}=:.,+-*/%<>!#\\'\"@$",
        "\n",
        "\n    ",
        "\n\t",
        " ",
        ":=",
        "==",
        "**",
        "1e",
    ]
    + [
        "a",
        "b",
        "0.5",
        '"s"',
        "step:\n    ",
        "train a(lr=1):\n        ",
        "def f(x):\n    ",
        "schedule a\n",
        "é",
        "\r",
    ]
)


@given(st.lists(PIECES, max_size=40).map(" ".join) | st.lists(PIECES, max_size=40).map("".join) | st.text())
@settings(max_examples=300)
def test_any_text_is_a_program_or_is_explained(text: str) -> None:
    try:
        file(text)
    except ProgramError as error:
        for found in error.diagnostics:
            assert found.message and re.fullmatch("E01[0-2][0-9]", found.code)
            assert 1 <= found.span.line <= len((text + "x").splitlines())
            assert found.span.column >= 1
            assert (found.span.line, found.span.column) < (found.span.end_line, found.span.end_column)


# The words, the grammar and its tables


def test_the_words_are_those_of_the_grammar() -> None:
    literals = {t.pattern.value for t in lark_parser.parser().terminals if t.pattern.type == "str"}
    assert {word for word in literals if word.isalpha()} == words.KEYWORDS


def test_every_word_may_be_an_option_and_an_attribute() -> None:
    for word in words.KEYWORDS - {"true", "false", "True", "False"}:
        assert shape(expr(f"a.{word}(a, {word}=b)")) == Call(Attribute(A, word), (A,), (Option(word, B),))


@pytest.mark.parametrize("word", sorted(words.SOFT))
def test_a_word_of_schedules_and_declarations_is_a_name_where_no_line_begins_with_it(word: str) -> None:
    text = """param QQ = 1
def QQ(QQ):
    return QQ + 1
step:
    a = b
    b = a
    c = a
    QQ = a(QQ, QQ=QQ, b=QQ) + QQ.QQ
    keep QQ where QQ > 0
    report QQ
    report QQ = QQ
schedule:
    pool QQ = QQ devices
    place QQ, QQ.QQ on QQ
    send QQ to QQ
"""
    assert repr(shape(file(text))).replace("QQ", word) == repr(shape(file(text.replace("QQ", word))))


@pytest.mark.parametrize("word", sorted(words.RESERVED))
def test_a_reserved_word_is_no_name(word: str) -> None:
    assert f"`{word}`" in said(f"step:\n    {word} = 1")


def test_what_other_libraries_call_a_function_is_answered_by_what_there_is() -> None:
    prelude = file((SHIPPED[0].parents[1] / "dsl/prelude.rlf").read_text("utf-8"))
    known = {*BUILT_IN, *(item.name for item in prelude.declarations if isinstance(item, tree.Def))}
    assert not known & set(words.OTHER_NAMES)
    methods, records = {*METHODS["causal_lm"]}, {"cosine", "linear"}
    for hint in words.OTHER_NAMES.values():
        called = set(re.findall(r"(?<![.\w])(\w+)\(", hint)) | set(re.findall(r"\.(\w+)\(", hint))
        assert called - {"T", "M"} <= known | methods | records | {"minibatch"}, hint


def test_the_tables_belong_to_the_grammar() -> None:
    grammar = lark_parser.GRAMMAR.read_text(encoding="utf-8")
    assert lark_parser.parser_from_tables(grammar) is not None, "python -m rlgraph.dsl.lark_parser"
    assert lark_parser.parser_from_tables(grammar + "\n// changed") is None


def test_the_tables_read_as_the_grammar_does() -> None:
    slow = lark_parser.parser_from_grammar(lark_parser.GRAMMAR.read_text(encoding="utf-8")).parse_interactive(
        start="expression"
    )
    quick = lark_parser.parser().parse_interactive(start="expression")
    for kind in ("NAME", "LPAR", "NAME", "EQUAL", "NUMBER", "RPAR", "NEWLINE"):
        assert slow.accepts() == quick.accepts()
        slow.feed_token(Token(kind, "a"))
        quick.feed_token(Token(kind, "a"))


def test_every_code_is_explained_with_examples() -> None:
    root = Path(__file__).parents[2] / "rlgraph"
    texts = [path.read_text("utf-8") for path in (root / "dsl").glob("*.py")]
    used = {code for text in texts for code in re.findall("E01[0-9]{2}", text)}
    parts = re.split("^## ", (root / "errors" / "codes" / "syntax.md").read_text("utf-8"), flags=re.MULTILINE)[1:]
    assert {part[:5] for part in parts} == used
    for part in parts:
        wrong, right = re.findall("```rlf\n(.*?)```", part, flags=re.DOTALL)
        file(right)
        with pytest.raises(ProgramError) as caught:
            file(wrong)
        assert {d.code for d in caught.value.diagnostics} == {part[:5]}


if __name__ == "__main__":
    CASES.write_text("\n===\n".join(f"{program}\n---\n{said(program)}" for program, _ in cases()) + "\n", "utf-8")


def pieces(text: str) -> list[object]:
    """What a text is made of: texts, names with their formats, and the places of braces without one."""
    read = expr(text)
    assert isinstance(read, tree.String)
    return [
        piece
        if isinstance(piece, str)
        else (piece.value.span.covered_text if piece.value else piece.span.column, piece.format)
        for piece in read.pieces
    ]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ('"no braces"', []),
        ('"{{a}}"', []),
        (r'"\x7ba}"', [r"{a", (7, "")]),
        ('"{a}"', [("a", "")]),
        ('"x {{{ a.b_2.c :.2f}}} y"', ["x {", ("a.b_2.c", ".2f"), "} y"]),
        ('"[0-9]{2}{a}"', ["[0-9]", (7, ""), ("a", "")]),
        ('"{ {a} }"', [(2, ""), " ", ("a", ""), " ", (8, "")]),
        (r'"\n\"{a}"', ['\n"', ("a", "")]),
        ('"{a!r}{}"', [(2, ""), (7, "")]),
    ],
)
def test_a_text_is_read_as_pieces_where_it_has_braces(text: str, made: list[object]) -> None:
    assert pieces(text) == made


def test_a_text_is_what_it_says_whatever_its_braces_hold() -> None:
    read = expr('"{a} {{2}} {"')
    assert isinstance(read, tree.String) and read.value == "{a} {{2}} {"
