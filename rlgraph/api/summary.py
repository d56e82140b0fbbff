"""A compiled program in a few lines: its models, what it needs from outside, and what waits for what."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlgraph.backends.enginespec.registry import engine
from rlgraph.errors import count_phrase
from rlgraph.explain.engine_choices import engine_choice_texts
from rlgraph.explain.fused_pipelines import fused_pipeline_lines
from rlgraph.explain.tables import align_columns, pool_size_text
from rlgraph.ir.graph import Model, Node, Program
from rlgraph.ir.plan import HOST, Group, Plan
from rlgraph.ir.text.program_text import constant_text
from rlgraph.ops import NODES, model_of
from rlgraph.ops.shared_base_models import models_by_shared_base
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.rewrites.accumulate import streamed_trainings


def summary_text(compiled: Compilation, *, opened: bool = False) -> str:
    """Return a text for a person, without a final line break. It says where the program runs if there is a schedule.
    opened: also what each engine of the plan is opened with."""
    program = compiled.program
    nodes = [node for phase in program.phases for node in phase.graph.walk()]
    lines = [f"{program.name}: {_count(nodes, 'node')}, {_count(program.models, 'model')}"]
    lines += _columns([(model.name, _model(model, nodes)) for model in program.models])
    waits = [node for node in nodes if node.unit and node.unit.reason and not _always(node)]
    if waits:
        lines += ["", f"{_count(waits, 'barrier')}: a node that waits for its whole group or batch"]
        lines += _columns(
            [(_name(node), f"per {node.unit.axis or 'batch'}: {node.unit.reason}") for node in waits if node.unit]
        )
    if compiled.target is not None:
        from rlgraph.explain.chosen_plan import chosen_plan_lines  # the search: only where a cluster is given

        lines += ["", *chosen_plan_lines(compiled.choice, compiled.plan_file_sections["predicted"])]
    elif compiled.schedule.span.line:
        lines += ["", *_placement(compiled.plan), *fused_pipeline_lines(compiled.plan, {})]
    if compiled.planned:
        lines += [*_sharing(program, compiled.plan), *_admitted(compiled.plan)]
        lines += _streamed(compiled) if compiled.plan.blocks else []
        lines += _opened(compiled) if opened else []
    return "\n".join(lines)


def summary_records(compiled: Compilation) -> Iterator[dict[str, Any]]:
    """Yield what was compiled as plain data, and the plan as a plan file has it, if there is one."""
    program = compiled.program
    nodes = [node for phase in program.phases for node in phase.graph.walk()]
    yield {
        "type": "compiled",
        "name": program.name,
        "nodes": len(nodes),
        "models": [model.name for model in program.models],
        "barriers": [
            {"node": _name(node), "per": node.unit.axis or "batch", "reason": node.unit.reason}
            for node in nodes
            if node.unit and node.unit.reason and not _always(node)
        ],
    }
    if compiled.planned:
        from rlgraph.runs.planfiles.file import plan_document

        document = json.loads(plan_document(compiled, Path()))
        contents = {name: value for name, value in document.items() if name not in ("rlgraph", "program")}
        yield {"type": "plan", "name": program.name, **contents}


def _placement(plan: Plan) -> Iterator[str]:
    """Yield a line for each pool with its groups, and for the weights that have to be synchronized."""
    for pool in plan.pools:
        if pool.name != HOST or pool.cpus:
            yield f"{pool_size_text(pool)} in `{pool.name}`"
            groups = [group for group in plan.groups if group.pool == pool.name]
            yield from _columns([(f"{group.engine}, {group.mesh}", _does(group, plan)) for group in groups])
    for holding in plan.holdings:
        options = ["layers are computed again"] * holding.recompute
        options += engine_choice_texts(holding)
        if options:
            yield f"{holding.model} in {holding.group}: {', '.join(options)}"
    for model, source, target in plan.syncs():
        target_holding = plan.holding(model, target)
        details = ", what changed of them" if target_holding.delta else ""
        details += ", also to rows that are sampled" if target_holding.refreshes_while_sampling else ""
        details += ", one copy after the other" if target_holding.replica else ""
        yield f"weights of {model}: {source} to {target}{details}"


def _opened(compiled: Compilation) -> list[str]:
    """Return what each engine is opened with, in the order in which they are."""
    from rlgraph.passes.placement.engine_contracts import contract_lines  # the cost model: only where it is asked for

    lines = contract_lines(compiled.contracts)
    shown = align_columns("><<", [(f"  {number}", who, terms) for number, who, terms in lines])
    return ["", "opened in this order, with", *shown]


def _sharing(program: Program, plan: Plan) -> Iterator[str]:
    """Yield which models of a group are one base with several adapters."""
    lending = [group for group in plan.groups if group.models and engine(group.engine).shares_base(group.mesh)]
    for group in lending:
        for names in models_by_shared_base(program).values():
            members = [name for name in names if name in group.models]
            if len(members) > 1:
                yield f"{', '.join(members)} share one base, which {group.name} has once"


def _admitted(plan: Plan) -> Iterator[str]:
    """Yield for each table the order in which its rows begin, if it is not that of the data."""
    orders = {"longest": "what their prompts gave before", "column": "the column {}", "function": "the function {}"}
    for admit in plan.admits:
        by = orders[admit.by].format(admit.name)
        yield f"rows of {admit.table} that are expected to be long begin first, by {by}"


def _streamed(compiled: Compilation) -> Iterator[str]:
    """Yield the blocks in which tables' rows stream, what becomes of the last ones, and each training they stream
    to."""
    for name, rows in compiled.plan.blocks:
        sharing = ", dealt to whoever is free" if name in compiled.plan.free else ""
        yield f"{name} goes on in blocks of {count_phrase(rows, 'row')}, before all of it is there{sharing}"
    for tail in compiled.plan.tails:
        threshold = f"{tail.under:.0%}" if tail.under < 1 else f"{tail.under:.0f}"
        copies = f"{tail.on} copies go" if tail.on > 1 else "1 copy goes"
        yield f"{copies} on with the last rows of {tail.table}, when fewer than {threshold} have not ended"
    for training in streamed_trainings(compiled.program, compiled.plan):
        if training.why:
            yield f"train {training.model} waits for the whole batch: {training.why}"
        else:
            yield f"train {training.model} adds gradients up while rows stream, and takes its step when all are there"


def _does(group: Group, plan: Plan) -> str:
    """Return a group's work as `actor.train, critic`: a model by its name alone if all its work is here."""
    shown = ["data, functions, mathematics"] if group.name == HOST else [*group.code]
    for model in group.models:
        roles = [role for role in plan.roles if role.model == model]
        operations = [role.operation for role in roles if role.group == group.name]
        shown += [model] if len(operations) == len(roles) else [f"{model}.{operation}" for operation in operations]
    return ", ".join(shown)


def _always(node: Node) -> bool:
    """Return whether a node is a barrier that every program has, from which nothing can be learned."""
    return node.op in ("read", "report") or node.name.startswith("report.") or ".loss." in node.name


def _count(things: list[Node] | tuple[Model, ...], word: str) -> str:
    return count_phrase(len(things), word)


def _name(node: Node) -> str:
    if NODES[node.op].trains:
        return f"{node.op} {node.name.split('@')[0]}"
    return node.op if node.regions else node.name


def _model(model: Model, nodes: list[Node]) -> str:
    origin = f"copy of {model.copy_of}" if model.copy_of else f"{model.kind}({_short(constant_text(model.source))})"
    operations = dict.fromkeys(
        node.op for node in nodes if NODES[node.op].uses_model and model_of(node).split("@")[0] == model.name
    )
    return ", ".join([origin, *(["frozen"] if model.frozen else []), *operations])


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _columns(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield from (f"  {line}" for line in align_columns("<<", rows))
