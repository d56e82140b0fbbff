"""Digests of the files that a program takes from outside: code of functions and environments, data and models. A
checkpoint keeps them, so that a run is not resumed with other files unnoticed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlgraph.backends.engines.errors import EngineError
from rlgraph.catalog.models.configs import find_snapshot
from rlgraph.data.sources import source_files as data_files
from rlgraph.digests import file_fingerprint
from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError, Related, Span, UsageMistake, quoted_list
from rlgraph.ir.graph import External, Program
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.imported_files import imported_files
from rlgraph.user_code.spec import CallSpec

if TYPE_CHECKING:
    from rlgraph.backends.engines.sources import ModelSpec

Digests = Mapping[str, Mapping[str, str]]
"""For each declaration the digests of its files by their shown paths; for a model of the hub its revision."""
_REVISION = "revision"


def file_digests(compiled: Compilation) -> Digests:
    """Return the digests of the files as they are now. A file that cannot be read has none: opening it will fail."""
    program, folders = compiled.program, compiled.folders
    digests_of = {outside.name: _fingerprints(_files(outside, folders)) for outside in program.outside}
    digests_of |= {name: _fingerprints(_model_files(spec)) for name, spec in _models(program, folders)}
    return {name: files for name, files in digests_of.items() if files}


def hub_revisions(compiled: Compilation) -> Digests:
    """Return the revisions of the hub's models that are stored on this machine, once they are loaded."""
    snapshots = {name: find_snapshot(_source(spec)) for name, spec in _models(compiled.program, compiled.folders)}
    return {name: {_REVISION: folder.name} for name, folder in snapshots.items() if folder is not None}


def changed_files(before: Digests, now: Digests) -> dict[str, list[str]]:
    """Return the files that differ, are new, or are gone, by declaration. Of a model of the hub nothing is known now
    before it is loaded."""
    by_name = {
        name: _changed(files, now.get(name, {}))
        for name, files in before.items()
        if name in now or _REVISION not in files
    }
    return {name: files for name, files in by_name.items() if files}


def require_unchanged(before: Digests, now: Digests, program: Program) -> None:
    """Raise UsageMistake if a file has changed."""
    differing = changed_files(before, now)
    if not differing:
        return
    spans = {declaration.name: declaration.span for declaration in program.outside} | {
        declaration.name: declaration.span for declaration in program.models
    }
    (first, files), *rest = differing.items()
    hint = "put back what was there, or go on with it as it is now: `--changed` (`changed=True` in Python)"
    related = tuple(Related(spans.get(name, NO_SPAN), _message(name, files, now)) for name, files in rest)
    span: Span = spans.get(first, NO_SPAN)
    raise UsageMistake(Diagnostic("E0826", _message(first, files, now), span, hint, related))


def change_notes(before: Digests, now: Digests) -> list[str]:
    """Return what has changed as lines for the notes of a run that is resumed all the same."""
    return [
        f"{_message(name, files, now)}: it goes on with what is there now"
        for name, files in changed_files(before, now).items()
    ]


def _message(name: str, files: Sequence[str], now: Digests) -> str:
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    gone = "are gone" if len(files) > 1 else "is gone"
    became = "changed" if any(file in now.get(name, {}) for file in files) else gone
    return f"`{name}` is not what it was when the run was saved: {quoted_list(files[:3], 'and')}{more} {became}"


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    if _REVISION in before.keys() | now.keys():
        return [_REVISION] if before.keys() == now.keys() and before != now else []
    return sorted(file for file in before.keys() | now.keys() if before.get(file) != now.get(file))


def _fingerprints(files: Mapping[str, Path]) -> dict[str, str]:
    fingerprints: dict[str, str] = {}
    for name, path in files.items():
        try:
            fingerprints[name] = file_fingerprint(path)
        except OSError:
            continue
    return fingerprints


def _files(outside: External, folders: SearchFolders) -> dict[str, Path]:
    args, options = outside.record.plain_arguments()
    spec = CallSpec(outside.record.name, args, options, outside.record.span)
    if outside.kind == "data":
        paths = data_files(spec, folders)
    else:
        paths = [
            file
            for argument in args
            if isinstance(argument, str)
            for file in imported_files(argument, folders, spec.span)
        ]
    # An option of a function or a class may be the name of a file.
    paths += [
        folders.find_path(argument)
        for argument in options.values()
        if isinstance(argument, str) and Path(argument).suffix
    ]
    return {_shown(path, folders): path for path in paths if path.is_file()}


def _shown(path: Path, folders: SearchFolders) -> str:
    """Return a path relative to the program's folder, which may be elsewhere when the run is resumed."""
    for folder in folders.all_folders():
        if path.absolute().is_relative_to(folder.absolute()):
            return str(path.absolute().relative_to(folder.absolute()))
    return str(path)


def _models(program: Program, folders: SearchFolders) -> Iterator[tuple[str, ModelSpec]]:
    from rlgraph.backends.worker.model_sources import model_spec

    for model in program.models:
        if model.copy_of is None:
            try:
                yield model.name, model_spec(program, model, folders)
            except (EngineError, ProgramError):
                continue


def _source(spec: ModelSpec) -> str:
    return spec.source if isinstance(spec.source, str) else ""


def _model_files(spec: ModelSpec) -> dict[str, Path]:
    """Return the files in a model's folders (weights, tokenizer, adapters), and its chat template, by their shown
    paths."""
    source = spec.source if isinstance(spec.source, str) else spec.source.tokenizer
    named = [source, spec.tokenizer, spec.adapters and spec.adapters.start]
    template = Path(spec.chat.file) if spec.chat and spec.chat.file else None
    paths = {template.name: template} if template else {}
    for folder in dict.fromkeys(Path(name) for name in named if isinstance(name, str) and name):
        files = sorted(folder.rglob("*")) if folder.is_dir() else []
        visible = [file for file in files if not any(part[0] == "." for part in file.relative_to(folder).parts)]
        paths |= {f"{folder.name}/{file.relative_to(folder)}": file for file in visible if file.is_file()}
    return paths
