"""Reads files that a command of rlgraph wrote and somebody may have edited, and makes their error messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.files import failure_reason, read_bytes
from rlgraph.passes.compilation.read_program import decode_source, file_span
from rlgraph.runs.planfiles.document import Document

LARGEST_BYTES = 1 << 20
"""The largest size of a file, in bytes; such a file has a few hundred numbers."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file: an object in JSON with its version in a field of the kind's own."""

    name: str
    """The name of the kind, such as `calibration`."""
    field: str
    """The field that has the version."""
    version: int
    codes: Mapping[str, str]
    """The codes of this kind for those that a document uses for plan files; under `version`, that for another
    version."""
    hint: str
    """A hint on how such a file is made."""

    def read_document(self, path: Path) -> Document:
        """Return the document, whose version has to be known. Raise ProgramError."""
        document = Document(decode_source(str(path), self._bytes(path)))
        if not document.top.has_field(self.field):
            message = f"this is no {self.name}: it has no field `{self.field}`"
            raise ProgramError(Diagnostic(self.codes["E0950"], message, file_span(str(path)), self.hint))
        node = document.top.field(self.field)
        if node.value != self.version or isinstance(node.value, bool):
            message = f"this {self.name} has version {str(node.value)[:30]}, "
            message += f"and this rlgraph reads version {self.version}"
            document.add_error(node.path, self.codes["version"], message, f"make it again: {self.hint}")
            document.raise_errors()
        return document

    def with_file_codes(self, error: ProgramError) -> ProgramError:
        """Return a document's errors with the codes of this kind."""
        return ProgramError([self._recoded(diagnostic) for diagnostic in error.diagnostics])

    def _recoded(self, diagnostic: Diagnostic) -> Diagnostic:
        hint = self.hint if diagnostic.code == "E0950" else diagnostic.hint
        return replace(diagnostic, code=self.codes.get(diagnostic.code, diagnostic.code), hint=hint)

    def _bytes(self, path: Path) -> bytes:
        try:
            return read_bytes(path, LARGEST_BYTES)
        except (OSError, ValueError) as error:
            message = f"the {self.name} `{path}` cannot be read: {failure_reason(error)}"
            raise ProgramError(Diagnostic(self.codes["E0950"], message, file_span(str(path)), self.hint)) from None
