"""Whether the models of a plan fit on a cluster: the count of the search, for a plan that was not searched for."""

from __future__ import annotations

from dataclasses import replace

from rlgraph.catalog.clusters.cluster import Cluster
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.clusters.units import show
from rlgraph.catalog.models.shape import Shape
from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.ir.plan import Plan
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.compilation.hosts import told
from rlgraph.passes.compilation.target import assumed
from rlgraph.passes.cost.constants import Constants, defaults
from rlgraph.passes.cost.peak import Lodging, Peak, lodgings, peaks
from rlgraph.passes.cost.tasks import Workload, main_step, tasks
from rlgraph.passes.placement.place import config_of
from rlgraph.passes.rewrites.accumulate import added_up
from rlgraph.runs.planfiles.document import Document


def too_full(
    compiled: Compilation,
    other: Cluster | None = None,
    workload: Workload | None = None,
    constants: Constants | None = None,
    plan: Plan | None = None,
) -> list[Diagnostic]:
    """What of a plan does not fit on its cluster, or on another one, by the lengths that it was made for, or by others.
    Models of unknown shape count as nothing. constants: None: those that the plan was made with. plan: None: that of
    the file or the schedule."""
    program, plan = compiled.program, plan or compiled.plan
    try:
        cluster = other or read_cluster(plan.cluster)
        workload = workload or assumed(compiled)
    except ProgramError:
        # The cluster was a file, or lengths are none: there is nothing to count with.
        return []
    if max(pool.first + pool.devices for pool in plan.pools) > cluster.devices:
        return []
    constants = constants or defaults(cluster.islands[0].device.kind)
    if compiled.assumptions.get("constants", constants.source) != constants.source:
        # They were measured, and are not here: a device has no more than all of its memory.
        constants = replace(constants, reserved=0, fragmentation=0.0, asleep=1.0, process={}, communicator=0)
    shapes = compiled.placed.shapes
    configs = {
        model.name: config_of(model, shape, program)
        for model in program.models
        if isinstance(shape := shapes.get(model.name), Shape)
    }
    step = tasks(program, main_step(program), workload)
    accumulated = added_up(program, plan)
    found = peaks(plan, step, configs, cluster, constants, accumulated=accumulated)
    wrong = [_told(compiled, pool, peak) for pool, peak in found.items() if not peak.fits]
    asleep = lodgings(plan, step, configs, cluster, constants, accumulated)
    full = [(node, each) for node, each in asleep.items() if not each.fits]
    return [*wrong, *(_crowded(compiled, plan, *each) for each in full[:1])]


def _crowded(compiled: Compilation, plan: Plan, node: int, found: Lodging) -> Diagnostic:
    """Too much sleeps on a node: of several such nodes the first one is told. At the largest of what sleeps there."""
    hint = (
        "off-load less, share models out over more devices, or say with `host_memory` in the cluster how much memory "
        "the hosts have"
    )
    if compiled.file is None:
        return Diagnostic("E0958", told(node, found), compiled.schedule.span, hint)
    most, _ = found.parts[0]
    place = next(at for at, each in enumerate(plan.holdings) if plan.part(each.model, each.group) == most)
    span = Document(compiled.source).span(("plan", "holdings", place, "offload"))
    return Diagnostic("E0958", told(node, found), span, hint)


def _told(compiled: Compilation, name: str, peak: Peak) -> Diagnostic:
    """At the setting of the largest part, or at the pool."""
    plan = compiled.plan
    number, pool = next((number, pool) for number, pool in enumerate(plan.pools) if pool.name == name)
    path: tuple[str | int, ...] = ("plan", "pools", number, "devices")
    hint = "give the pool more devices, split its models further, or compile the program again"
    model, what, size = peak.parts[0]
    setting = {"cache": "kv_bytes", "activations": "micro_tokens", "logits": "micro_tokens"}.get(what, "")
    for place, each in enumerate(plan.holdings):
        if each.model == model and plan.group(each.group).pool == name and setting and getattr(each, setting):
            path = ("plan", "holdings", place, setting)
            left = each.kv_bytes - (peak.bytes - peak.capacity)
            if setting == "micro_tokens":
                hint = f"make `{setting}` smaller"
            elif left >= 1:
                hint = f"`{setting}` of at most {int(left)} fits"
    moment = f"during `{peak.moment}`" if peak.moment else "all the time"
    message = (
        f"`{name}` needs {show(peak.bytes, 'bytes')} on each {peak.device} {moment}, and "
        f"{show(peak.capacity, 'bytes')} can be used: the {what} of `{model}` are {show(size, 'bytes')} of it"
    )
    if compiled.file is not None:
        return Diagnostic("E0958", message, Document(compiled.source).span(path), hint)
    declared = (pool.span for pool in compiled.schedule.pools if pool.name == name)
    hint = "give the pool more devices, or split its models further; `compile` with a cluster finds a plan that fits"
    return Diagnostic("E0958", message, next(declared, compiled.schedule.span), hint)
