"""Draws a pipeline as a chart: a lane for each stage, a bar for each micro-batch that goes forward or backward there.

All of it is the timetable of the lists that stages follow. Of a long one the beginning, something from the middle, and
the end are drawn, in which bars are wide enough to be seen.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlgraph.passes.pipelines.problem import Part, PipelineProblem
from rlgraph.passes.pipelines.timetable import WAYS, Lists, ScheduleEntry, Timetable, timed_entries
from rlgraph.viz.boxes import Role
from rlgraph.viz.gantt import Bar, BarStyle, Chart, GanttLane
from rlgraph.viz.theme import HUES, INK, LABEL, ROLES, Paint

WHOLE = 100
"""The most bars of a usual length side by side in a chart that is not cut."""
MOST, LEAST = 75, 40
"""The most bars side by side in a chart that is cut, with few stages and with many. Bars are then wide enough for their
numbers."""
BARS = 1200
"""The approximate number of bars of all stages in a chart that is cut."""
SHARES = 0.42, 0.16, 0.42
"""The shares of what is drawn of a long pipeline: the beginning, where the pipeline fills, the middle, and the end,
where it drains."""
STRONG: dict[Part, float] = {"F": 0.2, "B": 0.62, "I": 0.45, "W": 0.8}
"""The opacity of its model's colour in a bar, by the bar's part."""


def draw_pipeline(
    problem: PipelineProblem,
    lists: Lists,
    table: Timetable,
    title: str,
    notes: Sequence[str] = (),
    roles: Sequence[Role] = (),
) -> Chart:
    """Return the chart. table: that of these lists. notes: lines below the title, before those about the lists
    themselves. roles: of the models, for their colours."""
    models = [index for index, model in enumerate(problem.models) for _ in range(model.copies)]
    looks = _looks(problem, roles)
    bars = []
    for piece in timed_entries(problem, lists, table):
        index, number = models[piece.entry.replica], str(piece.number + 1)
        name, shown = f"{_line(problem, models, piece.entry)} {number}", (number,)
        if problem.models[index].chunks > 1:
            shown = (f"{number}{_letter(piece.entry.chunk)}",)
        bars.append(Bar(_stage(piece.stage), name, looks[index][piece.entry.part], piece.start, piece.end, shown))
    spans, counts_of = _spans(problem, table.makespan), peak_in_flight(problem, lists)
    lines = [*notes, *_ways(problem), f"stages are idle {_between(idle_fractions(problem, table))} of the time"]
    lines[-1] += f"; in flight: micro-batches {'of each model ' * (len(problem.models) > 1)}at the fullest moment"
    if len(spans) > 1:
        left_out = 1 - sum(end - start for start, end in spans) / table.makespan
        lines.append(f"{left_out:.0%} of the time is left out, where the scale is broken")
    lanes = [
        GanttLane(_stage(stage), f"{idle:.0%} idle, {' + '.join(f'{count:.3g}' for count in counts)} in flight")
        for stage, (idle, counts) in enumerate(zip(idle_fractions(problem, table), counts_of, strict=True))
    ]
    legend = [look for model_looks in looks for look in model_looks.values()]
    return Chart(lanes, bars, table.makespan, legend, title, lines, spans, 18, 3, LABEL)


def idle_fractions(problem: PipelineProblem, table: Timetable) -> tuple[float, ...]:
    """Return, for each stage, the fraction of the time in which it is idle."""
    work = [0.0] * problem.stage_count
    for line in problem.replicas:
        for stage in line.stages:
            work[stage] += line.model.micro_batches * (line.model.forward + line.model.backward)
    return tuple(max(0.0, 1 - seconds / table.makespan) for seconds in work)


def peak_in_flight(problem: PipelineProblem, lists: Lists) -> tuple[tuple[float, ...], ...]:
    """Return, for each stage, how many micro-batches of each model are in flight at the moment when these need most
    memory. Of a model with several chunks, each chunk is a fraction of a micro-batch."""
    lines, peaks = problem.replicas, []
    for stage, stage_list in enumerate(lists):
        flying, lines_here = [0] * len(lines), [index for index, line in enumerate(lines) if stage in line.stages]
        fullest = (-1.0, 0.0, tuple[float, ...]())
        for line, part, _ in stage_list:
            flying[line] += {"F": 1, "B": -1, "I": 0, "W": -1}[part]
            counts = tuple(flying[index] / lines[index].model.chunks for index in lines_here)
            memory = sum(lines[index].model.memory * count for index, count in zip(lines_here, counts, strict=True))
            fullest = max(fullest, (memory, sum(counts), counts))
        peaks.append(fullest[2])
    return tuple(peaks)


def _ways(problem: PipelineProblem) -> list[str]:
    """Return lines such as `critic: 14 micro-batches, from the last stage to the first`."""
    texts = []
    for model in problem.models:
        several = model.copies > 1
        copies = f"{model.copies} copies of {model.stages} stages, " if several else ""
        batches = f"{model.micro_batches} micro-batch{'es' * (model.micro_batches > 1)}{' each' * several}"
        way = "from the last stage to the first" if model.reverse else "from the first stage to the last"
        if model.chunks > 1:
            way += f", {model.chunks} times: its chunks on a stage are a to {_letter(model.chunks - 1)}"
        texts.append(f"{model.name}: {copies}{batches}, {way}")
    return texts


def _between(shares: Sequence[float]) -> str:
    least, most = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return least if least == most else f"{least} to {most}"


def _stage(number: int) -> str:
    return f"stage {number + 1}"


def _line(problem: PipelineProblem, models: Sequence[int], entry: ScheduleEntry) -> str:
    """Return a model's name, which of its replicas and chunks this is if there are several, and the direction."""
    model = problem.models[models[entry.replica]]
    copy = f", copy {entry.replica - models.index(models[entry.replica]) + 1}," if model.copies > 1 else ""
    chunk = f" chunk {_letter(entry.chunk)}" if model.chunks > 1 else ""
    return f"{model.name}{copy}{chunk} {WAYS[entry.part]}"


