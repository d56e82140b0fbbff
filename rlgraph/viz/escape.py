"""Escapes the texts of programs for pictures and pages."""

from __future__ import annotations

import html
import re

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot contain, not even by number: https://www.w3.org/TR/xml/#charsets."""


def escape(text: str) -> str:
    """Return text escaped for an element or an attribute; U+FFFD replaces what XML cannot contain."""
    return html.escape(_FORBIDDEN.sub("\ufffd", text))
