"""`rlgraph new`, which writes a folder to begin with."""

from __future__ import annotations

from pathlib import Path

import click

from rlgraph.cli.base import FINE, message_format, reporting_errors, rlgraph
from rlgraph.cli.diagnostics import Format, echo_text
from rlgraph.runs.jsonlines import print_record


@rlgraph.command()
@click.argument("algorithm", metavar="ALGORITHM")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--model",
    metavar="SOURCE",
    help="Of its models: a name of the hub, a folder, or a .gguf file.  [default: a chat model of 135 million "
    "parameters, which DIR/README.md says how to fetch]",
)
@message_format
def new(algorithm: str, folder: Path, model: str | None, form: Format) -> int:
    """Write a folder to begin with: the program, rows, a reward, a README.

    ALGORITHM is one that `rlgraph list` names, or a file. What it needs follows from it: columns of the data,
    functions, environments. DIR has to be new or empty.
    """
    from rlgraph.api.starter.files import FETCH
    from rlgraph.api.starter.folder import write_starter

    with reporting_errors(form):
        written = write_starter(algorithm, folder, model)
    program = next(path for path in written if path.suffix == ".rlf")
    if form == "json":
        print_record({"type": "new", "folder": str(folder), "files": [str(path) for path in written]})
        return FINE
    echo_text("\n".join(f"wrote {path}" for path in sorted(written)), err=True)
    fetch = f"\n  {FETCH}" if model is None else ""
    echo_text(f"next:\n  cd {folder}{fetch}\n  rlgraph doctor {program.name}\n  rlgraph run {program.name} --steps 8")
    return FINE
