"""Finds stop texts that engines do not look for, before processes are started and models loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.sources import load_codec
from rlgraph.backends.enginespec.registry import embedded_engine
from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.backends.worker.model_sources import model_spec
from rlgraph.errors import Diagnostic
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Plan
from rlgraph.ops.program_work import sampling_nodes
from rlgraph.user_code.files import SearchFolders


def stop_text_errors(program: Program, plan: Plan, folders: SearchFolders) -> Iterator[Diagnostic]:
    """Yield an error for each stop text that is several tokens to a model whose engine ends answers at one. Only then
    tokenizers are loaded."""
    engines = {(role.model, role.operation): plan.group(role.group).engine for role in plan.roles}
    for model, node in sampling_nodes(program):
        texts, engine = node.attr("stop") or (), engines.get((model, node.op))
        if not texts or engine is None or spec_of(engine).ends_at_texts:
            continue
        with suppress(EngineError):  # Opening the model says what is wrong with it.
            codec = load_codec(model_spec(program, program.model(model), folders))
            counts = {text: len(codec.encode_text(text)) for text in texts}
            yield from (
                Diagnostic(
                    "E0733",
                    f'"{text}" is {count} tokens to `{model}`, and its engine `{engine}` ends answers at one',
                    node.span,
                    f"place it with `engine={embedded_engine().name}`, or stop at a single token",
                )
                for text, count in counts.items()
                if count != 1
            )
