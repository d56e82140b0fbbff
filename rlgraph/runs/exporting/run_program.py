"""The program of a run, compiled again from what is in the run's folder."""

from __future__ import annotations

from pathlib import Path

from rlgraph.errors import Source
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.compilation.compile import check_program, compile_program
from rlgraph.passes.compilation.read_program import OpenedProgram
from rlgraph.runs.checkpoint.resuming import read_run_record
from rlgraph.runs.folder import PLAN, PROGRAM


def compile_run(run: Path) -> Compilation:
    """Return the program of a run as it was compiled when it began. Raise RlgraphError, OSError."""
    if (run / PLAN).exists():
        from rlgraph.runs.planfiles.file import load_plan

        return load_plan(run / PLAN)
    how = read_run_record(run)
    began_in = Path(how["folder"])
    schedule = how.get("schedule")
    if isinstance(schedule, str) and "\n" not in schedule:
        schedule = began_in / schedule
    # Its paths are relative to the folder of the program that was run, which is not that of the run.
    source = Source(how["program"], (run / PROGRAM).read_text("utf-8"))
    opened = OpenedProgram(source, (began_in / how["program"]).parent)
    unplanned = check_program(opened, how["set"], schedule)
    return compile_program(opened, how["set"], unplanned, how.get("devices", 1), None)
