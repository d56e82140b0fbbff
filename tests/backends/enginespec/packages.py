"""Packages that bring engines, as pip installs them."""

from __future__ import annotations

import shutil
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "engine" / "plain_engine"


def installed(
    folder: Path, entries: str = "plain = plain_engine.spec:SPEC\n", name: str = "rlgraph-plain-engine"
) -> Path:
    """Like `pip install --target FOLDER`: the example's modules, and what says which engines there are."""
    if not (folder / "plain_engine").exists():
        shutil.copytree(EXAMPLE, folder / "plain_engine")
    told = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(f"[rlgraph.engines]\n{entries}")
    return folder
