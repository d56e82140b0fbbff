"""Finds engines that do not say from which tokens they sample, where a program keeps these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlgraph.backends.enginespec.registry import embedded_engine
from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.errors import Diagnostic
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Group
from rlgraph.ops.program_work import nodes_with_option


def support_errors(program: Program, placed: Mapping[tuple[str, str], Group]) -> Iterator[Diagnostic]:
    """Yield an error for each engine that samples rows whose support is kept, and cannot say it. placed: the group of
    each model and operation."""
    for model, node in nodes_with_option(program, "support", "keep"):
        group = placed.get((model, node.op))
        if group is not None and not spec_of(group.engine).keeps_support:
            yield Diagnostic(
                "E0846",
                f"`{group.engine}` does not say from which tokens it samples",
                node.span,
                f"place it with `engine={embedded_engine().name}`, or leave `support` out",
            )
