"""Reading of small, untrusted files: devices and pipes are refused, and so are files that are larger than a given
limit."""

from __future__ import annotations

import os
import stat
from pathlib import Path

PROGRAMS = (".rlf", ".rls")
"""Extensions of program and schedule files."""
GIVEN = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Paths of what the caller of the command handed over: a pipe is allowed there, since somebody writes to it."""


def read_bytes(path: str | Path, most: int, endings: tuple[str, ...] = ()) -> bytes:
    """Return the content of a file. Raises OSError if it cannot be read, is no regular file (it might never end), is
    larger than `most` bytes, or is a link to a file without one of the `endings` (it might be any private file of the
    reader). Raises ValueError for a path that no file can have."""
    given = str(path).startswith(GIVEN)
    if not given:
        _regular(os.stat(path).st_mode)
        if endings and os.path.islink(path) and not os.path.realpath(path).endswith(endings):
            raise OSError(22, f"it is a link to a file that does not end in {' or '.join(endings)}")
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        if not given:
            # The path may have become another file since.
            _regular(os.fstat(handle).st_mode)
        os.set_blocking(handle, True)
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(27, f"it is too large: it has more than {format_size(most)}")
    return content


def _regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(21, "it is a folder")
    if not stat.S_ISREG(mode):
        raise OSError(22, "it is no regular file")


def failure_reason(error: OSError | ValueError) -> str:
    """Return why a file cannot be read or written, as text that follows a colon."""
    text = cause_text(error)
    return text[:1].lower() + text[1:]


def cause_text(error: BaseException) -> str:
    """Return what went wrong, in the words of the system or of a library."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def format_size(number: int) -> str:
    """Return a number of bytes as text: `128 KiB`, `16 MiB`."""
    return f"{number >> 20} MiB" if number >= 1 << 20 else f"{number >> 10} KiB"
