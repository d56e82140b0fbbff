"""What all commands share: the group, exit codes, options, and the report of errors."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlgraph import __version__
from rlgraph.cli.diagnostics import Format, show_diagnostics, stdout_for_records
from rlgraph.errors import RlgraphError, RunError, UsageMistake
from rlgraph.ir.plan import LARGEST

if TYPE_CHECKING:
    from rlgraph.api.compiled import Compiled

FINE, WRONG, USAGE, BUG, FAILED, SIGNALLED, PIPE = 0, 1, 2, 3, 4, 128, 141
INTERRUPTED = SIGNALLED + signal.SIGINT


def interrupted_code(error: BaseException) -> int:
    """Return the exit code of a command that a signal ended, as shells and schedulers know it: 143 of SIGTERM."""
    return SIGNALLED + int(getattr(error, "signal", signal.SIGINT))


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="rlgraph", message="%(prog)s %(version)s")
def rlgraph() -> None:
    """A compiler for RLHF algorithms.

    \b
      rlgraph check grpo.rlf                 what is wrong with a program
      rlgraph compile grpo.rlf --visualize   its dataflow as a page to look around in
      rlgraph run grpo.rlf --steps 100       train
    """


def _keep_stdout(context: click.Context, _: click.Parameter, form: Format) -> Format:
    """Keep stdout for records where they are asked for, until the command ends."""
    context.with_resource(stdout_for_records(form))
    return form


message_format = click.option(
    "--message-format",
    "form",
    type=click.Choice(["human", "json"]),
    default="human",
    callback=_keep_stdout,
    help="Diagnostics as text on stderr, or as lines of JSON on stdout.",
)
devices_option = click.option(
    "--devices", type=click.IntRange(1, LARGEST), default=1, help="How many there are, if no schedule has pools."
)
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=EXPR",
    help="""Replace a `param`, or the right side of a `model`, `data`, `func` or `env`, by an expression of
    the language: --set n=4, --set 'data=jsonl("mine.jsonl", batch=8)'.""",
)
data_option = click.option(
    "--data",
    multiple=True,
    metavar="FILE",
    help="""Rows in the place of those of the program: a .jsonl or .parquet file, a name of the hub, FILE.py:FUNCTION.
    Options stay, and others follow a comma: --data mine.jsonl,batch=8. With several `data`: --data NAME=FILE.""",
)
reward_option = click.option(
    "--reward",
    "rewards",
    multiple=True,
    metavar="FILE.py:NAME",
    help="A function in the place of the program's `func`; options stay. With several: --reward NAME=FILE.py:NAME.",
)


def add_set_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that replace parts of a program: `settings`, `data`, `rewards`."""
    return set_option(data_option(reward_option(command)))


_TARGET = (
    click.option(
        "--cluster",
        metavar="TEXT",
        help="Search for the best plan on NODESxDEVICES:NAME such as 4x8:h100-80gb, several joined by +, "
        "or a .toml file.",
    ),
    click.option(
        "--prompt-tokens",
        metavar="LENGTHS",
        help="Of prompts: a number, mean=350,p99=1500, or a file.  [default: mean=256,p99=1024]",
    ),
    click.option(
        "--response-tokens",
        metavar="LENGTHS",
        help="Of answers, up to `max_tokens`.  [default: log-normal, 1 of 100 is cut]",
    ),
    click.option(
        "--lengths",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Of both, as far as they are not said: what `rlgraph lengths` counted.",
    ),
    click.option(
        "--turns",
        metavar="COUNTS",
        help="Of episodes, up to `max_turns`: a number, mean=4,p99=10, or a file.  [default: all]",
    ),
    click.option(
        "--environment-seconds",
        metavar="SECONDS",
        help="Of an environment's answer to an action: a number, mean=2,p99=30, or a file.  [default: 0.001]",
    ),
    click.option("--observation-tokens", metavar="LENGTHS", help="Of such an answer.  [default: 0]"),
    click.option(
        "--kept",
        type=click.FloatRange(0, 1, min_open=True),
        default=1.0,
        metavar="SHARE",
        help="Of the rows that a `keep` looks at.  [default: 1]",
    ),
    click.option(
        "--kept-tokens",
        type=click.FloatRange(1),
        metavar="N",
        help="In a place, of `likeliest` and `support=keep` without `top_k`.  [default: 64]",
    ),
    click.option(
        "--calibration", type=click.Path(path_type=Path), metavar="FILE", help="What `rlgraph profile` measured."
    ),
    click.option(
        "--search-seconds",
        type=click.FloatRange(0, min_open=True),
        metavar="N",
        help="End the search by then, with the best plan so far and how far it may be from the best there is.",
    ),
    click.option(
        "--search-gap",
        type=click.FloatRange(0, 1, max_open=True),
        metavar="SHARE",
        help="End the search at a plan so near to the best there is.  [default: 0.01, of small problems 0]",
    ),
)


def add_target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what a plan is made for: `cluster`, `prompt_tokens`, `response_tokens`, `lengths`,
    `turns`, `environment_seconds`, `observation_tokens`, `kept`, `kept_tokens`, `calibration`, `search_seconds`,
    `search_gap`."""
    return reduce(lambda wrapped, option: option(wrapped), reversed(_TARGET), command)


def parse_settings(
    given: tuple[str, ...], file: str = "", data: tuple[str, ...] = (), rewards: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return the `--set` options by name, with those that `--data` and `--reward` stand for in the program `file`.
    Raise BadParameter, UsageMistake."""
    settings: dict[str, str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        name = name.strip()
        if not sign or not name.isidentifier():
            raise click.BadParameter(f"`{text}` is not NAME=EXPR, as in `--set n=4`", param_hint="'--set'")
        if name in settings:
            raise click.BadParameter(f"`{name}` is set twice", param_hint="'--set'")
        settings[name] = value.strip()
    if not data and not rewards:
        return settings
    if file.endswith(".json"):
        message = f"`{'--data' if data else '--reward'}` does not go with a plan file: its program is fixed"
        raise click.UsageError(message)
    from rlgraph.passes.compilation.short_forms import DATA, REWARD, with_short_forms

    return with_short_forms(settings, file, {DATA: data, REWARD: rewards})


def compile_or_load(
    file: str,
    settings: dict[str, str],
    schedule: Path | str | None,
    *,
    advice: str = "",
    devices: int = 1,
    **options: Any,
) -> Compiled:
    """Compile a program, or load that of a plan file, which has been set and placed already. Raise UsageError. advice:
    follows the message for what does not go with a plan file, whose name is put into it. options: of `compile`."""
    from rlgraph.api import compile, load_plan

    if not file.endswith(".json"):
        return compile(Path(file), settings, schedule=schedule, devices=devices, **options)
    for name, value in {"--set": settings, "SCHEDULE": schedule, "--devices": devices != 1}.items():
        if value:
            message = f"`{name}` does not go with a plan file: its program and its plan are fixed"
            raise click.UsageError(message + advice.format(name))
    return load_plan(file)


@contextmanager
def reporting_errors(form: Format) -> Iterator[None]:
    """Show an error of the block, and end the command with its exit code."""
    try:
        yield
    except RlgraphError as error:
        show_diagnostics(error.diagnostics, form)
        code = FAILED if isinstance(error, RunError) else USAGE if isinstance(error, UsageMistake) else WRONG
        raise click.exceptions.Exit(code) from None
