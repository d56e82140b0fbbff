"""`rlgraph profile`: measures how long the engines of this machine take for work of known sizes, and fits the cost
model's constants to that.

Each engine does the points of a few small models, all of them several times in turn; for each piece of work the time
counts that seven of ten of its repetitions exceed: the machine may have other work.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from rlgraph.backends.enginespec import registry
from rlgraph.backends.enginespec.rates import Rates, WorkKind
from rlgraph.catalog.clusters.cluster import Cluster, DeviceKind, cpu_or_gpu
from rlgraph.catalog.clusters.devices import device_names_by_alias
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.explain.simulate import model_configs
from rlgraph.ops.nodes import NODES
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.calibration import Calibration, HeldOutErrors, MeasuredDevice, constants_from_rates
from rlgraph.passes.cost.constants import Constants, HostCosts, default_constants
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.predict import Predictor, TaskCostModel
from rlgraph.profiles.calibration import OPTIONAL
from rlgraph.profiles.fit import fit_constants, nonnegative_least_squares
from rlgraph.profiles.probes import Probe, ProbeModel, ProbeWork
from rlgraph.profiles.timed_run import (
    CoreWaitReader,
    TimedRun,
    TimedStep,
    TimedWork,
    observe_run,
    works_by_occurrence_in_step,
)
from rlgraph.runs.options import LOCAL, RAY, RunOptions

SIZES: Mapping[DeviceKind, tuple[ProbeModel, ...]] = {
    "cpu": (ProbeModel(64, 12, 32), ProbeModel(128, 2, 512), ProbeModel(256, 3, 1024, heads=4)),
    "gpu": (
        ProbeModel(256, 4, 512, heads=4),
        ProbeModel(1024, 6, 8192, heads=16),
        ProbeModel(2048, 8, 32768, heads=16),
    ),
}
"""The shapes of the models. One is deep and narrow: otherwise the cost of layers would be mistaken for that of
products."""
POINTS: Mapping[DeviceKind, tuple[ProbeWork, ...]] = {
    "cpu": (ProbeWork(1, 8), ProbeWork(16, 8, 2), ProbeWork(4, 40, 2), ProbeWork(16, 32, 0)),
    "gpu": (ProbeWork(1, 32), ProbeWork(8, 32, 2), ProbeWork(8, 256, 2), ProbeWork(32, 64, 0)),
}
"""Small points on a GPU would only show the cost of a call. As many rows of other lengths separate the cost of a row
from that of its tokens."""
DTYPE: Mapping[DeviceKind, str] = {"cpu": "float32", "gpu": "bfloat16"}
ROUNDS, WARM = 5, 1
TRIES = 12
QUIET = 0.3
"""The quantile of the repetitions' seconds that is taken, because the quickest were disturbed least."""
TIMEOUT = 300.0

ALONE, ONE, RANKS, COPIES = "this process", "one process for each engine", "two tensor-parallel ranks", "two copies"

OPERATIONS: Mapping[WorkKind, str] = {"generate": "generate", "forward": "logprobs", "train": "train"}
RATES = tuple(rate.name for rate in fields(Rates) if rate.name not in OPTIONAL)
INVERSE = ("compute", "memory")
"""The shares that are fitted as their inverses."""
LEAST = {"compute": 0.2, "memory": 0.1}
"""The least values of the fit: the device's own rates may have been measured while it was disturbed."""
START = {"compute": 2.0, "memory": 2.0, "crowd": 0.1, "lock": 0.1, "hidden": 1e-7}

Note = Callable[[str], None]
Beside = Callable[[str], Sequence[TimedRun]]


@dataclass(frozen=True, slots=True)
class TimedSample:
    """A piece of work and how long it took."""

    kind: WorkKind
    config: ModelConfig
    deployment: Deployment
    batch: Batch
    seconds: float


@dataclass(frozen=True, slots=True)
class ProbeSetup:
    """A run of the probe that measures some engines."""

    what: str
    schedule: str
    threads: int = 0
    """The number of threads of a run in this process; 0 means a run on Ray."""


