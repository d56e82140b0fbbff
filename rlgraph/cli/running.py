"""`rlgraph run`: train."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlgraph.cli.base import FINE, devices_option, message_format, rlgraph, set_option, settings_of, telling
from rlgraph.cli.shown import Format, show
from rlgraph.runs.jsonlines import emit
from rlgraph.runs.options import BACKENDS, LOCAL, Options, backend_spec

if TYPE_CHECKING:
    from rlgraph.api.compiled import Compiled

_PROCESSES = " or ".join(f"`--backend {each.name}`" for each in BACKENDS.values() if each.processes)


@rlgraph.command()
@click.argument("file", metavar="FILE")
@click.argument("schedule", required=False, type=click.Path(path_type=Path), metavar="[SCHEDULE]")
@set_option
@click.option(
    "--backend",
    type=click.Choice([*BACKENDS]),
    default=LOCAL.name,
    show_default=True,
    help=f"Where it runs: {', '.join(f'`{each.name}` is {each.about}' for each in BACKENDS.values())}.",
)
@click.option("--address", metavar="ADDRESS", help="Of a Ray cluster.  [default: one is started on this machine]")
@devices_option
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="How often the main step runs; phases before it say so themselves.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of everything that is random.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder, new or empty, for metrics and trained models.  [default: runs/NAME-1, -2, ...]",
)
@click.option("--overwrite", is_flag=True, help="DIR may hold an earlier run: it is removed.")
@click.option("--device", metavar="NAME", help="Of the models: cpu, cuda, cuda:1.  [default: a GPU if there is one]")
@click.option("--threads", type=click.IntRange(1), help="Of this machine's cores.  [default: all]")
@click.option("--token-budget", type=click.IntRange(1), help="Padded tokens of a micro-batch at most.")
@click.option(
    "--block",
    type=click.IntRange(1),
    help="Rows that every node works on at a time.  [default: as the schedule streams, or the batch]",
)
@click.option(
    "--record", type=click.Path(path_type=Path), metavar="DIR", help="Keep all that is sampled, to replay it."
)
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Take what a run recorded (or that run's folder), and sample nothing.",
)
@click.option("--trace", type=click.Path(path_type=Path), metavar="PATH", help="Write a timeline for ui.perfetto.dev.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=1800.0,
    show_default=True,
    metavar="SECONDS",
    help=f"With {_PROCESSES}: after so long, a process that does not answer is given up.",
)
@click.option("--debug", is_flag=True, help=f"With {_PROCESSES}: all in this process, so that breakpoints work.")
@message_format
def run(
    file: str,
    schedule: Path | None,
    settings: tuple[str, ...],
    backend: str,
    address: str | None,
    devices: int,
    steps: int,
    seed: int,
    out: Path | None,
    overwrite: bool,
    device: str | None,
    threads: int | None,
    token_budget: int | None,
    block: int | None,
    record: Path | None,
    replay: Path | None,
    trace: Path | None,
    timeout: float,
    debug: bool,
    form: Format,
) -> int:
    """Train: run a program here, or on Ray as a schedule (.rls) or a plan file (.json) says.

    Writes DIR/metrics.jsonl, DIR/models/NAME for each trained model, and notes on how it was run. Ctrl-C ends
    the run and saves the models; a second one ends it at once.
    """
    from rlgraph.runs.display import display
    from rlgraph.runs.folder import METRICS, RunFolder
    from rlgraph.runs.progress import Json
    from rlgraph.runs.run import run_in

    if not backend_spec(backend).processes and (address or debug):
        raise click.UsageError(f"`{'--address' if address else '--debug'}` goes with {_PROCESSES}")
    options = Options(
        steps,
        seed,
        threads,
        block,
        token_budget,
        backend,
        address,
        debug,
        record=record,
        replay=replay,
        trace=trace,
        device=device,
        timeout=timeout,
    )
    with telling(form):
        options.need_installed()
        compiled = _compiled(file, schedule, settings_of(settings), devices)
        show(compiled.diagnostics, form)
        # Before anything else: a folder that cannot be written must not cost an hour of training.
        folder = RunFolder.at(out, overwrite) if out is not None else RunFolder.new(compiled.name)
        shown = Json() if form == "json" else display(sys.stderr)
        made = run_in(folder, compiled, options, shown)
    if form == "json":
        emit({"type": "end", "folder": str(folder.path), "models": [str(path) for path in made.saved]})
    else:
        written = [folder.path / METRICS, *(path for path in (record, trace) if path)]
        lines = [*(f"wrote {path}" for path in written), *(f"saved {path}" for path in made.saved)]
        click.echo("\n".join(lines), err=True)
    return FINE


def _compiled(file: str, schedule: Path | None, settings: dict[str, str], devices: int) -> Compiled:
    """A program, or what a plan file has of one."""
    from rlgraph.api import compile, load_plan

    if not file.endswith(".json"):
        return compile(Path(file), settings, schedule=schedule, devices=devices)
    given = {"--set": settings, "SCHEDULE": schedule, "--devices": devices != 1}
    for name in (name for name, value in given.items() if value):
        raise click.UsageError(
            f"`{name}` does not go with a plan file: its program and its plan are fixed. Compile the program again, "
            f"with `{name}` and `--emit plan`"
        )
    return load_plan(file)
