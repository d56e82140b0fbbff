"""The plan for a cluster: what is asked of the search, and what is told of its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlgraph.api.planning import find_shapes, installed
from rlgraph.clusters.units import show
from rlgraph.cost.peak import Peak, peaks
from rlgraph.dsl.schedule import operations
from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError
from rlgraph.models.shape import Shape
from rlgraph.ops.nodes import DRAWING
from rlgraph.placement.choose import Choice, Question, choose

if TYPE_CHECKING:
    from rlgraph.api.compiled import Compiled
    from rlgraph.api.target import Target

SPECIAL = ("megatron", "vllm")
"""The engines that clusters of accelerators have."""


def chosen(compiled: Compiled, target: Target) -> Choice:
    """Without off-loading, which no engine can do yet, if anything fits so. Raises ProgramError where a model's shape
    is not known, and where nothing fits."""
    asked = question(compiled, target)
    try:
        return choose(replace(asked, offload=False))
    except ProgramError:
        if not target.offload:
            raise
        return choose(asked)


def warnings(choice: Choice) -> tuple[Diagnostic, ...]:
    """What cannot run of the plan as it is."""
    away = [each for each in choice.plan.holdings if each.offload]
    if not away:
        return ()
    names = ", ".join(f"`{each.model}`" for each in away)
    message = (
        f"only with {names} in the host's memory while they are not at work does a plan fit, which no engine can do yet"
    )
    hint = "it can be compiled and simulated; for a plan that can run, take more devices (`--no-offload` says how many)"
    return (Diagnostic("W0930", message, NO_SPAN, hint, "warning"),)


def question(compiled: Compiled, target: Target) -> Question:
    """What is searched for."""
    shapes = find_shapes(compiled.program, compiled.folder)
    work = operations(compiled.program)
    wrong = [
        Diagnostic(
            "E0935",
            f"the work of `{model.name}` cannot be planned: {shape}",
            model.span,
            "take a well-known model, or a folder with its `config.json`",
        )
        for model in compiled.program.models
        if work[model.name] and not isinstance(shape := shapes.get(model.name, "its configuration is not here"), Shape)
    ]
    if wrong:
        raise ProgramError(wrong)
    there = tuple(sorted(set(SPECIAL) & installed())) if target.on_cpus else SPECIAL
    return Question(
        compiled.program,
        compiled.schedule,
        shapes,
        target.cluster,
        target.workload,
        target.constants,
        there,
        target.goal,
        target.offload,
    )


def memory(choice: Choice) -> dict[str, Peak]:
    """The fullest moment of each pool."""
    asked = choice.question
    return peaks(choice.plan, choice.problem.tasks, choice.subjects, asked.cluster, asked.constants)


def tokens(choice: Choice) -> float:
    """Of the rows that a step samples or encodes, with their prompts: the batch whose throughput is told."""
    found = [task.tokens * task.times for task in choice.problem.tasks if task.op in DRAWING]
    read = [task.tokens * task.times for task in choice.problem.tasks if task.op == "train"]
    return sum(found) or sum(read)


def shares(choice: Choice) -> dict[str, float]:
    """What the pools are busy with, as shares of the step: `generate`, `read`, `train`, `weights`."""
    found: dict[str, float] = {}
    problem = choice.problem
    for part, option in zip(problem.parts, choice.found.options, strict=True):
        for number, seconds in zip(part.tasks, option.seconds, strict=True):
            op = problem.tasks[number].op
            kind = "generate" if op in DRAWING else "train" if op == "train" else "read"
            found[kind] = found.get(kind, 0.0) + seconds
    return {name: seconds / choice.found.seconds for name, seconds in found.items()}


def predicted(choice: Choice) -> Mapping[str, Any]:
    """What a plan file says of the prediction."""
    return {
        "seconds": choice.found.seconds,
        "bound_seconds": choice.found.bound if choice.question.goal == "time" else None,
        "gap": choice.found.gap,
        "tokens": tokens(choice),
        "memory": {
            pool: {"bytes": round(peak.bytes), "capacity": round(peak.capacity), "moment": peak.moment}
            for pool, peak in memory(choice).items()
        },
    }


def sections(choice: Choice, target: Target) -> Mapping[str, Mapping[str, Any]]:
    """Those of the plan file."""
    cluster = {"text": target.cluster.text, "devices": target.cluster.devices}
    told = {name: value for name, value in predicted(choice).items() if value is not None}
    return {"cluster": cluster, "assumptions": target.assumptions(), "predicted": told}


# For people


def show_choice(choice: Choice) -> Iterator[str]:
    """A few lines: the step, each pool with what it does and how, what fills its memory."""
    found, asked = choice.found, choice.question
    proof = "the best there is" if found.gap == 0 else f"at most {found.gap:.1%} from the best there is"
    rate = tokens(choice) / found.seconds if found.seconds else 0.0
    used = sum(found.devices)
    yield f"{asked.cluster.text}: {show(found.seconds, 'time')} a step on {used} devices, {rate:,.0f} tokens/s; {proof}"
    told = ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares(choice).items(), key=lambda each: -each[1]))
    yield f"pools are busy, as shares of the step: {told}"
    full = memory(choice)
    for pool in choice.plan.pools[1:]:
        peak = full[pool.name]
        yield ""
        yield (
            f"{pool.devices} devices in `{pool.name}`: at most {show(peak.bytes, 'bytes')} of "
            f"{show(peak.capacity, 'bytes')}, "
            f"during {peak.moment}"
        )
        yield from _rows(choice, pool.name)


def _rows(choice: Choice, pool: str) -> Iterator[str]:
    cells = []
    for part, option in zip(choice.problem.parts, choice.found.options, strict=True):
        if choice.plan.role(part.model, part.operations[0]).pool == pool:
            spot = option.spot
            split = " x ".join(f"{axis}{size}" for axis, size in (("dp", spot.dp), ("pp", spot.pp), ("tp", spot.tp)))
            how = [spot.engine, split]
            if spot.micro_tokens:
                how.append(f"micro-batches of {spot.micro_tokens} tokens")
            how += ["recomputed"] * spot.recompute + ["off-loaded"] * option.offload
            names = [choice.problem.tasks[number].name for number in part.tasks]
            cells.append((part.name, f"{sum(option.seconds):.3g} s", ", ".join(how), ", ".join(names)))
    widths = [max(len(row[place]) for row in cells) for place in range(3)]
    for name, seconds, how, names in cells:
        yield f"  {name.ljust(widths[0])}  {seconds.rjust(widths[1])}  {how.ljust(widths[2])}  {names}"
