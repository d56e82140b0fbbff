"""Small files that anybody may have written: a device or a pipe is none, and what is larger than it may be is not
read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

PROGRAMS = (".rlf", ".rls")
"""What files of the language end in."""
GIVEN = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""What who started the command handed over: a pipe there has somebody who writes."""


def read_bytes(path: str | Path, most: int, endings: tuple[str, ...] = ()) -> bytes:
    """What is in a file. Raises OSError, and ValueError for a path that no file can have, where it cannot be read, is
    no file (it might never end), is larger than `most` bytes, or where a link leads to a file
    without one of the `endings` (it might be any file of who reads it)."""
    given = str(path).startswith(GIVEN)
    if not given:
        _regular(os.stat(path).st_mode)
        if endings and os.path.islink(path) and not os.path.realpath(path).endswith(endings):
            raise OSError(22, f"it is a link to a file that does not end in {' or '.join(endings)}")
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        if not given:
            # It may have become another one since.
            _regular(os.fstat(handle).st_mode)
        os.set_blocking(handle, True)
        found = file.read(most + 1)
    if len(found) > most:
        raise OSError(27, f"it is too large: it has more than {size(most)}")
    return found


def _regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(21, "it is a folder")
    if not stat.S_ISREG(mode):
        raise OSError(22, "it is no regular file")


def reason(error: OSError | ValueError) -> str:
    """Why a file cannot be read, to stand behind a colon."""
    said = (isinstance(error, OSError) and error.strerror) or str(error)
    return said[:1].lower() + said[1:]


def size(number: int) -> str:
    """`128 KiB`, `16 MiB`."""
    return f"{number >> 20} MiB" if number >= 1 << 20 else f"{number >> 10} KiB"
