"""The content of a plan file as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Plan

Sections = Mapping[str, Mapping[str, Any]]
"""The sections of a plan file besides program and plan, where the compiler chose the plan: `cluster`, `assumptions`,
`predicted`."""


@dataclass(frozen=True)
class ProgramOrigin:
    """The program that a plan file was made from."""

    source: str
    """The path of the program, relative to the folder of the plan file; `<text>` for one without a file."""
    sha256: str
    """The SHA-256 of its text."""
    folder: str
    """The folder to which the program's relative paths refer, relative to that of the plan file."""
    set: Mapping[str, str] = field(default_factory=dict)
    """The settings that were replaced, as expressions of the language."""
    graph_sha256: str = ""
    """The SHA-256 of its graph when it was compiled; empty where a file does not have it."""


@dataclass(frozen=True)
class PlanFile:
    """A program, its plan, and what they were made from."""

    program: Program
    plan: Plan
    origin: ProgramOrigin
    sections: Sections = field(default_factory=dict)
