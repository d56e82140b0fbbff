"""`rlgraph lengths`, which counts how long prompts and answers are, for predictions."""

from __future__ import annotations

from pathlib import Path

import click

from rlgraph.cli.base import FINE, message_format, reporting_errors, rlgraph
from rlgraph.cli.diagnostics import Format, echo_text
from rlgraph.runs.jsonlines import print_record


@rlgraph.command()
@click.argument("source", type=click.Path(path_type=Path), metavar="RUN|FILES")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("lengths.json"),
    show_default=True,
    help="The file of lengths.",
)
@click.option("--prompt", metavar="COLUMN", help="Of files: which has prompts.  [default: what `encode` takes]")
@click.option("--answer", metavar="COLUMN", help="Of files: which has answers.  [default: what `encode` takes]")
@click.option(
    "--limit", type=click.IntRange(1), metavar="N", help="Of files: answers of so many tokens were cut there."
)
@click.option(
    "--model",
    metavar="NAME",
    help="Of texts and messages: the model, its folder or GGUF file, whose tokens are counted.",
)
@message_format
def lengths(
    source: Path,
    output: Path,
    prompt: str | None,
    answer: str | None,
    limit: int | None,
    model: str | None,
    form: Format,
) -> int:
    """Count how many tokens prompts and answers have, and write their distributions for `--lengths FILE`.

    RUN is the folder of a run with `--record`, or of its recording; FILES is a file, a folder or a glob in quotes, as
    the program's `files(...)` reads it.
    """
    from rlgraph.profiles.lengths import fit_lengths
    from rlgraph.profiles.token_counts import has_row_files

    words = {"--prompt": prompt, "--answer": answer, "--limit": limit, "--model": model}
    given = [word for word, value in words.items() if value is not None]
    if source.is_dir() and given and not has_row_files(source):
        raise click.UsageError(f"`{given[0]}` goes with files of rows: a recording says it itself")
    if not output.parent.is_dir():
        raise click.BadParameter(f"there is no folder `{output.parent}`", param_hint="'--output'")
    with reporting_errors(form):
        distributions = fit_lengths(source, prompt=prompt, answer=answer, limit=limit, model=model)
    output.write_text(distributions.to_text(), "utf-8")
    if form == "json":
        print_record({"type": "lengths", **distributions.to_json()})
    else:
        echo_text(str(distributions))
        echo_text(f"wrote {output}", err=True)
    return FINE
