"""`rlgraph track`, which sends a run to trackers, afterwards or while it goes on."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlgraph.cli.base import FAILED, FINE, message_format, reporting_errors, rlgraph
from rlgraph.cli.diagnostics import Format, echo_text
from rlgraph.errors import NO_SPAN, Diagnostic, RunError, count_phrase
from rlgraph.files import cause_text
from rlgraph.runs.jsonlines import print_record
from rlgraph.runs.trackers.known import TRACKERS, require_trackers

if TYPE_CHECKING:
    from rlgraph.runs.trackers.base import TrackerSpec
    from rlgraph.runs.trackers.sending import Sender

BETWEEN_LOOKS_S = 2.0
"""The seconds between two looks at a run that goes on."""


@rlgraph.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option(
    "--to",
    "names",
    type=click.Choice([*TRACKERS]),
    multiple=True,
    required=True,
    help=f"Where: {', '.join(f'`{spec.name}` is {spec.about}' for spec in TRACKERS.values())}.",
)
@click.option("--model", "models", is_flag=True, help="The trained models, too, as artifacts.")
@click.option("--follow", is_flag=True, help="Go on until the run ends, or Ctrl-C.")
@click.option("--live", is_flag=True, hidden=True)
@message_format
def track(run: Path, names: tuple[str, ...], models: bool, follow: bool, live: bool, form: Format) -> int:
    """Send a run to trackers, while it goes on or afterwards: configuration, metrics, samples, pictures.

    RUN is its folder. What a tracker has already is not sent again: the same run of it goes on.
    """
    from rlgraph.runs.watching.run_reader import check_run_folder

    if live:
        return _live(run, TRACKERS[names[0]], models)
    with reporting_errors(form):
        require_trackers(names, models)
        check_run_folder(run)
        for name in dict.fromkeys(names):
            _track(run, TRACKERS[name], models, follow, form)
    return FINE


def _track(run: Path, spec: TrackerSpec, models: bool, follow: bool, form: Format) -> None:
    try:
        with closing(_sender(run, spec)) as sender:
            sender.open()
            count = sender.send_new()
            if follow and not sender.is_over:
                # Ctrl-C is how it is meant to end where the run does not.
                with suppress(KeyboardInterrupt):
                    while not sender.is_over:
                        time.sleep(BETWEEN_LOOKS_S)
                        count += sender.send_new()
            sender.finish(models)
    except Exception as error:
        if isinstance(error, RunError) or not _is_of_tracker(error):
            raise
        message = f"`{run}` cannot be sent to `{spec.name}`: {cause_text(error)}"
        hint = "what it has got stays there, and the same command goes on"
        raise RunError(Diagnostic("E0852", message, NO_SPAN, hint)) from None
    if form == "json":
        print_record({"type": "tracked", "tracker": spec.name, "steps": count, "where": sender.sent.where})
    else:
        new = "" if count == sender.sent.step else " that it had not"
        echo_text(f"sent {count_phrase(count, 'step')}{new} to {spec.name}: {sender.sent.where}")


def _is_of_tracker(error: Exception) -> bool:
    from rlgraph.errors import RlgraphError

    return not isinstance(error, RlgraphError)


def _sender(run: Path, spec: TrackerSpec, wait: bool = False) -> Sender:
    from rlgraph.api.run_pictures import run_pictures
    from rlgraph.runs.trackers.sending import Sender

    return Sender(run, spec, lambda: run_pictures(run), wait=wait)


def _live(run: Path, spec: TrackerSpec, models: bool) -> int:
    """Send a run as the process that does it says: a line of input is a new step, and their end is the run's. What
    packages print goes where their errors go."""
    news, say = _own_streams()
    try:
        with closing(_sender(run, spec, wait=True)) as sender:
            sender.open()
            say({"note": f"{spec.name}: {sender.sent.where}"})
            while news():
                sender.send_new()
            sender.send_new()
            sender.finish(models)
        say({"end": True})
    except Exception as error:
        import traceback

        traceback.print_exc()
        say({"failed": cause_text(error)})
        return FAILED
    return FINE


def _own_streams() -> tuple[Callable[[], bytes], Callable[[dict[str, Any]], None]]:
    """Take stdin and stdout for the process that started this one. Return a function that waits for a new step and
    returns nothing at the end, and one that tells a record."""
    steps, told = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.stdout.flush()
    os.dup2(2, 1)

    def say(record: dict[str, Any]) -> None:
        # The run may be gone, and then nobody listens.
        with suppress(OSError):
            os.write(told, json.dumps(record).encode() + b"\n")

    return lambda: os.read(steps, 1 << 16), say
