"""Finds the configuration of a model without loading the model and without a network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rlgraph.catalog.models.shape import UnsupportedModel
from rlgraph.files import read_bytes

LARGEST_BYTES = 16 << 20
"""The limit of a configuration file; a few thousand bytes are usual."""

_TABLE = Path(__file__).with_name("known.json")


def known_config(name: str) -> Mapping[str, Any] | None:
    """Return the configuration fields of a well-known model on the Hugging Face hub that say how large it is; None for
    other models. They suffice to plan, not to compute: fields of norms and positions are left out."""
    entry = _table().get(name)
    return _table()[entry] if isinstance(entry, str) else entry


def known_models() -> tuple[str, ...]:
    """Return the names of the well-known models."""
    return tuple(_table())


def find_config(source: str) -> Mapping[str, Any] | None:
    """Return the configuration of a model source: that of a local folder, else of the files in the hub client's cache,
    else of a well-known name. None if there is none. Raises UnsupportedModel for a file that cannot be read."""
    folder = Path(source)
    if folder.is_dir():
        return _read(folder / "config.json") if (folder / "config.json").exists() else None
    cached = _cached_config(source)
    return known_config(source) if cached is None else _read(cached)


def find_snapshot(source: str) -> Path | None:
    """Return the cached folder of a hub model, whose name is the version's hash; None for what is no hub model, or is
    not cached."""
    config = None if not source or Path(source).is_dir() else _cached_config(source)
    return None if config is None else config.parent


def find_model_folder(source: str) -> Path | None:
    """Return the folder with the files of a model source: a local folder, or that of the hub client's cache. None if
    there are no such files."""
    return Path(source) if Path(source).is_dir() else find_snapshot(source)


@cache
def _table() -> dict[str, Any]:
    """Return for each name a configuration, or the name of the model with the same one."""
    table: dict[str, Any] = json.loads(_TABLE.read_text("utf-8"))
    return table


def _cached_config(name: str) -> Path | None:
    try:
        from huggingface_hub import constants
    except ImportError:
        return None
    # The client takes longer to import than many searches take, so check first whether its cache has the model at all.
    folder = "--".join(("models", *name.split("/")))
    if not (Path(constants.HF_HUB_CACHE) / folder).is_dir():
        return None
    from huggingface_hub import try_to_load_from_cache

    try:
        path = try_to_load_from_cache(name, "config.json")
    except ValueError:
        return None  # A path, not a name on the hub.
    return Path(path) if isinstance(path, str) else None


def _read(file: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(read_bytes(file, LARGEST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedModel(f"cannot read {file}: {error}") from error
    if not isinstance(config, dict):
        raise UnsupportedModel(f"{file} is no model's configuration")
    return config
