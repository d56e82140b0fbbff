"""The documents as a site: `make docs`, or `sphinx-build docs build/docs` with the extra `docs`."""

from rlgraph import __version__ as release

project = "rlgraph"
html_title = f"{project} {release}"
root_doc = "contents"  # a file of its own: on a forge a table of contents is only in the way
extensions = ["myst_parser"]
html_theme = "furo"
myst_heading_anchors = 4
# Links to files of the repository are for readers there; fences are marked for the tests.
suppress_warnings = ["misc.highlighting_failure", "myst.xref_missing"]
exclude_patterns = ["img"]