def profile_machine(
    engines: Sequence[str] | None = None,
    *,
    threads: int = 2,
    quick: bool = False,
    note: Note = lambda text: None,
    beside: Beside = lambda what: (),
) -> Calibration:
    """Measure this machine and return its calibration.

    engines: those to measure; None: all that are installed. threads: of the embedded engine, in a run besides one
    thread. quick: fewer repetitions, and one split of each engine alone. note: is called with what is being measured.
    beside: returns, for what is measured next, other runs that progress step by step between its repetitions.
    """
    wanted = [name for name in registry.engines_by_name() if name in (engines or registry.installed_engines())]
    note("matrix products and memory")
    device = measure_device()
    kind = cpu_or_gpu(device.name)
    probe = Probe(SIZES[kind][:2] if quick else SIZES[kind], POINTS[kind], dtype=DTYPE[kind])
    cluster = Calibration(default_constants(kind), device).with_measured_rates(read_cluster(f"1x2:{device.name}"))
    samples: list[TimedSample] = []
    local, remote = _Overheads(), _Overheads()
    rounds = 3 if quick else ROUNDS
    setups = list(_setups(wanted, threads, quick, len(probe.sizes)))
    here = [setup for setup in setups if setup.threads]
    with tempfile.TemporaryDirectory() as folder:
        for setup, compiled, seen in _in_turn(probe, here, Path(folder), rounds, note, beside):
            samples += _samples(probe, compiled, setup, cluster, seen)
            local.add_steps(probe, seen, compiled)
        for setup in setups:
            if not setup.threads:
                [(_, compiled, seen)] = _in_turn(probe, [setup], Path(folder), rounds, note, beside)
                samples += _samples(probe, compiled, setup, cluster, seen)
                remote.add_steps(probe, seen, compiled)
    note("fitting")
    return _fitted(samples, local, remote, device)


def _setups(wanted: Sequence[str], threads: int, quick: bool, models: int) -> Iterator[ProbeSetup]:
    """Yield the runs that measure the engines."""
    plain = registry.embedded_engine().name
    if plain in wanted or not wanted:
        alone = _schedule([plain], models, "")
        yield ProbeSetup(ALONE, alone, 1)
        if threads > 1 and not quick:
            yield ProbeSetup(f"{threads} threads in this process", alone, threads)
    if RAY.missing_package or not set(wanted) - {plain}:
        return
    yield ProbeSetup(ONE, _schedule(wanted, models, ""))
    if not quick:
        yield ProbeSetup(RANKS, _schedule(wanted, models, "tp"))
        yield ProbeSetup(COPIES, _schedule(wanted, models, "dp"))


def _schedule(wanted: Sequence[str], models: int, axis: str) -> str:
    """Return a schedule in which each engine does what it can; with replicas, the last model runs on the embedded
    engine alone."""
    split = f", {axis}=2" if axis else ""
    lines = [f"pool all = {2 if axis else 1} devices"]
    for number in range(models):
        plain = axis == "dp" and number == models - 1
        trains = _best([] if plain else wanted, "train")
        generates = _best([] if axis == "dp" else wanted, "generate")
        splits = {name: split if axis in registry.engine(name).axes else "" for name in (trains, generates)}
        lines.append(f"place m{number}.train, r{number} on all(engine={trains}{splits[trains]})")
        lines.append(f"place m{number}.generate on all(engine={generates}{splits[generates]})")
    return "\n".join(lines) + "\n"


def _best(wanted: Sequence[str], operation: str) -> str:
    """Return the engine, of some, that is best for an operation."""
    able = [name for name in wanted if operation in registry.engine(name).operations]
    return max(able, key=lambda name: registry.engine(name).preference, default=registry.embedded_engine().name)


def _in_turn(
    probe: Probe, setups: Sequence[ProbeSetup], folder: Path, rounds: int, note: Note, beside: Beside
) -> list[tuple[ProbeSetup, Compilation, list[TimedStep]]]:
    """Run the setups step by step in turn, so that what disturbs one disturbs all."""
    runs = []
    with ExitStack() as stack:
        for setup in setups:
            note(f"{setup.what}: starting")
            compiled = probe.compile_program(Path(tempfile.mkdtemp(dir=folder)), setup.schedule)
            backend = LOCAL if setup.threads else RAY
            options = RunOptions(backend=backend.name, threads=setup.threads or 1, timeout=TIMEOUT)
            runs.append((setup, compiled, stack.enter_context(observe_run(compiled, options))))
        others = beside(setups[0].what) if setups else ()
        for turn in range(WARM + rounds):
            for setup, _, run in runs:
                note(f"{setup.what}: {turn + 1} of {WARM + rounds}")
                run.run_steps()
            for background in others:
                background.run_steps()
    return [(setup, compiled, run.timed_steps[WARM:]) for setup, compiled, run in runs]


# Samples


def undisturbed_seconds(values: Sequence[float]) -> float:
    """Return the seconds of repetitions that were disturbed little."""
    return float(np.quantile(values, QUIET))


