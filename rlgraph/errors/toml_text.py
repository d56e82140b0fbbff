"""TOML that a user has written, with the places of its keys for diagnostics."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from typing import Any

from rlgraph.errors import Diagnostic, ProgramError, Source, Span, did_you_mean


class NumberText(float):
    """A number with a point or an exponent, and how it was written: `1e-6`."""

    text: str

    def __new__(cls, text: str) -> NumberText:
        plain = text.replace("_", "")
        number = super().__new__(cls, plain)
        number.text = plain
        return number

    def __repr__(self) -> str:
        return self.text


class TomlText:
    """A parsed TOML text, with the places of its keys."""

    def __init__(self, source: Source, unreadable: str, unknown: str) -> None:
        """unreadable, unknown: the codes of errors for what is no TOML, and for a field that there is not. Raises
        ProgramError."""
        self.source, self._unreadable, self._unknown = source, unreadable, unknown
        try:
            self.content: dict[str, Any] = tomllib.loads(source.text, parse_float=NumberText)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise self._broken(str(error)) from None
        except ValueError:
            raise self._too_long() from None

    def _broken(self, error: str) -> ProgramError:
        place = re.search(r" \(at line (\d+), column (\d+)\)", error)
        line, column = (int(place[1]), int(place[2])) if place else (max(1, self.source.text.count("\n")), 1)
        reason = re.sub(r" \(at .*\)", "", error)
        span = Span(self.source, line, column, line, column + 1)
        message = f"this is no TOML: {reason[:1].lower()}{reason[1:]}"
        return self.make_error(self._unreadable, message, "texts stand in quotes", span)

    def _too_long(self) -> ProgramError:
        """Return the error for an integer of more digits than Python reads, whose place Python does not tell."""
        longest = max(re.finditer(r"\d[\d_]*", self.source.text), key=lambda match: len(match[0]))
        line = self.source.text.count("\n", 0, longest.start()) + 1
        column = longest.start() - self.source.text.rfind("\n", 0, longest.start())
        span = Span(self.source, line, column, line, column + len(longest[0]))
        return self.make_error(self._unreadable, "this number has too many digits to be read", "write it as 1e30", span)

    def check_known_fields(
        self, table: Mapping[str, Any], fields: Collection[str], where: tuple[str, int] = ("", 0)
    ) -> None:
        """Raise ProgramError for a field of a table that is none of these, with the nearest as a hint."""
        for name in table:
            if name not in fields:
                listing = ", ".join(f"`{field}`" for field in fields)
                hint = did_you_mean(name, fields) or f"here stand {listing}"
                raise self.make_error(self._unknown, f"there is no field `{name}`", hint, self.key_span(name, *where))

    def key_span(self, key: str, table: str = "", number: int = 0) -> Span:
        """Return the place of a key in the `number`-th table of a name; without a key, the place of the table's
        head."""
        inside, seen = not table, -1
        for line, text in enumerate(self.source.text.splitlines(), 1):
            if head := re.match(r"\s*\[\[?(.*?)\]", text):
                seen += _plain(head[1]) == _plain(table)
                inside = _plain(head[1]) == _plain(table) and seen == number
                matches = (inside and not key) or (not table and _plain(head[1]) == key)
            else:
                matches = inside and bool(key) and _plain(re.split("[=.#]", text)[0]) == key
            if matches:
                begin = len(text) - len(text.lstrip()) + 1
                return Span(self.source, line, begin, line, len(text.split("#")[0].rstrip()) + 1)
        return Span(self.source, 0, 0, 0, 0)

    def make_error(self, code: str, message: str, hint: str, span: Span | None = None) -> ProgramError:
        """Return an error; without a place it is about the whole file."""
        return ProgramError(Diagnostic(code, message, span or Span(self.source, 0, 0, 0, 0), hint))


def _plain(head: str) -> str:
    return re.sub(r"[\"'\s]", "", head)
