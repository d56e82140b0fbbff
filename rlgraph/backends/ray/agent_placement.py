"""Where agents may run: beside models whose replicas are one process each, which is the one that they ask."""

from __future__ import annotations

from rlgraph.errors import Diagnostic
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Plan
from rlgraph.ops import NODES
from rlgraph.ops.nodes import user_code_of
from rlgraph.ops.program_work import agents


def agent_placement_errors(program: Program, plan: Plan) -> list[Diagnostic]:
    """Return an error for each agent whose model acts in replicas of several processes: these would have to be asked
    the same in the same order."""
    asking = agents(program)
    errors: dict[str, Diagnostic] = {}
    groups = {group.name: group for group in plan.groups}
    for _, node in program.walk():
        code = user_code_of(node)
        if code not in asking:
            continue
        for role in plan.roles:
            ranks = len(groups[role.group].replica_ranks()[0])
            if NODES[role.operation].foreign and ranks > 1:
                message = f"`{code}` asks one process, and `{role.model}` acts in replicas of {ranks} on `{role.group}`"
                hint = f"place it where each device has a whole copy: `place {role.model}.interact on POOL(tp=1, pp=1)`"
                errors[code] = Diagnostic("E0859", message, asking[code].record.span, hint)
    return [*errors.values()]
