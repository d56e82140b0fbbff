"""How old rows are when they are trained on: versions of the weights between sampling and training."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlgraph.ir.graph import Program
from rlgraph.ir.step_edges import trains_on_stale_rows
from rlgraph.runs.row_paths import RowPaths

KEPT_STEPS = 64
"""Steps after which a row that was neither trained on nor dropped is forgotten: by then it is too old for training."""


class RowAges:
    """Counts ages by what steps tell of their rows, as `rlgraph.backends.trace_notes` describes it."""

    def __init__(self, program: Program) -> None:
        self._samplers: dict[str, dict[tuple[str, str], tuple[str, str]]] = {}
        """By phase: for trained weights and a table, the sampler of its rows and the model that samples."""
        for phase in program.phases:
            paths = RowPaths(phase.graph)
            models = {key: model for key, (_, model) in paths.sampling_nodes()}
            self._samplers[phase.name] = {
                training.key: (training.source, models[training.source]) for training in paths.possible_trainings()
            }
        self._versions: Counter[str] = Counter()
        self._sampled: dict[str, dict[Any, tuple[int, int]]] = {}
        """By sampler: for each row that waits the step that sampled it, and the oldest version in it."""

    def add_step(self, trace: Mapping[str, Any]) -> dict[str, int]:
        """Return how many rows of each age a step trained on, by the age as a text; a row counts when it is first
        trained on."""
        step, ages = int(trace["step"]), Counter[int]()
        for entry in trace["sampled"]:
            waiting = self._sampled.setdefault(entry["node"], {})
            for row, runs in zip(entry["rows"], entry["versions"], strict=True):
                waiting[row] = step, min(version for version, _ in runs)
        for entry in trace["trained"]:
            source, model = self._samplers[trace["phase"]].get((entry["node"], entry.get("table", "")), ("", ""))
            waiting, newest = self._sampled.get(source, {}), self._versions[model]
            for row in entry["rows"]:
                made = waiting.pop(row, None)
                if made is not None:
                    ages[newest - made[1]] += 1
        # A step that changes a model makes one new version of it, however often it updates it.
        self._versions.update(dict.fromkeys(trace["changed"], 1))
        if step % KEPT_STEPS == 0:
            for waiting in self._sampled.values():
                for row in [row for row, (sampled, _) in waiting.items() if sampled <= step - KEPT_STEPS]:
                    del waiting[row]
        return {str(age): ages[age] for age in sorted(ages)}

    def go_on_after(self, path: Path) -> None:
        """Count on behind the steps of a run's `trace.jsonl`, whose rows may be trained on yet. What cannot be read is
        left out: ages are shown, and nothing depends on them."""
        with suppress(OSError, ValueError, LookupError, TypeError), path.open(encoding="utf-8") as file:
            for line in file:
                trace = json.loads(line)
                for entry in (*trace["sampled"], *trace["trained"]):
                    entry["rows"] = [tuple(row) for row in entry["rows"]]
                self.add_step(trace)


def row_ages(program: Program) -> RowAges | None:
    """Return what counts the ages of a program's rows; None where all rows are trained on in the step that samples
    them with the newest weights."""
    return RowAges(program) if trains_on_stale_rows(program) else None
