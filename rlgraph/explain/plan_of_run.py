"""The plan with which a run was run, from its folder."""

from __future__ import annotations

from contextlib import chdir, nullcontext
from pathlib import Path

from rlgraph.files import read_bytes
from rlgraph.passes.compilation.compile import check_program, compile_program
from rlgraph.passes.compilation.plan_file import PlanFile
from rlgraph.passes.compilation.read_program import OpenedProgram, decode_source
from rlgraph.runs.checkpoint.resuming import read_run_record, recorded_schedule
from rlgraph.runs.folder import PLAN, PROGRAM
from rlgraph.runs.planfiles.file import LARGEST_BYTES, open_plan_file, plan_file_of, read_plan_file


def plan_of_run(run: Path) -> PlanFile:
    """Return the plan of a run: of the plan file that was run, or of the program, which is compiled again as it was
    run. Raise UsageMistake where the folder is none of a run, and ProgramError where the program cannot be compiled any
    more."""
    saved = read_run_record(run)
    if (run / PLAN).is_file():
        return read_plan_file(open_plan_file(run / PLAN))
    path = saved["program"]
    source = decode_source(path, read_bytes(run / PROGRAM, LARGEST_BYTES))
    # Paths of the program and of its settings are relative to the folder in which the run was started.
    folder = Path(saved["folder"])
    with chdir(folder) if folder.is_dir() else nullcontext():
        opened = OpenedProgram(source, Path(path).parent)
        unplanned = check_program(opened, saved["set"], recorded_schedule(saved))
        return plan_file_of(compile_program(opened, saved["set"], unplanned, saved["devices"], None), Path())
