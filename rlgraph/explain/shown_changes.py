"""The changes between two plans as text: a line that sums up, then a block for each subject."""

from __future__ import annotations

from collections.abc import Sequence

from rlgraph.errors import escape_controls
from rlgraph.explain.graph_changes import graph_changes
from rlgraph.explain.plan_changes import Section, plan_changes, summary
from rlgraph.passes.compilation.plan_file import PlanFile
from rlgraph.runs.planfiles.diff import Difference, differences, graph_difference

_COLOURS = {"+": "32", "-": "31", "~": "33"}
_WIDEST_NAME = 30

TOLD = ("seconds", "in_turn_seconds", "steady_seconds", "bound_seconds", "gap", "tokens", "memory", "fused")
"""The predictions that are shown, or follow from what is shown."""


def shown_changes(before: PlanFile, after: PlanFile, colours: bool = False) -> str:
    """Return the changes for a person; empty if nothing differs. Control characters of the files are made visible.
    colours: with a terminal's escape sequences."""
    raw, graph = differences(before, after), graph_difference(before, after)
    if not raw and not graph:
        return ""
    sections = plan_changes(before, after) + graph_changes(before.program, after.program)
    lines = [_bold(summary(sections, before, after), colours)]
    for section in sections:
        lines += ["", _bold(section.title, colours), *_lines(section, colours)]
    lines += [f"\n{line}" for line in _left_out(sections, raw, graph)]
    return "\n".join(lines)


def _lines(section: Section, colours: bool) -> list[str]:
    width = max((len(change.name) for change in section.changes if len(change.name) <= _WIDEST_NAME), default=0)
    lines = []
    for change in section.changes:
        sign = f"\x1b[{_COLOURS[change.kind]}m{change.kind}\x1b[0m" if colours else change.kind
        name, (first, *others) = escape_controls(change.name), map(escape_controls, change.details or ("",))
        indent = " " * (width + 6)
        beside = len(name) <= width
        lines.append(f"  {sign} {name:{width}}  {first}".rstrip() if beside else f"  {sign} {name}")
        lines += [f"{indent}{detail}" for detail in (others if beside else [first, *others])]
    return lines


def _left_out(sections: Sequence[Section], raw: Sequence[Difference], graph: Sequence[str]) -> list[str]:
    """Return sentences about what differs and is in no section, so that no difference is without a word."""
    if not sections:
        others = len(raw) + bool(graph)
    else:
        others = sum(
            difference.section == "predicted" and difference.name.split(".")[0] not in TOLD for difference in raw
        )
        clusters = [difference for difference in raw if difference.section == "cluster"]
        others += len(clusters) * all(difference.name != "text" for difference in clusters)
    if not others:
        return []
    values = "1 other value differs" if others == 1 else f"{others} other values differ"
    return [f"{values}: `--message-format json` has them"]


def _bold(text: str, colours: bool) -> str:
    shown = escape_controls(text)
    return f"\x1b[1m{shown}\x1b[0m" if colours else shown
