"""Refuses plans in which models that something needs at once are not in the same processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.backends.enginespec.registry import engines_by_preference
from rlgraph.catalog.models.shape import Shape, UnsupportedModel
from rlgraph.errors import Diagnostic, Span, quoted_list
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Group, Plan
from rlgraph.ir.schedule import Schedule
from rlgraph.ops.program_work import SharedWork, model_operations, shared_work


def shared_process_errors(
    program: Program,
    placed: Mapping[tuple[str, str], Group],
    schedule: Schedule | None = None,
    shapes: Mapping[str, Shape | UnsupportedModel] | None = None,
) -> Iterator[Diagnostic]:
    """Yield an error for work that the same processes have to do, and that several do, or an engine that cannot.

    placed: the group of each model and operation; schedule: what that is from, where it is known; shapes: of models
    whose shape is known.
    """
    operations = model_operations(program)
    for shared in shared_work(program):
        groups = list({placed[work].name: placed[work] for work in shared.work if work in placed}.values())
        if not groups:
            continue
        work = ", ".join(model if len(operations[model]) == 1 else f"{model}.{done}" for model, done in shared.work)
        if not shared.sums:
            if len(groups) > 1:
                names = quoted_list([group.name for group in groups], "and")
                players, span = quoted_list(shared.models, "and"), _line(shared, schedule) or shared.node.span
                message = f"{players} play in the same episodes, and act in different processes, {names}"
                hint = f"place them on the same devices: `place {work} on {groups[0].pool}`"
                yield Diagnostic("E0839", message, span, hint)
            continue
        shown = quoted_list([f"{model}.{done}" for model, done in shared.work], "and")
        span = _line(shared, schedule) or program.model(shared.models[-1]).span
        able = [spec for spec in engines_by_preference("train") if spec.reads_jointly((), shared.mixes)]
        why = "to sample from a mixture" if shared.mixes else "for a sum over the vocabulary"
        hint = f"`place {work} on {groups[0].pool}(engine={able[0].name})`" if able else ""
        vocabularies = {
            model: shape.vocab for model in shared.models if isinstance(shape := (shapes or {}).get(model), Shape)
        }
        if len({*vocabularies.values()}) > 1:
            heads = ", ".join(f"`{model}` has {size}" for model, size in vocabularies.items())
            what = "a mixture" if shared.mixes else "a sum over the vocabulary"
            message = f"{what} is of models with as many outputs, and {heads}"
            yield Diagnostic("E0318", message, span, "take models of one family with one `vocab_size`")
        elif len(groups) > 1:
            message = f"{shown} read models together, {why}, and are placed apart"
            yield Diagnostic("E0317", message, span, hint)
        elif not spec_of(groups[0].engine).reads_jointly(groups[0].mesh.split_axes, shared.mixes):
            engine = groups[0].engine
            message = f"{shown} read models together, {why}: `{engine}` cannot, split so"
            yield Diagnostic("E0318", message, span, hint)


def groups_of_work(plan: Plan) -> dict[tuple[str, str], Group]:
    """Return the group of each model and operation."""
    return {(role.model, role.operation): plan.group(role.group) for role in plan.roles}


def _line(shared: SharedWork, schedule: Schedule | None) -> Span | None:
    """Return where the last line is that places some of the work; None for no line."""
    lines = schedule.placements if schedule is not None else ()
    said = {(work.model, work.operation): line.span for line in lines for work in line.work}
    placed = [said.get((model, done)) or said.get((model, None)) for model, done in shared.work]
    return next((span for span in reversed(placed) if span is not None and span.line), None)