def _samples(
    probe: Probe, compiled: Compilation, setup: ProbeSetup, cluster: Cluster, seen: Sequence[TimedStep]
) -> Iterator[TimedSample]:
    """Yield the samples of a run."""
    turns, models = works_by_occurrence_in_step(seen), model_configs(compiled)
    predictor = Predictor(
        compiled.plan, models, cluster, default_constants(cluster.islands[0].device.kind), setup.threads or 1
    )

    def make_timed_sample(kind: WorkKind, model: str, batch: Batch, done: Sequence[TimedWork]) -> TimedSample:
        deployment = predictor.deployment(model, compiled.plan.group_of_role(model, OPERATIONS[kind]))
        return TimedSample(kind, models[model], deployment, batch, undisturbed_seconds([work.inside for work in done]))

    for number, _ in enumerate(probe.sizes):
        turn = 0
        for place, point in enumerate(probe.points):
            generated, trained = probe.batches_at(point)
            yield make_timed_sample("generate", f"m{number}", generated, turns[f"g{number}_{place}", "generate", 0])
            if not point.parts:
                continue
            read = replace(generated, samples=1)
            yield make_timed_sample("forward", f"r{number}", read, turns[f"p{number}_{place}", "logprobs", 0])
            updates = [work for part in range(point.parts) for work in turns[f"train m{number}", "train", turn + part]]
            yield make_timed_sample("train", f"m{number}", trained, updates)
            turn += point.parts


class _Overheads:
    """The overheads of a run: time that is not work with a model."""

    def __init__(self) -> None:
        self.orders: list[tuple[int, float]] = []
        """The number of a group's processes, and the seconds of a node besides its work."""
        self.nodes: list[tuple[float, float]] = []
        """The number of rows, and the seconds in the process."""
        self.calls: list[tuple[float, float]] = []
        self.syncs: list[float] = []
        self.gaps: list[float] = []
        """The seconds besides all nodes, divided by the number of nodes."""

    def add_steps(self, probe: Probe, seen: Sequence[TimedStep], compiled: Compilation) -> None:
        """Add the overheads of some steps."""
        most = max(pool.devices for pool in compiled.plan.pools)
        self.gaps.append(undisturbed_seconds([step.idle_seconds / len(step.done) for step in seen]))
        for (name, op, _), done in works_by_occurrence_in_step(seen).items():
            inside = undisturbed_seconds([work.inside for work in done])
            if op == "sync":
                self.syncs.append(inside)
                continue
            record = NODES[op]
            order = undisturbed_seconds([work.seconds - work.inside for work in done])
            if order > 0:
                self.orders.append((most if record.uses_model else 1, order))
            if (record.foreign or record.has_body) and "_" in name:
                rows = float(probe.prompts * probe.points[int(name.rsplit("_")[-1])].samples)
                (self.calls if record.foreign else self.nodes).append((rows, inside))


# Constants


def _fitted(
    samples: Sequence[TimedSample], local: _Overheads, remote: _Overheads, device: MeasuredDevice
) -> Calibration:
    """Return the calibration that is fitted to the samples."""
    rates: dict[tuple[str, WorkKind], Rates] = {}
    errors, held_out = {}, {}
    for engine in dict.fromkeys(sample.deployment.engine for sample in samples):
        for kind in get_args(WorkKind):
            of_kind = [sample for sample in samples if (sample.deployment.engine, sample.kind) == (engine, kind)]
            if of_kind:
                rates[engine, kind], errors[f"{engine}.{kind}"] = fit_rates(of_kind)
                if left := held_out_errors(of_kind):
                    held_out[f"{engine}.{kind}"] = left
    base = default_constants(cpu_or_gpu(device.name))
    scalars = {"sync": undisturbed_seconds(remote.syncs)} if remote.syncs else {}
    constants = constants_from_rates(rates, _host(local, remote, base.host), scalars, "measured", base)
    return Calibration(constants, device, machine_description(), errors, held_out)


def fit_rates(samples: Sequence[TimedSample]) -> tuple[Rates, float]:
    """Return the rates of one engine and one kind of work, and their median relative error."""
    names = [name for name in RATES if _matters(name, samples)]
    seconds = np.array([sample.seconds for sample in samples])

    def predict_seconds(values: np.ndarray) -> np.ndarray:
        return np.array([predicted_seconds(sample, _rates(names, values)) for sample in samples])

    start = np.array([START.get(name, 1e-4) for name in names])
    fitted = fit_constants(predict_seconds, seconds, start, np.array([LEAST.get(name, 0.0) for name in names]))
    return _rates(names, fitted), float(np.median(np.abs(predict_seconds(fitted) / seconds - 1)))


def held_out_errors(samples: Sequence[TimedSample]) -> HeldOutErrors | None:
    """Return the median and the largest error over the models, for one engine and kind of work, of constants that are
    fitted to the other models; None if there is only one model."""
    shapes = dict.fromkeys(sample.config.shape for sample in samples)
    if len(shapes) == 1:
        return None
    errors: list[float] = []
    for shape in shapes:
        rates, _ = fit_rates([sample for sample in samples if sample.config.shape != shape])
        held_out = [sample for sample in samples if sample.config.shape == shape]
        errors += [abs(predicted_seconds(sample, rates) / sample.seconds - 1) for sample in held_out]
    return HeldOutErrors(float(np.median(errors)), max(errors))


