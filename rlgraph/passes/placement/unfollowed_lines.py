"""Finds the lines of a schedule that a plan cannot follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.backends.enginespec.registry import engines_by_preference
from rlgraph.errors import Diagnostic, quoted_list
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Plan
from rlgraph.ir.schedule import RefreshLine, Schedule, SendLine
from rlgraph.ops.nodes import NODES
from rlgraph.passes.placement.admission_order import admission_faults
from rlgraph.passes.placement.fused_pipelines import fused_training_faults
from rlgraph.passes.placement.tails import tail_move_faults


def unfollowed_line_errors(schedule: Schedule, plan: Plan, program: Program) -> Iterator[Diagnostic]:
    """Yield the errors for lines of a schedule that a plan cannot follow."""
    yield from _idle(schedule, plan)
    yield from _unable(schedule.refreshes, plan)
    tails = [(line, plan.tail_of(line.table)) for line in schedule.tails]
    admits = [(line, plan.admission_of(line.table)) for line in schedule.admits]
    faults = [
        *(("E0970", line.span, tail_move_faults(tail, plan, program)) for line, tail in tails if tail),
        *(
            ("E0973", line.span, fused_training_faults(fused, plan, program))
            for line, fused in zip(schedule.fuses, plan.fused, strict=True)
        ),
        *(("E0976", line.span, admission_faults(admit, plan, program)) for line, admit in admits if admit),
    ]
    for code, span, wrong in faults:
        for message, hint in wrong:
            yield Diagnostic(code, message, span, hint)


def _idle(schedule: Schedule, plan: Plan) -> Iterator[Diagnostic]:
    """Yield the errors for lines about weights that do not travel."""
    ways = {(model, plan.group(group).pool) for model, _, group in plan.syncs()}
    lines: list[tuple[SendLine | RefreshLine, str, str]] = [(line, "send", "to") for line in schedule.sends]
    lines += [(line, "refresh", "on") for line in schedule.refreshes]
    for line, word, to in lines:
        if (line.model, line.pool) not in ways:
            others = [f"{word} {model} {to} {pool}" for model, pool in sorted(ways)]
            yield Diagnostic(
                "E0915",
                f"no weights of `{line.model}` are sent to `{line.pool}`",
                line.span,
                f"write {quoted_list(others, 'or')}" if others else "no weights travel: leave the line out",
            )


TAKING = {"reread": "rereads", "keep": "keeps"}
"""The ways in which new weights come to rows that are being sampled, and the field of an engine spec that says whether
it can do so."""


def _unable(refreshes: Sequence[RefreshLine], plan: Plan) -> Iterator[Diagnostic]:
    """Yield the errors for lines that ask for new weights of engines that finish a sample with the weights it began
    with."""
    for line in refreshes:
        roles = (role for role in plan.roles if role.model == line.model and NODES[role.operation].generates)
        groups = [
            group for group in map(plan.group, dict.fromkeys(role.group for role in roles)) if group.pool == line.pool
        ]
        for group in groups:
            if line.by in TAKING and not getattr(spec_of(group.engine), TAKING[line.by]):
                able = [spec.name for spec in engines_by_preference("generate") if getattr(spec, TAKING[line.by])]
                how = " and keeps what it has of rows" if line.by == "keep" else ""
                message = f"`{group.engine}` takes no new weights while it samples{how}"
                yield Diagnostic("E0918", message, line.span, f"`by=drain`, or the engine {quoted_list(able, 'or')}")
