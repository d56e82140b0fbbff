"""The files of a checkpoint, and the functions that write and read them:

checkpoint.json               the step, the seed, the phases, positions in the data, states, what buffers and `collect`
                              hold; how often each model was updated; the digests of every file, its own too
things.safetensors            the tensors of these values
models/NAME/weights.safetensors, moments.safetensors, past-VERSION.safetensors
                              the tensors of each model that was changed, under their Hugging Face names, so that
                              nothing depends on where it was trained; if several ranks have the model, each writes
                              files of its own (`weights-rank00003.safetensors`), see `rlgraph.backends.saved_models`
program.rlf, graph.txt        the program as it was run, and its graph after the last pass

Numbers are stored bit for bit. Nothing in a checkpoint can be executed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlgraph.backends.saved_models import MODELS, SavedModel, damaged_checkpoint_error
from rlgraph.digests import DamagedFile, FileDigests, VerifiedFile, digest_bytes, digests_of
from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake
from rlgraph.files import read_bytes
from rlgraph.ir.graph import Program
from rlgraph.ir.types import is_model
from rlgraph.runs.checkpoint.disk import step_of

if TYPE_CHECKING:
    from torch import Tensor

Encoded = tuple[dict[str, Any], "dict[str, Tensor]"]
"""Step state (things) as plain data, and its tensors by the names that the plain data has for them."""

FORMAT = 2
_LONGEST = 1 << 32
"""The most bytes that are read of a checkpoint's document."""
_RECORDS = ("files", "rows", "set", "outside", "versions", "things", "models")
DIGEST = "digest"
"""The field with the digest of all else in the document."""
DOCUMENT, THINGS, PROGRAM, GRAPH = "checkpoint.json", "things.safetensors", "program.rlf", "graph.txt"


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint, except for the tensors of its models."""

    path: Path
    step: int
    seed: int
    phases: tuple[tuple[str, int | None], ...]
    """The program's phases, each with its number of steps (None if it is not limited)."""
    rows: Mapping[str, int | None]
    """The number of rows of each data source; None where it cannot be known."""
    set: Mapping[str, str]
    outside: Mapping[str, Mapping[str, str]]
    """The digests of what the program takes from outside, see `rlgraph.runs.checkpoint.outside_digests`."""
    versions: Mapping[str, str]
    """The versions of the packages that computed."""
    things: Mapping[str, Any]
    """The step state as plain data, by name."""
    models: Mapping[str, Mapping[str, Any]]
    program: str
    """The program's text."""
    graph: str
    files: Mapping[str, FileDigests]
    """The digests of each file, by its path in the folder."""


def encode_step_state(things: Mapping[str, Any]) -> Encoded:
    """Return the present values of the step state (things), encoded. Raise Unsavable."""
    from rlgraph.runs.checkpoint.values import encode_value

    tensors: dict[str, Tensor] = {}
    return {name: encode_value(value, name, tensors) for name, value in things.items()}, tensors


def write_checkpoint(
    folder: Path,
    header: Mapping[str, Any],
    program: str,
    graph: str,
    things: Encoded,
    models: Mapping[str, SavedModel],
) -> None:
    """Write a checkpoint into a folder that has the models' files and nothing else. Raise OSError."""
    from safetensors.torch import save_file

    plain, tensors = things
    save_file(tensors, folder / THINGS)
    fields = ("updates", "changed", "version", "past")
    model_records = {name: {field: getattr(model, field) for field in fields} for name, model in models.items()}
    (folder / PROGRAM).write_text(program, "utf-8")
    (folder / GRAPH).write_text(graph, "utf-8")
    files = {
        f"{MODELS}/{name}/{file}": digests for name, model in models.items() for file, digests in model.digests.items()
    }
    files |= {name: digests_of(folder / name) for name in (THINGS, PROGRAM, GRAPH)}
    file_records = {name: digests.to_plain() for name, digests in files.items()}
    content = {"format": FORMAT, **header, "things": plain, "models": model_records, "files": file_records}
    (folder / DOCUMENT).write_text(text_with_digest(content), "utf-8")


