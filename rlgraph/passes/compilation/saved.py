"""What a plan file says, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Plan

Sections = Mapping[str, Mapping[str, Any]]
"""What stands in a plan file beside program and plan, where the compiler chose the plan: `cluster`, `assumptions`,
`predicted`."""


@dataclass(frozen=True)
class Origin:
    """The program that a plan file was made from."""

    source: str
    """Path of the program, from the folder of the plan file; `<text>` for one that has no file."""
    sha256: str
    """Of its text."""
    folder: str
    """Where the relative paths in the program begin, from the folder of the plan file."""
    set: Mapping[str, str] = field(default_factory=dict)
    """What was replaced in it, as expressions of the language."""
    graph_sha256: str = ""
    """Of its graph when it was compiled; empty where a file does not say."""


@dataclass(frozen=True)
class PlanFile:
    """A program, the plan of where it runs, and what they were made from."""

    program: Program
    plan: Plan
    origin: Origin
    sections: Sections = field(default_factory=dict)
