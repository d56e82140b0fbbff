"""`hub("openai/gsm8k", config="main", split="train", batch=512)`: a data set of the Hugging Face hub.

It needs the package `datasets`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlgraph.columns import Column
from rlgraph.data.base import SHARED_OPTIONS, DataSource, Row, columns_of_table, inspect_columns, make_source
from rlgraph.data.tables import StreamedRows
from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.hub import hub_failure, stored_alone
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import (
    CallSpec,
    flag_option,
    refuse_unknown_options,
    require_package,
    single_text_argument,
    text_option,
)

NOT_LOADED = "E0710"
OPTIONS = (*SHARED_OPTIONS, "split", "config", "revision", "streaming")


@dataclass(frozen=True, slots=True)
class HubRows:
    """The rows of one split of a data set."""

    dataset: Any = field(repr=False)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Row:
        return dict(self.dataset[index])


def check_arguments(spec: CallSpec) -> None:
    """Raise an error for wrong arguments."""
    single_text_argument(spec, "the name of a data set", 'hub("openai/gsm8k", config="main", split="train", batch=64)')
    refuse_unknown_options(spec, OPTIONS)
    for name in ("split", "config", "revision"):
        text_option(spec, name, None)
    flag_option(spec, "streaming", False)


def open_source(spec: CallSpec, folders: SearchFolders) -> DataSource:
    """Load the split, from the cache of `datasets` where it is cached."""
    del folders  # hub names are not paths
    require_package("datasets", spec.span)
    import datasets

    name, silent = spec.args[0], hub_failure()
    streaming = {"streaming": True} if flag_option(spec, "streaming", False) else {}
    try:
        with stored_alone(silent):
            loaded = datasets.load_dataset(
                name,
                spec.options.get("config"),
                split=spec.options.get("split", "train"),
                revision=spec.options.get("revision"),
                **streaming,
            )
    except Exception as error:  # network, names, formats: `datasets` documents no common class
        unreachable = silent and isinstance(error, OSError)
        why = f"it is not stored here, and {silent}" if unreachable else f"{type(error).__name__}: {error}"
        message = f"'{name}' cannot be loaded from the hub: {' '.join(why.split())[:300]}"
        stored = (
            f"store it where there is a network, `hf download {name} --repo-type dataset`, and set `HF_HUB_OFFLINE=1`"
        )
        hint = f"{stored}; or give files, as in `--data FILE`" if isinstance(error, OSError) else ""
        raise ProgramError(Diagnostic(NOT_LOADED, message, spec.argument_span(0), hint)) from None
    if streaming:
        return make_source(spec, StreamedRows(loaded, f"'{name}'", spec.argument_span(0)), f"'{name}'")
    return make_source(spec, HubRows(loaded), f"'{name}'", _columns(spec, loaded, f"'{name}'"))


def _columns(spec: CallSpec, loaded: Any, name: str) -> dict[str, Column]:
    """Return what the underlying table holds where its rows are those of the data set, or what the rows hold."""
    table = getattr(getattr(loaded, "data", None), "table", None)
    if table is None or getattr(loaded, "_indices", None) is not None:
        return inspect_columns(spec, map(dict, loaded), name)
    return columns_of_table(spec, table, name)


def columns(spec: CallSpec, folders: SearchFolders) -> dict[str, Column] | None:
    """Return None: the columns are not known without loading."""
    del spec, folders
    return None


def files(spec: CallSpec, folders: SearchFolders) -> list[Path]:
    """Return no files: those of the hub are not the user's."""
    del spec, folders
    return []
