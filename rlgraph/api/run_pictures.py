"""The pictures of a run, drawn from what is in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rlgraph.api.compiled import Compiled
from rlgraph.errors import RlgraphError
from rlgraph.runs.exporting.run_program import compile_run


def run_pictures(run: Path) -> Mapping[str, bytes]:
    """Return the dataflow of a run's program as PNG, and where the run had a schedule or a plan file, its plan; none if
    the program cannot be compiled here."""
    with suppress(RlgraphError, OSError, ValueError):
        compiled = Compiled.of(compile_run(run))
        pictures = {"dataflow": compiled.to_png(picture="dataflow")}
        if compiled.planned:
            with suppress(RlgraphError):
                pictures["plan"] = compiled.to_png(picture="plan")
        return pictures
    return {}
