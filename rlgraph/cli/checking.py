"""`rlgraph check` and `rlgraph fmt`, which check and format the text of programs."""

from __future__ import annotations

from pathlib import Path

import click

from rlgraph.cli.base import FINE, WRONG, add_set_options, message_format, parse_settings, reporting_errors, rlgraph
from rlgraph.cli.diagnostics import Format, count_summary, echo_text, show_diagnostics
from rlgraph.errors import Diagnostic, ProgramError


@rlgraph.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@add_set_options
@message_format
def check(
    files: tuple[str, ...], settings: tuple[str, ...], data: tuple[str, ...], rewards: tuple[str, ...], form: Format
) -> int:
    """Say what is wrong with programs (.rlf) and schedules (.rls).

    A schedule is checked against the program that is given with it, or else the one beside it. Nothing is
    run, and no file of Python is imported.
    """
    from rlgraph.api import check as checked

    programs = [Path(file) for file in files if not file.endswith(".rls")]
    diagnostics: list[Diagnostic] = []
    for file in files:
        # A schedule is checked with the settings of its program, which `rlgraph check` is given beside it.
        program = file if not file.endswith(".rls") else str(programs[0]) if programs else file
        with reporting_errors(form):
            changed = parse_settings(settings, program, data, rewards)
        # The errors in the program of a schedule may have been shown already.
        new = [
            diagnostic
            for diagnostic in checked(Path(file), changed, programs=programs)
            if diagnostic not in diagnostics
        ]
        show_diagnostics(new, form)
        diagnostics += new
    if form == "human":
        which = files[0] if len(files) == 1 else f"{len(files)} files"
        echo_text(f"{which}: {count_summary(diagnostics)}", err=True)
    return WRONG if any(diagnostic.severity == "error" for diagnostic in diagnostics) else FINE


@rlgraph.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--check", "only_check", is_flag=True, help="Change nothing; exit with 1 if there is anything to change.")
def fmt(files: tuple[str, ...], only_check: bool) -> int:
    """Lay programs out as everybody does, in place; `-` is stdin to stdout."""
    from rlgraph.cli.formatting import format_file, format_stdin

    if "-" in files and len(files) > 1:
        raise click.BadParameter("`-` stands alone", param_hint="'FILE...'")
    code = FINE
    for file in files:
        try:
            changed = format_stdin(only_check) if file == "-" else format_file(file, only_check)
        except ProgramError as error:
            show_diagnostics(error.diagnostics, "human")
            code = WRONG
            continue
        if changed and file != "-":
            echo_text(f"{'would reformat' if only_check else 'reformatted'} {file}")
        if changed and only_check:
            code = WRONG
    return code
