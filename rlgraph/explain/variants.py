"""The variants of a question: another cluster, other lengths, fewer pins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from itertools import count

from rlgraph.catalog.clusters.cluster import Cluster, Device, NodeGroup
from rlgraph.catalog.clusters.devices import ListedDevice, known_devices
from rlgraph.catalog.clusters.read import MOST_DEVICES, read_cluster
from rlgraph.catalog.clusters.text import format_cluster
from rlgraph.catalog.clusters.units import format_quantity
from rlgraph.ir.graph import Graph, Staleness
from rlgraph.ir.schedule import PlacedWork, PlacementLine, PoolLine
from rlgraph.ops import model_work_of
from rlgraph.ops.nodes import NODES, model_of
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.tasks import main_phase
from rlgraph.passes.placement.choose import PlacementChoice
from rlgraph.passes.placement.query import PlacementQuery

BETTER = 1.1
"""The factor by which a better device is faster in some rate."""

AS_GOOD = 0.98
"""The least share of each rate, of the link and of the memory that it has: 80 GB are reported as 81,559 MiB and as
81,920 MiB."""

ONE_STEP_OFF = "one step off"

CPUS = 64
"""The size of the pool on which functions are tried."""


@dataclass(frozen=True)
class Variant:
    """A variant of the question that was asked."""

    name: str
    """The name of the change, such as `one more node`."""
    detail: str
    """The text that one would write, such as `17x8:a100-80gb`."""
    question: PlacementQuery
    helps: bool = True
    """Whether the chosen plan would still fit, and be no slower."""
    said: bool = False
    """Whether lines of a schedule are all that it takes."""


def possible_variants(choice: PlacementChoice) -> Iterator[Variant]:
    """Yield the changes that one could make."""
    question = choice.question
    for number, island in enumerate(question.cluster.islands):
        of = f" of {island.device.name}" if len(question.cluster.islands) > 1 else ""
        if question.cluster.device_count + island.per_node <= MOST_DEVICES:
            yield _clustered(f"one more node{of}", with_node_count(question, number, island.nodes + 1))
        if island.nodes > 1:
            fewer = _clustered(f"one node less{of}", with_node_count(question, number, island.nodes - 1))
            # Where all devices are of the first group, options of the whole cluster are known.
            asked = fewer.question if number else replace(question, most_nodes=island.nodes - 1)
            yield replace(fewer, question=asked, helps=False)
        better = next_better_device(island.device)
        if better:
            changed = with_device_kind(question, better, number)
            yield replace(_clustered(f"{better.device.name} in place of {island.device.name}", changed), helps=False)
    if any(island.nodes > 1 for island in question.cluster.islands):
        yield Variant("a network twice as fast", _networks(question.cluster, 2), with_network(question, 2))
    yield Variant("twice the memory on each device", _memories(question.cluster, 2), with_device_memory(question, 2))
    answers = first_answer_lengths(choice)
    if answers:
        half = Lengths(tuple(value / 2 for value in answers.values))
        detail = f"{half.mean:.0f} tokens on average"
        yield Variant("half as long answers", detail, with_lengths(question, response=half), helps=False)
    yield from _on_cpus(choice)
    yield from _one_step_off(choice)
    yield from _freed(question)


def first_answer_lengths(choice: PlacementChoice) -> Lengths | None:
    """Return the lengths of the answers that a step samples first."""
    return next(
        (task.batches[0].response for task in choice.problem.tasks if model_work_of(task.op) == "generates"), None
    )


# The cluster


def with_node_groups(asked: PlacementQuery, islands: tuple[NodeGroup, ...]) -> PlacementQuery:
    """Return the question with other node groups (islands); the links between them that the user gave stay."""
    _, _, between = asked.cluster.text.partition("~")
    return replace(asked, cluster=read_cluster(format_cluster(islands, between.strip())))


def with_node_count(asked: PlacementQuery, number: int, nodes: int) -> PlacementQuery:
    """Return the question with another number of nodes in one node group."""
    return _with(asked, number, nodes=nodes)


def with_device_kind(asked: PlacementQuery, listed: ListedDevice, number: int = 0) -> PlacementQuery:
    """Return the question for nodes with as many devices of another kind, and the network that these come with."""
    return _with(
        asked,
        number,
        device=listed.device,
        network=listed.device.network,
        link_latency=listed.link_latency,
        network_latency=listed.network_latency,
    )


def with_network(asked: PlacementQuery, factor: float = 1.0, bandwidth: float | None = None) -> PlacementQuery:
    """Return the question with another network of all node groups (islands): so many times as fast, or of so many
    bytes a second."""
    islands = asked.cluster.islands
    return with_node_groups(
        asked, tuple(replace(island, network=bandwidth or island.network * factor) for island in islands)
    )


def with_device_memory(asked: PlacementQuery, factor: float = 1.0, size: int | None = None) -> PlacementQuery:
    """Return the question with another memory of all devices: so many times as much, or so many bytes."""
    devices = [
        replace(island.device, memory=size or round(island.device.memory * factor)) for island in asked.cluster.islands
    ]
    islands = zip(asked.cluster.islands, devices, strict=True)
    return with_node_groups(asked, tuple(replace(island, device=device) for island, device in islands))


def next_better_device(device: Device) -> ListedDevice | None:
    """Return the weakest accelerator of the table that is faster and has no less of anything."""
    if device.kind == "cpu":
        return None
    strength = _strength(device)
    better = []
    for listed in known_devices().values():
        rate, bandwidth, memory = (new / old for new, old in zip(_strength(listed.device), strength, strict=True))
        link = listed.device.link / device.link
        if min(rate, bandwidth, memory, link) >= AS_GOOD and max(rate, bandwidth) >= BETTER:
            better.append(listed)
    return min(better, key=lambda listed: (*_strength(listed.device), listed.device.price), default=None)


def _strength(device: Device) -> tuple[float, float, float]:
    """Return a device's FLOP/s, bytes a second, and bytes of memory."""
    return device.peak_flops("bfloat16"), device.bandwidth, device.memory


