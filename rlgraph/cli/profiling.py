"""`rlgraph profile`, which measures this machine for the cost model."""

from __future__ import annotations

from pathlib import Path

import click

from rlgraph.cli.base import FINE, message_format, reporting_errors, rlgraph
from rlgraph.cli.diagnostics import Format, echo_text
from rlgraph.passes.cost.calibration import HeldOutErrors
from rlgraph.runs.options import LOCAL, require_installed


@rlgraph.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("calibration.json"),
    show_default=True,
    help="The calibration file.",
)
@click.option("--engines", metavar="NAME,NAME", help="Those to measure.  [default: all that are installed]")
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Of the engine of one process, beside one.",
)
@click.option("--quick", is_flag=True, help="Fewer models and repetitions, and no engine that is split or copied.")
@message_format
def profile(output: Path, engines: str | None, threads: int, quick: bool, form: Format) -> int:
    """Measure what the engines take on this machine, and write the constants of the cost model.

    Takes three to seven minutes, one or two with --quick. The fewer others are at work on the machine the better.
    `rlgraph simulate --calibration FILE` predicts with what was found.
    """
    wanted = None if engines is None else [name.strip() for name in engines.split(",")]
    from rlgraph.backends.enginespec.registry import engine, installed_engines
    from rlgraph.backends.enginespec.registry import engines_by_name as known

    for name in wanted or ():
        if name not in known():
            raise click.BadParameter(
                f"there is no engine `{name}`: there are {', '.join(known())}", param_hint="'--engines'"
            )
    with reporting_errors(form):
        require_installed(LOCAL)
    if not output.parent.is_dir():
        raise click.BadParameter(f"there is no folder `{output.parent}`", param_hint="'--output'")
    from rlgraph.profiles.profile import profile_machine

    for name in wanted or ():
        if name not in installed_engines():
            raise click.BadParameter(
                f"`{name}` is not installed: pip install '{engine(name).install}'", param_hint="'--engines'"
            )
    with reporting_errors(form):
        calibration = profile_machine(
            wanted, threads=threads, quick=quick, note=lambda text: echo_text(f"  {text}", err=True)
        )
    output.write_text(calibration.to_text(), "utf-8")
    for constant, error in calibration.errors.items():
        echo_text(f"{constant:24}{error:6.1%} median error of the fit{_held_out(calibration.held_out.get(constant))}")
    echo_text(f"wrote {output}", err=True)
    return FINE


def _held_out(errors: HeldOutErrors | None) -> str:
    if errors is None:
        return ""
    return f"; {errors.median:.1%} on a model that it was not fitted to, {errors.worst:.1%} at worst"
