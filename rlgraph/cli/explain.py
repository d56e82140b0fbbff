"""`rlgraph explain`: what a diagnostic's code means. `rlgraph/codes/*.md` holds a section for each."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import click

from rlgraph.cli.base import FINE, rlgraph

CODES = Path(__file__).parents[1] / "codes"


def sections() -> dict[str, str]:
    """The text of each code, title first, in order of the codes."""
    found: dict[str, str] = {}
    for file in CODES.glob("*.md"):
        for section in ("\n" + file.read_text("utf-8")).split("\n## ")[1:]:
            found[section.split(maxsplit=1)[0]] = f"{section.strip()}\n"
    return dict(sorted(found.items()))


def titles() -> dict[str, str]:
    """The first line of each section, without the code."""
    return {code: text.splitlines()[0].removeprefix(code).strip() for code, text in sections().items()}


def explain(code: str) -> str:
    """The section of a code. Raises LookupError with the nearest code."""
    found = sections()
    wanted = code.strip().strip("[]").upper()
    if wanted in found:
        return found[wanted]
    near = get_close_matches(wanted, found, n=1)
    hint = f"did you mean {near[0]}?" if near else "`rlgraph explain` lists all codes"
    raise LookupError(f"there is no code {code}: {hint}")


@rlgraph.command("explain")
@click.argument("code", required=False, metavar="[CODE]")
def explain_(code: str | None) -> int:
    """Say more about a diagnostic, such as E0201; without CODE, list them all."""
    if code is None:
        for name, title in titles().items():
            click.echo(f"{name}  {title}")
        return FINE
    try:
        click.echo(explain(code), nl=False)
    except LookupError as error:
        raise click.BadParameter(str(error), param_hint="'CODE'") from None
    return FINE
