"""Plans a program without a search, from its models' shapes, the installed engines and this machine; and warns about
schedules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlgraph.backends.enginespec.registry import (
    BrokenEngine,
    broken_engines,
    embedded_engine,
    engine,
    installed_engines,
)
from rlgraph.catalog.models.adapters import adapters_of, find_adapter
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import find_config
from rlgraph.catalog.models.families import linear_layers
from rlgraph.catalog.models.gguf import gguf_config
from rlgraph.catalog.models.shape import Shape, UnsupportedModel
from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError, count_phrase, did_you_mean, quoted_list
from rlgraph.ir.graph import Constant, ConstructorCall, Model, Program, plain_constant
from rlgraph.ir.plan import CODE, HOST, Plan
from rlgraph.ir.schedule import Schedule
from rlgraph.ops.program_work import model_operations, user_code_usage
from rlgraph.passes.placement.adapter_errors import adapter_warnings
from rlgraph.passes.placement.admission_order import length_predictors
from rlgraph.passes.placement.place import Machine, Shapes, place
from rlgraph.passes.placement.sleeping import sleeping_warnings, with_sleeping_models
from rlgraph.user_code.files import SearchFolders

_SPECIAL = 3
"""The special tokens of a built tokenizer: padding, end of text, unknown."""


@dataclass(frozen=True)
class PlannedProgram:
    """A plan, with the models' shapes that it was made from."""

    plan: Plan
    shapes: Shapes
    warnings: tuple[Diagnostic, ...]


def place_program(program: Program, schedule: Schedule, folders: SearchFolders, machine: Machine) -> PlannedProgram:
    """Return the plan of a program. Raises ProgramError where it cannot run as scheduled."""
    shapes = read_model_shapes(program, folders)
    if problems := [*unmatched_adapter_diagnostics(program, shapes)]:
        raise ProgramError(problems)
    plan = place(program, schedule, machine, shapes, installed_engines())
    if machine.kind == "gpu":
        plan = with_sleeping_models(plan, schedule)
    work = model_operations(program)
    warnings = [_unknown(model) for model in program.models if model.name not in shapes and work[model.name]]
    warnings += unused_schedule_warnings(program, plan, schedule)
    warnings += sleeping_warnings(plan, schedule)
    warnings += adapter_warnings(program, schedule, shapes, (machine.kind,))
    return PlannedProgram(plan, shapes, (*warnings, *(_broken(fault) for fault in broken_engines())))


def unused_schedule_warnings(program: Program, plan: Plan, schedule: Schedule) -> list[Diagnostic]:
    """Return warnings about what a schedule asks for and the plan does not use."""
    return [
        *_idle(plan, schedule),
        *_removed(program, schedule),
        *_without_gain(plan, schedule),
        *_in_turn(plan, schedule),
    ]


def _idle(plan: Plan, schedule: Schedule) -> list[Diagnostic]:
    """Return warnings about idle devices in a schedule's pools. If the plan has the pool, they stay reserved; a plan
    from the search leaves out unused pools."""
    diagnostics, reserved = [], {pool.name for pool in plan.pools}
    for pool in schedule.pools:
        if pool.name == HOST:
            continue
        used = {device for group in plan.groups if group.pool == pool.name for device in group.devices}
        size, kind = (pool.cpus, "cpus") if pool.cpus else (pool.devices, "devices")
        if len(used) == size:
            continue
        idle = (
            f"{size - len(used)} of the {size} {kind}" if used else f"the {count_phrase(size, kind.removesuffix('s'))}"
        )
        message = f"nothing runs on {idle} of `{pool.name}`"
        hint = f"make it smaller, or raise `dp` where work is placed on `{pool.name}`"
        if not used:
            hint = f"leave `{pool.name}` out, or place work on it"
        consequence = "they stay reserved" if pool.name in reserved else "the plan has no such pool"
        diagnostics.append(Diagnostic("W0903", f"{message}, and {consequence}", pool.span, hint))
    return diagnostics


def _removed(program: Program, schedule: Schedule) -> list[Diagnostic]:
    """Return warnings about placed work that the passes removed since nothing needs it."""
    work_left, run = (
        model_operations(program),
        user_code_usage(program) | dict.fromkeys(length_predictors(schedule), True),
    )
    hint = "leave it out; `rlgraph compile PROGRAM --print-after simplify` shows what the compiler has left"
    return [
        Diagnostic("W0904", f"`{work}` is placed, and the compiler has found that nobody needs it", work.span, hint)
        for placement in schedule.placements
        for work in placement.work
        if (
            work.operation not in work_left[work.model]
            if work.operation
            else not work_left.get(work.model, run.get(work.model))
        )
    ]


