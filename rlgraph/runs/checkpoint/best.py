"""The checkpoint with the best reported value, which is kept however many newer ones there are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake, known_names_hint
from rlgraph.ir.graph import Program
from rlgraph.runs.checkpoint import disk
from rlgraph.runs.checkpoint.document import read_document

BEST = "best"
"""The name of a file beside the checkpoints that holds the name of the best one."""
REPORTED = "reported"
"""The field of a checkpoint's document that holds the reported values by name."""
_WORDS = {"": True, "max": True, "min": False}


@dataclass(frozen=True)
class BestMetric:
    """A metric, and whether its highest or its lowest value makes a checkpoint the best."""

    metric: str
    highest: bool = True

    def reported_value(self, metrics: Mapping[str, Any]) -> float | None:
        """Return the value that a step reported; None if it reported none, or no finite number."""
        value = metrics.get(self.metric)
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None

    def best_checkpoint(self, folder: Path) -> Path | None:
        """Return the best of a run's checkpoints, the first among equals; None if none of them has the metric."""
        values = {path: _reported(path).get(self.metric) for path in disk.complete_checkpoints(folder)}
        values_known = {path: value for path, value in values.items() if value is not None}
        return max(
            values_known, key=lambda path: values_known[path] if self.highest else -values_known[path], default=None
        )


def parse_best(text: str, program: Program) -> BestMetric:
    """Parse `reward` (the highest is best) or `kl:min` (the lowest is). Raise UsageMistake for a metric that the
    program does not report."""
    metric, _, word = text.strip().partition(":")
    names = reported_names(program)
    if word not in _WORDS:
        message = f"`{text}` does not say what is best"
        raise UsageMistake(Diagnostic("E0833", message, NO_SPAN, f"write `{metric}:max` or `{metric}:min`"))
    if metric not in names:
        hint = known_names_hint(metric, names, "it reports")
        raise UsageMistake(Diagnostic("E0833", f"the program does not report `{metric}`", NO_SPAN, hint))
    return BestMetric(metric, _WORDS[word])


def reported_names(program: Program) -> list[str]:
    """Return the names that a program reports, in program order."""
    nodes = (node for phase in program.phases for node in phase.graph.walk() if node.op == "report")
    return list(dict.fromkeys(name for node in nodes for name in node.attr("names")))


def _reported(checkpoint: Path) -> Mapping[str, float]:
    try:
        values = read_document(checkpoint).get(REPORTED, {})
        return {name: float(value) for name, value in values.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
