"""Starts the processes of a plan on a Ray cluster, on Ray started on this machine, or as objects in this process."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlgraph.backends.engines.process_groups import INTERFACES, loopback_interface
from rlgraph.backends.enginespec.registry import engines_by_name
from rlgraph.backends.enginespec.start_demand import StartDemand
from rlgraph.backends.hard.node import HardNodes
from rlgraph.backends.hard.seats import hard_seats
from rlgraph.backends.lock_places import TOGETHER
from rlgraph.backends.ray.actors import Actors
from rlgraph.backends.ray.daemons import Daemons, keep_signal_handlers
from rlgraph.backends.ray.processes import InlineProcesses, Processes
from rlgraph.backends.ray.row_refs import Address
from rlgraph.backends.ray.start_timeout import longer_start_timeout
from rlgraph.backends.ray.worker import ORDERS, ROWS, SAMPLES, SAVES, SORTS, Worker, WorkerSpec
from rlgraph.backends.worker.session import Settings
from rlgraph.errors import NO_SPAN, Diagnostic, RunError, count_phrase
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import HOST, Group, Plan
from rlgraph.ops.nodes import NODES, user_code_of

_CONNECT = 5.0
"""Seconds in which a running cluster answers."""
_PATIENCE = 60.0
"""Seconds to wait for others to free the devices that they use."""
_SLICE = 0.5
_STORE = 1 << 30
"""Bytes of Ray's object store on this machine, which holds rows in transit and no weights; what does not fit is spilled
to disk. Ray's default is a third of the memory, which a laptop needs for the models."""
_STORE_VARIABLES = ("RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION", "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES")
"""Environment variables with which the user chooses another size."""


def start_processes(
    program: Program,
    plan: Plan,
    settings: Settings,
    *,
    address: str | None,
    debug: bool,
    seconds: float,
    memory: int,
    note: Callable[[str], None],
    hard: HardNodes | None = None,
    demands: Mapping[tuple[str, str], StartDemand] | None = None,
) -> Processes:
    """Start every process of the plan, without opening any. Raises RunError for what the cluster cannot hold.

    memory: bytes that the processes need together at least. hard: the devices that processes are held to,
    and what engines want of them when they start, by group and model.
    """
    counts = None if hard is None else TemporaryDirectory(prefix="rlgraph-hard-")
    seats = {} if hard is None or counts is None else hard_seats(plan, hard, Path(counts.name), demands)
    specs = {
        (group.name, rank): WorkerSpec(
            program,
            group,
            rank,
            settings,
            outside_names_to_open(program, plan, group, rank),
            seconds,
            hard=seats.get((group.name, rank)),
        )
        for group in plan.groups
        for rank in range(group.mesh.rank_count)
    }
    if debug:
        processes: Processes = InlineProcesses(specs)
    else:
        note("Ray")
        processes = _actors(plan, specs, address, seconds, memory, note, hard)
    processes.counts = counts
    return processes


def outside_names_to_open(program: Program, plan: Plan, group: Group, rank: int) -> frozenset[str]:
    """Return the names of what a process of a group opens from outside the program: the code that is placed on the
    group; where models act, the environments without a pool of their own; the first of the host everything else
    without a pool."""
    if group.code:
        return frozenset(group.code)
    free = [outside for outside in program.outside if plan.group_of_code(outside.name) is None]
    if group.name == HOST:
        return frozenset() if rank else frozenset(outside.name for outside in free)
    acted_in = {user_code_of(node) for _, node in program.walk() if NODES[node.op].uses_model}
    return frozenset(outside.name for outside in free if outside.name in acted_in)


def _actors(
    plan: Plan,
    specs: Mapping[Address, WorkerSpec],
    address: str | None,
    seconds: float,
    memory: int,
    note: Callable[[str], None],
    hard: HardNodes | None,
) -> Actors:
    import ray
    from ray.util.placement_group import remove_placement_group

    address = address or os.environ.get("RAY_ADDRESS")
    starts_ray = not ray.is_initialized()
    groups: dict[str, Any] = {}
    daemons = Daemons()

    def shut_down_ray() -> None:
        for group in groups.values():
            remove_placement_group(group)
        if starts_ray:
            ray.shutdown()
            daemons.kill_remaining()

    try:
        if starts_ray:
            _connect(ray, address, plan, note, daemons, hard)
        kind = _kind(ray)
        _check_room(ray, plan, kind, memory)
        _reserve(ray, plan, kind, groups, min(seconds, _PATIENCE))
        here = ray.get_runtime_context()
        alone = _machines(groups) <= {here.get_node_id()}
        specs = {who: replace(spec, alone=alone) for who, spec in specs.items()}
        logs = os.path.join(here.get_temp_dir(), here.get_session_name(), "logs")

        # Once: Ray may number machines otherwise when one is lost, and others have their bundles by then.
        bundles = {name: bundles_by_device(bundle_machines(group)) for name, group in groups.items()}

        def start_process(spec: WorkerSpec) -> Any:
            return _begin(ray, plan, spec, kind, groups, bundles)

        handles = {who: start_process(spec) for who, spec in specs.items()}
        return Actors(specs, handles, seconds, shut_down_ray, logs, start_process)
    except BaseException:
        shut_down_ray()
        raise