def _with(question: PlacementQuery, number: int, **fields: object) -> PlacementQuery:
    """Return the question with other fields of one node group."""
    islands = list(question.cluster.islands)
    islands[number] = replace(islands[number], **fields)  # type: ignore[arg-type]
    return with_node_groups(question, tuple(islands))


def _clustered(name: str, question: PlacementQuery) -> Variant:
    """Return a change of the cluster."""
    return Variant(name, question.cluster.text, question)


def _networks(cluster: Cluster, factor: float) -> str:
    """Return the bandwidths of the changed networks as words."""
    return " and ".join(
        dict.fromkeys(format_quantity(island.network * factor, "bandwidth") for island in cluster.islands)
    )


def _memories(cluster: Cluster, factor: float) -> str:
    """Return the memory sizes of the changed devices as words."""
    return " and ".join(
        dict.fromkeys(format_quantity(island.device.memory * factor, "bytes") for island in cluster.islands)
    )


# The rows, and the schedule


def with_lengths(asked: PlacementQuery, **lengths: Lengths) -> PlacementQuery:
    """Return the question with other lengths. lengths: those of `prompt` or `response` that change."""
    changed: Mapping[str, Lengths] = lengths
    return replace(asked, workload=replace(asked.workload, **changed))  # type: ignore[arg-type]


def _on_cpus(choice: PlacementChoice) -> Iterator[Variant]:
    """Yield the question with functions and environments that have no pool of cpus on one."""
    question, problem = choice.question, choice.problem
    functions = tuple(
        dict.fromkeys(
            task.code for task in problem.tasks if task.code and task.code not in problem.cpu_pools_of_functions
        )
    )
    if functions:
        name = next(f"judges{number or ''}" for number in count() if f"judges{number or ''}" not in _pools(choice))
        line = PlacementLine(tuple(PlacedWork(function) for function in functions), name)
        pools, placements = (*question.schedule.pools, PoolLine(name, 0, CPUS)), (*question.schedule.placements, line)
        changed = replace(question, schedule=replace(question.schedule, pools=pools, placements=placements))
        detail = f"pool {name} = {CPUS} cpus, place {', '.join(functions)} on {name}"
        yield Variant("functions on cpus of their own", detail, changed, helps=False, said=True)


def _one_step_off(choice: PlacementChoice) -> Iterator[Variant]:
    """Yield, if a model is sampled from that the step trains, the question that samples with the weights of the step
    before, so that two steps are under way."""
    question, problem = choice.question, choice.problem
    if problem.sync_pairs and not problem.staleness_steps:
        trained = {problem.components[number].model_name for _, number in problem.sync_pairs}
        phase = main_phase(question.program)
        older = replace(phase, graph=_lagging(phase.graph, trained), staleness=Staleness(1))
        phases = tuple(older if other is phase else other for other in question.program.phases)
        changed = replace(question, program=replace(question.program, phases=phases))
        yield Variant(ONE_STEP_OFF, "`step async(lag=1)`, another algorithm", changed, helps=False)


def _lagging(graph: Graph, models: Set[str]) -> Graph:
    """Return the graph with sampling from weights that are one step old."""
    nodes = []
    for node in graph.nodes:
        regions = tuple(_lagging(region, models) for region in node.regions)
        lag = (("lag", 1),) if NODES[node.op].generates and model_of(node).split("@")[0] in models else ()
        nodes.append(replace(node, attrs=(*node.attrs, *lag), regions=regions))
    return replace(graph, nodes=tuple(nodes))


def _pools(choice: PlacementChoice) -> set[str]:
    """Return the names of the pools of the plan."""
    return {pool.name for pool in choice.plan.pools}


def _freed(question: PlacementQuery) -> Iterator[Variant]:
    """Yield the question without each one line of the schedule, and without all of them if there are several."""
    placements = question.schedule.placements
    for line in placements:
        rest = tuple(other for other in placements if other is not line)
        without = replace(question, schedule=replace(question.schedule, placements=rest))
        yield Variant(f"`{placement_text(line)}` left out", "", without, said=True)
    if len(placements) > 1 or question.schedule.pools:
        free = replace(question.schedule, pools=(), placements=(), sends=(), refreshes=())
        yield Variant("a schedule without pools and placements", "", replace(question, schedule=free), said=True)


def placement_text(line: PlacementLine) -> str:
    """Return a placement as the user wrote it, on one line."""
    work = ", ".join(map(str, line.work))
    options = [
        *([f"engine={line.engine}"] if line.engine else []),
        *(f"{name}={size}" for name, size in line.axis_sizes().items()),
    ]
    return f"place {work} on {line.pool}" + (f"({', '.join(options)})" if options else "")
