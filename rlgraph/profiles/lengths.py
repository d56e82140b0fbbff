"""Writes and reads files of lengths, which `rlgraph lengths` counts; errors name the place that is wrong.

    {"rlgraph_lengths": 1,
     "source": "runs/grpo-1",
     "prompts": {"rows": 1024, "cut": 0, "values": [31, 35.2, ...]},
     "answers": {"rows": 8192, "cut": 311, "values": [58, 71.5, ...]}}

`values` are the mean lengths of equal shares of the rows, ascending: of each row where they are few. `cut` is the
number of rows of which it is only known that they are longer. One of the two parts may be null.

"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

from rlgraph.errors import ProgramError, count_phrase
from rlgraph.explain.tables import align_columns
from rlgraph.passes.cost.lengths import LONGEST, STEPS, Lengths
from rlgraph.profiles import token_counts as counting
from rlgraph.profiles.censored_lengths import CensoredLengths
from rlgraph.profiles.file_kinds import FileKind
from rlgraph.runs.planfiles.document import JsonNode

VERSION = 1
KIND = FileKind(
    "file of lengths",
    "rlgraph_lengths",
    VERSION,
    {"E0950": "E0944", "version": "E0945", "E0952": "E0946", "E0953": "E0946"},
    "`rlgraph lengths RUN -o FILE` writes one",
)
PARTS = ("prompts", "answers")


@dataclass(frozen=True)
class FittedLengths:
    """The lengths of prompts and of answers; None for what the source does not have."""

    source: str
    prompts: CensoredLengths | None
    answers: CensoredLengths | None

    def to_text(self) -> str:
        """Return the text of the file."""
        parts = {name: _part(censored) for name, censored in self.named_lengths()}
        return json.dumps({KIND.field: VERSION, "source": self.source, **parts}, ensure_ascii=False) + "\n"

    def named_lengths(self) -> Iterator[tuple[str, CensoredLengths | None]]:
        """Yield the prompts and the answers with their names."""
        yield "prompts", self.prompts
        yield "answers", self.answers

    def to_json(self) -> dict[str, Any]:
        """Return what is known of both, as plain data."""
        return {name: None if censored is None else _summary(censored) for name, censored in self.named_lengths()}

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [
            ("", "rows", "mean", "median", "p90", "p99", "longest", "cut", "log-normal", "distance")
        ]
        for name, censored in self.named_lengths():
            if censored is not None:
                rows.append((name, *_shown(censored)))
        return "\n".join(align_columns("<>>>>>>><>", rows))


def fit_lengths(
    source: str | Path,
    *,
    prompt: str | None = None,
    answer: str | None = None,
    limit: int | None = None,
    model: str | None = None,
) -> FittedLengths:
    """Return the lengths in the folder of a recorded run or of a recording, or in the rows of what `files(...)` reads.

    prompt, answer: the columns that are counted; if not given, what `encode(rows)` takes, or `prompt` alone. limit:
    answers of so many tokens were cut there. model: whose tokenizer counts texts. Raise RlgraphError.
    """
    path = Path(source)
    lengths = (
        counting.count_recorded_tokens(path)
        if path.is_dir() and not counting.has_row_files(path)
        else counting.count_file_tokens(path, prompt, answer, limit, model)
    )
    return FittedLengths(str(source), *lengths)


def read_fitted_lengths(path: str | Path) -> tuple[Lengths | None, Lengths | None]:
    """Return the lengths of prompts and of answers in a file. Raise ProgramError with everything that is wrong with
    it."""
    try:
        document = KIND.read_document(Path(path))
        document.top.check_fields(KIND.field, "source", *PARTS)
        document.raise_errors()
        document.top.field("source").read_text()
        prompts, answers = (_lengths(document.top.field(name)) for name in PARTS)
        if prompts is None and answers is None:
            document.top.field(PARTS[0]).add_error("E0953", "the file has neither lengths of prompts nor of answers")
        document.raise_errors()
    except ProgramError as error:
        raise KIND.with_file_codes(error) from None
    return prompts, answers


def _part(censored: CensoredLengths | None) -> dict[str, Any] | None:
    """Return the part of a file for these lengths."""
    if censored is None:
        return None
    values = [round(value, 2) for value in censored.estimated_lengths().values]
    return {"rows": censored.row_count, "cut": len(censored.cut), "values": values}


def _lengths(node: JsonNode) -> Lengths | None:
    """Return the lengths of a part of a file, or None if it is null; what is wrong is reported."""
    if node.value is None or not node.check_fields("rows", "cut", "values"):
        return None
    rows = node.field("rows").read_int(1, LONGEST)
    node.field("cut").read_int(0, rows)
    values, before = [], 0.0
    for item in node.field("values").list_items():
        value = item.value
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= LONGEST:
            item.add_error("E0953", f"{item.path_text} is no length", f"it is 0 to {LONGEST:,} tokens")
        elif value < before:
            item.add_error("E0953", f"{item.path_text} is less than the one before it", "lengths ascend")
        else:
            values.append(float(value))
            before = value
    if not 1 <= len(values) <= STEPS:
        node.field("values").add_error(
            "E0953", f"{node.path_text} has {count_phrase(len(values), 'value')}, and has 1 to {STEPS}"
        )
    return Lengths(tuple(values) or (0.0,))


def _summary(censored: CensoredLengths) -> dict[str, Any]:
    """Return a summary of the lengths up to the longest seen; a row that was cut counts with its limit."""
    capped, fit = censored.estimated_lengths().capped(censored.longest), censored.log_length_distribution
    return {
        "rows": censored.row_count,
        "cut": len(censored.cut),
        "mean": capped.mean,
        **{name: capped.quantile(share) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))},
        "longest": censored.longest,
        "lognormal": None if fit is None else {"p50": _at(fit, 0.5), "p99": _at(fit, 0.99)},
        "distance": None if fit is None else censored.fit_distance,
    }


def _at(fit: NormalDist, share: float) -> float:
    """Return the length at a quantile of a fit, at most `LONGEST`."""
    from math import exp, log

    return exp(min(fit.inv_cdf(share), log(LONGEST)))


def _shown(censored: CensoredLengths) -> Iterator[str]:
    """Yield the cells of a row in a table."""
    summary = _summary(censored)
    yield f"{censored.row_count:,}"
    yield from (f"{summary[name]:,.0f}" for name in ("mean", "p50", "p90", "p99", "longest"))
    yield f"{len(censored.cut) / censored.row_count:.1%}"
    fit = summary["lognormal"]
    yield "none" if fit is None else f"p50={fit['p50']:.0f},p99={fit['p99']:.0f}"
    yield "" if fit is None else f"{censored.fit_distance:.1%}"
