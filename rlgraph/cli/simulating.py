"""`rlgraph simulate`: how long a step would take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlgraph.api.jsonlines import emit
from rlgraph.cli.base import FINE, message_format, rlgraph, set_option, settings_of, telling
from rlgraph.cli.shown import Format, show

if TYPE_CHECKING:
    from rlgraph.api.compiled import Compiled
    from rlgraph.cost.cluster import Cluster


@rlgraph.command()
@click.argument("file", metavar="FILE")
@click.argument("schedule", required=False, type=click.Path(path_type=Path), metavar="[SCHEDULE]")
@set_option
@click.option(
    "--cluster",
    "text",
    metavar="TEXT",
    help="What it runs on: NODESxDEVICES:NAME such as 4x8:h100-80gb, several joined by +, or a .toml file.  "
    "[default: what the plan was made for, or CPUs of this machine]",
)
@click.option("--steps", type=click.IntRange(1), default=1, show_default=True, help="How many, from the middle of a run.")
@click.option("--prompt-tokens", metavar="LENGTHS", help="Of prompts: a number, mean=..., or a file of lengths.")
@click.option("--response-tokens", metavar="LENGTHS", help="Of answers, up to `max_tokens`.")
@click.option(
    "--kept",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    metavar="SHARE",
    help="Of the rows that a `keep` looks at.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of which rows are long, and which are kept.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="PATH", help="Write a timeline for ui.perfetto.dev.")
@click.option("--svg", type=click.Path(path_type=Path), metavar="PATH", help="Draw the last step.")
@message_format
def simulate(
    file: str,
    schedule: Path | None,
    settings: tuple[str, ...],
    text: str | None,
    steps: int,
    prompt_tokens: str | None,
    response_tokens: str | None,
    kept: float,
    seed: int,
    trace: Path | None,
    svg: Path | None,
    form: Format,
) -> int:
    """Say how long a step takes on a cluster, without running it: a program here, or as a schedule (.rls) or a plan file
    (.json) says.

    Shows each pool's busy and idle time and what it waits for, the critical path, throughput and price.
    """
    from rlgraph.api.simulating import simulate
    from rlgraph.api.trace import check_writable
    from rlgraph.cost.lengths import Lengths, read_lengths
    from rlgraph.cost.read_cluster import read_cluster
    from rlgraph.cost.tasks import Workload

    with telling(form):
        cluster = read_cluster(text) if text is not None else None
        prompt = read_lengths(prompt_tokens) if prompt_tokens is not None else Lengths((512.0,))
        response = read_lengths(response_tokens) if response_tokens is not None else None
        if trace is not None:
            check_writable(trace)
        compiled = _compiled(file, schedule, settings_of(settings), cluster)
        show(compiled.diagnostics, form)
        found = simulate(compiled, cluster, steps=steps, workload=Workload(prompt, response, kept), seed=seed)
        if trace is not None:
            found.write_trace(trace)
        if svg is not None:
            found.write_svg(svg)
    if form == "json":
        emit({"type": "simulation", **found.to_json()})
    else:
        click.echo("\n".join([str(found), *(f"wrote {path}" for path in (trace, svg) if path)]))
    return FINE


def _compiled(file: str, schedule: Path | None, settings: dict[str, str], cluster: Cluster | None) -> Compiled:
    """A program and its plan for a cluster, or what a plan file has of both."""
    from rlgraph.api import compile, load_plan

    if not file.endswith(".json"):
        return compile(Path(file), settings, schedule=schedule, devices=cluster.devices if cluster else 1)
    for name, given in (("--set", settings), ("SCHEDULE", schedule)):
        if given:
            raise click.UsageError(f"`{name}` does not go with a plan file: its program and its plan are fixed")
    return load_plan(file)
