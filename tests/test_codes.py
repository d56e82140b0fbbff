"""One registry of codes: what is said has a section, and what has a section is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlgraph.errors import NO_SPAN, Diagnostic
from rlgraph.errors.codes import PAGES, all_codes

ROOT = PAGES.parents[1]
LITERAL = re.compile(r'"([EW]\d{4})"')


def uses() -> dict[str, set[Path]]:
    """The modules that name each code."""
    found: dict[str, set[Path]] = {}
    for path in ROOT.rglob("*.py"):
        for code in LITERAL.findall(path.read_text("utf-8")):
            found.setdefault(code, set()).add(path.relative_to(ROOT))
    return found


def test_every_code_that_is_used_is_explained_and_every_one_that_is_explained_is_used() -> None:
    assert set(uses()) == set(all_codes())


def test_a_code_has_one_name() -> None:
    """Where a module gives a code a name, others call it the same."""
    names: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        for name, code in re.findall(r'^([A-Z_]+) = "([EW]\d{4})"$', path.read_text("utf-8"), re.MULTILINE):
            names.setdefault(code, set()).add(name)
    assert {code: found for code, found in names.items() if len(found) > 1} == {}


@pytest.mark.parametrize("code", all_codes())
def test_a_section_has_a_title_and_a_text(code: str) -> None:
    found = all_codes()[code]
    assert re.fullmatch(r"[EW]\d{4}", code)
    assert found.title and not found.title.endswith(".")
    assert found.section.startswith(f"{code} {found.title}\n\n")


def test_the_letter_says_how_bad_it_is() -> None:
    assert {Diagnostic(code, "", NO_SPAN).severity for code in all_codes() if code[0] == "E"} == {"error"}
    assert {Diagnostic(code, "", NO_SPAN).severity for code in all_codes() if code[0] == "W"} == {"warning"}
