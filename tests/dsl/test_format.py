"""The canonical layout: what it changes, what it leaves, and that it says the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlgraph.dsl.format import format_source
from rlgraph.dsl.parse import parse
from rlgraph.errors import ProgramError, Source

SHIPPED = sorted((Path(__file__).parents[2] / "rlgraph").glob("*/*.rl[fs]"))


def tidy(text: str) -> str:
    return format_source(Source("a.rlf", text))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_programs_are_tidy(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert tidy(text) == text


@pytest.mark.parametrize(
    ("loose", "tight"),
    [
        ("a=b", "a = b"),
        ("a:=b", "a := b"),
        ("a [ b ]:=c", "a[b] := c"),
        ("a = b+c*d-e", "a = b + c * d - e"),
        ("a = - b", "a = -b"),
        ("a = b - - c", "a = b - -c"),
        ("a = ( b - c ) ** 2", "a = (b - c)**2"),
        ("a = b ** - 1", "a = b**-1"),
        ("a = f ( b,c , d = - 1 )", "a = f(b, c, d=-1)"),
        ("a = not(b)and(c)", "a = not (b) and (c)"),
        ("a = b . train ( c ) [ d ]", "a = b.train(c)[d]"),
        ("a = b.train - c", "a = b.train - c"),
        ("a = [ 1,2 , ]", "a = [1, 2,]"),
        ("a = where (b>=c, b, c)", "a = where(b >= c, b, c)"),
        ("keep a where(b)>c", "keep a where (b) > c"),
        ("keep a where where(b, c, d)", "keep a where where(b, c, d)"),
        ("minimize(a)", "minimize (a)"),
        ("report a=b,c , d=-e", "report a = b, c, d = -e"),
        ("update a from b ( ema = 0.9 )", "update a from b(ema=0.9)"),
        ("a = 'b' #c", 'a = "b"  #c'),
        ("""a = 'b"'""", """a = 'b"'"""),
        ("a = 1_0e-06 + .5", "a = 1_0e-06 + .5"),
    ],
)
def test_blanks_in_a_line(loose: str, tight: str) -> None:
    assert tidy(f"step:\n    {loose}\n") == f"step:\n    {tight}\n"


def test_headers() -> None:
    loose = "step   async ( lag=2 ) :\n  train a ( lr=1 ) :\n    minimize b\n  every(20) :\n    report b\n"
    tight = "step async(lag=2):\n    train a(lr=1):\n        minimize b\n"
    tight += "    every (20):\n        report b\n"
    assert tidy(loose) == tight
    assert tidy("def f( a,b ):\n\treturn a") == "def f(a, b):\n    return a\n"


def test_blank_lines() -> None:
    assert tidy("\n\n\nparam a = 1\n\n\n\nparam b = 1\nparam c = 1\n\n\n") == (
        "param a = 1\n\nparam b = 1\nparam c = 1\n"
    )
    assert tidy("") == tidy("\n \n") == ""


# Columns


def test_a_column_that_is_lined_up_stays() -> None:
    for text in (
        "param a   = 1\nparam abc = 2\n",
        "data tasks = a\nenv  shell = b\n",
        "param a   = 1\nparam abc = 2\nparam abcdef = 3\n",
        "param a   = 1\n\nparam abc = 2\nparam b   = 2\n",
        "schedule s\n\nplace a      on b\nplace a, abc on b\n",
    ):
        assert tidy(text) == text


def test_a_column_of_one_line_goes() -> None:
    assert tidy("param a    = 1\nparam bcd = 2\nparam e = 3\n") == "param a = 1\nparam bcd = 2\nparam e = 3\n"
    assert tidy("param a    = 1\n\nparam b = 2\n") == "param a = 1\n\nparam b = 2\n"
    assert tidy("env  a = 1\n") == "env a = 1\n"


def test_a_column_is_mended() -> None:
    assert tidy("param a   = 1\nparam abc = 2\nparam b = 3\n") == ("param a   = 1\nparam abc = 2\nparam b   = 3\n")


def test_columns_that_move_together_settle_at_once() -> None:
    lines = [f"param {name} = 1\n" for name in ("a         ", "b         ", "c         ")]
    lines += [f"param {'d' * 15}{' ' * blanks}= 1\n" for blanks in (1, 2, 3)]
    once = tidy("".join(lines))
    assert tidy(once) == once
    assert len({line.index("=") for line in once.splitlines()}) == 1


# Comments and broken lines


def test_comments_stay_where_they_belong() -> None:
    loose = """\
