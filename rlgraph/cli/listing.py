"""`rlgraph list`, which lists the algorithms that ship."""

from __future__ import annotations

import re
from importlib.resources import files

import click

from rlgraph.cli.base import FINE, rlgraph
from rlgraph.cli.diagnostics import echo_text
from rlgraph.errors import did_you_mean


def shipped_algorithms() -> dict[str, str]:
    """Return the text of each algorithm that ships, by its name."""
    folder = files("rlgraph") / "algorithms"
    texts = {entry.name: entry.read_text("utf-8") for entry in folder.iterdir() if entry.name.endswith(".rlf")}
    return {name.removesuffix(".rlf"): texts[name] for name in sorted(texts)}


def _title(text: str) -> str:
    """Return the name and the paper that the first line of a program names."""
    first = text.partition("\n")[0].removeprefix("# ")
    name, _, rest = first.partition(":")
    paper = re.search(r"\(arXiv [^)]*\)", rest)
    return f"{name} {paper[0]}" if paper else name


@rlgraph.command("list")
@click.argument("name", required=False, metavar="[NAME]")
def list_(name: str | None) -> int:
    """Say which algorithms ship; with NAME, print that program, to copy and edit."""
    texts = shipped_algorithms()
    if name is None:
        width = max(map(len, texts))
        for algorithm, text in texts.items():
            echo_text(f"{algorithm:{width}}  {_title(text)}")
        echo_text(
            "`rlgraph check NAME`, `compile` and `run` take these names; `rlgraph list NAME > my.rlf` makes one yours"
        )
        return FINE
    wanted = name.removesuffix(".rlf")
    if wanted not in texts:
        hint = did_you_mean(wanted, texts) or "`rlgraph list` says which there are"
        raise click.BadParameter(f"no algorithm called {name} ships: {hint}", param_hint="'NAME'")
    echo_text(texts[wanted], nl=False)
    return FINE
