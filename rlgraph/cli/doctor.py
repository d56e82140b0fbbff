"""`rlgraph doctor`, which says what would fail before a run begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from rlgraph.cli.base import (
    FINE,
    WRONG,
    add_set_options,
    compile_or_load,
    message_format,
    parse_settings,
    reporting_errors,
    rlgraph,
)
from rlgraph.cli.diagnostics import Format, echo_text, show_diagnostics
from rlgraph.errors import RlgraphError, count_phrase
from rlgraph.runs.doctor.finding import Finding
from rlgraph.runs.jsonlines import print_record
from rlgraph.runs.options import LOCAL

_WIDTH = 12
"""The columns of a subject."""


@rlgraph.command()
@click.argument("file", required=False, metavar="[FILE]")
@add_set_options
@message_format
def doctor(
    file: str | None, settings: tuple[str, ...], data: tuple[str, ...], rewards: tuple[str, ...], form: Format
) -> int:
    """Say what is installed and what this machine has; with FILE, what a run of it here would meet before its first
    step.

    Of a program its files and columns, its models, the first prompt as the model reads it, and what each function
    gives for a made-up answer. It runs the user's Python, loads no weights, and trains nothing.
    """
    from rlgraph.runs.doctor.machine import machine_findings

    if file is None and (settings or data or rewards):
        option = "--set" if settings else "--data" if data else "--reward"
        raise click.UsageError(f"`{option}` goes with a program: `rlgraph doctor FILE {option} ...`")
    with reporting_errors(form):
        changed = parse_settings(settings, file or "", data, rewards)
    if form == "human":
        echo_text("this machine")
    shown = [*_shown(machine_findings(), form)]
    if file is not None:
        if form == "human":
            echo_text(f"\n{file}")
        shown += _shown(_of_program(file, changed, form), form)
    states = [finding.state for finding in shown]
    if form == "human":
        counts = [
            count_phrase(states.count("fails"), "check") + " would end a run" if "fails" in states else "",
            count_phrase(states.count("warning"), "warning") if "warning" in states else "",
        ]
        echo_text(f"\n{', '.join(filter(None, counts)) or 'nothing is wrong'}")
    return WRONG if "fails" in states else FINE


def _shown(findings: Iterable[Finding], form: Format) -> Iterator[Finding]:
    """Show each finding as soon as it is there, and yield it."""
    for finding in findings:
        if form == "json":
            print_record({"type": "check", **finding.to_json()})
        else:
            echo_text("\n".join(finding.lines(_WIDTH)))
        yield finding


def _of_program(file: str, settings: dict[str, str], form: Format) -> Iterator[Finding]:
    """Yield the findings on a program. What the checker says of it is shown with carets."""
    try:
        compiled = compile_or_load(file, settings, None)
    except RlgraphError as error:
        show_diagnostics(error.diagnostics, form)
        wrong = count_phrase(len(error.diagnostics), "error")
        yield Finding("fails", "program", f"{wrong}, as said above", "mend them first")
        return
    yield Finding("ok", "program", f"algorithm {compiled.name}")
    if LOCAL.missing_package:
        message = f"no run without the package `{LOCAL.missing_package}`: files, prompts and rewards are not looked at"
        yield Finding("fails", "packages", message, LOCAL.install_command)
        return
    from rlgraph.runs.doctor.program import program_findings

    yield from program_findings(compiled)