def _kind(ray: Any) -> str:
    """Return Ray's name of the cluster's devices."""
    return "GPU" if ray.cluster_resources().get("GPU") else "CPU"


def _begin(
    ray: Any,
    plan: Plan,
    spec: WorkerSpec,
    kind: str,
    groups: Mapping[str, Any],
    bundles: Mapping[str, Sequence[int]],
) -> Any:
    """Start one process and return its actor handle. bundles: for each pool the bundle that each of its devices is."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

    group = spec.group
    place: Any
    if group.name == HOST:
        fraction = 0.0
        place = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    else:
        # Groups of one pool take turns on its devices: each reserves a fraction of them, in Ray's granularity of 1e-4.
        sharing = sum(other.pool == group.pool for other in plan.groups)
        fraction = math.floor(1e4 / sharing) / 1e4
        kind = "CPU" if group.code else kind
        place = PlacementGroupSchedulingStrategy(groups[group.pool], bundles[group.pool][group.devices[spec.rank]])
    actor = ray.remote(concurrency_groups={ROWS: 4, ORDERS: SORTS, SAVES: 1, SAMPLES: 2 * TOGETHER})(Worker)
    return actor.options(
        num_cpus=fraction if kind == "CPU" else 0,
        num_gpus=fraction if kind == "GPU" else 0,
        max_restarts=0,
        # Ray's control process would keep a record of each of the last 100,000 calls: 100 kB for a small step.
        enable_task_events=False,
        scheduling_strategy=place,
        runtime_env={"env_vars": process_env_vars(kind, spec.alone, group.engine, spec.hard is not None)},
    ).remote(spec)


# The cluster


def _connect(
    ray: Any,
    address: str | None,
    plan: Plan,
    note: Callable[[str], None],
    daemons: Daemons,
    hard: HardNodes | None = None,
) -> None:
    """Join the cluster at an address, or start Ray here."""
    # A process without a device of its own (the host's) still sees the machine's devices.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray's control process would keep a record of each thread that makes a call: 1.5 kB, several in each step.
    os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
    # What workers print stays in their logs; error messages say where those are.
    common = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address and address != "local":
            _check_address(address)
            with keep_signal_handlers():
                ray.init(address=address, **common)
        else:
            # Ray reports no usage statistics, unless the user has asked for it.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            # Ray would prestart a process for each core, none of which has the environment of our actors.
            os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
            room = _local_room(plan, note) | ({} if hard is None else {"num_gpus": hard.devices})
            with keep_signal_handlers(), daemons.start_in_own_session(), longer_start_timeout():
                ray.init("local", include_dashboard=False, **room, **common)
    except Exception as error:  # Ray raises a plain Exception where its processes do not start.
        where = f"the cluster at {address}" if address else "Ray on this machine"
        raise _cannot(
            f"{where} cannot be reached: {next(iter(str(error).splitlines()), type(error).__name__)}",
            "`ray status` shows which cluster runs; leave --address out to start one here",
        ) from None


def _local_room(plan: Plan, note: Callable[[str], None]) -> dict[str, int]:
    """Return the resources that Ray is told this machine has."""
    import torch

    devices, cpus = (sum(getattr(pool, name) for pool in plan.pools) for name in ("devices", "cpus"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    room = {}
    if not torch.cuda.device_count():
        # On a laptop the devices and cpus of a plan share its cores, which is slow but correct.
        room["num_cpus"] = max(devices + cpus, cores)
        if devices + cpus > cores:
            more = f" and {count_phrase(cpus, 'cpu')}" if cpus else ""
            note(f"Ray: {count_phrase(devices, 'device')}{more} on {count_phrase(cores, 'core')}")
    if not any(name in os.environ for name in _STORE_VARIABLES):
        room["object_store_memory"] = _STORE
    return room


def _check_address(address: str) -> None:
    """Raise OSError where nobody listens: Ray itself would retry for minutes."""
    if address == "auto":
        return
    if "://" in address:
        raise ValueError(
            "Ray Client is not supported; give HOST:PORT from a machine of the cluster, or use `ray job submit`"
        )
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError("an address is HOST:PORT, or `auto` for the cluster that this machine belongs to")
    socket.create_connection((host, int(port)), timeout=_CONNECT).close()


def _check_room(ray: Any, plan: Plan, kind: str, memory: int) -> None:
    """Raise RunError where the cluster lacks what the plan needs, before anything is started."""
    needed = _needed(plan, kind)
    for name, count in needed.items():
        available = int(ray.cluster_resources().get(name, 0))
        if count > available:
            counts = count_phrase(count, "cpu" if name != kind else "device")
            raise _cannot(
                f"the plan needs {counts} ({_pools(plan, kind, name)}), and the cluster has {available} ({name})",
                "make the pools smaller, or add machines",
            )
    cluster_memory = int(ray.cluster_resources().get("memory", 0))
    # Ray does not know the memory of GPUs.
    if kind == "CPU" and memory > cluster_memory:
        raise _cannot(
            f"the plan needs {memory / 1e9:.1f} GB at least, for weights, gradients and moments, and the cluster has "
            f"{cluster_memory / 1e9:.1f} GB",
            "take smaller models, split them further, or add machines",
        )


def _reserve(ray: Any, plan: Plan, kind: str, groups: dict[str, Any], seconds: float) -> None:
    """Reserve the devices of every pool, as placement groups in `groups`; others may free theirs within `seconds`."""
    from ray.util.placement_group import placement_group

    for pool in plan.pools:
        # The host's processes are where the run was started, and reserve nothing.
        if (size := pool.devices or pool.cpus) and pool.name != HOST:
            resource = kind if pool.devices else "CPU"
            groups[pool.name] = placement_group([{resource: 1} for _ in range(size)], strategy="PACK")
    end = time.monotonic() + seconds
    for group in groups.values():
        # Short waits, so that Ctrl-C gets through between them.
        while not group.wait(_SLICE):
            if time.monotonic() > end:
                free = ", ".join(
                    f"{_pools(plan, kind, name)}, and {int(ray.available_resources().get(name, 0))} are free ({name})"
                    for name in _needed(plan, kind)
                )
                message = f"others use the devices of the cluster: the plan needs {free}"
                raise _cannot(message, "try again when they are free; `ray status` shows what is used")


def _needed(plan: Plan, kind: str) -> dict[str, int]:
    """Return how much of each resource all pools need together: of the cluster's kind of device, and of CPUs."""
    needed = {kind: sum(pool.devices for pool in plan.pools)}
    cpus = sum(pool.cpus for pool in plan.pools)
    return needed | ({"CPU": needed.get("CPU", 0) + cpus} if cpus else {})


