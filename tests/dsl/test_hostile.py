"""Texts that were made to take for ever, to fill a screen, or to be obeyed by a terminal."""

from __future__ import annotations

import pytest

from rlgraph.dsl.check import check
from rlgraph.dsl.scope import MAX_ERRORS
from rlgraph.dsl.use import LARGEST_BYTES
from rlgraph.errors import Diagnostic, ProgramError, Source, Span, escape_controls
from rlgraph.ir.graph import Const
from rlgraph.passes.rewrites.fold import fold_constants

PROGRAM = """\
algorithm a
model actor = causal_lm("m")
data prompts = jsonl("p.jsonl", batch=2)
step:
    rollout = actor.generate(prompts, max_tokens=4)
    report length = mean(rollout.length)
    report x = {}
"""


def told(text: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(ProgramError) as caught:
        check(Source("p.rlf", text))
    return caught.value.diagnostics


@pytest.mark.parametrize(
    "value", ["2**99999999999", "10**400", "10**400 - 10**400", "2.0**1e300", "(-8)**0.5", "1 / 0"]
)
def test_what_is_too_large_is_computed_in_the_run(value: str) -> None:
    """Not by the compiler, with whole numbers of any size."""
    assert not isinstance(folded(value), Const)


@pytest.mark.parametrize(("value", "found"), [("2**10", 1024.0), ("7 // 2 * 3", 9), ("3 / 2", 1.5), ("10**300", 1e300)])
def test_what_is_not_is_computed_once(value: str, found: float) -> None:
    constant = folded(value)
    assert isinstance(constant, Const) and constant.value == found and type(constant.value) is type(found)


def test_whole_numbers_are_folded_up_to_64_bits() -> None:
    most = 3037000499  # its square has 63 bits
    assert isinstance(folded(f"{most} * {most}"), Const)
    assert not isinstance(folded(f"{most} * {most} * {most}"), Const)


def folded(value: str) -> object:
    """The expression that is reported, with what is constant computed."""
    program, _ = check(Source("p.rlf", PROGRAM.format(value)))
    found = fold_constants(program)
    return [let.expr for _, node in found.walk() for let in node.body][-1]


def test_so_many_errors_are_told_and_no_more() -> None:
    lines = "\n".join(f"    report x{n} = u{n}" for n in range(2000))
    assert len(told(f"{PROGRAM.format(1)}{lines}\n")) == MAX_ERRORS


def test_many_warnings_are_no_error() -> None:
    lines = "\n".join(f"    y{n} = mean(rollout.length)" for n in range(MAX_ERRORS + 20))
    check(Source("p.rlf", f"{PROGRAM.format(1)}{lines}\n"))


def test_of_a_long_line_the_place_is_shown() -> None:
    line = "x" * 500_000 + " oops " + "y" * 500_000
    text = Diagnostic("E0101", "no", Span(Source("p.rlf", line), 1, 500_002, 1, 500_006)).render()
    *_, shown, carets = text.splitlines()
    assert len(text) < 1000
    assert shown[carets.index("^") : carets.rindex("^") + 1] == "oops"
    whole = Diagnostic("E0101", "no", Span(Source("p.rlf", line), 1, 1, 1, len(line) + 1)).render()
    assert len(whole) < 1000 and whole.splitlines()[-1].endswith("^" * 200)


def test_of_a_long_quotation_the_beginning_is_shown() -> None:
    quoted = Diagnostic("E0920", f"`{'x' * 90_000}` does not belong `here`", Span(Source("a", ""), 0, 0, 0, 0))
    assert quoted.render() == f"error[E0920]: `{'x' * 200}…` does not belong `here`"
    ticks = Diagnostic("E0920", "`" * 90_000, quoted.span, hint="y " * 45_000, related=())
    assert len(ticks.render()) < 10_000


def test_a_terminal_obeys_nothing_of_a_text() -> None:
    evil = "a\x1b]0;title\x07\u202eb"
    source = Source("p\x1b[2J.rlf", f"{evil} here")
    text = Diagnostic("E0101", f"no column `{evil}`", Span(source, 1, len(evil) + 2, 1, len(evil) + 6), evil).render()
    assert text == escape_controls(text)
    assert "no column `a\\x1b]0;title\\x07\\u202eb`" in text and "p\\x1b[2J.rlf" in text
    *_, shown, carets, hint = text.splitlines()
    assert shown[carets.index("^") :] == "here" and hint.endswith("\\u202eb")


@pytest.mark.parametrize("sign", ["\u202e", "\u2066", "\x9b"])
def test_what_turns_a_text_around_cannot_stand_in_a_program(sign: str) -> None:
    assert [found.code for found in told(PROGRAM.format(f"1 # {sign}"))] == ["E0121"]


def test_all_that_is_used_together_has_a_bound() -> None:
    padding = "# " + "x" * (LARGEST_BYTES // 3) + "\n"
    files = {f"{n}.rlf": f"{padding}param p{n} = 1\n" for n in range(5)}
    text = "".join(f'use "{name}"\n' for name in files)
    with pytest.raises(ProgramError) as caught:
        check(Source("p.rlf", text + PROGRAM.format(1)), read=files.__getitem__)
    assert {found.code for found in caught.value.diagnostics} == {"E0802"}
    assert "more than 128 KiB" in caught.value.diagnostics[0].message
    assert len(caught.value.diagnostics) == 3
