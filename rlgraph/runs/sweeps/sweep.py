"""Runs the points of a sweep one after the other, in a folder for each; what is finished is not run again."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError, RlgraphError, UsageMistake, quoted_list
from rlgraph.files import cause_text, failure_reason
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.runs.checkpoint.best import BestMetric
from rlgraph.runs.checkpoint.resuming import newest_step
from rlgraph.runs.folder import METRICS, PLAN, PROGRAM, RunFolder
from rlgraph.runs.folder_lock import HOW
from rlgraph.runs.options import RunOptions
from rlgraph.runs.progress import Display
from rlgraph.runs.run import open_resumed_run, run_in_folder, where_it_ran
from rlgraph.runs.run_file import OTHER_RUN
from rlgraph.runs.sweeps.points import BAD_SWEEP, Point, SweptName, placed_in_sweep
from rlgraph.runs.sweeps.results import PointResult, read_result, write_table

Compile = Callable[[Mapping[str, str]], Compilation]
"""Returns the program with these settings."""


@dataclass
class Sweep:
    """A sweep that is run, or gone on with, in a folder."""

    folder: Path
    points: Sequence[Point]
    swept: Sequence[SweptName]
    compile: Compile
    options: RunOptions
    """Those of every point; the seed may be a point's."""
    metrics: Sequence[BestMetric] = ()
    """Of every reported metric, what is best."""
    errors: dict[Point, str] = field(default_factory=dict)
    """Why points have failed now."""

    def place(self, point: Point) -> Path:
        """Return the folder of a point."""
        return self.folder / point.folder_name

    def point_options(self, point: Point) -> RunOptions:
        """Return the options of a point."""
        return self.options if point.seed is None else replace(self.options, seed=point.seed)

    def compiled(self, point: Point) -> Compilation:
        """Return the program of a point. Raise ProgramError with carets under the values of the sweep."""
        try:
            return self.compile(point.settings)
        except ProgramError as error:
            # A program that is wrong without the sweep, too, is not the sweep's.
            self.compile({})
            raise placed_in_sweep(error, self.swept, point) from None

    def results(self) -> list[PointResult]:
        """Return what became of all points so far."""
        return [
            read_result(point, self.place(point), self.metrics, self.errors.get(point, "")) for point in self.points
        ]

    def check(self, overwrite: bool = False) -> None:
        """Compile every point, and look at what its folder has. overwrite: earlier runs are removed. Raise ProgramError
        for a point that is wrong, and UsageMistake for a folder that another run has."""
        if (self.folder / METRICS).exists():
            message = f"`{self.folder}` is the folder of one run, and not of a sweep"
            raise UsageMistake(Diagnostic(BAD_SWEEP, message, NO_SPAN, "take another folder with `--out`"))
        for point in self.points:
            compiled = self.compiled(point)
            place = self.place(point)
            if overwrite or not (place / HOW).exists():
                continue
            if others := differing_fields(place, compiled, self.point_options(point)):
                message = f"`{place}` has a run with another {quoted_list(others, 'and')}"
                hint = "take another folder with `--out`, or replace what is there with `--overwrite`"
                raise UsageMistake(Diagnostic(OTHER_RUN, message, NO_SPAN, hint))

    def run(
        self,
        display: Callable[[], Display],
        begins: Callable[[int, PointResult], None],
        failed: Callable[[Iterable[Diagnostic]], None],
        overwrite: bool = False,
    ) -> KeyboardInterrupt | None:
        """Run what is not finished, and return what has interrupted it: Ctrl-C ends it after the point that is at
        work. A point that fails does not end it.

        display: returns what shows a point. begins: is told of every point before it begins. failed: is told why one
        failed. overwrite: begin all points anew.
        """
        for number, point in enumerate(self.points):
            before = read_result(point, self.place(point), self.metrics)
            begins(number, before)
            if before.outcome == "finished" and not overwrite:
                continue
            try:
                self._run_point(point, display, overwrite)
            except KeyboardInterrupt as interrupt:
                self.save_table()
                return interrupt
            except RlgraphError as error:
                self.errors[point] = error.diagnostics[0].message
                failed(error.diagnostics)
            except Exception as error:  # a library may raise anything, and the next point may be fine
                self.errors[point] = f"{type(error).__name__}: {cause_text(error)}"
                failed([Diagnostic(BAD_SWEEP, f"`{point}` failed: {self.errors[point]}", NO_SPAN)])
            # Models that only cycles refer to would be in a device's memory beside those of the next point.
            gc.collect()
            self.save_table()
        return None

    def _run_point(self, point: Point, display: Callable[[], Display], overwrite: bool) -> None:
        compiled, options, place = self.compiled(point), self.point_options(point), self.place(point)
        if not overwrite and newest_step(place) is not None:
            options, folder = open_resumed_run(replace(options, resume=place))
        else:
            folder = RunFolder.claim_folder(place, overwrite=True)
        run_in_folder(folder, compiled, options, display())

    def save_table(self) -> Path:
        """Write the table as it is now, and return its path. Raise UsageMistake if that is impossible."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return write_table(self.folder, self.results(), [metric.metric for metric in self.metrics])
        except OSError as error:
            message = f"the table cannot be written to `{self.folder}`: {failure_reason(error)}"
            raise UsageMistake(Diagnostic(BAD_SWEEP, message, NO_SPAN, "take another folder with `--out`")) from None


def differing_fields(place: Path, compiled: Compilation, options: RunOptions) -> list[str]:
    """Return in what a run in a folder differs from one with this program and these options, in words of the command
    line."""
    try:
        how = json.loads((place / HOW).read_text("utf-8"))
        program = PROGRAM if (place / PROGRAM).exists() else PLAN
        text = (place / program).read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(how, dict):
        return []
    now: dict[str, Any] = {
        "set": dict(compiled.set),
        **{name: getattr(options, name) for name in ("seed", "steps", "backend", "on_nonfinite")},
        **where_it_ran(compiled),
    }
    others = [f"--{name.replace('_', '-')}" for name, value in now.items() if how.get(name, value) != value]
    return (["program"] if text != compiled.source.text else []) + [
        "schedule" if name == "--schedule" else name for name in others
    ]
