"""What a check of the doctor comes to, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from rlgraph.errors import Diagnostic

State = Literal["ok", "note", "warning", "fails"]
"""How a check ended: fine; worth knowing; likely not meant, or slow; a run would end here."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    state: State
    subject: str
    """What was looked at, in a word or the name in the program."""
    message: str
    hint: str = ""
    """What to do."""
    place: str = ""
    """Where in the program, as `file:line:column`."""
    shown: tuple[str, ...] = ()
    """Lines that belong to it: a prompt, its tokens."""

    def lines(self, width: int) -> Iterator[str]:
        """Yield what is printed, with subjects as wide as `width`."""
        where = f" ({self.place})" if self.place else ""
        yield f"  {self.state:7}  {self.subject:{width}}  {self.message}{where}"
        margin = " " * (width + 13)
        if self.hint:
            yield f"{margin}to do: {self.hint}"
        yield from (f"{margin}{line}" for line in self.shown)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "state": self.state,
            "subject": self.subject,
            "message": self.message,
            "hint": self.hint,
            "place": self.place,
            "shown": [*self.shown],
        }


def finding_of(diagnostic: Diagnostic, subject: str) -> Finding:
    """Return an error as a check that fails, and a warning as one that warns."""
    state: State = "fails" if diagnostic.severity == "error" else "warning"
    message = f"{diagnostic.message} [{diagnostic.code}]"
    return Finding(state, subject, message, diagnostic.hint, str(diagnostic.span) if diagnostic.span.line else "")


def format_bytes(count: float) -> str:
    """Return a number of bytes as text: `3.2 GB`, `45 MB`."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
