"""How far what is predicted lies from what others have measured and published.

    python benchmarks/accuracy.py
    python benchmarks/accuracy.py --rows mine.csv
    python benchmarks/accuracy.py --json

Each row of the file is one measurement: a model on some devices, a kind of work, and what it took. Of its columns a
program, a schedule and a cluster are written (`measured.py`), which the simulator steps with the default constants
of the cost model. Nothing is run, and no GPU is needed. A row that cannot be written so is listed with the reason.

The rows that are measured against by themselves are those of `accuracy/measured.csv` and `accuracy/found.csv`,
published by others, and of `accuracy/ours.csv`. `accuracy/sources.csv` has who measured them, and whether constants
were fitted to that: to rows of a source or to none, which is then unseen. Any other file with their columns will do:
id, model, gpu, phase, engine, value and unit have to be there; nodes, gpus, tp, pp, dp, ep, cp, prompt_len,
response_len, batch, micro_batch, dtype, source and notes may be. So may longest (at how many tokens answers are cut)
and gen_tp (how weights are split while rows are sampled, of whole steps and of weights that travel). Notes may say
`lag = 1`; devices beyond tp x pp x dp then sample. They may say `a network of 400 Gb/s a node`. Training may have dtype
fp8, and `5 chunks a stage`, `16 updates`, `flash attention 3` and `micro-batches of up to 10,240 tokens` in its notes;
rows that are read for log-probabilities (phase logprobs) may have the last two.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import rlgraph
from benchmarks.measured import BadRows, Experiment, Inexpressible, Row, express, read_rows
from benchmarks.older_vllm import differing
from rlgraph.api.compiled import Compiled
from rlgraph.backends.enginespec import registry
from rlgraph.backends.enginespec.memory import ReservedCache
from rlgraph.backends.sim.backend import SimBackend
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.errors import ProgramError
from rlgraph.explain.simulate import model_configs, simulate_plan
from rlgraph.ir.plan import ModelHolding
from rlgraph.ops import model_work_of
from rlgraph.passes.compilation.target import parse_workload
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.predict import Predictor
from rlgraph.passes.cost.workload import Workload
from rlgraph.passes.placement.search import no_plan_errors

FILES = ("measured.csv", "found.csv", "ours.csv")
MEASURED = tuple(Path(__file__).resolve().parent / "accuracy" / name for name in FILES)
NEAR = 0.2
"""An error that is still near."""


@dataclass(frozen=True)
class Compared:
    """A row, what is predicted for it, and how far off that is."""

    row: Row
    experiment: Experiment
    predicted: float
    """Seconds, as `experiment.measured`."""

    @property
    def error(self) -> float:
        """Relative: 0.1 where a tenth too much is predicted."""
        return self.predicted / self.experiment.measured - 1

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.row.id,
            "group": self.experiment.group,
            "stands_in": self.experiment.engine,
            "measured_s": self.experiment.measured,
            "predicted_s": self.predicted,
            "error": self.error,
            "source": self.row.cells["source"],
            "publisher": self.row.publisher.name,
            "fitted": self.row.publisher.fitted,
        }


def _compiled(experiment: Experiment, lengths: Workload, offload: bool) -> Compiled:
    schedule = experiment.schedule or None
    return rlgraph.compile(
        experiment.program,
        schedule=schedule,
        cluster=experiment.cluster,
        workload=lengths,
        offload=offload,
        stream=False,
    )


@contextmanager
def limited(limits: Mapping[str, int]) -> Iterator[None]:
    """Engines with a reserved cache take on so much at a time."""
    changed = {
        name: replace(spec, memory=replace(spec.memory, cache=replace(spec.memory.cache, **dict(limits))))
        if isinstance(spec.memory.cache, ReservedCache)
        else spec
        for name, spec in registry.engines_by_name().items()
    }
    with patch.object(registry, "engines_by_name", lambda: changed):
        yield


def predicted(experiment: Experiment) -> float:
    """Seconds of the work that was measured. Raises ProgramError where the plan cannot be."""
    with differing(experiment.engines), limited(experiment.limits):
        return _predicted(experiment) * experiment.slowest + experiment.beside


def _predicted(experiment: Experiment) -> float:
    lengths = parse_workload(experiment.prompts, experiment.answers, 1.0)
    if not experiment.work:
        # What those who measured leave of a device to generation is not in the rows: models sleep only where nothing
        # fits without, as was so when constants were fitted.
        try:
            # Nobody reads what a refusal says would fit, which takes seconds to find.
            with patch.object(no_plan_errors, "_way_out", lambda *_: ""):
                made = _compiled(experiment, lengths, offload=False)
        except ProgramError:
            made = _compiled(experiment, lengths, offload=True)
        return _step_seconds(made, experiment, lengths)
    made = rlgraph.compile(experiment.program, schedule=experiment.schedule)
    cluster = read_cluster(experiment.cluster)
    differs: dict[str, Any] = dict(experiment.differs)
    if experiment.work == "weights":
        transfers = replace(default_constants(cluster.islands[0].device.kind), **differs)
        predictor = Predictor(made.plan, model_configs(made), cluster, transfers)
        source, target = (made.plan.group_of_role("actor", operation).name for operation in ("train", "generate"))
        return predictor.weight_sync_cost("actor", source, target).seconds
    group = made.plan.owner("actor").name
    held = ModelHolding("actor", group, micro_tokens=experiment.micro_tokens, recompute=experiment.recompute)
    plan = replace(made.plan, holdings=(held,))
    constants = default_constants(cluster.islands[0].device.kind)
    constants = replace(constants, uneven=0.0) if experiment.even else constants
    measured = made.plan.owner("actor").engine
    rates = {
        (engine, kind): replace(each, **differs) if engine == measured else each
        for (engine, kind), each in constants.rates.items()
    }
    configs = {
        name: replace(config, autocast=experiment.products) if experiment.products else config
        for name, config in model_configs(made).items()
    }
    predictor = Predictor(plan, configs, cluster, replace(constants, rates=rates))
    if experiment.work == "generates":
        # Rows of the next step, with the same weights, would be sampled beside these.
        backend = SimBackend(made.program, plan, predictor, lengths)
        for _ in backend.run_steps(1):
            return sum(work.seconds for work in backend.works if model_work_of(work.op) == experiment.work)
    found = simulate_plan(made, plan, cluster, predictor, lengths)
    return sum(
        work.seconds_within(found.began, found.ends[-1])
        for work in found.works
        if model_work_of(work.op) == experiment.work
    )


def _step_seconds(made: Compiled, experiment: Experiment, lengths: Workload) -> float:
    """Seconds of a whole step of a plan, with the micro-batches of those who measured."""
    most, plan, cluster = experiment.micro_tokens, made.plan, read_cluster(experiment.cluster)
    if most:
        held = (replace(each, micro_tokens=min(each.micro_tokens or most, most)) for each in plan.holdings)
        plan = replace(plan, holdings=tuple(held))
    predictor = Predictor(plan, model_configs(made), cluster, default_constants(cluster.islands[0].device.kind))
    return simulate_plan(made, plan, cluster, predictor, lengths).seconds


def compared(row: Row) -> Compared:
    """Raises Inexpressible."""
    experiment = express(row)
    try:
        return Compared(row, experiment, predicted(experiment))
    except ProgramError as error:
        raise Inexpressible(error.diagnostics[0].message) from None


@dataclass(frozen=True)
class Group:
    """How far off the rows are that one system has measured on one device."""

    name: str
    rows: Sequence[Compared]

    @property
    def median(self) -> float:
        return median(abs(each.error) for each in self.rows)

    @property
    def near(self) -> float:
        """The share of the rows within `NEAR`."""
        return sum(abs(each.error) <= NEAR for each in self.rows) / len(self.rows)

    @property
    def worst(self) -> Compared:
        return max(self.rows, key=lambda each: abs(each.error))

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.name,
            "rows": len(self.rows),
            "median_error": self.median,
            "bias": median(each.error for each in self.rows),
            "within_20_percent": self.near,
            "worst": self.worst.row.id,
            "worst_error": self.worst.error,
        }


def grouped(found: Sequence[Compared]) -> Iterator[Group]:
    """By what is measured, and all of them together."""
    for name in dict.fromkeys(each.experiment.group for each in found):
        yield Group(name, [each for each in found if each.experiment.group == name])
    if found:
        yield Group("all", found)


PHASES = {
    "generate": ("generating", ("generate",)),
    "prefill": ("reading prompts", ("prefill",)),
    "logprobs": ("log-probabilities", ("logprobs",)),
    "train": ("training", ("train",)),
    "weights": ("weights on their way", ("weights", "sync")),
    "step": ("whole steps", ("step",)),
}
"""By name those that rows have. Rewards and idle devices are in whole steps alone."""

TOTALS = """| phase | sources | rows | median error | bias | within 20% |
|---|--:|--:|--:|--:|--:|"""
GROUPS = """| what, system, device | rows | median error | bias | within 20% | the worst |
|---|--:|--:|--:|--:|---|"""
ROWS = """| row | model | split | prompt + answer | rows | predicted | measured | error |
|---|---|---|--:|--:|--:|--:|--:|"""


def group_line(group: Group) -> str:
    found = group.to_json()
    name = group.name + (
        f" (as {stands})" if (stands := group.rows[0].experiment.engine) and group.name != "all" else ""
    )
    worst = f"{found['worst']}, {found['worst_error']:+.0%}"
    cells = (name, found["rows"], f"{group.median:.1%}", f"{found['bias']:+.1%}", f"{group.near:.0%}", worst)
    return f"| {' | '.join(map(str, cells))} |"


def row_line(found: Compared) -> str:
    cell = found.row.cells
    split = " ".join(f"{name}{cell[name]}" for name in ("dp", "pp", "tp", "cp", "ep") if cell[name] not in ("", "1"))
    split += f", then tp{cell['gen_tp']}" if cell["gen_tp"] else ""
    cells = (
        found.row.id + "*" * (not found.row.publisher.fitted),
        cell["model"].split("/")[-1],
        split or ("one device" if found.experiment.schedule else "searched"),
        f"{cell['prompt_len'] or 0} + {cell['response_len'] or 0}",
        cell["batch"] + (f" x {samples}" if (samples := found.row.noted(r"\bn\s*=\s*(\d+)")) else ""),
        f"{found.predicted:.4g} s",
        f"{found.experiment.measured:.4g} s",
        f"{found.error:+.0%}",
    )
    return f"| {' | '.join(cells)} |"


def reasons(left: Sequence[tuple[Row, str]]) -> Iterator[str]:
    """Rows that are left out, those of one reason together."""
    for reason in dict.fromkeys(reason for _, reason in left):
        ids = [row.id for row, other in left if other == reason]
        yield f"- {', '.join(ids)}: {reason}."


def compare(rows: Sequence[Row]) -> tuple[list[Compared], list[tuple[Row, str]]]:
    """What is predicted for each row, and the rows for which nothing is, with the reason."""
    found, left = [], []
    for row in rows:
        try:
            found.append(compared(row))
        except Inexpressible as error:
            left.append((row, str(error)))
    return found, left


def page(found: Sequence[Compared], left: Sequence[tuple[Row, str]]) -> str:
    """Everything that the command prints: groups first, then rows."""
    return "\n\n".join(part for part in (all_groups(found), all_rows(found, left)) if part)


def all_groups(found: Sequence[Compared]) -> str:
    """The tables of docs/why/accuracy.md."""
    parts = {about: rows for about, rows in zip(PARTS, split_by_fit(found), strict=True) if rows}
    if len(parts) == 1:
        return f"{phase_table(found)}\n\n{group_table(found)}"
    return "\n\n".join(
        f"{len(rows)} rows {about}, by phase:\n\n{phase_table(rows)}\n\nby who measured what on which device:\n\n"
        f"{group_table(rows)}"
        for about, rows in parts.items()
    )


def all_rows(found: Sequence[Compared], left: Sequence[tuple[Row, str]]) -> str:
    """The table of docs/why/accuracy-rows.md, and what is left out."""
    parts = []
    if found:
        parts.append("\n".join([ROWS, *map(row_line, found)]))
    if left:
        parts.append("\n".join([f"Not predicted, {len(left)} rows:", "", *reasons(left)]))
    return "\n\n".join(parts)


PARTS = ("of sources that constants were fitted to", "of unseen sources")


def split_by_fit(found: Sequence[Compared]) -> tuple[list[Compared], list[Compared]]:
    """Rows of sources that constants were fitted to, and those of unseen ones."""
    return (
        [each for each in found if each.row.publisher.fitted],
        [each for each in found if not each.row.publisher.fitted],
    )


def by_phase(found: Sequence[Compared]) -> Iterator[tuple[str, Group]]:
    """What is predicted by phase, and all of it; with the words for it."""
    for title, phases in PHASES.values():
        if rows := [each for each in found if each.row.phase in phases]:
            yield title, Group(title, rows)
    if found:
        yield "all", Group("all", found)


def phase_table(found: Sequence[Compared]) -> str:
    lines = [TOTALS]
    for title, group in by_phase(found):
        told, sources = group.to_json(), len({each.row.publisher.name for each in group.rows})
        cells = (title, sources, told["rows"], f"{group.median:.1%}", f"{told['bias']:+.1%}", f"{group.near:.0%}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def group_table(found: Sequence[Compared]) -> str:
    return "\n".join([GROUPS, *map(group_line, grouped(found))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, nargs="+", default=MEASURED, metavar="FILE.csv", help="other measurements")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row and group instead of tables")
    options = parser.parse_args()
    try:
        found, left = compare([row for path in options.rows for row in read_rows(path)])
    except BadRows as error:
        raise SystemExit(f"error: {error}") from None
    if not options.json:
        print(page(found, left))
        return
    for each in found:
        print(json.dumps(each.to_json()))
    for row, reason in left:
        print(json.dumps({"id": row.id, "not_predicted": reason}))
    for about, rows in zip(PARTS, split_by_fit(found), strict=True):
        for group in (*(group for _, group in by_phase(rows)), *grouped(rows)):
            print(json.dumps(group.to_json() | {"rows_are": about}))


if __name__ == "__main__":
    main()
