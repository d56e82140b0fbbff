"""Checks from the index of a value or reward model's files whether they have its head, without weights or torch."""

from __future__ import annotations

import json
from pathlib import Path

from rlgraph.catalog.models.adapters import CONFIG
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import find_model_folder
from rlgraph.catalog.models.families import HEAD
from rlgraph.catalog.models.shape import UnsupportedModel
from rlgraph.errors import Diagnostic, Span
from rlgraph.files import read_bytes

LARGEST_BYTES = 64 << 20
"""The limit of an index; some megabytes are usual for the largest models."""


def missing_head_message(kind: str, source: str) -> str:
    """Return the message for a model without a head that nothing trains."""
    what = "values" if kind == "value_lm" else "scores"
    return f"{source!r} has no head that gives {what}, and nothing trains one: it would give 0 for every row"


def missing_head_diagnostic(name: str, message: str, span: Span) -> Diagnostic:
    """Return the message as a diagnostic about the model of this name."""
    hint = "name the folder of a model that was trained with a head, or train it here: then it begins with 0"
    return Diagnostic("E0755", f"`{name}` cannot be used: {message}", span, hint)


def lacks_head(source: str) -> bool:
    """Return whether a source of a known family has local files and these have no head. Where the index does not tell,
    the loader of the files reports it."""
    folder = find_model_folder(source)
    names = None if folder is None else _names(folder)
    return bool(names) and HEAD not in (names or ())


def _names(folder: Path) -> frozenset[str] | None:
    """Return the names of all tensors in the files of a folder; None where they are not known."""
    if (folder / CONFIG).is_file():
        # The head is saved with the adapter, and the base is another folder.
        return None
    try:
        shape_of(json.loads(read_bytes(folder / "config.json", LARGEST_BYTES)))
        index = folder / "model.safetensors.index.json"
        if index.exists():
            return frozenset(json.loads(read_bytes(index, LARGEST_BYTES))["weight_map"])
        with (folder / "model.safetensors").open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            return frozenset(json.loads(file.read(size))) if size <= LARGEST_BYTES else None
    except (OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError, UnsupportedModel):
        return None
