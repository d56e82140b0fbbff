"""When rows end that one copy of a model samples: each by its own length.

An engine decodes so many rows together, a token of each in a step, and takes the next row when one has ended. A step
takes as long as the rows that are in it say. `rlgraph.cost.time.generate` is what that takes on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from rlgraph.cost.constants import Constants
from rlgraph.cost.deployment import Deployment, ModelConfig
from rlgraph.cost.lengths import Lengths
from rlgraph.cost.time import Batch, Cost, DecodeStep, crowded, prefill, slots


@dataclass(frozen=True, slots=True)
class Sampled:
    cost: Cost
    """Until the last row has ended."""
    ends: Sequence[float]
    """Seconds after which each row has ended, from the beginning of the work."""


def sampled(
    config: ModelConfig,
    deployment: Deployment,
    constants: Constants,
    prompts: Sequence[float],
    answers: Sequence[float],
    samples: int,
) -> Sampled:
    """Of one copy, or one thread of it. prompts, answers: tokens of each row, in the order in which they begin; rows of
    one prompt stand together, so many samples of each."""
    if not answers:
        return Sampled(Cost(), ())
    rates = constants.rates[deployment.engine, "generate"]
    call = Cost(overhead=rates.call)
    batch = Batch(len(answers), Lengths.of(prompts), Lengths.of(answers), samples)
    most = max(1, int(slots(config, deployment, batch)))
    step, slower = DecodeStep(config, deployment, constants, batch), crowded(deployment, rates)
    read = prefill(config, deployment, constants, batch, len(answers) / samples).times(slower)
    ended = _tokens(answers, most)
    order = sorted(range(len(ended)), key=ended.__getitem__)
    left = [min(most, len(ended) - number) for number in range(len(ended))]
    """Rows that are decoded together until the one ends that ends next: who waits goes on at once."""
    costs = {count: step.cost(count).times(slower) for count in set(left)}
    seconds = {count: cost.seconds for count, cost in costs.items()}
    ends, total = [0.0] * len(ended), dict.fromkeys(costs, 0.0)
    before = decoded = begun = 0.0
    for number, (row, together) in enumerate(zip(order, left, strict=True)):
        if took := ended[row] - before:
            # Prompts are read when their rows begin: first as many as there is room for.
            begun, before = min(1.0, (most + number) / len(ended)), ended[row]
            decoded += took * seconds[together]
            total[together] += took
        ends[row] = call.seconds + read.seconds * begun + decoded
    return Sampled(sum((costs[count].times(took) for count, took in total.items()), call + read), ends)


def _tokens(answers: Sequence[float], most: int) -> Sequence[float]:
    """After how many steps each row ends, where at most so many are decoded together."""
    if len(answers) <= most:
        return answers
    found = list(answers[:most])
    busy = list(found)
    heapify(busy)
    for length in answers[most:]:
        found.append(busy[0] + length)
        heapreplace(busy, found[-1])
    return found
