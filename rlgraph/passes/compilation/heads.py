"""Value and reward models whose head is not in their files, as far as that is known before they are loaded."""

from __future__ import annotations

from rlgraph.catalog.models.heads import lacks_head, no_head, told
from rlgraph.errors import Diagnostic
from rlgraph.ir.graph import Program, Record
from rlgraph.ops.bases import learnt
from rlgraph.user_code.files import Folders


def headless(program: Program, folders: Folders) -> list[Diagnostic]:
    """What is wrong with those that nothing trains; folders: where the relative paths of the program begin."""
    found = []
    for model in program.models:
        if model.copy_of or model.kind == "causal_lm" or isinstance(model.source, Record) or learnt(program, model):
            continue
        source = str(model.source)
        here = folders.find(source)
        if lacks_head(str(here) if here.is_dir() else source):
            found.append(told(model.name, no_head(model.kind, source), model.span))
    return found
