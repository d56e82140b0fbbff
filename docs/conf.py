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

_DOCS = Path(__file__).resolve().parent
_LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\((\.\./[^()\s#]+)(#[^()\s]*)?\)")


def for_the_site(text: str, folder: Path = _DOCS) -> str:
    """Return the text of a page in `folder` with links that lead somewhere on the site, too.

    On a forge a link to a folder of the repository shows its files: here only its text is left. A page that is not
    among the documents becomes a link to a file.
    """

    def link(found: re.Match[str]) -> str:
        words, path, _ = found.groups()
        target = (folder / path).resolve()
        if target.is_relative_to(_DOCS):
            return found[0]
        if target.is_dir():
            return words
        return f"[{words}](path:{path})" if target.suffix == ".md" else found[0]

    return _LINK.sub(link, text)


def setup(app):
    def read(app, page, source):
        source[0] = for_the_site(source[0], (_DOCS / page).parent)

    app.connect("source-read", read)
