"""`rlgraph compile`: what becomes of a program, and where it runs."""

from __future__ import annotations

from pathlib import Path

import click

from rlgraph.cli.base import FINE, message_format, rlgraph, set_option, settings_of, telling
from rlgraph.cli.outputs import FORMATS, PICTURES, write
from rlgraph.cli.shown import Format, show


@rlgraph.command("compile")
@click.argument("files", nargs=-1, metavar="FILE...")
@set_option
@click.option("--devices", type=click.IntRange(1), default=1, help="How many there are, if no schedule has pools.")
@click.option(
    "--emit",
    "emitted",
    multiple=True,
    type=click.Choice(FORMATS),
    help="Write the graph, the plan or its transfers in this form: one to stdout, several into the folder of -o.",
)
@click.option(
    "--visualize",
    is_flag=False,
    flag_value="",
    metavar="[PATH]",
    help="Draw the dataflow: a page (NAME.html), or what the ending of PATH says (.html .svg .png .dot).",
)
@click.option(
    "--print-after",
    "after",
    multiple=True,
    metavar="PASS",
    help="Print the graph after this pass; `check` is before all.",
)
@click.option("-o", "--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Where files go.")
@message_format
def compile_(
    files: tuple[str, ...],
    settings: tuple[str, ...],
    devices: int,
    emitted: tuple[str, ...],
    visualize: str | None,
    after: tuple[str, ...],
    out: Path | None,
    form: Format,
) -> int:
    """Compile a program, with a schedule (.rls) or without one; without options, say in a few lines what became of it."""
    from rlgraph.api import compile

    if visualize and visualize.endswith(".rlf"):
        # `--visualize FILE`: the option has no value, and click cannot know.
        files, visualize = (visualize, *files), ""
    programs = [Path(file) for file in files if not file.endswith(".rls")]
    schedules = [Path(file) for file in files if file.endswith(".rls")]
    if not programs:
        raise click.UsageError("Missing argument 'FILE...'.")
    if len(programs) > 1 or len(schedules) > 1:
        raise click.UsageError("compile takes one program (.rlf) and at most one schedule (.rls)")
    if visualize and Path(visualize).suffix[1:] not in PICTURES:
        raise click.BadParameter(f"`{visualize}` does not end in .html, .svg, .png or .dot", param_hint="'--visualize'")
    if out is None and emitted and (len(set(emitted)) > 1 or after or form == "json"):
        raise click.UsageError("say with -o DIR where the files go: only one form alone can go to stdout")
    with telling(form):
        schedule = schedules[0] if schedules else None
        compiled = compile(programs[0], settings_of(settings), schedule=schedule, devices=devices)
        show(compiled.diagnostics, form)
    for name in after:
        try:
            click.echo(compiled.text(name), nl=False)
        except LookupError as error:
            raise click.BadParameter(str(error), param_hint="'--print-after'") from None
    write(compiled, list(dict.fromkeys(emitted)), visualize, out)
    if not (emitted or after or visualize is not None or form == "json"):
        from rlgraph.api.summary import summary

        click.echo(summary(compiled))
    return FINE
