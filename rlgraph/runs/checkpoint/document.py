"""What a checkpoint holds, as files:

checkpoint.json               the step, the seed, the phases, positions in the data, states, what buffers and `collect`
                              hold; of each model how often it was updated; the digests of every file, its own too
things.safetensors            the tensors of these values
models/NAME/weights.safetensors, moments.safetensors, past-VERSION.safetensors
                              of each model that was changed: by the names of its tensors in Hugging Face's terms, so
                              that nothing depends on where it was trained; of one that several ranks have each writes
                              files of its own (`weights-rank00003.safetensors`), see `rlgraph.backends.saved`
program.rlf, graph.txt        the program as it was run, and its graph after the last pass

Numbers in it have the bits that they had. Nothing in it can be executed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlgraph.backends.saved import MODELS, SavedModel, damaged
from rlgraph.digests import Damaged, Digests, Looked, digest, digests_of
from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake
from rlgraph.files import read_bytes
from rlgraph.ir.graph import Program
from rlgraph.ir.types import is_model
from rlgraph.runs.checkpoint.disk import step_of

if TYPE_CHECKING:
    from torch import Tensor

Encoded = tuple[dict[str, Any], "dict[str, Tensor]"]
"""Values of things as plain data, and their tensors by the names that these have there."""

FORMAT = 2
_LONGEST = 1 << 32
"""Bytes of a file of a checkpoint that is read at once."""
_RECORDS = ("files", "rows", "set", "outside", "versions", "things", "models")
DIGEST = "digest"
"""Of all else in the document."""
DOCUMENT, THINGS, PROGRAM, GRAPH = "checkpoint.json", "things.safetensors", "program.rlf", "graph.txt"


@dataclass(frozen=True)
class Checkpoint:
    """What is in one, but for the tensors of its models."""

    path: Path
    step: int
    seed: int
    phases: tuple[tuple[str, int | None], ...]
    """Of the program, with how many steps each has."""
    rows: Mapping[str, int | None]
    """Of each data source, where it can be known."""
    set: Mapping[str, str]
    outside: Mapping[str, Mapping[str, str]]
    """Digests of what the program takes from outside, see `rlgraph.runs.checkpoint.outside`."""
    versions: Mapping[str, str]
    """Of the packages that computed."""
    things: Mapping[str, Any]
    """As plain data."""
    models: Mapping[str, Mapping[str, Any]]
    program: str
    """Its text."""
    graph: str
    files: Mapping[str, Digests]
    """Of each file, by its path in the folder, what has to be in it."""


def encoded(things: Mapping[str, Any]) -> Encoded:
    """The values of things as they are now. Raises Unsavable."""
    from rlgraph.runs.checkpoint.values import encoded

    tensors: dict[str, Tensor] = {}
    return {name: encoded(value, name, tensors) for name, value in things.items()}, tensors


def write(
    folder: Path,
    header: Mapping[str, Any],
    program: str,
    graph: str,
    things: Encoded,
    models: Mapping[str, SavedModel],
) -> None:
    """Into a folder that has models, and nothing else. Raises OSError."""
    from safetensors.torch import save_file

    plain, tensors = things
    save_file(tensors, folder / THINGS)
    fields = ("updates", "changed", "version", "past")
    kept = {name: {field: getattr(model, field) for field in fields} for name, model in models.items()}
    (folder / PROGRAM).write_text(program, "utf-8")
    (folder / GRAPH).write_text(graph, "utf-8")
    files = {f"{MODELS}/{name}/{file}": told for name, model in models.items() for file, told in model.digests.items()}
    files |= {name: digests_of(folder / name) for name in (THINGS, PROGRAM, GRAPH)}
    told = {name: each.plain() for name, each in files.items()}
    found = {"format": FORMAT, **header, "things": plain, "models": kept, "files": told}
    (folder / DOCUMENT).write_text(signed(found), "utf-8")


def signed(document: Mapping[str, Any]) -> str:
    """A document with its digest, as it is written."""
    return _plain({**document, DIGEST: digest(_plain(document).encode())}) + "\n"


def _plain(document: Mapping[str, Any]) -> str:
    return json.dumps(document, allow_nan=False, indent=1)


def opened(folder: Path) -> dict[str, Any]:
    """The document of a checkpoint. Raises OSError, and Damaged or another ValueError where it is not as it was
    written."""
    found = json.loads(read_bytes(folder / DOCUMENT, _LONGEST))
    if not isinstance(found, dict):
        raise ValueError(f"`{DOCUMENT}` is no record")
    told = found.pop(DIGEST, None)
    if found.get("format") == FORMAT and digest(_plain(found).encode()) != told:
        raise Damaged(folder / DOCUMENT, "is not as it was written")
    return found


def read(folder: Path) -> Checkpoint:
    """Raises UsageMistake where a file is missing, or another than was written. Of the models' files it is seen whether
    they are there: who reads a part of one looks at that."""
    try:
        found = opened(folder)
        if found["format"] != FORMAT:
            message = f"`{folder}` has format {found['format']}, and this version of rlgraph reads {FORMAT}"
            raise UsageMistake(Diagnostic("E0827", message, NO_SPAN, "go on with the version that wrote it"))
        if odd := [name for name in _RECORDS if not isinstance(found[name], dict)]:
            raise ValueError(f"in `{DOCUMENT}` `{odd[0]}` is no record")
        if found["step"] != step_of(folder):
            raise ValueError(f"`{DOCUMENT}` is of another step")
        files = {name: Digests.read(told) for name, told in found["files"].items()}
        looked = {name: Looked(folder / name, told) for name, told in files.items()}
        looked[THINGS].need(0, files[THINGS].bytes)
        return Checkpoint(
            folder,
            int(found["step"]),
            int(found["seed"]),
            tuple((str(name), steps) for name, steps in found["phases"]),
            found["rows"],
            found["set"],
            {name: dict(files) for name, files in found["outside"].items()},
            found["versions"],
            found["things"],
            found["models"],
            looked[PROGRAM].content().decode(),
            looked[GRAPH].content().decode(),
            files,
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise damaged(folder, error) from None


def things_of(checkpoint: Checkpoint, program: Program, names: Iterable[str]) -> dict[str, Any]:
    """The values of things that live across steps. Raises UsageMistake where they cannot be read."""
    from safetensors.torch import load_file

    from rlgraph.runs.checkpoint.values import decoded

    try:
        tensors = load_file(checkpoint.path / THINGS)
        return {name: decoded(checkpoint.things[name], tensors, program) for name in names}
    except Exception as error:  # safetensors has a class of its own, and a file may hold anything
        raise damaged(checkpoint.path, error) from None


def model_of(checkpoint: Checkpoint, name: str) -> SavedModel:
    """Raises UsageMistake where it cannot be read."""
    told = checkpoint.models[name]
    try:
        updates, changed, version = (int(told[field]) for field in ("updates", "changed", "version"))
        place = (checkpoint.path / MODELS / name).absolute()
        start = f"{MODELS}/{name}/"
        files = {file.removeprefix(start): each for file, each in checkpoint.files.items() if file.startswith(start)}
        return SavedModel(place, updates, changed, version, tuple(map(int, told["past"])), files)
    except (ValueError, LookupError, TypeError) as error:
        raise damaged(checkpoint.path, error) from None


def living(program: Program) -> list[str]:
    """The things that live across the steps of a program, models aside."""
    from rlgraph.backends.in_flight import thing_name

    values = [value for phase in program.phases for value in phase.graph.inputs if not is_model(value.type)]
    return list(dict.fromkeys(map(thing_name, values)))
