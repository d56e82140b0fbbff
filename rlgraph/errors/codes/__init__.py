"""From a diagnostic's code to what it is called, and the section that explains it.

A code is declared by its section in one of the pages beside this file, which begins `## E0201 nothing is called so`.
The letter says how bad it is: an error, or a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PAGES = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Code:
    name: str
    title: str
    section: str
    """With its title; an example that has the code and one that has not."""
    page: str
    """The file that it stands in."""


@cache
def all_codes() -> Mapping[str, Code]:
    """Every code, in order."""
    found: dict[str, Code] = {}
    for page in PAGES.glob("*.md"):
        for section in ("\n" + page.read_text("utf-8")).split("\n## ")[1:]:
            name, title = section.split("\n", 1)[0].split(maxsplit=1)
            assert name not in found, f"{name} is declared in {found[name].page} and in {page.name}"
            found[name] = Code(name, title, f"{section.strip()}\n", page.name)
    return dict(sorted(found.items()))
