"""`rlgraph export`, which makes of a run's model what other programs load."""

from __future__ import annotations

from pathlib import Path

import click

from rlgraph.cli.base import FINE, message_format, reporting_errors, rlgraph
from rlgraph.cli.diagnostics import Format, echo_text
from rlgraph.runs.jsonlines import print_record

_TYPES = ("f32", "f16", "q8_0")


@rlgraph.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option(
    "--to",
    "target",
    type=click.Choice(["folder", "hub", "gguf"]),
    default="folder",
    show_default=True,
    help="A folder that `from_pretrained` and vLLM load, a repository of the hub, or a file for llama.cpp.",
)
@click.option("--model", metavar="NAME", help="Which one, by its name in the program.  [default: the only one trained]")
@click.option(
    "--step",
    default="last",
    metavar="STEP",
    show_default=True,
    help="After which step: a number, last, or best (with `rlgraph run --keep-best`).",
)
@click.option("--merge", is_flag=True, help="Merge adapters into their base.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The folder or the file.  [default: one in RUN/exported]",
)
@click.option("--repo", metavar="OWNER/NAME", help="With --to hub: where.")
@click.option("--private", is_flag=True, help="With --to hub: a repository that is made is private.")
@click.option("--type", "kind", type=click.Choice(_TYPES), help="With --to gguf: of the weights.  [default: f16]")
@message_format
def export(
    run: Path,
    target: str,
    model: str | None,
    step: str,
    merge: bool,
    output: Path | None,
    repo: str | None,
    private: bool,
    kind: str | None,
    form: Format,
) -> int:
    """Export a trained model of a run, while it goes on or afterwards, with a card made of program, data and metrics.

    RUN is its folder. While it goes on, and of other steps, the weights are those of a checkpoint (`--save-every`).
    """
    from rlgraph.runs.exporting.export import TARGETS, ExportRequest
    from rlgraph.runs.watching.run_reader import check_run_folder

    given = {"--repo": (repo, "hub"), "--private": (private, "hub"), "--type": (kind, "gguf")}
    for option, (value, place) in given.items():
        if value and target != place:
            raise click.UsageError(f"`{option}` goes with `--to {place}`")
    if output is not None and target == "hub":
        raise click.UsageError("`--output` does not go with `--to hub`, where `--repo` says where")
    with reporting_errors(form):
        check_run_folder(run)
        request = ExportRequest(run, model, step, merge, output, repo, private, kind)
        exported = TARGETS[target](request)
    if form == "json":
        record = {"type": "exported", "model": exported.model, "step": exported.step, "where": exported.where}
        print_record(record)
    else:
        after = f" after step {exported.step}" if exported.step else ""
        echo_text(f"exported {exported.model}{after} to {exported.where}")
    return FINE
