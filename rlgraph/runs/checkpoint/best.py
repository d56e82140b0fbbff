"""The checkpoint with the best reported value, which stays whatever newer ones there are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake, closest, listed
from rlgraph.ir.graph import Program
from rlgraph.runs.checkpoint import disk
from rlgraph.runs.checkpoint.document import opened

BEST = "best"
"""A file beside the checkpoints with the name of one of them."""
REPORTED = "reported"
"""In a checkpoint: what was reported of it, by name."""
_WORDS = {"": True, "max": True, "min": False}


@dataclass(frozen=True)
class Best:
    """What makes a checkpoint better than another."""

    metric: str
    highest: bool = True

    def value(self, metrics: Mapping[str, Any]) -> float | None:
        """What a step reported; None: nothing, or no number that can be compared."""
        found = metrics.get(self.metric)
        return float(found) if isinstance(found, (int, float)) and math.isfinite(found) else None

    def of(self, folder: Path) -> Path | None:
        """The best of all checkpoints of a run, of equal ones the first; None: of none it was reported."""
        values = {path: _reported(path).get(self.metric) for path in disk.complete(folder)}
        known = {path: value for path, value in values.items() if value is not None}
        return max(known, key=lambda path: known[path] if self.highest else -known[path], default=None)


def read_best(text: str, program: Program) -> Best:
    """`reward`: the highest; `kl:min`: the lowest. Raises UsageMistake for what the program does not report."""
    metric, _, word = text.strip().partition(":")
    names = reported(program)
    if word not in _WORDS:
        message = f"`{text}` does not say what is best"
        raise UsageMistake(Diagnostic("E0833", message, NO_SPAN, f"write `{metric}:max` or `{metric}:min`"))
    if metric not in names:
        near = closest(metric, names)
        what = f"it reports {listed(names, 'and')}" if names else "it reports nothing"
        hint = f"did you mean `{near}`? {what}" if near else what
        raise UsageMistake(Diagnostic("E0833", f"the program does not report `{metric}`", NO_SPAN, hint))
    return Best(metric, _WORDS[word])


def reported(program: Program) -> list[str]:
    """The names that a program reports, in its order."""
    nodes = (node for phase in program.phases for node in phase.graph.walk() if node.op == "report")
    return list(dict.fromkeys(name for node in nodes for name in node.attr("names")))


def _reported(checkpoint: Path) -> Mapping[str, float]:
    try:
        found = opened(checkpoint).get(REPORTED, {})
        return {name: float(value) for name, value in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
