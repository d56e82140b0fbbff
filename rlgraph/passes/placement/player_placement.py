"""Where models may act that play in the same episodes: in the same processes, which have all of them at once."""

from __future__ import annotations

from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Plan
from rlgraph.ir.types import StateHandle
from rlgraph.ops import model_of
from rlgraph.ops.program_work import other_players_models


def player_placement_errors(program: Program, plan: Plan) -> list[Diagnostic]:
    """Return an error for each two models that play in the same episodes and act in other processes, or of which one is
    off-loaded while another acts."""
    groups = {(role.model, role.operation): role.group for role in plan.roles}
    sleeping = {holding.model for holding in plan.holdings if holding.offload}
    errors: dict[tuple[str, str], Diagnostic] = {}
    for phase in program.phases:
        types = phase.graph.value_types()
        for node in phase.graph.walk():
            for other in other_players_models(node, types):
                handle = types[model_of(node)]
                assert isinstance(handle, StateHandle)
                first = handle.name
                mine, theirs = (groups[name, node.op] for name in (first, other))
                asleep = sorted(sleeping & {first, other})
                message = f"`{first}` and `{other}` play in the same episodes, and "
                if mine != theirs:
                    message += f"act in different processes, `{mine}` and `{theirs}`"
                elif asleep:
                    message += f"`{asleep[0]}` is off-loaded to the host while others work"
                else:
                    continue
                hint = f"place them on the same devices: `place {first}.interact, {other}.interact on POOL`"
                errors[first, other] = Diagnostic("E0839", message, node.span, hint)
    return [*errors.values()]


def refuse_apart_players(program: Program, plan: Plan) -> None:
    """Raise ProgramError where models that play in the same episodes act in different processes."""
    if errors := player_placement_errors(program, plan):
        raise ProgramError(errors)
