"""The lines about models that train in one pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlgraph.catalog.clusters.units import format_seconds
from rlgraph.ir.plan import Plan


def fused_pipeline_lines(plan: Plan, predicted: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each such pipeline, with what it saves where it is predicted. predicted: as a plan file has
    it."""
    fused = predicted.get("fused") or {}
    for pipeline in plan.fused:
        ways = f", {', '.join(pipeline.turned)} the other way round" if pipeline.turned else ""
        line = f"train {', '.join(pipeline.models)} in one pipeline{ways}"
        if times := fused.get(", ".join(pipeline.models)):
            shown = {name: format_seconds(times[name]) for name in ("seconds", "in_turn_seconds", "bound_seconds")}
            line += f": {shown['seconds']} a mini-batch, and {shown['in_turn_seconds']} one after the other"
            line += f"; nothing is shorter than {shown['bound_seconds']}"
        yield line
