"""Reads text files that a user has written, as sources of diagnostics."""

from __future__ import annotations

from rlgraph.errors import Diagnostic, ProgramError, Source, Span
from rlgraph.files import failure_reason, read_bytes

LARGEST_BYTES = 1 << 20


def read_source(path: str, code: str, hint: str, missing: str = "", largest: int = LARGEST_BYTES) -> Source:
    """Return the text of a small UTF-8 file. Raises ProgramError with the code and the hint if it cannot be read.

    missing: the message where there is no such file, if the path may have been meant as something else. largest: bytes.
    """
    try:
        return Source(path, read_bytes(path, largest).decode("utf-8-sig"))
    except FileNotFoundError:
        message = missing or f"there is no file `{path}`"
    except UnicodeDecodeError:
        message = f"`{path}` is no text in UTF-8"
    except (OSError, ValueError) as error:
        message = f"`{path}` cannot be read: {failure_reason(error)}"
    raise ProgramError(Diagnostic(code, message, Span(Source(path, ""), 0, 0, 0, 0), hint))
