"""`rlgraph samples`, which shows what a run's model has answered, and how that was graded."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlgraph.cli.base import FINE, message_format, reporting_errors, rlgraph
from rlgraph.cli.diagnostics import Format, echo_text
from rlgraph.errors import count_phrase
from rlgraph.runs.jsonlines import print_record

if TYPE_CHECKING:
    from rlgraph.backends.samples import Sample
    from rlgraph.runs.samples import StepSamples

SHOWN = 2
"""How many of the best, and of the worst, are shown where nothing else is asked for."""


@rlgraph.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--best", type=click.IntRange(1), metavar="N", help="Those with the highest rewards.")
@click.option("--worst", type=click.IntRange(1), metavar="N", help="Those with the lowest rewards.")
@click.option("--step", type=click.IntRange(1), metavar="STEP", help="Of this step.  [default: the last one]")
@click.option(
    "--diff",
    type=click.IntRange(1),
    nargs=2,
    metavar="STEP STEP",
    help="The answers of two steps to the same prompts, side by side; with --best or --worst, so many of the prompts, "
    "those whose rewards rose or fell most first.",
)
@message_format
def samples(
    run: Path,
    best: int | None,
    worst: int | None,
    step: int | None,
    diff: tuple[int, int] | None,
    form: Format,
) -> int:
    """Show prompts, answers and rewards of a run, while it goes on or afterwards.

    RUN is its folder, which keeps some rows of each step (`rlgraph run --keep-samples`). Without options: the best two
    and the worst two of the last step.
    """
    from rlgraph.runs import samples as kept

    if diff is not None and step is not None:
        raise click.UsageError("`--diff` names its steps itself: leave `--step` out")
    with reporting_errors(form):
        if diff is None:
            taken = kept.samples_of_step(run, step)
            chosen = _chosen(taken, best, worst)
            _show_step(taken, chosen, form)
            return FINE
        before, after = (kept.samples_of_step(run, number) for number in diff)
        pairs = kept.pair_by_prompt(before, after, run)
    pairs.sort(key=lambda pair: _gain(*pair), reverse=worst is None)
    if best is not None and worst is not None:
        pairs = [*pairs[:best], *pairs[max(best, len(pairs) - worst) :]]
    else:
        pairs = pairs[: best or worst or SHOWN]
    _show_pairs(before, after, pairs, form)
    return FINE


def _chosen(taken: StepSamples, best: int | None, worst: int | None) -> list[tuple[str, Sample]]:
    from rlgraph.runs import samples as kept

    if best is None and worst is None:
        return kept.best_and_worst(taken.samples, 2 * SHOWN)
    tops = [("best", sample) for sample in kept.best(taken.samples, best or 0)]
    return tops + [("worst", sample) for sample in kept.worst(taken.samples, worst or 0)]


def _gain(before: Sequence[Sample], after: Sequence[Sample]) -> float:
    """Return by how much the mean reward of a prompt's answers has risen."""
    return _mean(after) - _mean(before)


def _mean(samples: Iterable[Sample]) -> float:
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    return sum(rewards) / len(rewards) if rewards else 0.0


def _show_step(taken: StepSamples, chosen: Sequence[tuple[str, Sample]], form: Format) -> None:
    from rlgraph.runs.samples import to_json
    from rlgraph.runs.shown_samples import format_sample

    if form == "json":
        for word, sample in chosen:
            print_record({"type": "sample", "which": word, **to_json(taken.step, sample)})
        return
    width = shutil.get_terminal_size().columns
    kept = f"step {taken.step}: {count_phrase(len(taken.samples), 'row')} kept"
    echo_text("\n\n".join([kept, *(format_sample(word, sample, width) for word, sample in chosen)]))


def _show_pairs(
    before: StepSamples, after: StepSamples, pairs: Sequence[tuple[list[Sample], list[Sample]]], form: Format
) -> None:
    from rlgraph.runs.samples import to_json
    from rlgraph.runs.shown_samples import format_text_lines, heading, prompt_text

    if form == "json":
        for old, new in pairs:
            for step, rows in ((before.step, old), (after.step, new)):
                for sample in rows:
                    print_record({"type": "sample", **to_json(step, sample)})
        return
    width = shutil.get_terminal_size().columns
    blocks = []
    for old, new in pairs:
        lines = format_text_lines("prompt", prompt_text(old[0].prompt), width)
        for step, rows in ((before.step, old), (after.step, new)):
            for sample in rows:
                lines += [heading(f"step {step}", sample), *format_text_lines("answer", sample.answer, width)]
        blocks.append("\n".join(lines))
    echo_text("\n\n".join(blocks))
