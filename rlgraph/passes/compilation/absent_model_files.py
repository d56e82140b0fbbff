"""Finds models that are named by a file or a folder which is not here. It opens none of them."""

from __future__ import annotations

from collections.abc import Iterator

from rlgraph.errors import Diagnostic, Span
from rlgraph.ir.graph import ConstructorCall, Model, Program
from rlgraph.user_code.files import SearchFolders

NO_MODEL_HERE = "W0790"
_FILE = "gguf"
"""The source that is a file, and its ending."""
_PATHS = ("/", "./", "../", "~")
"""What a path may begin with, and a name of the hub does not."""


def absent_model_warnings(program: Program, folders: SearchFolders) -> Iterator[Diagnostic]:
    """Yield a warning for each file or folder of models that is not here; it may be where the program runs. A name
    that could be one of the hub is not looked for."""
    told = set[str]()
    for model in program.models:
        if not model.copy_of and str(model.source) not in told and (found := _absent(model, folders)):
            told.add(str(model.source))
            yield found


def _absent(model: Model, folders: SearchFolders) -> Diagnostic | None:
    source = model.source
    if isinstance(source, ConstructorCall):
        if source.name != _FILE or folders.find_path(str(source.args[0])).exists():
            return None
        path, span = str(source.args[0]), dict(source.spans).get(0, source.span)
        return _warning(f"the file '{path}', which `{model.name}` is made of, is not here", span, folders)
    path = str(source)
    if path.endswith(f".{_FILE}"):
        hint = f'a file is named with its reader: `{_FILE}("{path}")`'
        return Diagnostic(NO_MODEL_HERE, f"'{path}' is no folder, and no name of the hub", model.span, hint)
    if not (path.startswith(_PATHS) or path.count("/") > 1) or folders.find_path(path).is_dir():
        return None
    return _warning(f"the folder '{path}', from which `{model.name}` is loaded, is not here", model.span, folders)


def _warning(message: str, span: Span, folders: SearchFolders) -> Diagnostic:
    places = " and in ".join(f"'{folder.absolute()}'" for folder in folders.all_folders())
    hint = f"it was looked for in {places}; where the program runs it may be there, and nothing is wrong"
    return Diagnostic(NO_MODEL_HERE, message, span, hint)
