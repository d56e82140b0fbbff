"""The documents as a site: `make docs`, or `sphinx-build -W docs build/docs` with the extra `docs`."""

import re
from pathlib import Path

from rlgraph import __version__ as release

project = "rlgraph"
html_title = f"{project} {release}"
root_doc = "contents"  # a file of its own: on a forge a table of contents is only in the way
extensions = ["myst_parser"]
html_theme = "furo"
myst_heading_anchors = 4
# The words behind the language of a fence are for the tests.
suppress_warnings = ["misc.highlighting_failure"]
exclude_patterns = ["img"]

_DOCS = Path(__file__).parent
_LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\((\.\./[^()\s#]+)(#[^()\s]*)?\)")


def for_the_site(text: str) -> str:
    """A page whose links lead somewhere on the site, too. On a forge a link to a folder of the repository shows its
    files: here it is only its text. A page that is not among the documents is a file."""

    def link(found: re.Match[str]) -> str:
        words, path, _ = found.groups()
        target = _DOCS / path
        if target.is_dir():
            return words
        return f"[{words}](path:{path})" if target.suffix == ".md" else found[0]

    return _LINK.sub(link, text)


def setup(app):
    def read(app, page, source):
        source[0] = for_the_site(source[0])

    app.connect("source-read", read)
