"""Where the configuration of a model is found without loading the model, and without a network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rlgraph.catalog.models.shape import UnsupportedModel
from rlgraph.files import read_bytes

LARGEST_BYTES = 16 << 20
"""Of a configuration: a few thousand are usual."""

_TABLE = Path(__file__).with_name("known.json")


def known(name: str) -> Mapping[str, Any] | None:
    """Of a well-known model on the Hugging Face hub, the fields of its configuration that say how large it is; None for
    others. Enough to plan with, not to compute with: what is said of norms and positions is left out."""
    found = _table().get(name)
    return _table()[found] if isinstance(found, str) else found


def names() -> tuple[str, ...]:
    """Of the models that are well known."""
    return tuple(_table())


def find_config(source: str) -> Mapping[str, Any] | None:
    """The configuration of a model source: a local folder's; else of the files that the hub's client has stored here;
    else what is known of the name. None if there is none. A file that cannot be read raises UnsupportedModel."""
    folder = Path(source)
    if folder.is_dir():
        return _read(folder / "config.json") if (folder / "config.json").exists() else None
    stored = _stored(source)
    return known(source) if stored is None else _read(stored)


def snapshot(source: str) -> Path | None:
    """The folder in which the version of a model of the hub lies that is stored here, by whose number it is called;
    None for what is none, or is not here."""
    stored = None if not source or Path(source).is_dir() else _stored(source)
    return None if stored is None else stored.parent


def find_folder(source: str) -> Path | None:
    """Where the files of a model source are: a local folder, or what the hub's client has stored here. None if they are
    not here."""
    return Path(source) if Path(source).is_dir() else snapshot(source)


@cache
def _table() -> dict[str, Any]:
    """By name a configuration, or the name of the model that has the same."""
    found: dict[str, Any] = json.loads(_TABLE.read_text("utf-8"))
    return found


def _stored(name: str) -> Path | None:
    try:
        from huggingface_hub import constants
    except ImportError:
        return None
    # The client takes longer to load than many searches take: first whether it has the model's folder at all.
    folder = "--".join(("models", *name.split("/")))
    if not (Path(constants.HF_HUB_CACHE) / folder).is_dir():
        return None
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json")
    except ValueError:
        return None  # a path, not a name on the hub
    return Path(found) if isinstance(found, str) else None


def _read(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(read_bytes(file, LARGEST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedModel(f"cannot read {file}: {error}") from error
    if not isinstance(found, dict):
        raise UnsupportedModel(f"{file} is no model's configuration")
    return found
