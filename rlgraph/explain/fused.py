"""The lines about models that train in one pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlgraph.catalog.clusters.units import shown_seconds
from rlgraph.ir.plan import Plan


def show_fused(plan: Plan, predicted: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each such pipeline, with what it saves where it is predicted. predicted: as a plan file has
    it."""
    told = predicted.get("fused") or {}
    for each in plan.fused:
        ways = f", {', '.join(each.turned)} the other way round" if each.turned else ""
        line = f"train {', '.join(each.models)} in one pipeline{ways}"
        if found := told.get(", ".join(each.models)):
            shown = {name: shown_seconds(found[name]) for name in ("seconds", "in_turn_seconds", "bound_seconds")}
            line += f": {shown['seconds']} a mini-batch, and {shown['in_turn_seconds']} one after the other"
            line += f"; nothing is shorter than {shown['bound_seconds']}"
        yield line