def _pools(plan: Plan, kind: str, resource: str) -> str:
    """Return a text of the pools that need a resource, and how much of it."""
    sizes = {pool.name: pool.devices * (kind == resource) + pool.cpus * (resource == "CPU") for pool in plan.pools}
    return ", ".join(f"`{name}` {size}" for name, size in sizes.items() if size)


def bundle_machines(group: Any) -> dict[int, str]:
    """Return Ray's id of the machine that each bundle of a placement group is on."""
    from ray.util.placement_group import placement_group_table

    return dict(placement_group_table(group)["bundles_to_node_id"])


def bundles_by_device(machines: Mapping[int, str]) -> list[int]:
    """Return which bundle each device of a pool is: neighbours are on one machine, as the plan has them. Ray packs
    bundles on few machines, and numbers them in no order of these. The machine with the most comes first, so that what
    begins at a multiple of its size lies on one. machines: that of each bundle."""
    on = dict[str, list[int]]()
    for bundle in sorted(machines):
        on.setdefault(machines[bundle], []).append(bundle)
    return [bundle for bundles in sorted(on.values(), key=len, reverse=True) for bundle in bundles]


def _machines(groups: Mapping[str, Any]) -> set[str]:
    """Return Ray's ids of the machines that have the reserved devices."""
    return {machine for group in groups.values() for machine in bundle_machines(group).values()}


def process_env_vars(kind: str, alone: bool, engine: str, hard: bool = False) -> dict[str, str]:
    """Return the environment variables of a process of an engine. On CPU each process gets one thread, since one
    process for each device would otherwise oversubscribe the cores. alone: all processes run on this machine, so that
    the loopback interface is enough. hard: it computes on a CPU as if it had a GPU."""
    variables = {"TOKENIZERS_PARALLELISM": "false"}
    if alone and INTERFACES not in os.environ and (inside := loopback_interface()):
        variables[INTERFACES] = inside
    if hard:
        variables["OMP_NUM_THREADS"] = "1"
    if kind == "CPU":
        variables |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    elif engine in engines_by_name():
        wanted = engines_by_name()[engine].gpu_environment
        # What the user has set here counts on other machines, too; torch reads an older name of its settings as well.
        older = "PYTORCH_CUDA_ALLOC_CONF" in os.environ
        variables |= {
            name: os.environ.get(name, value)
            for name, value in wanted.items()
            if not (older and name == "PYTORCH_ALLOC_CONF")
        }
    return variables


def _cannot(message: str, hint: str) -> RunError:
    return RunError(Diagnostic("E0745", message, NO_SPAN, hint))
