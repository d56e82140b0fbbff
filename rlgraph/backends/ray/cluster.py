"""Where the processes of a plan run: a Ray cluster, one that is started here, or this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from rlgraph.backends.local.session import Settings
from rlgraph.backends.ray.processes import ROWS, Actors, InThisProcess, Processes
from rlgraph.backends.ray.remote import Address
from rlgraph.backends.ray.worker import Job
from rlgraph.errors import NO_SPAN, Diagnostic, RunError
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import HOST, Plan

_PACKAGES = {"megatron": "megatron.core", "vllm": "vllm"}


def start(
    program: Program, plan: Plan, settings: Settings, *, address: str | None, debug: bool, seconds: float,
    note: Callable[[str], None],
) -> Processes:  # fmt: skip
    """Every process of the plan, none of them opened yet. Raises RunError for what the cluster cannot hold."""
    _check_engines(plan)
    owners = dict(plan.owners)
    jobs = {
        (group.name, rank): Job(
            program, group, rank, tuple(model for model in group.models if owners.get(model) == group.name), settings, seconds
        )
        for group in plan.groups for rank in range(group.mesh.size)
    }  # fmt: skip
    if debug:
        return InThisProcess(jobs)
    note("Ray")
    return _actors(plan, jobs, address, seconds)


def _check_engines(plan: Plan) -> None:
    from importlib.util import find_spec

    for group in plan.groups:
        package = _PACKAGES.get(group.engine)
        if package and not _found(package, find_spec):
            raise _cannot(f"`{group.name}` needs an engine that is not installed: {group.engine}",
                          f"pip install 'rlgraph[{group.engine}]'")  # fmt: skip


def _found(package: str, find: Callable[[str], Any]) -> bool:
    try:
        return find(package) is not None
    except ModuleNotFoundError:
        return False


def _actors(plan: Plan, jobs: Mapping[Address, Job], address: str | None, seconds: float) -> Actors:
    try:
        import ray
    except ModuleNotFoundError:
        raise _cannot("the backend `ray` needs Ray, which is not installed", "pip install 'rlgraph[ray]'") from None
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

    from rlgraph.backends.ray.worker import Worker

    own = not ray.is_initialized()
    devices = sum(pool.devices for pool in plan.pools)
    if own:
        _connect(ray, address, devices)
    kind = "GPU" if ray.cluster_resources().get("GPU") else "CPU"
    _check_room(ray, plan, kind)
    groups = {
        pool.name: placement_group([{kind: 1} for _ in range(pool.devices)], strategy="PACK")
        for pool in plan.pools if pool.devices
    }  # fmt: skip

    def release() -> None:
        for group in groups.values():
            remove_placement_group(group)
        if own:
            ray.shutdown()

    try:
        for name, group in groups.items():
            if not group.wait(seconds):
                raise _cannot(f"the pool `{name}` does not get its devices: others use them", "try again when they are free")
        sharing = {pool.name: sum(group.pool == pool.name for group in plan.groups) for pool in plan.pools}
        actor = ray.remote(concurrency_groups={ROWS: 2})(Worker)
        handles: dict[Address, Any] = {}
        for (name, rank), job in jobs.items():
            group = job.group
            options: dict[str, Any] = {"max_restarts": 0}
            if group.name == HOST:
                here = ray.get_runtime_context().get_node_id()
                options |= {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False)}
            else:
                # Groups of one pool take turns on its devices: each has a part of every one.
                part = 1 / sharing[group.pool]
                place = PlacementGroupSchedulingStrategy(groups[group.pool], group.devices[rank])
                options |= {"num_cpus": part if kind == "CPU" else 0, "num_gpus": part if kind == "GPU" else 0,
                            "scheduling_strategy": place}  # fmt: skip
            handles[name, rank] = actor.options(runtime_env={"env_vars": _environment(kind)}, **options).remote(job)
        return Actors(jobs, handles, seconds, release)
    except BaseException:
        release()
        raise


def _connect(ray: Any, address: str | None, devices: int) -> None:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    common = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address:
            ray.init(address=address, **common)
        else:
            # On a laptop the devices of a plan share its cores; that is slow, and right.
            gpus = _gpus()
            room = {} if gpus else {"num_cpus": max(devices, os.cpu_count() or 1)}
            ray.init(include_dashboard=False, **room, **common)
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f"the cluster at {address}" if address else "Ray on this machine"
        raise _cannot(f"{where} cannot be reached: {str(error).splitlines()[0]}",
                      "`ray status` shows which cluster runs; leave --address out to start one here") from None  # fmt: skip


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _environment(kind: str) -> dict[str, str]:
    found = {"RAY_DEDUP_LOGS": "0", "TOKENIZERS_PARALLELISM": "false"}
    if kind == "CPU":
        found |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return found


def _check_room(ray: Any, plan: Plan, kind: str) -> None:
    """Whether the cluster has what the plan needs, before anything is started."""
    have = int(ray.cluster_resources().get(kind, 0))
    need = sum(pool.devices for pool in plan.pools)
    if need > have:
        pools = ", ".join(f"`{pool.name}` {pool.devices}" for pool in plan.pools if pool.devices)
        raise _cannot(f"the plan needs {need} devices ({pools}), and the cluster has {have} ({kind})",
                      "make the pools smaller, or add machines")  # fmt: skip


def _cannot(message: str, hint: str) -> RunError:
    return RunError(Diagnostic("E0745", message, NO_SPAN, hint))