def _matters(name: str, samples: Sequence[TimedSample]) -> bool:
    """Return whether a constant was measured; one that was not stays 0."""
    kind = samples[0].kind
    if name == "update":
        return kind == "train"
    if name in ("begin", "hidden"):
        return kind == "generate"
    if name == "memory":
        return kind != "forward"
    needed = {
        "reduce": lambda deployment: deployment.tp > 1,
        "crowd": lambda deployment: deployment.rank_count > 1,
        "lock": lambda deployment: deployment.threads > 1,
    }
    return name not in needed or any(needed[name](sample.deployment) for sample in samples)


def _rates(names: Sequence[str], values: np.ndarray) -> Rates:
    """Return rates with these values; those of `INVERSE` are given as inverses."""
    by_name = dict(zip(names, values.tolist(), strict=True))
    return Rates(**({"compute": 1.0, "memory": 1.0} | {n: 1 / v if n in INVERSE else v for n, v in by_name.items()}))


def predicted_seconds(sample: TimedSample, rates: Rates) -> float:
    """Return the seconds of a sample by the cost model."""
    kinds: dict[tuple[str, WorkKind], Rates] = {(sample.deployment.engine, kind): rates for kind in get_args(WorkKind)}
    done, deployment = OPERATIONS[sample.kind], sample.deployment
    return (
        TaskCostModel(done, sample.config, deployment, Constants(kinds), [sample.batch])
        .work_cost(deployment.dp)
        .seconds
    )


def _host(local: _Overheads, remote: _Overheads, base: HostCosts) -> HostCosts:
    """Return the costs of the host, fitted to the overheads."""
    host = base
    alone = local if local.nodes else remote
    if alone.nodes:
        node, row = _line(alone.nodes)
        # The fixed cost of a call is that of a node; functions have a cost of their own for each row.
        function_row = max(0.0, float(np.median([(seconds - node) / rows for rows, seconds in alone.calls])))
        gap = undisturbed_seconds(local.gaps) if local.gaps else 0.0
        host = replace(host, node=node + gap, row=row, function_row=function_row)
    if remote.orders:
        order, rank = _line(remote.orders)
        host = replace(host, order=order + undisturbed_seconds(remote.gaps), order_rank=rank)
    return host


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the fixed seconds, and the seconds of each additional unit; neither is negative."""
    counts, seconds = np.array(points).T
    fixed, more = nonnegative_least_squares(
        np.stack([np.ones_like(counts), counts], 1) / seconds[:, None], np.ones_like(seconds)
    )
    return float(fixed), float(more)


# The machine


def measure_device() -> MeasuredDevice:
    """Return the rates of one process's device: of large matrix products, and of a copy in its memory."""
    from time import perf_counter

    import torch

    name = "cuda" if torch.cuda.is_available() else "cpu"
    side, numbers = (8192, 1 << 28) if name == "cuda" else (1024, 1 << 24)

    def time_undisturbed(act: Callable[[], Any]) -> float:
        cores, times = CoreWaitReader(), []
        for _ in range(TRIES):
            before, began = cores.wait_seconds(), perf_counter()
            act()
            if name == "cuda":
                torch.cuda.synchronize()
            taken, waited = perf_counter() - began, cores.longest_wait_since(before)
            # On a busy machine other threads of the process wait, too, and may wait longer than this took.
            times.append(taken - waited if waited < taken else taken)
        return undisturbed_seconds(times)

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        flops = {}
        for dtype in (torch.bfloat16, torch.float32) if name == "cuda" else (torch.float32, torch.float64):
            matrix = torch.rand(side, side, dtype=torch.float32, device=name).to(dtype)
            flops[str(dtype).removeprefix("torch.")] = 2 * side**3 / time_undisturbed(lambda a=matrix: a @ a)  # type: ignore[misc]
        source = torch.rand(numbers, device=name)
        target = torch.empty_like(source)
        return MeasuredDevice(_device_name(name), flops, 8 * numbers / time_undisturbed(lambda: target.copy_(source)))
    finally:
        torch.set_num_threads(before)


def _device_name(kind: str) -> str:
    """Return the device's name as clusters have it."""
    if kind == "cpu":
        return "cpu"
    import torch

    reported = torch.cuda.get_device_name().lower()
    near = [name for name in device_names_by_alias().values() if name.split("-")[0] in reported]
    return max(near, key=len, default="a100-80gb")


def machine_description() -> dict[str, str]:
    """Return a description of the machine that is measured."""
    import os

    import torch

    cores = os.cpu_count() or 1
    return {
        "processor": _processor(),
        "cores": str(cores),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
