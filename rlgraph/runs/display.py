"""Which display a run has."""

from __future__ import annotations

import sys
from typing import IO

from rlgraph.runs.progress import Cell, Display, Lines


def display(stream: IO[str] | None = None) -> Display:
    """The one that suits where the stream (stderr by default) goes."""
    if stream is None and in_notebook():
        return Cell()
    stream = stream or sys.stderr
    if stream.isatty():
        from rlgraph.runs.progress_bar import Bar

        return Bar()
    return Lines(stream)


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and "IPKernelApp" in shell.config
