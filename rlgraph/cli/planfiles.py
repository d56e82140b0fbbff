"""`rlgraph diff`, which compares two plan files."""

from __future__ import annotations

import click

from rlgraph.cli.base import FINE, WRONG, message_format, reporting_errors, rlgraph
from rlgraph.cli.diagnostics import Format, echo_text
from rlgraph.runs.jsonlines import print_record


@rlgraph.command()
@click.argument("before", metavar="A.json")
@click.argument("after", metavar="B.json")
@message_format
def diff(before: str, after: str, form: Format) -> int:
    """Say what differs between two plan files: where work runs, how it is held, what is expected, and the graph.

    Exit code 0 if nothing does, 1 if something does or one of them is wrong.
    """
    from rlgraph.runs.planfiles.diff import differences, graph_difference
    from rlgraph.runs.planfiles.file import open_plan_file, read_plan_file

    with reporting_errors(form):
        files = [read_plan_file(open_plan_file(path)) for path in (before, after)]
    differing, graph = differences(*files), graph_difference(*files)
    if form == "json":
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
    else:
        for section in dict.fromkeys(difference.section for difference in differing):
            echo_text(
                "\n".join([section, *(f"  {difference}" for difference in differing if difference.section == section)])
            )
        if graph:
            echo_text("\n".join(["graph", *(f"  {line}" for line in graph)]))
    return WRONG if differing or graph else FINE