def text_with_digest(document: Mapping[str, Any]) -> str:
    """Return the text of a document with its digest, as it is written."""
    return _plain({**document, DIGEST: digest_bytes(_plain(document).encode())}) + "\n"


def _plain(document: Mapping[str, Any]) -> str:
    return json.dumps(document, allow_nan=False, indent=1)


def read_document(folder: Path) -> dict[str, Any]:
    """Return the document of a checkpoint. Raise OSError, and Damaged or another ValueError if it is not as it was
    written."""
    try:
        content = json.loads(read_bytes(folder / DOCUMENT, _LONGEST))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"`{DOCUMENT}` is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"`{DOCUMENT}` is no record")
    expected = content.pop(DIGEST, None)
    if content.get("format") == FORMAT and digest_bytes(_plain(content).encode()) != expected:
        raise DamagedFile(folder / DOCUMENT, "is not as it was written")
    return content


def read_checkpoint(folder: Path) -> Checkpoint:
    """Return the checkpoint in a folder. Raise UsageMistake if a file is missing or is not the one that was written.
    Only the presence of the models' files is checked here: whoever reads a part of one verifies that part."""
    try:
        content = read_document(folder)
        if content["format"] != FORMAT:
            message = f"`{folder}` has format {content['format']}, and this version of rlgraph reads {FORMAT}"
            raise UsageMistake(Diagnostic("E0827", message, NO_SPAN, "go on with the version that wrote it"))
        if odd := [name for name in _RECORDS if not isinstance(content[name], dict)]:
            raise ValueError(f"in `{DOCUMENT}` `{odd[0]}` is no record")
        if content["step"] != step_of(folder):
            raise ValueError(f"`{DOCUMENT}` is of another step")
        files = {name: FileDigests.from_plain(digests) for name, digests in content["files"].items()}
        verified = {name: VerifiedFile(folder / name, digests) for name, digests in files.items()}
        verified[THINGS].verify_range(0, files[THINGS].bytes)
        return Checkpoint(
            folder,
            int(content["step"]),
            int(content["seed"]),
            tuple((str(name), steps) for name, steps in content["phases"]),
            content["rows"],
            content["set"],
            {name: dict(files) for name, files in content["outside"].items()},
            content["versions"],
            content["things"],
            content["models"],
            verified[PROGRAM].read_verified().decode(),
            verified[GRAPH].read_verified().decode(),
            files,
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise damaged_checkpoint_error(folder, error) from None


def decode_step_state(checkpoint: Checkpoint, program: Program, names: Iterable[str]) -> dict[str, Any]:
    """Return the decoded step state (things) of these names. Raise UsageMistake if it cannot be read."""
    from safetensors.torch import load_file

    from rlgraph.runs.checkpoint.values import decode_value

    try:
        tensors = load_file(checkpoint.path / THINGS)
        return {name: decode_value(checkpoint.things[name], tensors, program) for name in names}
    except Exception as error:  # safetensors has a class of its own, and a file may hold anything
        raise damaged_checkpoint_error(checkpoint.path, error) from None


def saved_model_of(checkpoint: Checkpoint, name: str) -> SavedModel:
    """Return the saved model of this name. Raise UsageMistake if its record cannot be read."""
    record = checkpoint.models[name]
    try:
        updates, changed, version = (int(record[field]) for field in ("updates", "changed", "version"))
        place = (checkpoint.path / MODELS / name).absolute()
        start = f"{MODELS}/{name}/"
        files = {
            file.removeprefix(start): digests for file, digests in checkpoint.files.items() if file.startswith(start)
        }
        return SavedModel(place, updates, changed, version, tuple(map(int, record["past"])), files)
    except (ValueError, LookupError, TypeError) as error:
        raise damaged_checkpoint_error(checkpoint.path, error) from None


def step_state_names(program: Program) -> list[str]:
    """Return the names of a program's step state (things that live across steps), without its models."""
    from rlgraph.backends.in_flight import state_name

    values = [value for phase in program.phases for value in phase.graph.inputs if not is_model(value.type)]
    return list(dict.fromkeys(map(state_name, values)))
