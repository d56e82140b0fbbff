"""The figures that docs/why/accuracy.md and its page of rows begin with, of the tables that they show."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.accuracy import Compared, Group, by_phase, split_by_fit
from benchmarks.measured import Row


def summary(found: Sequence[Compared]) -> str:
    """The first lines of docs/why/accuracy.md: how many rows there are, and the medians of the tables."""
    fitted, unseen = split_by_fit(found)
    (was, was_off), (now, off) = (
        (Group("", rows).median, median(each.error for each in rows)) for rows in (fitted, unseen)
    )
    phases = ", ".join(f"{title} {group.median:.0%}" for title, group in by_phase(unseen) if title != "all")
    return "\n".join(
        (
            f"- Predictions are compared with {len(found)} measurements on GPUs: {len(fitted)} of sources that "
            f"constants were fitted to, {len(unseen)} of unseen sources.",
            f"- Fitted sources have a median error of {was:.1%} and a bias of {was_off:+.1%}; unseen ones {now:.1%} "
            f"and {off:+.1%}.",
            f"- Unseen sources by phase: {phases}.",
        )
    )


def rows_summary(found: Sequence[Compared], left: Sequence[tuple[Row, str]]) -> str:
    """The first lines of docs/why/accuracy-rows.md."""
    fitted, unseen = (Group("", rows) for rows in split_by_fit(found))
    return "\n".join(
        (
            f"- Of {len(found) + len(left)} rows {len(found)} are predicted; {len(left)} cannot be expressed, with the "
            "reason below the table.",
            f"- A star marks the {len(unseen.rows)} rows of sources that no constant was fitted to; their median error "
            f"is {unseen.median:.1%}.",
            f"- {unseen.near:.0%} of these, and {fitted.near:.0%} of the other {len(fitted.rows)}, are within 20% of "
            "the measurement.",
        )
    )
