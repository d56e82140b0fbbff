"""Checks whether the models of a plan fit on a cluster, by the search's count, for a plan that was not searched for."""

from __future__ import annotations

from dataclasses import replace

from rlgraph.catalog.clusters.cluster import Cluster
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.clusters.units import format_quantity
from rlgraph.catalog.models.shape import Shape
from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.ir.plan import Plan
from rlgraph.passes.compilation.assumed_workload import assumed_workload
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.compilation.host_offload import host_memory_message
from rlgraph.passes.cost.constants import Constants, default_constants
from rlgraph.passes.cost.peak_memory import OffloadedBytes, Peak, offloaded_bytes_by_host, pool_peaks
from rlgraph.passes.cost.tasks import main_phase, phase_tasks
from rlgraph.passes.cost.workload import Workload
from rlgraph.passes.placement.model_configs import model_config
from rlgraph.passes.rewrites.accumulate import accumulating_models
from rlgraph.runs.planfiles.document import Document


def memory_errors(
    compiled: Compilation,
    other: Cluster | None = None,
    workload: Workload | None = None,
    constants: Constants | None = None,
    plan: Plan | None = None,
) -> list[Diagnostic]:
    """Return an error for all that does not fit on the plan's cluster, or on another one, for the lengths that the plan
    was made for, or others. Models of unknown shape count as nothing. constants: None takes those of the plan. plan:
    None takes that of the file or the schedule."""
    program, plan = compiled.program, plan or compiled.plan
    try:
        cluster = other or read_cluster(plan.cluster)
        workload = workload or assumed_workload(compiled)
    except ProgramError:
        # The cluster was a file, or the lengths are invalid: nothing can be counted.
        return []
    if max(pool.first + pool.devices for pool in plan.pools) > cluster.device_count:
        return []
    constants = constants or default_constants(cluster.islands[0].device.kind)
    if compiled.assumptions.get("constants", constants.source) != constants.source:
        # The measured constants are not available here: only what exceeds all of a device's memory is refused.
        constants = replace(constants, reserved=0, fragmentation=0.0, spare=0.0, asleep=1.0, process={}, communicator=0)
    shapes = compiled.placed.shapes
    configs = {
        model.name: model_config(model, shape, program)
        for model in program.models
        if isinstance(shape := shapes.get(model.name), Shape)
    }
    step = phase_tasks(program, main_phase(program), workload)
    accumulated = accumulating_models(program, plan)
    peak_of = pool_peaks(plan, step, configs, cluster, constants, accumulated=accumulated)
    wrong = [_overfull(compiled, pool, peak) for pool, peak in peak_of.items() if not peak.fits]
    asleep = offloaded_bytes_by_host(plan, step, configs, cluster, constants, accumulated)
    full = [(node, lodging) for node, lodging in asleep.items() if not lodging.fits]
    return [*wrong, *(_crowded(compiled, plan, *node_lodging) for node_lodging in full[:1])]


def _crowded(compiled: Compilation, plan: Plan, node: int, lodging: OffloadedBytes) -> Diagnostic:
    """Return the error for a node on whose host too much is offloaded, at the largest of it. Only the first such node
    is reported."""
    hint = (
        "off-load less, share models out over more devices, or say with `host_memory` in the cluster how much memory "
        "the hosts have"
    )
    if compiled.file is None:
        return Diagnostic("E0958", host_memory_message(node, lodging), compiled.schedule.span, hint)
    most, _ = lodging.parts[0]
    place = next(
        at for at, holding in enumerate(plan.holdings) if plan.describe_model_work(holding.model, holding.group) == most
    )
    span = Document(compiled.source).value_span(("plan", "holdings", place, "offload"))
    return Diagnostic("E0958", host_memory_message(node, lodging), span, hint)


def _overfull(compiled: Compilation, name: str, peak: Peak) -> Diagnostic:
    """Return the error for a pool without enough memory, at the setting of the largest part, or at the pool."""
    plan = compiled.plan
    index, pool = next((index, pool) for index, pool in enumerate(plan.pools) if pool.name == name)
    path: tuple[str | int, ...] = ("plan", "pools", index, "devices")
    hint = "give the pool more devices, split its models further, or compile the program again"
    model, what, size = peak.parts[0]
    setting = {"cache": "kv_bytes", "activations": "micro_tokens", "logits": "micro_tokens"}.get(what, "")
    for place, holding in enumerate(plan.holdings):
        if holding.model == model and plan.group(holding.group).pool == name and setting and getattr(holding, setting):
            path = ("plan", "holdings", place, setting)
            remaining = holding.kv_bytes - (peak.used_bytes - peak.capacity)
            if setting == "micro_tokens":
                hint = f"make `{setting}` smaller"
            elif remaining >= 1:
                hint = f"`{setting}` of at most {int(remaining)} fits"
    moment = f"during `{peak.moment}`" if peak.moment else "all the time"
    message = (
        f"`{name}` needs {format_quantity(peak.used_bytes, 'bytes')} on each {peak.device} {moment}, and "
        f"{format_quantity(peak.capacity, 'bytes')} can be used: the {what} of `{model}` are "
        f"{format_quantity(size, 'bytes')} of it"
    )
    if compiled.file is not None:
        return Diagnostic("E0958", message, Document(compiled.source).value_span(path), hint)
    declared = (pool.span for pool in compiled.schedule.pools if pool.name == name)
    hint = "give the pool more devices, or split its models further; `compile` with a cluster finds a plan that fits"
    return Diagnostic("E0958", message, next(declared, compiled.schedule.span), hint)