def _without_gain(plan: Plan, schedule: Schedule) -> list[Diagnostic]:
    """Return warnings about lines of streams and tails for which the plan found nothing that saves time."""
    tail_hint = "leave the line out, or say how many rows move to how many copies: `tail TABLE(under=0.2, on=2)`"
    stream_hint = "leave the line out, or say how many rows travel together: `stream TABLE(block=64)`"
    blocks = dict(plan.blocks)
    return [
        Diagnostic("W0905", f"`{line.table}` stays a whole batch: no block saves anything", line.span, stream_hint)
        for line in schedule.streams
        if line.table not in blocks
    ] + [
        Diagnostic(
            "W0905", f"the rows of `{line.table}` end where they began: no tail saves anything", line.span, tail_hint
        )
        for line in schedule.tails
        if plan.tail_of(line.table) is None
    ]


def _in_turn(plan: Plan, schedule: Schedule) -> list[Diagnostic]:
    """Return warnings about trainings that should share a pipeline, but do not fit into memory together."""
    hint = "give the pool more devices, or the engine smaller micro-batches"
    fused_models = {fused.models for fused in plan.fused}
    return [
        Diagnostic(
            "W0906",
            f"the trainings of {quoted_list(line.models, 'and')} are done one after the other: "
            f"together they do not fit",
            line.span,
            hint,
        )
        for line in schedule.fuses
        if line.models not in fused_models
    ]


def local_machine(devices: int) -> Machine:
    """Return this machine, as if it had so many devices."""
    return Machine(devices, "gpu" if Path("/dev/nvidiactl").exists() else "cpu")


def unusable_engine_diagnostics(
    plan: Plan, schedule: Schedule, shapes: Mapping[str, Shape | UnsupportedModel], *, here: bool = True
) -> list[Diagnostic]:
    """Return diagnostics for engines of a plan that cannot do their part of a run. here: on this machine's devices."""
    problems = [*missing_feature_diagnostics(plan), *missing_engine_diagnostics(plan, schedule)]
    return problems + (device_fault_diagnostics(plan, schedule, shapes) if here else [])


def missing_engine_diagnostics(plan: Plan, schedule: Schedule) -> list[Diagnostic]:
    """Return diagnostics for engines that a run needs and this machine lacks, with how to install them."""
    diagnostics = []
    for name in dict.fromkeys(
        group.engine for group in plan.groups if group.engine not in (HOST, CODE, *installed_engines())
    ):
        spans = (placement.option_span("engine") for placement in schedule.placements if placement.engine == name)
        span = next(spans, schedule.span)
        message, hint = f"the engine `{name}` is not installed", f"pip install '{engine(name).install}'"
        diagnostics.append(Diagnostic("E0913", message, span, hint))
    return diagnostics


def device_fault_diagnostics(
    plan: Plan, schedule: Schedule, shapes: Mapping[str, Shape | UnsupportedModel]
) -> list[Diagnostic]:
    """Return diagnostics for models that an engine of a run cannot compute on the devices of this machine."""
    kind, diagnostics = local_machine(0).kind, []
    for group in plan.groups:
        if group.engine in (HOST, CODE):
            continue
        lines = (line for line in schedule.placements if line.engine == group.engine)
        spans = {work.model: line.option_span("engine") for line in lines for work in line.work}
        for model in group.models:
            shape = shapes.get(model)
            faults = engine(group.engine).device_faults(shape, kind) if isinstance(shape, Shape) else []
            hint = f"place it with `engine={embedded_engine().name}`, or take another model"
            diagnostics += [
                Diagnostic(
                    "E0912",
                    f"`{group.engine}` cannot compute `{model}` on a {kind.upper()}: there it {fault}",
                    spans.get(model, schedule.span),
                    hint,
                )
                for fault in faults
            ]
    return diagnostics


def missing_feature_diagnostics(plan: Plan) -> list[Diagnostic]:
    """Return diagnostics for what a plan needs of its engines and they cannot do."""
    offloaded: dict[str, list[str]] = {}
    for holding in plan.holdings:
        name = plan.group(holding.group).engine
        if holding.offload and not engine(name).sleeps:
            offloaded.setdefault(name, []).append(holding.model)
    hint = "take an engine that can, give the model a pool of its own in a schedule, or say `sleeps=True` in its spec"
    return [
        Diagnostic(
            "E0914",
            f"the plan keeps {quoted_list(sorted({*models}), 'and')} in the host's memory between uses, and the engine"
            f" `{name}` does not say that it `sleeps`",
            NO_SPAN,
            hint,
        )
        for name, models in offloaded.items()
    ]


