"""The runs of `rlgraph run --sweep`, and the table at their end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlgraph.cli.base import FAILED, FINE, interrupted_code
from rlgraph.cli.diagnostics import Format, echo_text, show_diagnostics
from rlgraph.errors import count_phrase
from rlgraph.runs.jsonlines import print_record
from rlgraph.runs.options import RunOptions

if TYPE_CHECKING:
    from rlgraph.passes.compilation.compilation import Compilation
    from rlgraph.runs.checkpoint.best import BestMetric
    from rlgraph.runs.progress import Display
    from rlgraph.runs.sweeps.points import SweptName
    from rlgraph.runs.sweeps.results import PointResult
    from rlgraph.runs.sweeps.sweep import Sweep

_COLUMNS = 3
"""The most metrics that the table on the screen has if nobody chooses."""
_WORDS = {"finished": "", "failed": "failed", "interrupted": "interrupted", "not begun": "not begun"}


def run_sweep(
    sweep: Sequence[str | SweptName],
    settings: Mapping[str, str],
    compile: Callable[[Mapping[str, str]], Compilation],
    options: RunOptions,
    out: Path | None,
    overwrite: bool,
    compared: Sequence[str],
    form: Format,
    *,
    fixed: bool = False,
) -> int:
    """Run all points of a sweep, show its table, and return the exit code. settings: those of all points. compile:
    returns the program with settings. compared: the metrics of the table. fixed: nothing of the program can be set,
    because it is a plan file. Raise ProgramError before the first run for
    what is wrong with any of them."""
    from rlgraph.runs.checkpoint.best import BestMetric, parse_best, reported_names
    from rlgraph.runs.folder import DEFAULT_PARENT
    from rlgraph.runs.sweeps.points import parse_sweep, refuse_settings, sweep_points
    from rlgraph.runs.sweeps.sweep import Sweep

    swept = [parse_sweep(entry) if isinstance(entry, str) else entry for entry in sweep]
    if fixed:
        refuse_settings(swept)
    points = sweep_points(swept, settings)
    plan = Sweep(Path(), points, swept, lambda changed: compile({**settings, **changed}), options)
    first = plan.compiled(points[0])
    show_diagnostics(first.diagnostics, form)
    shown = [parse_best(text, first.program) for text in compared]
    if not shown and options.keep_best:
        shown = [parse_best(options.keep_best, first.program)]
    named = {metric.metric: metric for metric in shown}
    plan.metrics = [named.get(name) or BestMetric(name) for name in reported_names(first.program)]
    plan.folder = out or DEFAULT_PARENT / f"{first.name}-sweep"
    plan.check(overwrite)
    _write_run_file(plan, first, settings, compared)
    interrupt = plan.run(
        lambda: _display(form),
        lambda number, before: _begins(plan, form, number, before),
        lambda errors: show_diagnostics(errors, form),
        overwrite,
    )
    table = plan.save_table()
    results = plan.results()
    if form == "json":
        print_record({"type": "sweep", "folder": str(plan.folder), "points": [result.to_json() for result in results]})
    else:
        echo_text("\n".join(table_lines(results, shown or plan.metrics[:_COLUMNS])))
        echo_text(f"wrote {table}", err=True)
        if interrupt:
            echo_text(_how_to_go_on(plan, results), err=True)
    if interrupt:
        return interrupted_code(interrupt)
    return FAILED if any(result.outcome == "failed" for result in results) else FINE


def _display(form: Format) -> Display:
    from rlgraph.runs.display import choose_display
    from rlgraph.runs.progress import JsonDisplay

    return JsonDisplay() if form == "json" else choose_display(sys.stderr)


def _begins(plan: Sweep, form: Format, number: int, before: PointResult) -> None:
    """Say which point begins."""
    if form == "json":
        record = {"point": number + 1, "points": len(plan.points), "values": dict(before.point.values)}
        print_record({"type": "point", **record, "folder": str(before.folder), "outcome": before.outcome})
        return
    finished = "  finished before" if before.outcome == "finished" else ""
    echo_text(f"{number + 1} of {len(plan.points)}  {before.point}  in {before.folder}{finished}", err=True)


def _write_run_file(plan: Sweep, compiled: Compilation, settings: Mapping[str, str], compared: Sequence[str]) -> None:
    """Write the run file that goes on with the sweep."""
    from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake
    from rlgraph.files import failure_reason
    from rlgraph.runs.checkpoint.disk import write_text_atomically
    from rlgraph.runs.folder import PROGRAM, REPEATS
    from rlgraph.runs.run import where_it_ran
    from rlgraph.runs.run_file import run_file_text
    from rlgraph.runs.sweeps.points import BAD_SWEEP

    others = {"out": plan.folder, "compare": list(compared) or None}
    values = {entry.name: list(entry.values) for entry in plan.swept}
    text = run_file_text(
        compiled.source, plan.folder / PROGRAM, where_it_ran(compiled), settings, plan.options, others, values
    )
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
        write_text_atomically(plan.folder / REPEATS, text)
    except OSError as error:
        message = f"`{plan.folder}` cannot hold a sweep: {failure_reason(error)}"
        raise UsageMistake(Diagnostic(BAD_SWEEP, message, NO_SPAN, "take another folder with `--out`")) from None


def _how_to_go_on(plan: Sweep, results: Sequence[PointResult]) -> str:
    from rlgraph.runs.folder import REPEATS

    left = sum(result.outcome != "finished" for result in results)
    anew = not plan.options.save_every and any(result.outcome == "interrupted" for result in results)
    saved = ", the interrupted one from its beginning: `--save-every` saves it" * anew
    return f"go on with the {count_phrase(left, 'run')} left with `rlgraph run {plan.folder / REPEATS}`{saved}"


# The table


def table_lines(results: Sequence[PointResult], metrics: Sequence[BestMetric]) -> Iterator[str]:
    """Yield the table: a line for every point with its values, of each metric the last and the best value, seconds and
    folder. `*` marks the best of a column."""
    from rlgraph.explain.tables import align_columns
    from rlgraph.runs.progress import format_duration

    names = [name for name, _ in results[0].point.values]
    head = [*names, *(f"{metric.metric}{which}" for metric in metrics for which in ("", " best"))]
    columns = [_marked(results, metric, which) for metric in metrics for which in ("last", "best")]
    rows = [[*head, "steps", "time", "", "folder"]]
    for number, result in enumerate(results):
        rows.append(
            [
                *(value for _, value in result.point.values),
                *(column[number] for column in columns),
                str(result.steps),
                f"{result.seconds:.2g} s" if result.seconds < 10 else format_duration(result.seconds),
                _WORDS[result.outcome],
                str(result.folder) if result.steps else "-",
            ]
        )
    yield from align_columns("<" * len(names) + ">" * (len(columns) + 2) + "<<", rows)
    yield from over_seeds(results, metrics)
    for result in results:
        if result.outcome == "failed":
            yield f"{result.point} failed: {result.error}"


def _marked(results: Sequence[PointResult], metric: BestMetric, which: str) -> list[str]:
    """Return a column of numbers, the best of several with a `*`."""
    numbers = [getattr(result, which).get(metric.metric) for result in results]
    known = [number for number in numbers if number is not None]
    best = (max if metric.highest else min)(known) if len(set(known)) > 1 else None
    return ["-" if number is None else f"{number:.4g}{'*' if number == best else ' '}" for number in numbers]


def over_seeds(results: Sequence[PointResult], metrics: Sequence[BestMetric]) -> Iterator[str]:
    """Yield, where seeds are swept, the mean of every metric's last value over the seeds that finished, and how far
    they spread."""
    from rlgraph.explain.tables import align_columns
    from rlgraph.runs.sweeps.points import SEED
    from rlgraph.runs.sweeps.results import mean_and_spread

    alike: dict[str, list[PointResult]] = {}
    for result in results:
        others = " ".join(f"{name}={value}" for name, value in result.point.values if name != SEED)
        if result.point.seed is not None and result.outcome == "finished":
            alike.setdefault(others, []).append(result)
    if all(len(finished) < 2 for finished in alike.values()):
        return
    rows = [["over seeds", "finished", *(metric.metric for metric in metrics)]]
    for others, finished in alike.items():
        cells = []
        for metric in metrics:
            known = [result.last[metric.metric] for result in finished if metric.metric in result.last]
            cells.append("{:.4g} ± {:.2g}".format(*mean_and_spread(known)) if known else "-")
        rows.append([others or "all", str(len(finished)), *cells])
    yield ""
    yield from align_columns("<>" + ">" * len(metrics), rows)


def refuse_with_sweep(options: RunOptions) -> None:
    """Raise UsageError for options that are of one run."""
    for name in ("record", "trace", "resume"):
        if getattr(options, name) is not None:
            raise click.UsageError(f"`--{name}` is for one run, and does not go with `--sweep`")
