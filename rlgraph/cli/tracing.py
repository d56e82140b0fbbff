"""`rlgraph trace`, which checks the trace of a run."""

from __future__ import annotations

from pathlib import Path

import click

from rlgraph.cli.base import FINE, WRONG, message_format, reporting_errors, rlgraph
from rlgraph.cli.diagnostics import Format, echo_text, show_diagnostics
from rlgraph.errors import count_phrase
from rlgraph.runs.jsonlines import print_record


@rlgraph.group()
def trace() -> None:
    """Look at the trace of a run: which weights made which rows, and what became of these.

    A run of a program with `step async` keeps it in its folder, as trace.jsonl. (The timeline of `--trace` is something
    else.)
    """


@trace.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@message_format
def check(run: Path, form: Format) -> int:
    """Say whether a run did with its rows what its program grants.

    RUN is its folder. No row is lost, none is trained on twice, none is older than `staleness=`, and with `lag=` each
    is exactly so old. Exit code 0 if so, 1 if not or where there is no trace.
    """
    from rlgraph.runs.trace_check import check_trace

    with reporting_errors(form):
        verdict = check_trace(run)
    show_diagnostics(verdict.diagnostics, form)
    if form == "json":
        print_record({"type": "trace", **verdict.to_json()})
    else:
        ages = ", ".join(f"{rows:,} of age {age}" for age, rows in verdict.ages.items())
        echo_text(
            f"{'accepted' if verdict.accepted else 'refused'}: {count_phrase(verdict.steps, 'step')}, "
            f"{count_phrase(verdict.sampled, 'row')} sampled, {verdict.trained:,} trained on"
            + (f" ({ages})" if ages else "")
        )
        if verdict.late:
            echo_text(f"{count_phrase(verdict.late, 'row')} left over until too old")
        if verdict.left:
            echo_text(f"{count_phrase(verdict.left, 'row')} left over for a step that did not come")
        if verdict.cut:
            echo_text(f"the run was killed: nothing is known of what came after step {verdict.steps}")
    return FINE if verdict.accepted else WRONG
