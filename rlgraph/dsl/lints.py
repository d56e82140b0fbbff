"""Warnings: what is legal and almost surely not meant."""

from __future__ import annotations

from rlgraph.errors import Diagnostic
from rlgraph.ir.graph import Program


def lint(program: Program) -> list[Diagnostic]:
    return []
