"""Runs a command line and returns its exit code. Each command is a function in a file of this folder.

Exit codes: 0 fine, 1 a program is wrong, 2 a command is wrong, 3 a bug of rlgraph, 4 a run failed, 130 interrupted, 143
ended by SIGTERM.

Modules that compute are imported inside the commands that need them, so that `rlgraph check` starts fast.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

import click

from rlgraph.cli import (
    checking,
    compiling,
    doctor,
    explain,
    exporting,
    lengths,
    listing,
    new,
    planfiles,
    profiling,
    running,
    samples,
    simulating,
    tracing,
    tracking,
    watching,
)
from rlgraph.cli.base import BUG, PIPE, SIGNALLED, USAGE, interrupted_code, rlgraph
from rlgraph.cli.namesake import namesake_warning
from rlgraph.errors import closest_match, escape_controls

__all__ = [
    "checking",
    "compiling",
    "doctor",
    "explain",
    "exporting",
    "lengths",
    "listing",
    "main",
    "new",
    "planfiles",
    "profiling",
    "running",
    "samples",
    "simulating",
    "run_command",
    "tracing",
    "tracking",
    "watching",
]


SHORT = {"check", "compile"}
"""Commands whose processes keep everything that they allocate until they end."""


def main() -> None:
    """Run the command `rlgraph`."""
    if SHORT.intersection(sys.argv[1:2]):
        # Searching for reference cycles, during the command and once more at the end, takes a sixth of the time.
        gc.disable()
        atexit.register(gc.freeze)
    if "_RLGRAPH_COMPLETE" in os.environ:
        rlgraph.main(prog_name="rlgraph")
    if conflict := namesake_warning(sys.path):
        print(f"{conflict.render()}\n", file=sys.stderr)
    code = run_command(sys.argv[1:])
    if code > SIGNALLED and code != PIPE:
        # Engine threads that are still at work would block a normal exit.
        os._exit(code)
    sys.exit(code)


def run_command(arguments: list[str]) -> int:
    """Run a command and return its exit code; a user never sees a traceback."""
    try:
        code = _invoked(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has closed the pipe. Flushing what is left must not fail again when Python ends.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        return PIPE
    except (KeyboardInterrupt, click.Abort) as error:
        print(str(error) or "interrupted", file=sys.stderr, flush=True)
        return interrupted_code(error)
    except Exception as error:
        print(f"internal error: {_first_line(error)}; please report it with {_saved_traceback()}", file=sys.stderr)
        return BUG


def _invoked(arguments: list[str]) -> int:
    try:
        with rlgraph.make_context("rlgraph", arguments) as context:
            code: int = rlgraph.invoke(context)
            return code
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.NoSuchOption as error:
        _with_suggestion(error).show()
        return USAGE
    except click.ClickException as error:
        # The message quotes the user's input.
        error.message = escape_controls(error.message)  # type: ignore[misc]
        error.show()
        return USAGE


def _with_suggestion(error: click.NoSuchOption) -> click.NoSuchOption:
    """Suggest an option only if its name is near, and name the other commands that have the wanted option."""
    wanted = error.option_name
    # Older versions of Click end the message without a full stop.
    sentence = f"{error.message.rstrip('.')}."
    parameters = error.ctx.command.params if error.ctx else []
    if any(isinstance(parameter, click.Argument) and parameter.name == wanted.lstrip("-") for parameter in parameters):
        assert error.ctx is not None
        usage = " ".join([error.ctx.command_path, *error.ctx.command.collect_usage_pieces(error.ctx)])
        return click.NoSuchOption(wanted, f"{sentence} It stands by itself: `{usage}`.", ctx=error.ctx)
    options = [
        name.lstrip("-") for parameter in parameters if isinstance(parameter, click.Option) for name in parameter.opts
    ]
    near = closest_match(wanted.lstrip("-"), options)
    others = [
        f"`rlgraph {name}`"
        for name, command in rlgraph.commands.items()
        if any(wanted in parameter.opts for parameter in command.params)
    ]
    if others:
        message = f"{sentence} It is one of {', '.join(others)}."
        return click.NoSuchOption(wanted, message, ctx=error.ctx)
    return click.NoSuchOption(wanted, sentence, [f"--{near}"] if near else None, error.ctx)


def _first_line(error: Exception) -> str:
    return escape_controls(f"{type(error).__name__}: {error}".splitlines()[0][:200])


def _saved_traceback() -> str:
    """Write the traceback to a file, and return its name."""
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile("w", prefix="rlgraph-error-", suffix=".txt", delete=False) as file:
            file.write(f"{' '.join(sys.argv)}\n{traceback.format_exc()}")
            return file.name
    except OSError:
        return "the command and its files"
