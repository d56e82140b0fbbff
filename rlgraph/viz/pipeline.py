"""A pipeline as a chart: a lane for each stage, a bar for each micro-batch that goes forward or backward there.

All of it is the timetable of the lists that stages follow. Of a long one the beginning, something from the middle, and
the end are drawn, in which bars are wide enough to be seen.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlgraph.passes.pipelines.problem import Part, Problem
from rlgraph.passes.pipelines.timetable import WAYS, Entry, Lists, Timetable, pieces
from rlgraph.viz.boxes import Role
from rlgraph.viz.gantt import Bar, Chart, Lane, Look
from rlgraph.viz.theme import HUES, INK, LABEL, ROLES, Paint

WHOLE = 100
"""The most bars of a usual length side by side in a chart that is not cut."""
MOST, LEAST = 75, 40
"""The most bars side by side in a chart that is cut: with few stages, and with many. Bars are wide enough then for
their numbers."""
BARS = 1200
"""The approximate number of bars of all stages in a chart that is cut."""
SHARES = 0.42, 0.16, 0.42
"""The shares of what is drawn of a long pipeline: the beginning, where the pipeline fills, the middle, and the end,
where it drains."""
STRONG: dict[Part, float] = {"F": 0.2, "B": 0.62, "I": 0.45, "W": 0.8}
"""The opacity of its model's colour in a bar, by the bar's part."""


def pipeline(
    problem: Problem,
    lists: Lists,
    table: Timetable,
    title: str,
    notes: Sequence[str] = (),
    roles: Sequence[Role] = (),
) -> Chart:
    """table: of these lists. notes: what is said below the title, before what the lists themselves say. roles: of the
    models, for their colours."""
    models = [at for at, model in enumerate(problem.models) for _ in range(model.copies)]
    looks = _looks(problem, roles)
    bars = []
    for piece in pieces(problem, lists, table):
        at, number = models[piece.entry.line], str(piece.number + 1)
        name, shown = f"{_line(problem, models, piece.entry)} {number}", (number,)
        if problem.models[at].chunks > 1:
            shown = (f"{number}{_letter(piece.entry.chunk)}",)
        bars.append(Bar(_stage(piece.stage), name, looks[at][piece.entry.part], piece.start, piece.end, shown))
    spans, held = _spans(problem, table.makespan), in_flight(problem, lists)
    told = [*notes, *_ways(problem), f"stages are idle {_between(idles(problem, table))} of the time"]
    told[-1] += f"; in flight: micro-batches {'of each model ' * (len(problem.models) > 1)}at the fullest moment"
    if len(spans) > 1:
        left_out = 1 - sum(end - start for start, end in spans) / table.makespan
        told.append(f"{left_out:.0%} of the time is left out, where the scale is broken")
    lanes = [
        Lane(_stage(stage), f"{idle:.0%} idle, {' + '.join(f'{count:.3g}' for count in counts)} in flight")
        for stage, (idle, counts) in enumerate(zip(idles(problem, table), held, strict=True))
    ]
    legend = [look for own in looks for look in own.values()]
    return Chart(lanes, bars, table.makespan, legend, title, told, spans, 18, 3, LABEL)


def idles(problem: Problem, table: Timetable) -> tuple[float, ...]:
    """Of each stage the share of the time in which it does nothing."""
    work = [0.0] * problem.stages
    for line in problem.lines:
        for stage in line.stages:
            work[stage] += line.model.micro_batches * (line.model.forward + line.model.backward)
    return tuple(max(0.0, 1 - each / table.makespan) for each in work)


def in_flight(problem: Problem, lists: Lists) -> tuple[tuple[float, ...], ...]:
    """Of each stage, at the moment when micro-batches in flight need most, how many of each model that is there. Of
    several chunks each is a part of a micro-batch."""
    lines, found = problem.lines, []
    for stage, own in enumerate(lists):
        held, here = [0] * len(lines), [at for at, line in enumerate(lines) if stage in line.stages]
        fullest = (-1.0, 0.0, tuple[float, ...]())
        for line, part, _ in own:
            held[line] += {"F": 1, "B": -1, "I": 0, "W": -1}[part]
            counts = tuple(held[at] / lines[at].model.chunks for at in here)
            memory = sum(lines[at].model.memory * count for at, count in zip(here, counts, strict=True))
            fullest = max(fullest, (memory, sum(counts), counts))
        found.append(fullest[2])
    return tuple(found)


def _ways(problem: Problem) -> list[str]:
    """`critic: 14 micro-batches, from the last stage to the first`."""
    found = []
    for model in problem.models:
        several = model.copies > 1
        copies = f"{model.copies} copies of {model.stages} stages, " if several else ""
        batches = f"{model.micro_batches} micro-batch{'es' * (model.micro_batches > 1)}{' each' * several}"
        way = "from the last stage to the first" if model.reverse else "from the first stage to the last"
        if model.chunks > 1:
            way += f", {model.chunks} times: its chunks on a stage are a to {_letter(model.chunks - 1)}"
        found.append(f"{model.name}: {copies}{batches}, {way}")
    return found


def _between(shares: Sequence[float]) -> str:
    least, most = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return least if least == most else f"{least} to {most}"


def _stage(number: int) -> str:
    return f"stage {number + 1}"


def _line(problem: Problem, models: Sequence[int], entry: Entry) -> str:
    """A model's name, which of its copies and chunks this is where there are several, and the way that it goes."""
    model = problem.models[models[entry.line]]
    copy = f", copy {entry.line - models.index(models[entry.line]) + 1}," if model.copies > 1 else ""
    chunk = f" chunk {_letter(entry.chunk)}" if model.chunks > 1 else ""
    return f"{model.name}{copy}{chunk} {WAYS[entry.part]}"


def _letter(chunk: int) -> str:
    """a, b, ..., z, a1, ..."""
    return chr(ord("a") + chunk % 26) + (str(chunk // 26) if chunk >= 26 else "")


def _spans(problem: Problem, seconds: float) -> tuple[tuple[float, float], ...]:
    """Those that are drawn: all of it, or three of a long one."""
    whole = sum(
        line.model.micro_batches * len(line.stages) * (line.model.forward + line.model.backward)
        for line in problem.lines
    )
    usual = whole / problem.work
    if seconds <= WHOLE * usual and problem.work <= BARS:
        return ((0.0, seconds),)
    room = usual * max(LEAST, min(MOST, BARS / problem.stages))
    if seconds <= room:
        return ((0.0, seconds),)
    first, middle, last = (share * room for share in SHARES)
    centre = (first + seconds - last) / 2
    return (0.0, first), (centre - middle / 2, centre + middle / 2), (seconds - last, seconds)


def _looks(problem: Problem, roles: Sequence[Role]) -> list[dict[Part, Look]]:
    """Of each model, what goes forward and backward: in the colour of its role where no other one has it."""
    free, hues = [*HUES], dict[int, str]()
    own: dict[int, Role] = {at: role for at, role in enumerate(roles) if role}
    # Those that have a colour of their own choose first.
    for at in sorted(range(len(problem.models)), key=lambda at: at not in own):
        wanted = ROLES[own[at]].edge if at in own else ""
        hues[at] = wanted if wanted in free else free[0]
        free = [each for each in free if each != hues[at]] or [*HUES]
    found = []
    for at, model in enumerate(problem.models):
        paint = Paint(hues[at], hues[at], INK, "")
        found.append({part: Look(f"{model.name} {WAYS[part]}", paint, "piece", STRONG[part]) for part in WAYS})
    return found
