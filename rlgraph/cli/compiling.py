"""`rlgraph compile`, which compiles a program, plans where it runs, and draws both."""

from __future__ import annotations

from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Literal

import click

from rlgraph.cli.base import (
    FINE,
    INTERRUPTED,
    add_set_options,
    add_target_options,
    devices_option,
    message_format,
    parse_settings,
    reporting_errors,
    rlgraph,
)
from rlgraph.cli.diagnostics import Format, echo_text, show_diagnostics
from rlgraph.cli.outputs import FORMATS, PICTURES, save_file, write_outputs
from rlgraph.errors.lookups import UnknownName
from rlgraph.runs.jsonlines import print_record

if TYPE_CHECKING:
    from rlgraph.api.compiled import Picture
    from rlgraph.explain.explain import Explanation
    from rlgraph.explain.whatif import Sweep


@rlgraph.command("compile")
@click.argument("files", nargs=-1, metavar="FILE...")
@add_set_options
@devices_option
@add_target_options
@click.option(
    "--minimize",
    type=click.Choice(["time", "cost"]),
    default="time",
    show_default=True,
    help="With a cluster: seconds or dollars of a step.",
)
@click.option(
    "--no-fuse", is_flag=True, help="With a cluster: no trainings share a pipeline but those of `fuse` lines."
)
@click.option(
    "--no-stream", is_flag=True, help="With a cluster: no tables stream but those of `stream` and `tail` lines."
)
@click.option("--no-offload", is_flag=True, help="With a cluster: all models stay on their devices.")
@click.option(
    "--explain", "explained", is_flag=True, help="With a cluster: why this plan, what others lose, what would help."
)
@click.option(
    "--what-if", metavar="NAME=V1,V2,...", help="With a cluster: the best plan for each of some values, devices=16,32."
)
@click.option(
    "--emit",
    "emitted",
    multiple=True,
    type=click.Choice(FORMATS),
    help="Write the graph, its formulas, the plan or its transfers in this form: one to stdout, several into the "
    "folder of -o.",
)
@click.option(
    "--visualize",
    is_flag=False,
    flag_value="",
    metavar="[PATH]",
    help="Draw it: a page (NAME.html), or what the ending of PATH says (.html .svg .png .dot).",
)
@click.option(
    "--picture",
    type=click.Choice(["dataflow", "plan", "pipelines"]),
    help="What is drawn: the graph, where it runs, or what the stages of pipelines do when; if not given, the plan "
    "with a cluster, a schedule or a plan file, else the dataflow. A page has all.",
)
@click.option(
    "--print-after",
    "after",
    multiple=True,
    metavar="PASS",
    help="Print the graph after this pass; `check` is before all.",
)
@click.option("-v", "--verbose", is_flag=True, help="Say also what each engine of the plan is opened with.")
@click.option("-o", "--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Where files go.")
@message_format
def compile_(
    files: tuple[str, ...],
    settings: tuple[str, ...],
    data: tuple[str, ...],
    rewards: tuple[str, ...],
    devices: int,
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
    minimize: Literal["time", "cost"],
    no_fuse: bool,
    no_stream: bool,
    no_offload: bool,
    explained: bool,
    what_if: str | None,
    emitted: tuple[str, ...],
    visualize: str | None,
    picture: Picture | None,
    after: tuple[str, ...],
    verbose: bool,
    out: Path | None,
    form: Format,
) -> int:
    """Compile a program, with a schedule (.rls) or without one; without options, say in a few lines what became of it.

    With a cluster, the fastest plan for it is searched for: what the schedule says is kept.
    """
    from rlgraph.api import compile, load_plan

    if visualize and visualize.endswith(".rlf"):
        # `--visualize FILE`: click takes the file for the option's value.
        files, visualize = (visualize, *files), ""
    programs = [Path(file) for file in files if not file.endswith(".rls")]
    is_plan_file = len(files) == 1 and files[0].endswith(".json")
    schedules = [Path(file) for file in files if file.endswith(".rls")]
    if not programs:
        raise click.UsageError("Missing argument 'FILE...'.")
    if len(programs) > 1 or len(schedules) > 1:
        raise click.UsageError("compile takes a program (.rlf) and at most one schedule (.rls), or a plan file")
    if visualize and Path(visualize).suffix[1:] not in PICTURES:
        raise click.BadParameter(f"`{visualize}` does not end in .html, .svg, .png or .dot", param_hint="'--visualize'")
    if picture == "pipelines" and ("dot" in emitted or (visualize or "").endswith(".dot")):
        raise click.UsageError("a picture of pipelines is no graph: take .html, .svg or .png, not .dot")
    searched = search_seconds is not None or search_gap is not None
    search_options = (explained, what_if, calibration, searched, no_fuse, no_stream, no_offload, minimize != "time")
    told = turns, environment_seconds, observation_tokens, kept_tokens
    has_lengths = (prompt_tokens, response_tokens, lengths, kept) != (None, None, None, 1.0) or any(told)
    if cluster is None and (any(search_options) or has_lengths):
        raise click.UsageError(
            "`--explain`, `--what-if`, `--calibration`, `--search-seconds`, `--search-gap`, `--minimize`, `--no-fuse`, "
            "`--no-stream`, `--no-offload` and what is told of rows (`--prompt-tokens`, `--kept`) go with `--cluster`"
        )
    if out is None and emitted and (len(set(emitted)) > 1 or after or form == "json"):
        raise click.UsageError("say with -o DIR where the files go: only one form alone can go to stdout")
    ends = monotonic() + (inf if search_seconds is None else search_seconds)
    with reporting_errors(form):
        schedule = schedules[0] if schedules else None
        rows = None
        if has_lengths:
            # Imported late: it loads the cost model, which compiling without a search does not need.
            from rlgraph.api.target import workload

            rows = workload(
                prompt_tokens,
                response_tokens,
                kept,
                lengths=lengths,
                turns=turns,
                environment_seconds=environment_seconds,
                observation_tokens=observation_tokens,
                kept_tokens=kept_tokens,
            )
        if is_plan_file and (settings or data or rewards or cluster):
            raise click.UsageError("a plan file is compiled already: `--set` and `--cluster` go with its program")
        compiled = (
            load_plan(programs[0])
            if is_plan_file
            else compile(
                programs[0],
                parse_settings(settings, str(programs[0]), data, rewards),
                schedule=schedule,
                devices=devices,
                cluster=cluster,
                workload=rows,
                calibration=calibration,
                minimize=minimize,
                offload=not no_offload,
                fuse=not no_fuse,
                stream=not no_stream,
                search_seconds=search_seconds,
                search_gap=search_gap,
            )
        )
        show_diagnostics(compiled.diagnostics, form)
        reports: list[Explanation | Sweep] = [compiled.explain(max(0.0, ends - monotonic()))] if explained else []
        reports += [compiled.what_if(what_if, max(0.0, ends - monotonic()))] if what_if else []
    for name in after:
        try:
            echo_text(compiled.text(name), nl=False)
        except UnknownName as error:
            (found,) = error.diagnostics
            raise click.BadParameter(f"{found.message}: {found.hint}", param_hint="'--print-after'") from None
    write_outputs(compiled, list(dict.fromkeys(emitted)), visualize, out, picture)
    for name, report in zip([*(["explain"] if explained else []), "what-if"], reports, strict=False):
        if out is not None:
            save_file(out / f"{compiled.name}.{name}.svg", report.to_svg())
        if form == "json":
            print_record(report.to_json())
        else:
            echo_text(f"{report}\n")
    if not (emitted or after or reports or visualize is not None):
        from rlgraph.api.summary import summary_records, summary_text

        if form == "json":
            for record in summary_records(compiled):
                print_record(record)
        else:
            echo_text(summary_text(compiled, opened=verbose))
    # A script that hears of Ctrl-C too need not take half a search for a whole one.
    return INTERRUPTED if cluster is not None and compiled.choice.question.control.stopped else FINE
