"""Finds models whose routers cannot be replayed where a program asks for that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlgraph.backends.enginespec.registry import embedded_engine
from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.catalog.models.shape import Shape, UnsupportedModel
from rlgraph.errors import Diagnostic
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Group
from rlgraph.ops.program_work import nodes_with_option


def routing_errors(
    program: Program, placed: Mapping[tuple[str, str], Group], shapes: Mapping[str, Shape | UnsupportedModel]
) -> Iterator[Diagnostic]:
    """Yield an error for each model without experts whose routers are to be replayed, and for each engine that samples
    or reads its rows and cannot do it. placed: the group of each model and operation; shapes: those that are known."""
    for model, node in nodes_with_option(program, "routing", "replay"):
        shape = shapes.get(model)
        if isinstance(shape, Shape) and not shape.experts:
            yield Diagnostic(
                "E0847",
                f"`{model}` has no experts whose choice could be replayed",
                node.span,
                "leave `routing` out",
            )
            continue
        for engine in sorted({group.engine for (name, _), group in placed.items() if name == model}):
            if not spec_of(engine).replays_routes:
                yield Diagnostic(
                    "E0849",
                    f"`{engine}` does not replay the experts of `{model}`",
                    node.span,
                    f"place it with `engine={embedded_engine().name}`, or leave `routing` out",
                )
