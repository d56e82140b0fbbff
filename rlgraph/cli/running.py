"""`rlgraph run` and `rlgraph resume`, which train a program and resume its run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import chdir, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlgraph.cli.base import (
    FINE,
    add_set_options,
    compile_or_load,
    devices_option,
    message_format,
    parse_settings,
    reporting_errors,
    rlgraph,
)
from rlgraph.cli.diagnostics import Format, echo_text, show_diagnostics
from rlgraph.cli.option_groups import GroupedCommand
from rlgraph.cli.run_files import is_on_command_line, with_run_file
from rlgraph.cli.sweeping import refuse_with_sweep, run_sweep
from rlgraph.errors import ProgramError
from rlgraph.runs.jsonlines import print_record
from rlgraph.runs.options import (
    BACKENDS,
    KEEP,
    KEEP_SAMPLES,
    LOCAL,
    ON_NONFINITE,
    RESTARTS,
    VERIFY_WEIGHTS,
    RunOptions,
    backend_spec,
)
from rlgraph.runs.trackers.known import TRACKERS

if TYPE_CHECKING:
    from rlgraph.api.compiled import Compiled
    from rlgraph.runs.folder import RunFolder
    from rlgraph.runs.sweeps.points import SweptName

_ADVICE = ". Compile the program again, with `{}` and `--emit plan`"
"""What to do where an option does not go with a plan file."""
_PROCESSES = " or ".join(f"`--backend {spec.name}`" for spec in BACKENDS.values() if spec.processes)


_DEVICE = f"Of the models: cpu, cuda, cuda:1. With {_PROCESSES} hard:8x80GB: a CPU that refuses what GPUs would.  "
device_option = click.option("--device", metavar="NAME", help=f"{_DEVICE}[default: a GPU if there is one]")
resumed_device_option = click.option("--device", metavar="NAME", help=f"{_DEVICE}[default: as it was begun]")
save_every_option = click.option(
    "--save-every",
    metavar="N",
    help="Save a checkpoint after so many steps (20) or so much time (10m, 2h), at the end, and when interrupted.",
)
keep_option = click.option(
    "--keep", type=click.IntRange(1), help=f"So many of its checkpoints, the newest.  [default: {KEEP}]"
)
keep_best_option = click.option(
    "--keep-best",
    metavar="METRIC",
    help="And the one with the highest value of what the program reports; kl:min for the lowest.",
)
verify_option = click.option(
    "--verify-weights",
    type=click.IntRange(0),
    default=VERIFY_WEIGHTS,
    show_default=True,
    metavar="N",
    help=f"With {_PROCESSES}: compare both ends after the first of N transfers of the same weights; 0 never does.",
)
restarts_option = click.option(
    "--max-restarts",
    "restarts",
    type=click.IntRange(0),
    default=RESTARTS,
    show_default=True,
    help=f"With {_PROCESSES} and --save-every: if a process is lost, go back to the last checkpoint, so often; "
    "without it too, replace those that only sample.",
)
keep_samples_option = click.option(
    "--keep-samples",
    type=click.IntRange(0),
    metavar="N",
    help="So many rows of a step are kept in DIR/samples.jsonl, the best and the worst among them.  "
    f"[default: {KEEP_SAMPLES}]",
)
show_samples_option = click.option(
    "--show-samples",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Show so many rows of a step every so often, the best and the worst, with their rewards.",
)
track_option = click.option(
    "--track",
    type=click.Choice([*TRACKERS]),
    multiple=True,
    help="Send configuration, metrics, samples and pictures there while it goes on.",
)
track_model_option = click.option(
    "--track-model", is_flag=True, help="With --track: the trained models, too, as artifacts."
)
changed_option = click.option(
    "--changed", is_flag=True, help="The program, or files that it takes, may be others than were saved."
)


_GROUPS = {
    "What is run": ("set", "data", "reward", "steps", "seed", "sweep", "on-nonfinite", "replay", "resume", "changed"),
    "Where it runs": (
        *("backend", "address", "devices", "device", "threads", "token-budget", "block"),
        *("timeout", "max-restarts", "debug"),
    ),
    "What is saved": ("out", "overwrite", "save-every", "keep", "keep-best", "keep-samples", "record"),
    "What is shown": ("show-samples", "compare", "trace", "message-format", "help"),
}
"""The options of `rlgraph run` as its help groups them."""


@rlgraph.command(cls=GroupedCommand, groups=_GROUPS)
@click.argument("file", metavar="FILE")
@click.argument("schedule", required=False, type=click.Path(path_type=Path), metavar="[SCHEDULE]")
@add_set_options
@click.option(
    "--sweep",
    multiple=True,
    metavar="NAME=V1,V2,...",
    help="A run for every one of these values, as `--set` has them, and of several names for every combination; "
    "`seed=0,1,2` are seeds. What is finished is not run again.",
)
@click.option(
    "--compare",
    "compared",
    multiple=True,
    metavar="METRIC",
    help="With --sweep: what the table at its end shows; kl:min where the lowest is best.  [default: the first three]",
)
@click.option(
    "--backend",
    type=click.Choice([*BACKENDS]),
    default=LOCAL.name,
    show_default=True,
    help=f"Where it runs: {', '.join(f'`{spec.name}` is {spec.about}' for spec in BACKENDS.values())}.",
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
    help="A folder, new or empty, for metrics and trained models; with --sweep the folder around those of its runs.  "
    "[default: runs/NAME-1, -2, ...; runs/NAME-sweep]",
)
@click.option("--overwrite", is_flag=True, help="DIR may hold an earlier run: it is removed.")
@device_option
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
@click.option(
    "--on-nonfinite",
    type=click.Choice(ON_NONFINITE),
    help="Where a gradient is NaN or infinite: end the run, or leave out the update.  [default: stop]",
)
@save_every_option
@keep_option
@keep_best_option
@keep_samples_option
@show_samples_option
@track_option
@track_model_option
@restarts_option
@verify_option
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Go on in the folder of a run that was saved, with its seed.",
)
@changed_option
@click.option("--debug", is_flag=True, help=f"With {_PROCESSES}: all in this process, so that breakpoints work.")
@message_format
@click.pass_context
def run(
    context: click.Context,
    /,
    **given: Any,
) -> int:
    """Train: run a program here, or on Ray as a schedule (.rls) or a plan file (.json) says.

    FILE may be a run file (.toml), which has all of this in it; options win over it. Writes DIR/metrics.jsonl,
    DIR/models/NAME for each trained model, and notes on how it was run: DIR/run.toml repeats it. Ctrl-C ends the run
    and saves the models; a second one ends it at once.
    """
    if not given["file"].endswith(".toml"):
        return _run(context, **given)
    with reporting_errors(given["form"]):
        given, folder = with_run_file(context, given)
    if folder.resolve() != Path.cwd().resolve():
        echo_text(f"paths of the run file begin in {folder}", err=True)
    with chdir(folder):
        return _run(context, **given)


def _run(
    context: click.Context,
    file: str,
    schedule: Path | str | None,
    settings: tuple[str, ...],
    data: tuple[str, ...],
    rewards: tuple[str, ...],
    sweep: tuple[str | SweptName, ...],
    compared: tuple[str, ...],
    devices: int,
    out: Path | None,
    overwrite: bool,
    form: Format,
    **given: Any,
) -> int:
    from rlgraph.runs.folder import RunFolder

    # What is left are the fields of `RunOptions`.
    alone = not backend_spec(given["backend"]).processes
    for name, told in (
        ("address", given["address"]),
        ("debug", given["debug"]),
        ("devices", devices > 1 and not file.endswith(".json")),
    ):
        if alone and told:
            raise click.UsageError(f"`--{name}` goes with {_PROCESSES}")
    options = RunOptions(**given)
    if options.resume is None and options.changed:
        raise click.UsageError("`--changed` goes with `--resume`")
    if compared and not sweep:
        raise click.UsageError("`--compare` goes with `--sweep`")
    if sweep:
        refuse_with_sweep(options)
    if options.resume is not None:
        conflicting = [f"`--{name}`" for name in ("out", "overwrite", "seed") if is_on_command_line(context, name)]
        if conflicting:
            raise click.UsageError(
                f"{conflicting[0]} does not go with `--resume`: a run goes on in its folder, with its seed"
            )
        if not _was_given(context, "steps"):
            options = replace(options, steps=_steps_of(options.resume, form))
    with reporting_errors(form):
        options.check_backend()
        changed = parse_settings(settings, file, data, rewards)

        def compiled_with(settings: Mapping[str, str]) -> Compiled:
            return compile_or_load(file, dict(settings), schedule, advice=_ADVICE, devices=devices)

        if sweep:
            fixed = file.endswith(".json")
            return run_sweep(sweep, changed, compiled_with, options, out, overwrite, compared, form, fixed=fixed)
        compiled = compiled_with(changed)
        show_diagnostics(compiled.diagnostics, form)
        if alone and schedule is not None and form == "human":
            echo_text(f"one process does all that `{schedule}` places: {_PROCESSES} follows it", err=True)
        if options.resume is not None:
            return _resume_run(compiled, options, form)
        # Opened before the training, which would be lost if the folder could not be written.
        folder = RunFolder.claim_folder(out, overwrite) if out is not None else RunFolder.make_numbered(compiled.name)
        return _run_in(folder, compiled, options, form)


@rlgraph.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--steps", type=click.IntRange(1), help="How often the main step runs, with the steps that are done.")
@resumed_device_option
@save_every_option
@keep_option
@keep_best_option
@keep_samples_option
@show_samples_option
@track_option
@track_model_option
@restarts_option
@verify_option
@changed_option
@click.option("--trace", type=click.Path(path_type=Path), metavar="PATH", help="Write a timeline for ui.perfetto.dev.")
@message_format
def resume(
    run: Path,
    steps: int | None,
    trace: Path | None,
    form: Format,
    **given: Any,
) -> int:
    """Go on with a run from its newest checkpoint, in its folder, as it was begun.

    RUN is the folder of a run that was begun with `--save-every`. It ends with the metrics and the weights of a run
    that was not interrupted, bit for bit.
    """
    from rlgraph.runs.checkpoint.resuming import read_run_record, recorded_schedule

    with reporting_errors(form):
        saved = read_run_record(run)
        run, trace = run.absolute(), trace and trace.absolute()
        # Paths of the program and of its settings are relative to the folder in which the run was started.
        with suppress(OSError):
            os.chdir(saved["folder"])
        with suppress(ValueError):
            run = run.relative_to(Path.cwd())
        options = RunOptions(
            steps or saved["steps"],
            **{name: saved[name] for name in ("backend", "address", "debug", "timeout")},
            trace=trace,
            resume=run,
            **given,
        )
        options.check_backend()
        schedule = recorded_schedule(saved)
        try:
            compiled = compile_or_load(
                saved["program"], saved["set"], schedule, advice=_ADVICE, devices=saved.get("devices", 1)
            )
        except ProgramError as error:
            raise _not_where_it_was(error, saved, run) from None
        show_diagnostics(compiled.diagnostics, form)
        return _resume_run(compiled, options, form)


def _not_where_it_was(error: ProgramError, saved: Mapping[str, Any], run: Path) -> ProgramError:
    """Return the error for a program that is not where the run was begun any more; any other as it is."""
    [first, *_] = error.diagnostics
    if first.code != "E0805" or Path(saved["program"]).exists():
        return error
    from rlgraph.runs.folder import PROGRAM

    hint = f"if it was moved: `rlgraph run {Path(saved['program']).name} --resume {run}`, where it is now"
    hint = f"{hint}; as it was it is in `{run / PROGRAM}`"
    return ProgramError(
        replace(first, message=f"{first.message} in `{saved['folder']}`, where the run was begun", hint=hint)
    )


def _was_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


def _steps_of(run: Path, form: Format) -> int:
    from rlgraph.runs.checkpoint.resuming import read_run_record

    with reporting_errors(form):
        return int(read_run_record(run)["steps"])


def _resume_run(compiled: Compiled, options: RunOptions, form: Format) -> int:
    from rlgraph.runs.run import open_resumed_run

    options, folder = open_resumed_run(options)
    return _run_in(folder, compiled, options, form)


def _run_in(folder: RunFolder, compiled: Compiled, options: RunOptions, form: Format) -> int:
    from rlgraph.runs.display import choose_display
    from rlgraph.runs.folder import METRICS
    from rlgraph.runs.progress import JsonDisplay
    from rlgraph.runs.run import run_in_folder

    progress = JsonDisplay() if form == "json" else choose_display(sys.stderr)
    result = run_in_folder(folder, compiled, options, progress)
    if form == "json":
        print_record({"type": "end", "folder": str(folder.path), "models": [str(path) for path in result.saved]})
    else:
        written = [folder.path / METRICS, *(path for path in (options.record, options.trace) if path)]
        lines = [*(f"wrote {path}" for path in written), *(f"saved {path}" for path in result.saved)]
        echo_text("\n".join(lines), err=True)
    return FINE