def _letter(chunk: int) -> str:
    """Return the letters of chunks: a, b, ..., z, a1, ..."""
    return chr(ord("a") + chunk % 26) + (str(chunk // 26) if chunk >= 26 else "")


def _spans(problem: PipelineProblem, seconds: float) -> tuple[tuple[float, float], ...]:
    """Return the spans that are drawn: all of it, or three of a long one."""
    work_seconds = sum(
        line.model.micro_batches * len(line.stages) * (line.model.forward + line.model.backward)
        for line in problem.replicas
    )
    usual = work_seconds / problem.forward_backward_count
    if seconds <= WHOLE * usual and problem.forward_backward_count <= BARS:
        return ((0.0, seconds),)
    room = usual * max(LEAST, min(MOST, BARS / problem.stage_count))
    if seconds <= room:
        return ((0.0, seconds),)
    first, middle, last = (share * room for share in SHARES)
    centre = (first + seconds - last) / 2
    return (0.0, first), (centre - middle / 2, centre + middle / 2), (seconds - last, seconds)


def _looks(problem: PipelineProblem, roles: Sequence[Role]) -> list[dict[Part, BarStyle]]:
    """Return each model's looks for forward and backward, in the colour of its role if no other model has it."""
    free, hues = [*HUES], dict[int, str]()
    role_of: dict[int, Role] = {index: role for index, role in enumerate(roles) if role}
    # Models whose role has a colour choose first.
    for index in sorted(range(len(problem.models)), key=lambda index: index not in role_of):
        wanted = ROLES[role_of[index]].edge if index in role_of else ""
        hues[index] = wanted if wanted in free else free[0]
        free = [hue for hue in free if hue != hues[index]] or [*HUES]
    looks = []
    for index, model in enumerate(problem.models):
        paint = Paint(hues[index], hues[index], INK, "")
        looks.append({part: BarStyle(f"{model.name} {WAYS[part]}", paint, "piece", STRONG[part]) for part in WAYS})
    return looks
