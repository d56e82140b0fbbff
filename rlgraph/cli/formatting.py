"""Formats programs in their files, for `rlgraph fmt`."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from rlgraph.dsl.format import format_source
from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.passes.compilation.read_program import decode_source, file_span, open_program_file


def format_file(path: str, only_check: bool = False) -> bool:
    """Format a file unless `only_check`, and return whether its layout changes.

    Raises ProgramError if the file is no program, or cannot be written.
    """
    opened = open_program_file(path)
    text = format_source(opened.source).encode()
    try:
        if text == Path(path).read_bytes():
            return False
        if not only_check:
            _replace(Path(path).resolve(), text)
    except OSError as error:
        reason = (error.strerror or "it is not writable").lower()
        raise ProgramError(Diagnostic("E0805", f"`{path}` cannot be written: {reason}", file_span(path))) from None
    return True


def format_stdin(only_check: bool = False) -> bool:
    """Format stdin to stdout, and return whether its layout changes; with `only_check` nothing is written."""
    raw = sys.stdin.buffer.read()
    text = format_source(decode_source("<stdin>", raw))
    if not only_check:
        sys.stdout.write(text)
    return text.encode() != raw


def _replace(path: Path, text: bytes) -> None:
    """Replace a file's text and keep its mode. The file is complete at every moment, so that a full disk loses
    nothing."""
    if not os.access(path, os.W_OK):
        raise PermissionError(13, "permission denied")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(text)
        shutil.copymode(path, draft)
        draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink()
