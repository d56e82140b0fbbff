"""What a step takes whose plan overlaps: where rows stream, or steps or batches run ahead, work that the search lays
out one after the other is done side by side, and in small orders. Its seconds are the simulator's."""

from __future__ import annotations

from rlgraph.cost.predict import Predictor
from rlgraph.cost.tasks import main_step
from rlgraph.errors import ProgramError
from rlgraph.ops.nodes import NODES, at_once
from rlgraph.placement.choose import Choice


def overlaps(choice: Choice) -> bool:
    phase = main_step(choice.question.program)
    ahead = any(at_once(node, node.attr("rows")) > 1 for node in phase.graph.walk() if NODES[node.op].loop == "rounds")
    return ahead or bool(choice.plan.blocks) or phase.staleness.steps > 0


def overlapped(choice: Choice) -> float | None:
    """Seconds of a step in the middle of a run. None: nothing overlaps, or it cannot be simulated."""
    if not overlaps(choice):
        return None
    # Most plans do not overlap, and need no simulator.
    from rlgraph.backends.sim.backend import SimBackend
    from rlgraph.backends.sim.steady import FEWEST, run_steps

    asked = choice.question
    predictor = Predictor(choice.plan, choice.configs, asked.cluster, asked.constants)
    try:
        return run_steps(SimBackend(asked.program, choice.plan, predictor, asked.workload), FEWEST).seconds
    except ProgramError:
        # Rows of which so few are kept that a group has none: `simulate` says so.
        return None
