"""`rlgraph watch`, which shows runs on a page."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlgraph.cli.base import FINE, message_format, reporting_errors, rlgraph
from rlgraph.cli.diagnostics import Format, echo_text
from rlgraph.runs.jsonlines import print_record

if TYPE_CHECKING:
    from rlgraph.runs.watching.run_reader import RunReader


@rlgraph.command()
@click.argument("runs", type=click.Path(path_type=Path), metavar="RUN [RUN...]", nargs=-1, required=True)
@click.option(
    "--export",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write one self-contained HTML file, with samples of some steps, and serve nothing.",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Of this machine. One in use is left alone.  [default: a free one]"
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@message_format
def watch(runs: tuple[Path, ...], export: Path | None, port: int | None, opens: bool, form: Format) -> int:
    """Show runs on a page, while they go on or afterwards: curves, samples, rewards, seconds, events.

    RUN is a run's folder, or that of a sweep; several runs are shown side by side. The page is served on this machine
    alone, and its address has a token. Ctrl-C ends it.
    """
    from rlgraph.runs.watching.run_reader import RunReader, runs_of

    with reporting_errors(form):
        readers = [RunReader(run) for run in dict.fromkeys(run for path in runs for run in runs_of(path))]
        if export is not None:
            return _export(readers, export, form)
        return _serve(readers, port, opens, form)


def _export(readers: Sequence[RunReader], export: Path, form: Format) -> int:
    from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake
    from rlgraph.files import failure_reason
    from rlgraph.runs.checkpoint.disk import write_text_atomically
    from rlgraph.runs.watching.page import exported_page

    try:
        write_text_atomically(export, exported_page(readers))
    except OSError as error:
        message = f"the page cannot be written to `{export}`: {failure_reason(error)}"
        raise UsageMistake(Diagnostic("E0878", message, NO_SPAN, "take another file for `--export`")) from None
    if form == "json":
        print_record({"type": "page", "file": str(export)})
    else:
        echo_text(f"wrote {export}")
    return FINE


def _serve(readers: Sequence[RunReader], port: int | None, opens: bool, form: Format) -> int:
    from rlgraph.runs.watching.server import WatchServer

    server = WatchServer(readers, port)
    with closing(server):
        if form == "json":
            print_record({"type": "page", "address": server.address})
        else:
            if server.took_another:
                echo_text(f"port {port} is in use: the page has another one", err=True)
            echo_text(f"{server.address}\nonly on this machine, until Ctrl-C")
        if opens:
            import webbrowser

            webbrowser.open(server.address)
        # Ctrl-C is how it is meant to end.
        with suppress(KeyboardInterrupt):
            server.serve()
    return FINE