def _broken(fault: BrokenEngine) -> Diagnostic:
    return Diagnostic("W0902", str(fault), NO_SPAN, "mend the package, or uninstall it")


def _unknown(model: Model) -> Diagnostic:
    message = f"the shape of `{model.name}` is not known: its configuration is not here"
    hint = (
        f"without it, defaults take `engine={embedded_engine().name}`, and the transfers of its weights cannot be shown"
    )
    return Diagnostic("W0901", message, model.span, hint)


# Shapes


def unmatched_adapter_diagnostics(program: Program, shapes: Shapes) -> Iterator[Diagnostic]:
    """Return diagnostics for adapters whose targets are no layers of their model."""
    for model in program.models:
        shape = shapes.get(model.name)
        if model.copy_of or not isinstance(shape, Shape) or shape.adapters is None:
            continue
        layers = sorted({name.rpartition(".")[2] for name in linear_layers(shape)})
        # Dotted names may belong to a single layer, and are checked when the model is loaded.
        for target in shape.adapters.unmatched_targets(linear_layers(shape)):
            if "." not in target:
                lora = dict(model.options).get("lora")
                span = lora.span if isinstance(lora, ConstructorCall) else model.span
                message = f"no linear layer of `{model.name}`, a {shape.family} model, is called `{target}`"
                yield Diagnostic(
                    "E0747", message, span, did_you_mean(target, layers) or f"there are {', '.join(layers)}"
                )


def read_model_shapes(program: Program, folders: SearchFolders) -> dict[str, Shape | UnsupportedModel]:
    """Return the shape of each model, or why it is unsupported, without loading it; models without a local
    configuration are left out.

    folders: those to which the program's relative paths refer.
    """
    shapes: dict[str, Shape | UnsupportedModel] = {}
    for model in program.models:
        if model.copy_of:
            shape = shapes.get(model.copy_of)
        else:
            shape = _shape(model, folders)
        if shape is not None:
            shapes[model.name] = shape
    return shapes


def _shape(model: Model, folders: SearchFolders) -> Shape | UnsupportedModel | None:
    source, adapters = model.source, adapters_of(model)
    try:
        if not isinstance(source, ConstructorCall) and (
            saved := find_adapter(folders.resolve_model_source(str(source)))
        ):
            source, adapters = saved
        config = _config(source, folders)
        return replace(shape_of(config), adapters=adapters) if config is not None else None
    except UnsupportedModel as error:
        return error
    except (OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        # The loader of the model reports what is wrong with it.
        return None


def _config(source: Constant, folders: SearchFolders) -> Mapping[str, Any] | None:
    """Return the configuration of a source that is no adapter."""
    if not isinstance(source, ConstructorCall):
        return find_config(folders.resolve_model_source(str(source)))
    return gguf_config(folders.find_path(str(source.args[0]))) if source.name == "gguf" else _random(source, folders)


def _random(source: ConstructorCall, folders: SearchFolders) -> dict[str, Any] | None:
    """Return the configuration of `random(...)`; None where its vocabulary is that of a tokenizer without local files.
    Raises UnsupportedModel where such a model is unsupported whatever its vocabulary."""
    fields = {name: plain_constant(value) for name, value in source.options if value is not None}
    fields["model_type"] = str(source.args[0])
    fields.pop("seed", None)
    tokenizer = fields.pop("tokenizer", None)
    if "vocab_size" not in fields:
        size = _tokens(tokenizer, folders)
        if size is None:
            shape_of({**fields, "vocab_size": 1})
            return None
        fields["vocab_size"] = size
    return fields


def _tokens(tokenizer: Constant, folders: SearchFolders) -> int | None:
    """Return how many tokens a tokenizer has, including special ones; None if its files are not here."""
    if isinstance(tokenizer, ConstructorCall):
        text = str(tokenizer.args[0]) if tokenizer.args else ""
        counts = {"chars": len(text), "words": len(text.split()), "bytes": 256}
        return counts[tokenizer.name] + _SPECIAL
    file = folders.find_path(str(tokenizer)) / "tokenizer.json"
    if not file.is_file():
        return None
    vocabulary = json.loads(file.read_text("utf-8"))
    return len({*vocabulary["model"]["vocab"], *(token["content"] for token in vocabulary["added_tokens"])})
