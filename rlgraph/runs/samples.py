"""The samples of a run: rows of every step in its folder, a line of JSON for each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rlgraph.backends.samples import Sample, choose_shown_rows, ranking
from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake
from rlgraph.files import failure_reason
from rlgraph.runs.jsonlines import decode_nonfinite, encode_nonfinite

SAMPLES = "samples.jsonl"
_STEP = re.compile(rb'\{"step": (\d+), ')


def sample_lines(step: int, samples: Iterable[Sample]) -> list[str]:
    """Return a line of JSON for each sample of a step."""
    return [json.dumps(to_json(step, sample), default=str) for sample in samples]


def to_json(step: int, sample: Sample) -> dict[str, Any]:
    """Return a sample as a record of JSON. Its first field is the step, by which lines are cut."""
    return {
        "step": step,
        "table": sample.table,
        "row": sample.row,
        "prompt": sample.prompt,
        "answer": sample.answer,
        **encode_nonfinite({"reward": sample.reward}),
        "scores": encode_nonfinite(sample.scores),
        "length": sample.length,
        "version": sample.version,
    }


def from_json(record: Mapping[str, Any]) -> Sample:
    """Return the sample of a record. Raise LookupError, TypeError or ValueError for what no run writes."""
    read = decode_nonfinite({"reward": record["reward"]})
    row = tuple(record["row"])
    if len(row) < 3 or not isinstance(record["answer"], str):
        raise ValueError("not a sample")
    return Sample(
        str(record["table"]),
        row,
        record["prompt"],
        record["answer"],
        None if read["reward"] is None else float(read["reward"]),
        {name: float(value) for name, value in decode_nonfinite(record["scores"]).items()},
        int(record["length"]),
        int(record["version"]),
    )


def limit_samples(samples: Sequence[Sample], most: int) -> list[Sample]:
    """Return at most so many samples of a step; each table has its share."""
    if not most or len(samples) <= most:
        return list(samples[:most])
    tables = dict.fromkeys(sample.table for sample in samples)
    chosen: list[Sample] = []
    for table in tables:
        rows = [sample for sample in samples if sample.table == table]
        rewards = [sample.reward for sample in rows]
        reward = [float("nan") if number is None else number for number in rewards]
        places = choose_shown_rows([sample.row for sample in rows], reward, max(1, most // len(tables)))
        chosen += [rows[place] for place in places]
    return chosen[:most]


def cut_samples_after(file: IO[str], step: int) -> None:
    """Cut a file of samples after this step. It may be long, so only the beginnings of lines are looked at."""
    end = 0
    file.seek(0)
    for line in file.buffer:  # type: ignore[attr-defined]
        head = _STEP.match(line)
        if head is None or not line.endswith(b"\n") or int(head[1]) > step:
            break
        end += len(line)
    file.seek(0)
    file.truncate(end)
    file.seek(0, 2)


# Reading


@dataclass(frozen=True)
class StepSamples:
    """The samples of a step of a run."""

    step: int
    samples: tuple[Sample, ...]


def read_samples(run: Path) -> Iterator[StepSamples]:
    """Yield the samples of a run step by step; the run may still be at work. Raise UsageMistake if there are none, or
    the file is damaged."""
    path = run / SAMPLES
    try:
        with path.open("rb") as file:
            step, held = 0, list[Sample]()
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break  # The run writes it just now, or was killed while it did.
                try:
                    record = json.loads(line)
                    sample = from_json(record)
                    at = int(record["step"])
                except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
                    message = f"line {number} of `{path}` is none that a run writes"
                    hint = "a run that goes on cuts what is damaged; or remove the line"
                    raise UsageMistake(Diagnostic("E0841", message, NO_SPAN, hint)) from None
                if at != step and held:
                    yield StepSamples(step, tuple(held))
                    held = []
                step = at
                held.append(sample)
    except OSError as error:
        hint = "give the folder of a run whose program samples; `--keep-samples 0` keeps none"
        message = f"there are no samples of `{run}`: `{SAMPLES}` cannot be read: {failure_reason(error)}"
        raise UsageMistake(Diagnostic("E0840", message, NO_SPAN, hint)) from None
    if held:
        yield StepSamples(step, tuple(held))


def samples_of_step(run: Path, step: int | None) -> StepSamples:
    """Return the samples of a step, or of the last one for None. Raise UsageMistake if it has none."""
    last, first = StepSamples(0, ()), 0
    for last in read_samples(run):
        first = first or last.step
        if last.step == step:
            return last
    if step is None and last.samples:
        return last
    message = f"step {step} of `{run}` has no samples" if last.samples else f"`{run}` has no samples yet"
    hint = f"there are those of steps {first} to {last.step}" if last.samples else "they come with its first step"
    raise UsageMistake(Diagnostic("E0842", message, NO_SPAN, hint))


def best(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Return the samples with the highest rewards, the best first."""
    return [samples[place] for place in ranking([sample.reward for sample in samples])[:count]]


def worst(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Return the samples with the lowest rewards, the worst first."""
    return [samples[place] for place in ranking([sample.reward for sample in samples])[::-1][:count]]


def best_and_worst(samples: Sequence[Sample], count: int) -> list[tuple[str, Sample]]:
    """Return so many samples, with a word for each: half of them are the best, half the worst, none is there twice."""
    ranked = [samples[place] for place in ranking([sample.reward for sample in samples])]
    count = min(count, len(ranked))
    tops = count - count // 2
    return [("best", sample) for sample in ranked[:tops]] + [
        ("worst", sample) for sample in ranked[len(ranked) - count // 2 :]
    ]


def pair_by_prompt(before: StepSamples, after: StepSamples, run: Path) -> list[tuple[list[Sample], list[Sample]]]:
    """Return, for each prompt of which both steps have samples, these. Raise UsageMistake if there is none."""
    groups = [_by_prompt(step.samples) for step in (before, after)]
    common = [prompt for prompt in groups[0] if prompt in groups[1]]
    if common:
        return [(groups[0][prompt], groups[1][prompt]) for prompt in common]
    others = [
        step.step
        for step in read_samples(run)
        if step.step != before.step and not groups[0].keys().isdisjoint(_by_prompt(step.samples))
    ]
    message = f"steps {before.step} and {after.step} have samples of no prompt in common"
    near = ", ".join(map(str, others[:5]))
    hint = (
        f"compare step {before.step} with {near}"
        if others
        else "a prompt comes again when the data has been read once: run longer, or with less data (`limit=`)"
    )
    raise UsageMistake(Diagnostic("E0843", message, NO_SPAN, hint))


def _by_prompt(samples: Iterable[Sample]) -> dict[tuple[Any, ...], list[Sample]]:
    groups: dict[tuple[Any, ...], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.table, sample.row[0], sample.row[2]), []).append(sample)
    return groups
