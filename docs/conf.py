"""The documents as a site: `make docs`, or `sphinx-build -W docs build/docs` with the extra `docs`."""

import re
from pathlib import Path
from shutil import copyfile

from rlgraph import __version__ as release

project = "rlgraph"
html_title = f"{project} {release}"
root_doc = "contents"  # a file of its own: on a forge a table of contents is only in the way
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_extra_path = ["llms.txt"]
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        *("sidebar/brand.html", "versions.html", "sidebar/search.html"),
        *("sidebar/scroll-start.html", "sidebar/navigation.html", "sidebar/scroll-end.html"),
    ]
}
myst_heading_anchors = 4
myst_fence_as_directive = ["math"]  # as forges write formulas
# The words behind the language of a fence are for the tests.
suppress_warnings = ["misc.highlighting_failure"]
exclude_patterns = ["img"]
smartquotes = False  # `--set` has two dashes
# Docstrings have names between single backticks.
default_role = "literal"
autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "inherited-members": "BaseException",
    # rlgraph makes the objects of its classes, users do not.
    "exclude-members": "__init__, __new__",
}
autodoc_class_signature = "separated"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88

_DOCS = Path(__file__).resolve().parent
_LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\((\.\./[^()\s#]+)(#[^()\s]*)?\)")
_STUB = re.compile(r"<!-- (auto\w+): (\S+) -->\n.*?<!-- end -->", re.DOTALL)


def for_the_site(text: str, folder: Path = _DOCS) -> str:
    """Return the text of a page in `folder` with links that lead somewhere on the site, too.

    On a forge a link to a folder of the repository shows its files: here only its text is left. A page that is not
    among the documents becomes a link to a file. In place of a public name's stub the site has Sphinx's autodoc.
    """

    def link(found: re.Match[str]) -> str:
        words, path, _ = found.groups()
        target = (folder / path).resolve()
        if target.is_relative_to(_DOCS):
            return found[0]
        if target.is_dir():
            return words
        return f"[{words}](path:{path})" if target.suffix == ".md" else found[0]

    return _STUB.sub(r"```{eval-rst}\n.. \1:: \2\n```", _LINK.sub(link, text))


def read(app, page, source):
    """Prepare a page. One with a folder of its name is the parent of the pages in that folder."""
    source[0] = for_the_site(source[0], (_DOCS / page).parent)
    if (_DOCS / page).is_dir():
        source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n\n{Path(page).name}/*\n```\n"


def add_texts(app, error):
    """Put every page that llms.txt links to beside its HTML, and all of them into llms-full.txt."""
    if error or app.builder.format != "html":
        return
    pages = re.findall(r"\]\((\S+\.md)\)", (_DOCS / "llms.txt").read_text("utf-8"))
    for page in pages:
        copyfile(_DOCS / page, app.outdir / page)
    (app.outdir / "llms-full.txt").write_text("\n\n".join((_DOCS / page).read_text("utf-8") for page in pages), "utf-8")


def setup(app):
    app.connect("source-read", read)
    app.connect("build-finished", add_texts)
