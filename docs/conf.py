"""The documents as a site: `sphinx-build docs site`, with the extra `docs`."""

from importlib.metadata import version

project = "rlgraph"
release = version("rlgraph")
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"rlgraph {release}"
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure", "myst.xref_missing"]
