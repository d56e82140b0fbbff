"""The simulation of a plan in virtual time: how long its step takes, what its pools wait for, what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from rlgraph.backends.device_queues import device_set
from rlgraph.backends.sim.accounting import (
    PoolTime,
    mean_steps_in_flight,
    mean_untrained_rows,
    pool_time,
    worker_pool_time,
)
from rlgraph.backends.sim.backend import SimBackend
from rlgraph.backends.sim.steady_state import longest_cycle_seconds, simulate_steps
from rlgraph.backends.sim.work_log import CostPredictor
from rlgraph.backends.sim.works import Work, worker_name
from rlgraph.catalog.clusters.cluster import Cluster
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.shape import Shape
from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError, count_phrase
from rlgraph.errors.arguments import check_arguments
from rlgraph.explain.pipelines import roles_by_model
from rlgraph.explain.simulation import Simulation
from rlgraph.ir.plan import Plan, Pool
from rlgraph.passes.compilation.assumed_workload import assumed_workload
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.compilation.overlap_simulation import SimulationProgress
from rlgraph.passes.cost.calibration import Calibration
from rlgraph.passes.cost.constants import Constants, default_constants
from rlgraph.passes.cost.deployment import ModelConfig
from rlgraph.passes.cost.predict import Predictor
from rlgraph.passes.cost.workload import Workload
from rlgraph.passes.placement.model_configs import model_config
from rlgraph.runs.planfiles.memory import memory_errors


def simulate(
    compiled: Compilation,
    cluster: str | Cluster | None = None,
    *,
    steps: int = 1,
    workload: Workload | None = None,
    constants: Constants | None = None,
    calibration: Calibration | None = None,
    seed: int = 0,
) -> Simulation:
    """Return a simulation of the plan of a compiled program, in virtual time. Raise ProgramError. Ctrl-C ends it with
    the steps that are done.

    - `compiled`: the program, from `rlgraph.compile` or `rlgraph.load_plan`.
    - `cluster`: what it runs on, such as "16x8:a100-80gb"; if not given, the one that the plan was made for, or CPUs of
      this machine.
    - `steps`: how many steps, from the middle of a run.
    - `workload`: how long rows are, and how many of them filters keep, from `rlgraph.workload`.
    - `constants`: those of the cost model; if not given, the defaults for the devices.
    - `calibration`: measured constants, and rates of a device.
    - `seed`: which rows are long, and which are kept.
    """
    check_arguments(compiled=compiled, cluster=cluster, steps=steps, workload=workload, seed=seed)
    workload = workload or assumed_workload(compiled)
    _check(steps, workload)
    plan = _laid_out(compiled.plan)
    if isinstance(cluster, str):
        cluster = read_cluster(cluster)
    checks_memory = compiled.file is not None or cluster is not None and compiled.planned
    cluster = cluster or _cluster_of(plan)
    needed = max(pool.first + pool.devices for pool in plan.pools)
    if needed > cluster.device_count:
        message = f"the plan needs {count_phrase(needed, 'device')}, and `{cluster.text}` has {cluster.device_count}"
        raise ProgramError(
            Diagnostic("E0960", message, compiled.schedule.span, "give a larger `--cluster`, or smaller pools")
        )
    if checks_memory and (wrong := memory_errors(compiled, cluster, workload, constants, plan)):
        raise ProgramError(wrong)
    if calibration is not None:
        cluster, constants = calibration.with_measured_rates(cluster), calibration.constants
    if constants is None and compiled.target is not None:
        constants = compiled.target.constants
    constants = constants or default_constants(cluster.islands[0].device.kind)
    predictor = Predictor(plan, model_configs(compiled), cluster, constants)
    with closing(SimulationProgress("simulating")) as progress:
        result = simulate_plan(
            compiled, plan, cluster, predictor, workload, steps, seed, constants.source, progress=progress
        )
    if steps == 1 or result.interrupted:
        return result
    free = SimBackend(compiled.program, plan, predictor, workload, seed, turns=False)
    return replace(result, cycle=longest_cycle_seconds(free))


def simulate_plan(
    compiled: Compilation,
    plan: Plan,
    cluster: Cluster,
    predictor: CostPredictor,
    workload: Workload,
    steps: int = 1,
    seed: int = 0,
    source: str = "",
    *,
    progress: SimulationProgress | None = None,
) -> Simulation:
    """Simulate steps of a plan with any predictor of the seconds. progress: shows how far it is, and lets Ctrl-C end it
    with the steps that are done."""
    backend = SimBackend(compiled.program, plan, predictor, workload, seed, observer=progress)

    def step_done(done: int, whole: int) -> None:
        if progress is not None:
            progress.show_steps_done(done, whole, backend.now())

    run = simulate_steps(backend, steps, step_done, keep=progress is not None)
    works, (first, after) = backend.works, run.works
    began, ended = run.began, run.ends[-1]
    rows, tokens, trained = (sum(step[name] for step in run.step_metrics) for name in ("rows", "tokens", "trained"))
    ages: dict[int, float] = {}
    for name, value in (item for step in run.step_metrics for item in step.items()):
        if name.startswith("age/"):
            age = int(name.removeprefix("age/"))
            ages[age] = ages.get(age, 0.0) + value
    return Simulation(
        compiled.name,
        plan,
        cluster,
        (*works[first:after], *(work for work in works[after:] if work.start < ended)),
        tuple(_time_of(pool, plan, works, began, ended) for pool in plan.pools),
        began,
        run.ends,
        rows,
        tokens,
        trained,
        ages,
        run.warm_up,
        run.steady,
        mean_steps_in_flight(works, began, ended),
        mean_untrained_rows(works, began, ended),
        source=source,
        roles=roles_by_model(compiled.program),
        interrupted=run.interrupted,
    )


def _time_of(pool: Pool, plan: Plan, works: Sequence[Work], began: float, ended: float) -> PoolTime:
    """Return the busy and idle times of a pool."""
    if not plan.works_independently(pool):
        return pool_time(pool.name, works, began, ended)
    groups = [group for group in plan.groups if group.pool == pool.name]
    workers = {group.name: device_set(group).places for group in groups} | {
        worker_name(group.name, copy): device_set(group, copy).places
        for group in groups
        for copy in range(group.mesh.axis_size("dp"))
    }
    return worker_pool_time(pool.name, workers, works, began, ended)


def _check(steps: int, workload: Workload) -> None:
    """Raise ProgramError if the steps or the workload cannot be simulated."""
    if steps < 1:
        raise ProgramError(Diagnostic("E0964", f"{steps} steps cannot be simulated", NO_SPAN, "simulate 1 or more"))
    for name, share, most in (("foresight", workload.foresight, "1"), ("alike", workload.alike, "less than 1")):
        if not 0 <= share <= 1 or (name == "alike" and share == 1):
            message = f"`{name}` is a correlation, and {share:g} is none that can be simulated"
            raise ProgramError(Diagnostic("E0964", message, NO_SPAN, f"from 0 to {most}"))
    if not 0 < workload.kept <= 1:
        message = f"a share of {workload.kept:g} of the rows cannot be kept"
        raise ProgramError(Diagnostic("E0964", message, NO_SPAN, "give a share over 0 and up to 1, such as 0.5"))


def _laid_out(plan: Plan) -> Plan:
    """Return a plan whose pools have devices: if no cluster says which, they are laid out one after the other."""
    if plan.cluster:
        return plan
    pools, first = [], 0
    for pool in plan.pools:
        pools.append(replace(pool, first=first))
        first += pool.devices
    return replace(plan, pools=tuple(pools))


def _cluster_of(plan: Plan) -> Cluster:
    """Return the cluster of a plan; without one, a machine with as many CPUs as it has devices."""
    return read_cluster(plan.cluster or f"1x{max(1, sum(pool.devices for pool in plan.pools))}:cpu")


def model_configs(compiled: Compilation) -> Mapping[str, ModelConfig]:
    """Return the configurations of the models that are used. Raise ProgramError if one has no known shape."""
    configs = {}
    for model in compiled.program.models:
        shape = compiled.placed.shapes.get(model.name)
        if isinstance(shape, Shape):
            configs[model.name] = model_config(model, shape, compiled.program)
        elif model.name in dict(compiled.plan.owners):
            message = f"the work of `{model.name}` cannot be predicted: {shape or 'its configuration is not here'}"
            hint = "take a well-known model, or a folder with its `config.json`"
            raise ProgramError(Diagnostic("E0962", message, model.span, hint))
    return configs
