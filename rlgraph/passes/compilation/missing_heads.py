"""Finds value and reward models whose files have no head, as far as that is known without loading them."""

from __future__ import annotations

from rlgraph.catalog.models.missing_heads import lacks_head, missing_head_diagnostic, missing_head_message
from rlgraph.errors import Diagnostic
from rlgraph.ir.graph import ConstructorCall, Program
from rlgraph.ops.shared_base_models import has_changing_weights
from rlgraph.user_code.files import SearchFolders

_LANGUAGE_MODELS = frozenset({"gguf"})
"""Sources that are read as language models, whatever is in them."""


def missing_head_diagnostics(program: Program, folders: SearchFolders) -> list[Diagnostic]:
    """Return diagnostics for such models that nothing trains. folders: those to which relative paths refer."""
    diagnostics = []
    for model in program.models:
        if model.copy_of or model.kind == "causal_lm" or has_changing_weights(program, model):
            continue
        if isinstance(model.source, ConstructorCall):
            if model.source.name not in _LANGUAGE_MODELS:
                continue
            source, headless = str(model.source.args[0]), True
        else:
            source = str(model.source)
            headless = lacks_head(folders.resolve_model_source(source))
        if headless:
            diagnostics.append(
                missing_head_diagnostic(model.name, missing_head_message(model.kind, source), model.span)
            )
    return diagnostics
