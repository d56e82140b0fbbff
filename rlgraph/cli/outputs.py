"""The files that `rlgraph compile` writes: a compiled program as text, data and pictures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlgraph.cli.diagnostics import echo_text

if TYPE_CHECKING:
    from rlgraph.api.compiled import Compiled, Picture

FORMATS = ("graph", "latex", "json", "dot", "svg", "png", "html", "plan", "transfers")
PICTURES = ("html", "svg", "png", "dot")
_ENDINGS = {"graph": "graph.txt", "latex": "tex", "plan": "plan.json", "transfers": "transfers.txt"}


def write_outputs(
    compiled: Compiled, emitted: list[str], visualize: str | None, out: Path | None, picture: Picture | None = None
) -> None:
    """Write the files and texts that were asked for. picture: the subject of pictures."""
    if emitted and out is None:
        data = _emit(compiled, emitted[0], Path(), picture)
        if isinstance(data, bytes) and sys.stdout.isatty():
            raise click.UsageError("a PNG is nothing for a terminal: say with -o DIR where it goes")
        click.echo(data, nl=False)
    elif out is not None:
        for form in emitted:
            save_file(out / f"{compiled.name}.{_ENDINGS.get(form, form)}", _emit(compiled, form, out, picture))
    if visualize is not None:
        path = Path(visualize or f"{compiled.name}.html")
        path = path if out is None or path.is_absolute() else out / path
        save_file(path, _emit(compiled, path.suffix[1:], path.parent, picture))


def _emit(compiled: Compiled, form: str, folder: Path, picture: Picture | None) -> str | bytes:
    """Return what is written to a file in this folder."""
    if form == "json":
        import json

        return json.dumps(compiled.to_json(), indent=1, ensure_ascii=False) + "\n"
    makers: dict[str, Callable[[], str | bytes]] = {
        "graph": compiled.text,
        "latex": compiled.to_latex,
        "dot": partial(compiled.to_dot, picture),
        "svg": partial(compiled.to_svg, picture=picture),
        "png": partial(compiled.to_png, picture=picture),
        "html": partial(compiled.to_html, picture),
        "plan": partial(compiled.plan_json, folder),
        "transfers": compiled.transfers,
    }
    return makers[form]()


def save_file(path: Path, data: str | bytes) -> None:
    """Write a file, and say so."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    except OSError as error:
        raise click.FileError(str(path), error.strerror or "it cannot be written") from None
    echo_text(f"wrote {path}", err=True)