#one
step:
  # two
  a = b# three
  every 2:
    c = d
    # four
  # five
# six
param e = 1
# seven"""
    tight = """\
#one
step:
    # two
    a = b  # three
    every 2:
        c = d
        # four
    # five
# six
param e = 1
# seven
"""
    assert tidy(loose) == tight


def test_comments_at_the_ends_of_lines_keep_their_column_or_move_together() -> None:
    kept = "param a = 1          # b\n"
    assert tidy(kept) == kept
    apart = "param a=b+c+d # x\nparam e = 1    # y\n"
    assert tidy(apart) == "param a = b + c + d  # x\nparam e = 1    # y\n"
    loose = "param a=b+c+d   # x\nparam e = 1     # y\n"
    assert tidy(loose) == "param a = b + c + d  # x\nparam e = 1          # y\n"


def test_a_call_over_several_lines_stays_so() -> None:
    loose = """\
step:
  a = f(b,  # first

      # own
      g(c,
   d=1),
  )
  h = (i
  + j)
"""
    tight = """\
step:
    a = f(b,  # first
        # own
        g(c,
            d=1),
    )
    h = (i
        + j)
"""
    assert tidy(loose) == tight
    assert tidy(tight) == tight


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(ProgramError, match="E0101"):
        tidy("param a =\n")


# Any program

NAMES = st.sampled_from(["a", "bcd", "rollout", "x_1"])
ATOMS = NAMES | st.sampled_from(["1", "0.5", "1e-6", "'s'", '"t"', "true", "a.train", "where(a, b, c)"])
BLANK = st.sampled_from(["", " ", "  "])
OPERATORS = st.sampled_from(["+", "-", "*", "/", "//", "%", "**", " and ", " or "])
BREAKS = st.sampled_from(["", " ", "\n", "\n      ", "  # c\n", "\n\n # c\n "])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    item = inner | st.tuples(NAMES, BLANK, BLANK, inner).map(lambda t: f"option{t[1]}={t[2]}{t[3]}")
    return st.one_of(
        st.tuples(inner, BLANK, OPERATORS, BLANK, inner).map("".join),
        st.tuples(st.sampled_from(["-", "- ", "+"]), inner).map("".join),
        st.tuples(BREAKS, inner, BREAKS).map(lambda t: f"({''.join(t)})"),
        st.tuples(NAMES, BLANK, BREAKS, inner, BREAKS, item, BREAKS).map(
            lambda t: f"{t[0]}{t[1]}({t[2]}{t[3]},{t[4]}{t[5]}{t[6]})"
        ),
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]"),
    )


EXPRESSIONS = st.recursive(ATOMS, _larger, max_leaves=6)
ENDS = st.sampled_from(["", "", "# c", "   # c", "          # c", "\n", "\n# c", "\n      # c", "\n\n\n"])


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Programs that are laid out in any way."""
    lines: list[str] = []
    blanks = st.sampled_from([" ", "  ", "    "])
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["param", "env", "state"]))
        lines.append(f"{kind}{draw(blanks)}{draw(NAMES)}{draw(blanks)}={draw(BLANK)}{draw(EXPRESSIONS)}")
    if draw(st.booleans()):
        width = draw(st.integers(1, 8))
        lines.append("step :")
        lines += draw(_statements(width, width))
        lines += draw(st.sampled_from([[], ["param a  = 1"], ["schedule s", "place a   on b", "place a, c on b"]]))
    return "".join(line + draw(ENDS) + "\n" for line in lines)


@st.composite
def _statements(draw: st.DrawFn, indent: int, width: int) -> list[str]:
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["{} = {}", "{}   = {}", "{}:= {}", "{}[a]:={}", "keep {} where {}", "every"]))
        if kind == "every" and indent < 3 * width:
            lines.append(" " * indent + "every(3):")
            lines += draw(_statements(indent + width, width))
        elif kind != "every":
            lines.append(" " * indent + kind.format(draw(NAMES), draw(EXPRESSIONS)))
    return lines or [" " * indent + "minimize a"]


@given(programs())
@settings(max_examples=100)
def test_a_tidy_program_says_the_same_and_stays_tidy(text: str) -> None:
    source = Source("a.rlf", text)
    once = format_source(source)
    before, after = parse(source), parse(Source("a.rlf", once))
    assert after == before
    assert [c.text for c in after.comments] == [c.text for c in before.comments]
    assert tidy(once) == once
    assert not any(line != line.rstrip() for line in once.splitlines())
