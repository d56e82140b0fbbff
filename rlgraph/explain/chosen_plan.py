"""The plan that was chosen for a cluster, in a few lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rlgraph.catalog.clusters.units import format_quantity, format_seconds
from rlgraph.errors import count_phrase
from rlgraph.explain.engine_alternatives import adapter_and_gather_lines
from rlgraph.explain.engine_choices import engine_choice_texts
from rlgraph.explain.fused_pipelines import fused_pipeline_lines
from rlgraph.explain.tables import align_columns, pool_size_text
from rlgraph.ir.plan import Pool
from rlgraph.passes.compilation.choose_plan import busy_seconds_by_work, host_work, peak_memory_by_pool
from rlgraph.passes.compilation.host_offload import fullest_host, plan_offload_by_host
from rlgraph.passes.compilation.host_rows import fullest_host_rows, host_rows_line
from rlgraph.passes.placement.choose import PlacementChoice


def chosen_plan_lines(choice: PlacementChoice, predicted: Mapping[str, Any]) -> Iterator[str]:
    """Yield a few lines: the step, each pool with what it does and how, and what fills its memory. predicted: as a plan
    file has it."""
    yield from step_lines(choice.question.cluster.text, sum(choice.search_result.devices), predicted)
    kinds = sorted(busy_seconds_by_work(choice).items(), key=lambda kind: -kind[1])
    text = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in kinds)
    yield f"work of all pools by the search, added up: {text}"
    yield from fused_pipeline_lines(choice.plan, predicted)
    yield from adapter_and_gather_lines(choice)
    if text := host_work(choice).slow_host_note(predicted["seconds"]):
        yield text
    if host := fullest_host_rows(choice):
        yield host_rows_line(host)
    full, asleep = peak_memory_by_pool(choice), plan_offload_by_host(choice)
    for group in choice.plan.groups:
        if group.code:
            pool = next(pool for pool in choice.plan.pools if pool.name == group.pool)
            yield ""
            yield f"{pool_size_text(pool)} in `{pool.name}`: {', '.join(group.code)}"
    for pool in choice.plan.pools:
        if not pool.devices:
            continue
        peak = full[pool.name]
        yield ""
        yield (
            f"{count_phrase(pool.devices, 'device')} in `{pool.name}`{_kinds(choice, pool)}: "
            f"at most {format_quantity(peak.used_bytes, 'bytes')} of {format_quantity(peak.capacity, 'bytes')}, "
            f"during {peak.moment}" + (f"; tight, {peak.used_bytes / peak.capacity:.1%} full" if peak.is_tight else "")
        )
        yield from _rows(choice, pool.name)
        if peak.asleep or peak.optimizers:
            node = fullest_host(asleep, pool, choice.question.cluster)
            of_it = (
                f", {format_quantity(node.used_bytes, 'bytes')} of {format_quantity(node.capacity, 'bytes')} on a node"
                if node
                else ""
            )
            bytes_held = format_quantity(peak.host, "bytes")
            yield f"  in the host's memory, {bytes_held} for each device{of_it}, while others work:"
            cells = [(name, "its optimizer, all the time") for name in peak.optimizers]
            cells += [(name, f"sleeps during {', '.join(others) or 'nothing'}") for name, others in peak.asleep]
            yield from (f"    {line}" for line in align_columns("<<", cells))


def _kinds(choice: PlacementChoice, pool: Pool) -> str:
    """Return how many devices a pool has of each group of the cluster, if there are several groups."""
    cluster = choice.question.cluster
    numbers = Counter(cluster.node_group_number(pool.first + device) for device in range(pool.devices))
    names = [f"{count} {cluster.islands[number].device.name}" for number, count in numbers.items()]
    return f" ({' and '.join(names)})" if len(names) > 1 else ""


def step_lines(cluster: str, devices: int, predicted: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about a plan's step, from the prediction as a plan file has it."""
    seconds, gap = predicted["seconds"], predicted["gap"]
    in_turn, steady = predicted.get("in_turn_seconds"), predicted.get("steady_seconds")
    proof = "the best there is" if gap == 0 else f"at most {gap:.1%} from the best there is"
    if gap >= 1:
        proof = "nothing is proven of others"
    if (unfused := predicted.get("unfused_seconds")) is not None:
        proof = f"where no trainings share a pipeline {format_seconds(unfused)}, {proof}"
    elif (alike := predicted.get("alike_seconds")) is not None:
        proof = f"where those of one pipeline are split alike {format_seconds(alike)}, {proof}"
    rate = predicted["tokens"] / seconds if seconds else 0.0
    on = f"on {count_phrase(devices, 'device')}, {rate:,.0f} tokens/s"
    if in_turn is None and steady is None:
        yield f"{cluster}: {format_seconds(seconds)} a step by the search, {on}; {proof}"
    else:
        yield f"{cluster}: {format_seconds(seconds)} a step by the simulator, {on}"
    if in_turn is not None:
        yield f"one work after the other: {format_seconds(in_turn)} by the search, {proof}"
    if steady is not None:
        yield f"in a steady state: {format_seconds(steady)} by the search, {proof}"
    if in_turn is not None or steady is not None:
        yield (
            "the simulator fires each node on rows of their own lengths, and lets work overlap; the search counts with "
            "the usual length, and what is proven is of its seconds"
        )


def _rows(choice: PlacementChoice, pool: str) -> Iterator[str]:
    """Yield a line for each component that runs in the pool."""
    cells = []
    problem = choice.problem
    for component, option in problem.components_with_options(choice.search_result.options):
        if choice.plan.group_of_role(component.model_name, component.operations[0]).pool == pool:
            deployment = option.deployment
            split = " x ".join(f"{axis}{size}" for axis, size in deployment.mesh.axes)
            details = [deployment.engine, split]
            if deployment.micro_tokens:
                details.append(f"micro-batches of {deployment.micro_tokens} tokens")
            details += engine_choice_texts(deployment)
            details += ["recomputed"] * deployment.recompute + ["off-loaded"] * option.offload
            names = [choice.problem.tasks[number].name for number in component.tasks]
            cells.append((component.name, format_seconds(sum(option.seconds)), ", ".join(details), ", ".join(names)))
    yield from (f"  {line}" for line in align_columns("<><<", cells))
