"""`rlgraph simulate`, which predicts how long a step takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rlgraph.cli.base import (
    FINE,
    INTERRUPTED,
    add_set_options,
    add_target_options,
    compile_or_load,
    message_format,
    parse_settings,
    reporting_errors,
    rlgraph,
)
from rlgraph.cli.diagnostics import Format, echo_text, show_diagnostics
from rlgraph.runs.jsonlines import print_record


@rlgraph.command()
@click.argument("file", metavar="FILE")
@click.argument("schedule", required=False, type=click.Path(path_type=Path), metavar="[SCHEDULE]")
@add_set_options
@add_target_options
@click.option(
    "--steps", type=click.IntRange(1), default=1, show_default=True, help="How many, from the middle of a run."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of which rows are long, and which are kept.")
@click.option(
    "--foresight",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="How much what `admit` expects of a prompt correlates with what its answers will be.  [default: 0.97]",
)
@click.option(
    "--alike",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    metavar="SHARE",
    help="How much the lengths of the answers to one prompt correlate.  [default: 0]",
)
@click.option("--trace", type=click.Path(path_type=Path), metavar="PATH", help="Write a timeline for ui.perfetto.dev.")
@click.option("--svg", type=click.Path(path_type=Path), metavar="PATH", help="Draw the last step.")
@message_format
def simulate(
    file: str,
    schedule: Path | None,
    settings: tuple[str, ...],
    data: tuple[str, ...],
    rewards: tuple[str, ...],
    cluster: str | None,
    prompt_tokens: str | None,
    response_tokens: str | None,
    lengths: Path | None,
    turns: str | None,
    environment_seconds: str | None,
    observation_tokens: str | None,
    kept: float,
    kept_tokens: float | None,
    calibration: Path | None,
    search_seconds: float | None,
    search_gap: float | None,
    steps: int,
    seed: int,
    foresight: float | None,
    alike: float,
    trace: Path | None,
    svg: Path | None,
    form: Format,
) -> int:
    """Say how long a step takes on a cluster, without running it: a program here, or as a schedule (.rls) or a plan
    file (.json) says.

    Shows each pool's busy and idle time and what it waits for, the critical path, throughput and price.
    """
    from rlgraph.api.target import workload
    from rlgraph.catalog.clusters.read import read_cluster
    from rlgraph.explain.simulate import simulate
    from rlgraph.passes.compilation.assumed_workload import assumed_workload
    from rlgraph.profiles.calibration import read_calibration
    from rlgraph.runs.timeline import check_writable

    with reporting_errors(form):
        is_plan_file = file.endswith(".json")
        told: dict[str, Any] = {
            "turns": turns,
            "environment_seconds": environment_seconds,
            "observation_tokens": observation_tokens,
            "kept_tokens": kept_tokens,
        }
        rows = workload(prompt_tokens, response_tokens, kept, lengths=lengths, foresight=foresight, alike=alike, **told)
        measured = read_calibration(calibration) if calibration is not None else None
        if trace is not None:
            check_writable(trace)
        compiled = compile_or_load(
            file,
            parse_settings(settings, file, data, rewards),
            schedule,
            cluster=cluster,
            workload=rows,
            calibration=calibration,
            search_seconds=search_seconds,
            search_gap=search_gap,
        )
        show_diagnostics(compiled.diagnostics, form)
        parsed_cluster = read_cluster(cluster) if cluster is not None else None
        has_lengths = any((prompt_tokens, response_tokens, lengths, *told.values())) or kept != 1.0 or not is_plan_file
        step_workload = (
            rows if has_lengths else replace(assumed_workload(compiled), foresight=rows.foresight, alike=alike)
        )
        simulation = simulate(
            compiled, parsed_cluster, steps=steps, workload=step_workload, calibration=measured, seed=seed
        )
        if trace is not None:
            simulation.write_trace(trace)
        if svg is not None:
            simulation.write_svg(svg)
    if form == "json":
        print_record({"type": "simulation", **simulation.to_json()})
    else:
        echo_text(str(simulation))
        for path in (trace, svg):
            if path:
                echo_text(f"wrote {path}", err=True)
    if simulation.interrupted:
        echo_text(f"interrupted: {simulation.steps} of {steps} steps were simulated", err=True)
    # A script that hears of Ctrl-C too need not take a part of the steps for all of them.
    return INTERRUPTED if simulation.interrupted else FINE
