"""`rlgraph`: the compiler on the command line.

Exit codes: 0 fine, 1 a program is wrong, 2 a command is wrong, 3 a bug of rlgraph, 4 a run failed, 130
interrupted.

What computes is imported inside the commands that compute: `rlgraph check` is as fast as it feels.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import click

from rlgraph import __version__
from rlgraph.api.jsonlines import emit
from rlgraph.cli.outputs import FORMATS, PICTURES, write
from rlgraph.cli.shown import Format, counted, show
from rlgraph.errors import Diagnostic, ProgramError, RlgraphError, RunError, UsageMistake

FINE, WRONG, USAGE, BUG, FAILED, INTERRUPTED, PIPE = 0, 1, 2, 3, 4, 130, 141


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="rlgraph", message="%(prog)s %(version)s")
def rlgraph() -> None:
    """A compiler for RLHF algorithms.

    \b
      rlgraph check grpo.rlf                 what is wrong with a program
      rlgraph compile grpo.rlf --visualize   its dataflow as a page to look around in
      rlgraph run grpo.rlf --steps 100       train
    """


_message_format = click.option(
    "--message-format",
    "form",
    type=click.Choice(["human", "json"]),
    default="human",
    help="Diagnostics as text on stderr, or as lines of JSON on stdout.",
)
_set = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=EXPR",
    help="""Replace a `param`, or the right side of a `model`, `data`, `func` or `env`, by an expression of
    the language: --set n=4, --set 'data=jsonl("mine.jsonl", batch=8)'.""",
)


def _settings(given: tuple[str, ...]) -> dict[str, str]:
    """The `--set` options by name."""
    found: dict[str, str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        name = name.strip()
        if not sign or not name.isidentifier():
            raise click.BadParameter(f"`{text}` is not NAME=EXPR, as in `--set n=4`", param_hint="'--set'")
        if name in found:
            raise click.BadParameter(f"`{name}` is set twice", param_hint="'--set'")
        found[name] = value.strip()
    return found


@contextmanager
def _telling(form: Format) -> Iterator[None]:
    """What is wrong is shown, and ends the command."""
    try:
        yield
    except RlgraphError as error:
        show(error.diagnostics, form)
        code = FAILED if isinstance(error, RunError) else USAGE if isinstance(error, UsageMistake) else WRONG
        raise click.exceptions.Exit(code) from None


# check


@rlgraph.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@_set
@_message_format
def check(files: tuple[str, ...], settings: tuple[str, ...], form: Format) -> int:
    """Say what is wrong with programs (.rlf) and schedules (.rls).

    A schedule is checked against the program that is given with it, or else the one beside it. Nothing is
    run, and no file of Python is imported.
    """
    from rlgraph.api import check as checked

    changed = _settings(settings)
    programs = [Path(file) for file in files if not file.endswith(".rls")]
    found: list[Diagnostic] = []
    for file in files:
        # What is wrong with the program of a schedule may have been told already.
        new = [diagnostic for diagnostic in checked(Path(file), changed, programs=programs) if diagnostic not in found]
        show(new, form)
        found += new
    if form == "human":
        which = files[0] if len(files) == 1 else f"{len(files)} files"
        click.echo(f"{which}: {counted(found)}", err=True)
    return WRONG if any(diagnostic.severity == "error" for diagnostic in found) else FINE


# fmt


@rlgraph.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--check", "only_check", is_flag=True, help="Change nothing; exit with 1 if there is anything to change.")
def fmt(files: tuple[str, ...], only_check: bool) -> int:
    """Lay programs out as everybody does, in place; `-` is stdin to stdout."""
    from rlgraph.cli.layout import format_file, format_stdin

    if "-" in files and len(files) > 1:
        raise click.BadParameter("`-` stands alone", param_hint="'FILE...'")
    code = FINE
    for file in files:
        try:
            changed = format_stdin(only_check) if file == "-" else format_file(file, only_check)
        except ProgramError as error:
            show(error.diagnostics, "human")
            code = WRONG
            continue
        if changed and file != "-":
            click.echo(f"{'would reformat' if only_check else 'reformatted'} {file}")
        if changed and only_check:
            code = WRONG
    return code


# compile


@rlgraph.command("compile")
@click.argument("files", nargs=-1, metavar="FILE...")
@_set
@click.option("--devices", type=click.IntRange(1), default=1, help="How many there are, if no schedule has pools.")
@click.option(
    "--emit",
    "emitted",
    multiple=True,
    type=click.Choice(FORMATS),
    help="Write the graph, the plan or its transfers in this form: one to stdout, several into the folder of -o.",
)
@click.option(
    "--visualize",
    is_flag=False,
    flag_value="",
    metavar="[PATH]",
    help="Draw the dataflow: a page (NAME.html), or what the ending of PATH says (.html .svg .png .dot).",
)
@click.option(
    "--print-after",
    "after",
    multiple=True,
    metavar="PASS",
    help="Print the graph after this pass; `check` is before all.",
)
@click.option("-o", "--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Where files go.")
@_message_format
def compile_(
    files: tuple[str, ...],
    settings: tuple[str, ...],
    devices: int,
    emitted: tuple[str, ...],
    visualize: str | None,
    after: tuple[str, ...],
    out: Path | None,
    form: Format,
) -> int:
    """Compile a program, with a schedule (.rls) or without one; without options, say in a few lines what became of it."""
    from rlgraph.api import compile

    if visualize and visualize.endswith(".rlf"):
        # `--visualize FILE`: the option has no value, and click cannot know.
        files, visualize = (visualize, *files), ""
    programs = [Path(file) for file in files if not file.endswith(".rls")]
    schedules = [Path(file) for file in files if file.endswith(".rls")]
    if not programs:
        raise click.UsageError("Missing argument 'FILE...'.")
    if len(programs) > 1 or len(schedules) > 1:
        raise click.UsageError("compile takes one program (.rlf) and at most one schedule (.rls)")
    if visualize and Path(visualize).suffix[1:] not in PICTURES:
        raise click.BadParameter(f"`{visualize}` does not end in .html, .svg, .png or .dot", param_hint="'--visualize'")
    if out is None and emitted and (len(set(emitted)) > 1 or after or form == "json"):
        raise click.UsageError("say with -o DIR where the files go: only one form alone can go to stdout")
    with _telling(form):
        schedule = schedules[0] if schedules else None
        compiled = compile(programs[0], _settings(settings), schedule=schedule, devices=devices)
        show(compiled.diagnostics, form)
    for name in after:
        try:
            click.echo(compiled.text(name), nl=False)
        except LookupError as error:
            raise click.BadParameter(str(error), param_hint="'--print-after'") from None
    write(compiled, list(dict.fromkeys(emitted)), visualize, out)
    if not (emitted or after or visualize is not None or form == "json"):
        from rlgraph.api.summary import summary

        click.echo(summary(compiled))
    return FINE


# run


@rlgraph.command()
@click.argument("file", metavar="FILE")
@click.argument("schedule", required=False, type=click.Path(path_type=Path), metavar="[SCHEDULE]")
@_set
@click.option(
    "--backend",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where it runs: `local` is this process, `ray` the processes of a plan.",
)
@click.option("--address", metavar="ADDRESS", help="Of a Ray cluster.  [default: one is started on this machine]")
@click.option("--devices", type=click.IntRange(1), default=1, help="How many there are, if no schedule has pools.")
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="How often the main step runs; phases before it say so themselves.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of everything that is drawn.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder, new or empty, for metrics and trained models.  [default: runs/NAME-1, -2, ...]",
)
@click.option("--overwrite", is_flag=True, help="DIR may hold an earlier run: it is removed.")
@click.option("--threads", type=click.IntRange(1), help="Of this machine's cores.  [default: all]")
@click.option("--token-budget", type=click.IntRange(1), help="Padded tokens of a micro-batch at most.")
@click.option("--block", type=click.IntRange(1), help="Rows that a node works on at a time.  [default: the batch]")
@click.option("--record", type=click.Path(path_type=Path), metavar="DIR", help="Keep all that is sampled, to replay it.")
@click.option("--replay", type=click.Path(path_type=Path), metavar="DIR", help="Take what a run recorded, and sample nothing.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="PATH", help="Write a timeline for ui.perfetto.dev.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=1800.0,
    show_default=True,
    metavar="SECONDS",
    help="With `ray`: after so long, a process that does not answer is given up.",
)
@click.option("--debug", is_flag=True, help="With `ray`: all in this process, so that breakpoints work.")
@_message_format
def run(
    file: str,
    schedule: Path | None,
    settings: tuple[str, ...],
    backend: Literal["local", "ray"],
    address: str | None,
    devices: int,
    steps: int,
    seed: int,
    out: Path | None,
    overwrite: bool,
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
    """Train: run a program here, or on Ray as a schedule (.rls) says.

    Writes DIR/metrics.jsonl, DIR/models/NAME for each trained model, and notes on how it was run. Ctrl-C ends
    the run and saves the models; a second one ends it at once.
    """
    from rlgraph.api import compile
    from rlgraph.api.backends import Options
    from rlgraph.api.progress import Json, display
    from rlgraph.api.rundir import METRICS, RunFolder
    from rlgraph.api.running import run_in

    if backend != "ray" and (address or debug):
        raise click.UsageError(f"`{'--address' if address else '--debug'}` goes with `--backend ray`")
    options = Options(
        steps, seed, threads, block, token_budget, backend, address, debug, record=record, replay=replay, trace=trace,
        timeout=timeout,
    )
    with _telling(form):
        compiled = compile(Path(file), _settings(settings), schedule=schedule, devices=devices)
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
        click.echo("\n".join(lines))
    return FINE


# explain


@rlgraph.command()
@click.argument("code", required=False, metavar="[CODE]")
def explain(code: str | None) -> int:
    """Say more about a diagnostic, such as E0201; without CODE, list them all."""
    from rlgraph.cli.explain import explain as section
    from rlgraph.cli.explain import titles

    if code is None:
        for name, title in titles().items():
            click.echo(f"{name}  {title}")
        return FINE
    try:
        click.echo(section(code), nl=False)
    except LookupError as error:
        raise click.BadParameter(str(error), param_hint="'CODE'") from None
    return FINE


# The whole


def main() -> None:
    """The command `rlgraph`."""
    if "_RLGRAPH_COMPLETE" in os.environ:
        rlgraph.main(prog_name="rlgraph")
    code = status(sys.argv[1:])
    if code == INTERRUPTED:
        # Threads of an engine that are still at work would hold the exit.
        os._exit(code)
    sys.exit(code)


def status(arguments: list[str]) -> int:
    """Runs a command and gives its exit code; a person never sees a traceback."""
    try:
        code = _invoked(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read has seen enough. What is left must not fail again when Python ends.
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        return PIPE
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr, flush=True)
        return INTERRUPTED
    except Exception as error:
        print(f"internal error: {_first_line(error)}; please report it with {_kept()}", file=sys.stderr)
        return BUG


def _invoked(arguments: list[str]) -> int:
    try:
        with rlgraph.make_context("rlgraph", arguments) as context:
            code: int = rlgraph.invoke(context)
            return code
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return USAGE


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _kept() -> str:
    """The file that the traceback is written to."""
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile("w", prefix="rlgraph-error-", suffix=".txt", delete=False) as file:
            file.write(f"{' '.join(sys.argv)}\n{traceback.format_exc()}")
            return file.name
    except OSError:
        return "the command and its files"
