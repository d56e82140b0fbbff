"""This module has the diagnostics of a recording that cannot be written or read."""

from __future__ import annotations

from pathlib import Path

from rlgraph.errors import NO_SPAN, Diagnostic
from rlgraph.files import failure_reason


def unwritable_recording_diagnostic(folder: Path, error: OSError) -> Diagnostic:
    """Return the diagnostic for a folder that cannot be written."""
    message = f"`{folder}` cannot hold a recording: {failure_reason(error)}"
    return Diagnostic("E0814", message, NO_SPAN, "take another folder with `--record`")


def damaged_recording_diagnostic(folder: Path, error: Exception) -> Diagnostic:
    """Return the diagnostic for a recording that is damaged."""
    return Diagnostic("E0817", f"`{folder}` is damaged: {error}", NO_SPAN, "record again")
