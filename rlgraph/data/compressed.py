"""Compressed files, read as what they were before."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import IO, Any

from rlgraph.data.listing import ListedFile
from rlgraph.errors import Diagnostic, ProgramError, Span
from rlgraph.user_code.spec import require_package

BROKEN = "E0761"
UNPACKING = (OSError, EOFError, zlib.error, lzma.LZMAError, ImportError)
"""What reading a compressed file may raise."""


def open_decompressed(listed: ListedFile) -> IO[bytes]:
    """Open a file for reading, unpacked where it is compressed. Raises `UNPACKING`."""
    if listed.compression == ".zst":
        import pyarrow as pa

        stream: Any = pa.CompressedInputStream(pa.OSFile(str(listed.file)), "zstd")
        return io.BufferedReader(stream)  # which has lines
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    handle: IO[bytes] = openers.get(listed.compression, open)(listed.file, "rb")
    return handle


def decompress_to_temporary(listed: ListedFile, span: Span) -> tuple[Path, object]:
    """Unpack a compressed file into a temporary one. Returns it, and what deletes it once nobody has it any more.
    Raises ProgramError."""
    if listed.compression == ".zst":
        require_package("pyarrow", span)
    folder = tempfile.TemporaryDirectory(prefix="rlgraph-data-", ignore_cleanup_errors=True)
    file = Path(folder.name) / "rows"
    try:
        with open_decompressed(listed) as packed, file.open("wb") as handle:
            shutil.copyfileobj(packed, handle, 1 << 20)
    except UNPACKING as error:
        message = f"'{listed.shown}' cannot be unpacked: {error}"
        hint = "it is damaged, was not copied whole, or is no such file at all; or the disk is full"
        raise ProgramError(Diagnostic(BROKEN, message, span, hint)) from None
    return file, folder
