"""Whether the cache that a `place` line says has room for one of the rows that the program samples."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rlgraph.catalog.clusters.cluster import Cluster, DeviceKind
from rlgraph.catalog.clusters.units import format_quantity
from rlgraph.errors import Diagnostic
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.plan import Plan
from rlgraph.ir.schedule import PlacementLine, Schedule
from rlgraph.ops.nodes import NODES
from rlgraph.passes.cost.cache_reservation import one_row_cache_bytes
from rlgraph.passes.placement.engine_contracts import cache_question, device_of_group
from rlgraph.passes.placement.place import Shapes

NO_ROOM = "E0757"


def row_room_errors(
    program: Program, plan: Plan, schedule: Schedule, shapes: Shapes, cluster: Cluster | None, kind: DeviceKind
) -> Iterator[Diagnostic]:
    """Yield what is wrong with `max_len=` and `cache=` of placements whose longest answers find no room, with one token
    of a prompt. kind: of the devices where no cluster is named."""
    for group in plan.groups:
        for model in group.models:
            line, longest = _line_of(model, schedule), _longest_answer(program, model)
            if line is None or longest is None or not (line.max_len or line.cache):
                continue
            device, memory = device_of_group(plan, group, cluster, kind)
            asked = cache_question(program, plan, group, model, shapes.get(model), device, memory)
            if asked is None:
                continue
            question, cache = asked
            node, tokens = longest
            wanted = min(tokens + 1, question.shape.positions)
            answer = f"an answer of `{node.name}` may have {tokens:,} tokens"
            if line.max_len and line.max_len < wanted:
                message = f"{answer}, and `max_len={line.max_len}` leaves no room for one with its prompt"
                hint = f"`max_len={wanted}` and the tokens of the longest prompt, or a smaller `max_tokens`"
                yield Diagnostic(NO_ROOM, message, line.option_span("max_len"), hint)
                continue
            least = one_row_cache_bytes(question, cache, max(line.max_len or 0, wanted))
            if line.cache and line.cache < least:
                row = f"a row of `max_len={line.max_len}`" if line.max_len else f"{answer}, and one with its prompt"
                size = format_quantity(line.cache, "bytes")
                message = f"{row} does not fit a cache of {size} on each rank of `{line.pool}`"
                hint = f"`cache={_rounded_up(least)}` has room for one, and more rows are sampled together with more"
                yield Diagnostic(NO_ROOM, message, line.option_span("cache"), hint)


def _line_of(model: str, schedule: Schedule) -> PlacementLine | None:
    """Return the line that places what samples with a model."""
    named = {work.operation: line for line in schedule.placements for work in line.work if work.model == model}
    samples = [line for operation, line in named.items() if operation and NODES[operation].generates]
    return samples[0] if samples else named.get(None)


def _longest_answer(program: Program, model: str) -> tuple[Node, int] | None:
    """Return the node that samples the longest answers of a model, and their tokens at most."""
    found = [
        (node, int(node.attr("max_tokens")))
        for phase in program.phases
        for types in [phase.graph.value_types()]
        for node in phase.graph.walk()
        if NODES[node.op].generates and getattr(types[node.inputs[0]], "name", "") == model and node.attr("max_tokens")
    ]
    return max(found, key=lambda pair: pair[1], default=None)


def _rounded_up(size: int) -> str:
    """Return bytes as a schedule writes them, to two digits upwards: `2.1e9`."""
    power = max(len(str(size)) - 2, 0)
    return f"{math.ceil(size / 10**power) * 10**power:.1e}".replace("e+0", "e").replace("e+", "e").replace(".0e", "e")
