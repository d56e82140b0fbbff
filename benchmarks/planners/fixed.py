"""The placements that other systems always take, with our times of single pieces of work.

DeepSpeed-Chat: all models on all devices, ZeRO's third stage, tensor parallelism within a machine while it generates.
OpenRLHF: a pool for each model, ZeRO's third stage, and a pool for generation.
NeMo-Aligner: actor and reference on one half, critic and the rest on the other, generation split as training is.

What differs beside the placement is not counted: kernels, batching, and how generation is written are ours for all of
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from rlgraph.cost import memory, time, work
from rlgraph.cost.peak import usable
from rlgraph.cost.spot import Spot, Subject
from rlgraph.placement.search.options import MICROS, Option
from rlgraph.placement.search.parts import Part
from rlgraph.placement.search.problem import Block, Blocks, Problem

WIDTH = 2049
"""Tokens of the longest row, and one."""


@dataclass(frozen=True)
class Piece:
    """A part on some devices: what an `Option` says, for splits that we do not choose."""

    seconds: tuple[float, ...]
    resident: float
    active: float
    """More bytes while it works."""
    spot: Spot


def deepspeed(problem: Problem) -> float:
    """Seconds of a step as DeepSpeed-Chat places it; infinite where it does not fit."""
    blocks = (Block(tuple(range(len(problem.parts))), 0),)
    return _best(problem, blocks, (problem.cluster.devices,), gathered=True)


def openrlhf(problem: Problem) -> float:
    """The same of OpenRLHF: what trains or generates gets twice the devices of what only reads."""
    shares = [1 if part.work == "read" else 2 for part in problem.parts]
    devices = _shared(problem.cluster.devices, shares)
    return _best(problem, tuple(Block((number,), 0) for number in range(len(shares))), devices, gathered=True)


def nemo(problem: Problem) -> float:
    """The same of NeMo-Aligner; infinite where there is no critic."""
    near = tuple(number for number, part in enumerate(problem.parts) if part.model in ("actor", "ref"))
    far = tuple(number for number in range(len(problem.parts)) if number not in near)
    if not any(problem.parts[number].work == "train" for number in far):
        return inf
    half = problem.cluster.devices // 2
    tensors = (1, 2, 4, 8)
    return min(
        _best(problem, (Block(near, 0), Block(far, 0)), (half, half), gathered=False, tensor=tp) for tp in tensors
    )


def _shared(devices: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Devices in proportion to shares, in powers of two and their multiples that machines have."""
    whole = sum(shares)
    found = [max(1, devices * share // whole) for share in shares]
    return tuple(count if count < 8 else count // 8 * 8 for count in map(_power_below_a_machine, found))


def _power_below_a_machine(count: int) -> int:
    return count if count >= 8 else 1 << (count.bit_length() - 1)


def _best(problem: Problem, blocks: Blocks, devices: tuple[int, ...], gathered: bool, tensor: int = 0) -> float:
    """The fastest choice of knobs, one part after the other in the memory that is left; all is trained with
    `tensor`."""
    chosen: dict[int, Piece] = {}
    for block, count in zip(blocks, devices, strict=True):
        order = sorted(block.parts, key=lambda at: ("train", "read", "draw").index(problem.parts[at].work))
        found = _pool(problem, order, chosen, count, gathered, tensor)
        if found is None:
            return inf
        chosen |= found
    way = problem.way(blocks)
    syncs = [_sync(problem, chosen[a], chosen[b], way.home[a] == way.home[b], gathered) for a, b in problem.syncs]
    return problem.step({number: piece.seconds for number, piece in chosen.items()}, syncs, way)


def _pool(
    problem: Problem, order: Sequence[int], before: Mapping[int, Piece], devices: int, gathered: bool, tensor: int
) -> dict[int, Piece] | None:
    """Of the parts of one pool; None where they do not fit together."""
    room = usable(problem.cluster.islands[0], problem.constants)
    least = {
        number: min(
            (piece.resident for piece in _pieces(problem, number, devices, gathered, tensor, before)), default=inf
        )
        for number in order
    }
    found: dict[int, Piece] = {}
    for number in order:
        held = sum(found[other].resident if other in found else least[other] for other in order if other != number)
        active = max((piece.active for piece in found.values()), default=0.0)
        own = _pieces(problem, number, devices, gathered, tensor, {**before, **found})
        fit = [piece for piece in own if held + piece.resident + max(active, piece.active) <= room]
        if not fit:
            return None
        found[number] = min(fit, key=lambda piece: sum(piece.seconds))
    return found


def _pieces(
    problem: Problem, number: int, devices: int, gathered: bool, tensor: int, chosen: Mapping[int, Piece]
) -> Iterator[Piece]:
    """The ways to do a part's work. Without ZeRO, what generates is split as what is chosen for training, once that
    is."""
    part, island = problem.parts[number], problem.cluster.islands[0]
    if gathered and part.work != "draw":
        yield from _zero(problem, part, devices)
        return
    trained = next((chosen[a].spot for a, b in problem.syncs if b == number and a in chosen and not gathered), None)
    for option in problem.options.all(number, part, island, devices):
        if option.offload or option.spot.tp > island.per_node:
            continue
        if tensor and part.work == "train" and option.spot.tp != tensor:
            continue
        if trained is None:
            yield Piece(option.seconds, option.resident, option.peak - option.resident, option.spot)
        elif option.spot.tp == trained.tp:
            yield _staged(problem, part, option, trained)


def _staged(problem: Problem, part: Part, option: Option, trained: Spot) -> Piece:
    """Generating with the stages of training: a token passes one after the other, and each has its share of the weights
    and of the cache."""
    tasks = [problem.tasks[number] for number in part.tasks]
    spot = replace(option.spot, dp=trained.dp, kv_bytes=option.spot.kv_bytes * trained.pp)
    passes = [
        time.generate(part.subject, spot, problem.constants, task.batches[0]).seconds * task.times for task in tasks
    ]
    weights = work.stage_parameters(part.subject.shape, part.subject.kind, 1) * part.subject.item / trained.tp
    held = option.resident - weights * (1 - 1 / trained.pp)
    return Piece(tuple(passes), held, option.peak - option.resident, spot)


def _zero(problem: Problem, part: Part, devices: int) -> Iterator[Piece]:
    """ZeRO's third stage: all weights, gradients and moments are shared out, and gathered for each micro-batch. Copies
    on one machine use its adapters together. As everywhere in the cost model, computing hides no communication."""
    island, constants = problem.cluster.islands[0], problem.constants
    weights = work.stage_parameters(part.subject.shape, part.subject.kind, 1)
    reach = island.device.link if devices <= island.per_node else island.network * island.per_node
    gather = weights * part.subject.item * (devices - 1) / devices / (reach * constants.collective)
    trains = part.work == "train"
    for rows in MICROS:
        for recompute in (False, True)[: 1 + trains]:
            spot = Spot("megatron", island, 1, 1, devices, rows * WIDTH, recompute)
            seconds, active = [], 0.0
            for op, batches in part.batches(problem.tasks):
                kind = "train" if op == "train" else "forward"
                pace = time.pace(kind, part.subject, spot, constants, batches)
                mine = sum(batch.share(devices) for batch in batches)
                sent = gather * (3 if op == "train" else 1) * pace.turns(mine)
                update = time.ADAM_BYTES * weights / devices / island.device.bandwidth if op == "train" else 0.0
                seconds.append(pace.seconds(mine) + sent + update)
                need = (memory.training if op == "train" else memory.reading)(part.subject, spot, batches)
                active = max(active, need.active.total)
            layer = weights / part.subject.shape.layers * part.subject.item
            held = weights * (part.subject.item + (16 if trains else 0)) / devices
            times = [problem.tasks[number].times for number in part.tasks]
            yield Piece(tuple(s * t for s, t in zip(seconds, times, strict=True)), held, active + 2 * layer, spot)


def _sync(problem: Problem, source: Piece, target: Piece, together: bool, gathered: bool) -> float:
    """Weights from training to generation."""
    if not gathered:
        return 0.0
    if not together:
        return time.sync(_subject(problem), source.spot, target.spot, False, problem.constants).seconds
    # Each device gathers all weights and keeps its share (HybridFlow, table 2).
    island, subject = problem.cluster.islands[0], _subject(problem)
    size = work.stage_parameters(subject.shape, subject.kind, 1) * subject.item
    reach = island.device.link if source.spot.dp <= island.per_node else island.network * island.per_node
    return size / (reach * problem.constants.transfer) + problem.constants.sync


def _subject(problem: Problem) -> Subject:
    return problem.parts[problem.syncs[0][0]].subject
