"""`rlgraph diff`, which compares two plans."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlgraph.cli.base import FINE, WRONG, devices_option, message_format, reporting_errors, rlgraph
from rlgraph.cli.diagnostics import Format, show_diagnostics, wants_colours
from rlgraph.runs.jsonlines import print_record

if TYPE_CHECKING:
    from rlgraph.passes.compilation.plan_file import PlanFile


@rlgraph.command()
@click.argument("files", nargs=-1, required=True, metavar="[PROGRAM] A B")
@click.option(
    "--cluster",
    metavar="TEXT",
    help="Of programs and schedules: search for the best plan of both on NODESxDEVICES:NAME, or a .toml file.",
)
@devices_option
@message_format
def diff(files: tuple[str, ...], cluster: str | None, devices: int, form: Format) -> int:
    """Say what changes from A to B: what moves, how it is split, what a step takes, and the graph.

    A and B are plan files (.json), folders of runs, programs (.rlf) or schedules (.rls), these of PROGRAM or of the
    program beside them.

    Exit code 0 if nothing changes, 1 if something does or one of them is wrong.
    """
    from rlgraph.runs.planfiles.diff import differences, graph_difference

    program = Path(files[0]) if len(files) == 3 else None
    if len(files) not in (2, 3) or program is not None and not all(file.endswith(".rls") for file in files[1:]):
        raise click.UsageError("diff takes two files or folders of runs, or a program and two schedules (.rls) of it")
    fixed = [file for file in files if file.endswith(".json") or Path(file).is_dir()]
    if fixed and (cluster is not None or devices != 1):
        option = "--devices" if cluster is None else "--cluster"
        raise click.UsageError(f"`{option}` does not go with `{fixed[0]}`: its plan is fixed")
    with reporting_errors(form):
        before, after = (_open(file, program, cluster, devices, form) for file in files[-2:])
        if form == "human":
            from rlgraph.explain.shown_changes import shown_changes

            coloured = wants_colours(sys.stdout)
            text = shown_changes(before, after, colours=coloured)
            if text:
                click.echo(text, color=coloured)
            return WRONG if text else FINE
        differing, graph = differences(before, after), graph_difference(before, after)
    for difference in differing:
        print_record(
            {
                "type": "difference",
                "section": difference.section,
                "name": difference.name,
                "before": difference.before,
                "after": difference.after,
            }
        )
    if graph:
        print_record({"type": "difference", "section": "graph", "diff": graph})
    return WRONG if differing or graph else FINE


def _open(file: str, program: Path | None, cluster: str | None, devices: int, form: Format) -> PlanFile:
    """Return the plan in a file, or of a run, a program or a schedule. Raise ProgramError or UsageMistake."""
    from rlgraph.api import compile
    from rlgraph.passes.compilation.read_program import open_program_file
    from rlgraph.passes.compilation.schedule_files import program_beside
    from rlgraph.runs.planfiles.file import open_plan_file, plan_file_of, read_plan_file

    if Path(file).is_dir():
        from rlgraph.explain.plan_of_run import plan_of_run

        return plan_of_run(Path(file))
    if file.endswith(".json"):
        return read_plan_file(open_plan_file(file))
    if file.endswith(".rls"):
        compiled = compile(
            program or program_beside(open_program_file(file)), schedule=Path(file), cluster=cluster, devices=devices
        )
    else:
        compiled = compile(Path(file), cluster=cluster, devices=devices)
    show_diagnostics(compiled.diagnostics, form)
    return plan_file_of(compiled, Path())
