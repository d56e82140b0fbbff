"""Says what nobody told of the environments that answer in a step."""

from __future__ import annotations

from collections.abc import Iterator

from rlgraph.catalog.clusters.units import format_seconds
from rlgraph.errors import NO_SPAN, Diagnostic
from rlgraph.ir.graph import Node, Program
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.tasks import main_phase, max_turns
from rlgraph.passes.cost.workload import Workload

ASSUMED_EPISODES = "W0966"
UNUSED_OF_STEPS = "W0968"


def assumed_episode_warnings(program: Program, workload: Workload, constants: Constants) -> Iterator[Diagnostic]:
    """Yield a warning for each environment of which nobody told how long it takes, or how often it answers, and one for
    what is told of episodes where nobody plays any."""
    played: dict[str, Node] = {}
    for node in main_phase(program).graph.walk():
        if max_turns(node):
            played.setdefault(node.attr("env"), node)
    told = [f"`--{name.replace('_', '-')}`" for name, lengths in workload.of_episodes.items() if lengths is not None]
    if told and not played:
        message = f"no environment answers in a step, of which {' and '.join(told)} could tell"
        yield Diagnostic(UNUSED_OF_STEPS, message, NO_SPAN, "leave it out: `interact` plays episodes with one")
    for name, node in played.items():
        turns, assumed, say = max_turns(node), list[str](), list[str]()
        if workload.environment_s is None:
            assumed.append(f"that it takes {format_seconds(constants.host.function_row)} for an answer")
            say.append("`--environment-seconds mean=2,p99=30`")
        if workload.turns is None and turns > 1:
            assumed.append(f"that all of {turns} turns are played")
            say.append(f"`--turns mean={turns / 2:g},p99={turns}`")
        if assumed:
            message = f"of the environment `{name}` it is assumed {' and '.join(assumed)}"
            hint = f"say what you know of it, as in {' and '.join(say)}"
            yield Diagnostic(ASSUMED_EPISODES, message, node.span, hint)
