"""`rlgraph explain`, which shows what a diagnostic's code means. `rlgraph.errors.codes` has a section for each."""

from __future__ import annotations

import click

from rlgraph.cli.base import FINE, rlgraph
from rlgraph.cli.diagnostics import echo_text
from rlgraph.errors import did_you_mean
from rlgraph.errors.codes import all_codes


def code_section(code: str) -> str:
    """Return the section of a code. Raise LookupError with the nearest code."""
    codes = all_codes()
    wanted = code.strip().strip("[]").upper()
    if wanted in codes:
        return codes[wanted].section
    hint = did_you_mean(wanted, codes) or "`rlgraph explain` lists all codes"
    raise LookupError(f"there is no code {code}: {hint}")


@rlgraph.command("explain")
@click.argument("code", required=False, metavar="[CODE]")
def explain_(code: str | None) -> int:
    """Say more about a diagnostic, such as E0201; without CODE, list them all."""
    if code is None:
        for entry in all_codes().values():
            echo_text(f"{entry.name}  {entry.title}")
        return FINE
    try:
        echo_text(code_section(code), nl=False)
    except LookupError as error:
        raise click.BadParameter(str(error), param_hint="'CODE'") from None
    return FINE
