"""The ways to share pools that systems for RLHF have, and how well each would do.

`all colocated` is what DeepSpeed-Chat does, `split` NeMo-Aligner, `standalone` OpenRLHF (HybridFlow, arXiv 2409.19256,
table 1); `disaggregated` is that of asynchronous systems, where generation has devices of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rlgraph.clusters.cluster import Island
from rlgraph.clusters.units import show
from rlgraph.cost.peak import usable
from rlgraph.ir.graph import Program
from rlgraph.placement.choose import Choice, candidates, search
from rlgraph.placement.search.partitions import sizes
from rlgraph.placement.search.parts import Part
from rlgraph.placement.search.problem import Blocks, Problem
from rlgraph.placement.search.search import Found

Sharing = frozenset[frozenset[int]]
"""The parts of each pool."""


@dataclass(frozen=True)
class Way:
    """A way to share pools, and the best plan of it."""

    name: str
    shares: Sharing
    found: Found | None
    refused: str = ""
    """Why there is no such plan."""
    chosen: bool = False
    """It is what the best plan does."""


def ways(choice: Choice) -> list[Way]:
    """Of those that the program has: of two that are the same the first. The last one is what was chosen, if it is none
    of them."""
    problem = choice.problem
    own = sharing(choice.found.blocks)
    every = candidates(problem, choice.question)
    found, seen = [], set[Sharing]()
    for name, wanted in _named(problem.parts, choice.question.program).items():
        if wanted in seen:
            continue
        seen.add(wanted)
        only = [blocks for blocks in every if sharing(blocks) == wanted]
        if wanted == own:
            found.append(Way(name, own, choice.found, chosen=True))
        elif not only:
            found.append(Way(name, wanted, None, _unallowed(choice, wanted)))
        else:
            best = search(problem, choice.question, only)
            found.append(Way(name, wanted, best, "" if best else f"does not fit: {_unfit(problem, only[0])}"))
    return found if own in seen else [*found, Way("what was chosen", own, choice.found, chosen=True)]


def sharing(blocks: Blocks) -> Sharing:
    return frozenset(frozenset(block.parts) for block in blocks)


def pools(problem: Problem, found: Found) -> str:
    """Which parts share devices: `actor + ref (8), critic (4)`."""
    blocks = zip(found.blocks, found.devices, strict=True)
    return ", ".join(f"{' + '.join(held(problem, block.parts))} ({devices:,})" for block, devices in blocks)


def held(problem: Problem, numbers: Sequence[int]) -> list[str]:
    """The models of a pool; of a model with a part elsewhere what it does here."""
    parts = [problem.parts[number] for number in numbers]
    own = Counter(part.model for part in parts)
    whole = Counter(part.model for part in problem.parts)
    names = [part.model if own[part.model] == whole[part.model] else _part_name(part) for part in parts]
    return list(dict.fromkeys(names))


def _part_name(part: Part) -> str:
    return part.name if part.work == "draw" else f"{part.model}.{part.work}"


def _named(parts: Sequence[Part], program: Program) -> dict[str, Sharing]:
    """The parts in each pool of each way."""
    by_model: dict[str, set[int]] = {}
    for number, part in enumerate(parts):
        by_model.setdefault(part.model, set()).add(number)
    drawing = {part.model for part in parts if part.work == "draw"}
    copies = {model.name for model in program.models if model.copy_of in drawing and model.frozen}
    drawn = {number for number, part in enumerate(parts) if part.work == "draw"}
    beside = {number for number, part in enumerate(parts) if part.model in drawing | copies}
    every = set(range(len(parts)))
    found = {
        "all colocated": [every],
        "split": [beside, every - beside],
        "standalone": list(by_model.values()),
        "disaggregated": [drawn, every - drawn],
    }
    return {name: frozenset(map(frozenset, held)) for name, held in found.items() if all(held)}


# What cannot be


def _unallowed(choice: Choice, wanted: Sharing) -> str:
    if len(wanted) > choice.question.cluster.devices:
        return f"does not fit: {len(wanted)} pools on {choice.question.cluster.devices} devices"
    return "the schedule says otherwise"


def _unfit(problem: Problem, blocks: Blocks) -> str:
    """Of a way on one choice of islands: the pool that is too full, or pools that need too many devices together."""
    needed = []
    for block in blocks:
        island = problem.island(block)
        fewest = [_fewest(problem, number, island) for number in block.parts]
        if None in fewest:
            return f"`{problem.parts[block.parts[fewest.index(None)]].name}` does not fit on {island.device.name}"
        needed.append((max(size or 0 for size in fewest), block))
    total = sum(size for size, _ in needed)
    if total > problem.cluster.devices:
        told = ", ".join(f"{size} for {_parts(problem, block.parts)}" for size, block in needed)
        return f"{total} devices are needed ({told}), and there are {problem.cluster.devices}"
    crowd = max((block for _, block in needed), key=lambda block: _least(problem, blocks, block.parts))
    room = usable(problem.island(crowd), problem.constants)
    return (
        f"together {_parts(problem, crowd.parts)} need {show(_least(problem, blocks, crowd.parts), 'bytes')} on each "
        "device, "
        f"and {show(room, 'bytes')} can be used"
    )


def _fewest(problem: Problem, number: int, island: Island) -> int | None:
    """The devices that a part needs at least; None if it does not fit on all of them."""
    return next(
        (size for size in sizes(island) if problem.options.of(number, problem.parts[number], island, size)), None
    )


def _least(problem: Problem, blocks: Blocks, parts: Sequence[int]) -> float:
    """Bytes of a device of a pool that has all devices: each part at its smallest."""
    island = problem.island(next(block for block in blocks if block.parts == parts))
    options = [problem.options.of(number, problem.parts[number], island, island.devices) for number in parts]
    stay = [min(option.resident for option in own) for own in options]
    peaks = [min(option.peak for option in own) for own in options]
    return max(peak + sum(stay) - mine for peak, mine in zip(peaks, stay, strict=True))


def _parts(problem: Problem, parts: Sequence[int]) -> str:
    return ", ".join(f"`{name}`" for name in held(problem, parts))
