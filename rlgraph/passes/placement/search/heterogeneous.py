"""Trainings that share a pipeline and are split unlike: in the pools of a plan that was found.

The search itself compares plans whose trainings of one pipeline are split alike, for which it has bounds. What is more
is looked at in the end, since there are as many pairs of splits as one likes: with all else of the plan as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, product
from operator import itemgetter

from rlgraph.ir.mesh import Mesh
from rlgraph.ir.shared_pipelines import misfit
from rlgraph.passes.cost.fusing import about, least
from rlgraph.passes.cost.peak import TIGHT, usable
from rlgraph.passes.placement.search.hosts import lodged
from rlgraph.passes.placement.search.incumbent import Found, Incumbent
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.problem import Problem, peak
from rlgraph.passes.placement.search.progress import Watch

OWN = 48
"""Options of each training that are looked at, the shortest first."""
MOST = 64
"""Of pairs of these."""


def unlike(problem: Problem, found: Found, watch: Watch, spare: float) -> Found:
    """The plan that was found, or a better one whose trainings share a pipeline that are split unlike. spare: as
    `Incumbent` has it."""
    seconds = problem.whole(found.blocks, found.options, found.pieces)
    known = Incumbent(0.0, spare)
    known.keep(replace(found, seconds=seconds, value=problem.value(seconds, found.blocks, found.devices)))
    for block in found.blocks:
        for pieces in problem.fusing.sharings([block.components]):
            for each in _plans(problem, found, pieces[0], known) if len(pieces) == 1 else ():
                watch.look(lambda: (found.seconds, found.gap))
                known.keep(each)
    best = known.best
    return best if best is not None and best.before is found else found


def _plans(problem: Problem, found: Found, piece: Sequence[int], known: Incumbent) -> Iterator[Found]:
    """With one pipeline of these components, all else as it is. known: the best so far."""
    [(block, devices)] = [
        each for each in zip(found.blocks, found.devices, strict=True) if piece[0] in each[0].components
    ]
    own: list[list[tuple[float, Mesh, Option]]] = []
    for number in piece:
        splits = problem.options.sharing(problem.components[number], problem.island(block), devices)
        each = sorted(((_least(option), option) for option in chain.from_iterable(splits.values())), key=itemgetter(0))
        own.append([(seconds, option.deployment.mesh, option) for seconds, option in each[:OWN]])
    # What computes longer than all take now is no better.
    most = sum(sum(found.options[number].seconds) for number in piece)
    ways = [
        (seconds, [option for *_, option in way])
        for way in product(*own)
        if (seconds := sum(each for each, *_ in way)) < most and _unlike([split for _, split, _ in way])
    ]
    ways.sort(key=itemgetter(0))
    others = (each for each in found.pieces if {*each}.isdisjoint(piece))
    pieces = (tuple(piece), *others)
    for _, way in ways[:MOST]:
        chosen = dict(enumerate(found.options)) | dict(zip(piece, way, strict=True))
        options = tuple(chosen[number] for number in range(len(chosen)))
        if not _fits(problem, found, options, piece):
            continue
        for taken in (least, about, None):
            seconds = problem.whole(found.blocks, options, pieces, *([taken] if taken else []))
            value = problem.value(seconds, found.blocks, found.devices)
            if known.best is not None and value >= known.best.value:
                break
        else:
            yield replace(
                found,
                options=options,
                seconds=seconds,
                value=value,
                tight=_tight(problem, found, options),
                pieces=pieces,
                before=found,
            )


def _least(option: Option) -> float:
    """Seconds of its tasks, where others work while its stages wait."""
    return sum(each for each, *_ in option.filled)


def _unlike(splits: Sequence[Mesh]) -> bool:
    """Whether models have stages in common that are not the same for all."""
    unlike = len(set(splits)) > 1 and len({split.size for split in splits}) == 1
    return unlike and not misfit(splits)


def _fits(problem: Problem, found: Found, options: Sequence[Option], piece: Sequence[int]) -> bool:
    """Whether there is room for a plan, and for what each of a pipeline's processes needs that is in flight, about as
    much as alone."""
    if not lodged(problem, found.blocks, found.devices, options):
        return False
    for block in found.blocks:
        here, island = [options[number] for number in block.components], problem.island(block)
        shared = sum(max(options[number].active) for number in piece if number in block.components)
        kept = sum(option.resident for option in here)
        if not problem.fits(here, island) or kept + shared > usable(island, problem.constants):
            return False
    return True


def _tight(problem: Problem, found: Found, options: Sequence[Option]) -> bool:
    return any(
        peak([options[number] for number in block.components])
        > TIGHT * usable(problem.island(block), problem.constants)
        for block in found.blocks
    )
