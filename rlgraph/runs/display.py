"""The choice of the display that shows a run's progress."""

from __future__ import annotations

import sys
from typing import IO

from rlgraph.runs.progress import CellDisplay, Display, LinesDisplay


def choose_display(stream: IO[str] | None = None) -> Display:
    """Return the display that suits the stream (stderr by default): a notebook cell, a progress bar, or plain lines."""
    if stream is None and in_notebook():
        return CellDisplay()
    stream = stream or sys.stderr
    if stream.isatty():
        from rlgraph.runs.progress_bar import BarDisplay

        return BarDisplay()
    return LinesDisplay(stream)


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and "IPKernelApp" in shell.config
