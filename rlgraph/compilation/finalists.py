"""Where steps overlap: of the plan with the fastest steady state and the plan whose step alone is the fastest, the one
that the simulator prefers. It knows what the search leaves out: how lengths differ from step to step, in which order
pools serve, and rows of several orders that are sampled together."""

from __future__ import annotations

from dataclasses import replace

from rlgraph.backends.sim.steady import FEWEST
from rlgraph.compilation.overlap import overlapped
from rlgraph.placement.choose import Choice


def better(steady: Choice, alone: Choice, steps: int = FEWEST) -> Choice:
    """One of the two, as an answer to the first one's question. steps: that are simulated of each."""
    finalists = [replace(each, simulated=overlapped(each, steps)) for each in (steady, alone)]
    first, second = (_value(each) for each in finalists)
    if first is None or second is None or first <= second:
        return finalists[0]
    found, problem = alone.found, alone.problem.behind(steady.problem.older)
    seconds = problem.whole(found.blocks, found.options, found.pieces)
    value = problem.value(seconds, found.blocks, found.devices)
    before = found.before
    if before is not None:
        whole = problem.whole(before.blocks, before.options)
        before = replace(before, seconds=whole, value=problem.value(whole, before.blocks, before.devices))
    bound = min(steady.found.bound, before.value if before else value)
    told = replace(found, seconds=seconds, value=value, bound=bound, before=before)
    asked = replace(steady.question, apart=alone.question.apart)
    return replace(finalists[1], found=told, problem=problem, question=asked)


def _value(choice: Choice) -> float | None:
    """What is minimized, by the simulator."""
    if choice.simulated is None:
        return None
    return choice.problem.value(choice.simulated, choice.found.blocks, choice.found.devices)
