"""The escaping of programs' texts in pictures and pages."""

from __future__ import annotations

import html
import re

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no way to write, not even by number: https://www.w3.org/TR/xml/#charsets."""


def escape(text: str) -> str:
    """As the text of an element, or in an attribute; U+FFFD stands for what no XML can have in it."""
    return html.escape(_FORBIDDEN.sub("\ufffd", text))
