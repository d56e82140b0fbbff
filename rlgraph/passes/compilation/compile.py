"""Compiles a program that was read: checks it, then runs every pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlgraph.catalog.clusters.processor import bfloat16_units
from rlgraph.dsl.check import Checked, check_program_and_schedule
from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError, UsageMistake
from rlgraph.ir.dtypes import AUTO
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import LARGEST
from rlgraph.passes.compilation.compilation import Compilation, replaced_settings
from rlgraph.passes.compilation.missing_heads import missing_head_diagnostics
from rlgraph.passes.compilation.read_program import (
    OpenedProgram,
    make_column_reader,
    make_python_reference_checker,
    open_program,
    parse_settings,
    with_quote_hints,
)
from rlgraph.passes.compilation.schedule_files import with_schedule
from rlgraph.passes.rewrites.pipeline import run_passes

if TYPE_CHECKING:
    from rlgraph.passes.compilation.target import Target


def check_program(opened: OpenedProgram, settings: Mapping[str, str], schedule: str | Path | None = None) -> Checked:
    """Check a program with its schedule, a path or a text. Raises ProgramError with all mistakes in them."""
    folders = opened.search_folders
    try:
        program = check_program_and_schedule(
            opened.source,
            parse_settings(settings),
            columns=make_column_reader(folders),
            faults=make_python_reference_checker(folders),
        )
    except ProgramError as error:
        raise ProgramError(with_quote_hints(error.diagnostics)) from None
    return program if schedule is None else with_schedule(program, open_program(schedule, "<schedule>"))


def compile_program(
    opened: OpenedProgram, settings: Mapping[str, str], found: Checked, devices: int = 1, target: Target | None = None
) -> Compilation:
    """Return the program after every pass. Raises ProgramError if it cannot run as its schedule says, or on its
    cluster."""
    if not isinstance(devices, int) or isinstance(devices, bool) or not 1 <= devices <= LARGEST:
        message = f"`devices` is a whole number from 1 to {LARGEST:,}"
        raise UsageMistake(Diagnostic("E0902", message, NO_SPAN, "`devices=8`"))
    if problems := missing_head_diagnostics(found.program, opened.search_folders):
        raise ProgramError(problems)
    typed = found.program if target is None else with_default_dtypes(found.program, not target.on_cpus)
    stages = tuple(run_passes(typed))
    warnings, schedule = tuple(found.warnings), found.schedule
    compilation = Compilation(
        opened.source, opened.folder, replaced_settings(settings), stages, warnings, schedule, devices, target=target
    )
    return compilation.checked_placement() if target or schedule.span.line else compilation


def with_default_dtypes(program: Program, accelerated: bool) -> Program:
    """Return the program with a dtype for each model that names none: bfloat16 on accelerators, float32 on CPUs."""
    default = "bfloat16" if accelerated else "float32"
    models = tuple(
        replace(model, options=tuple(_with_dtype(dict(model.options), default).items())) for model in program.models
    )
    return replace(program, models=models)


def _with_dtype(options: Mapping[str, Any], default: str) -> dict[str, Any]:
    if options.get("autocast"):
        default = "float32"  # Only the products are narrow.
    return {**options, "dtype": options["dtype"] or default} if "dtype" in options else dict(options)


def resolve_auto_autocast(program: Program, flags: Collection[str]) -> Program:
    """Return the program with `autocast="auto"` decided for each model: bfloat16 where a processor with these flags
    multiplies it faster than float32, and else none."""
    chosen = "bfloat16" if bfloat16_units(flags) else None
    models = []
    for model in program.models:
        options = dict(model.options)
        if options.get("autocast") == AUTO:
            options["autocast"] = chosen
        models.append(replace(model, options=tuple(options.items())))
    return replace(program, models=tuple(models))


def autocast_notes(asked: Program, flags: Collection[str]) -> list[str]:
    """Return in which dtype the products of models are that have `autocast`, in sentences. asked: the program before
    `auto` is decided."""
    decided, units = resolve_auto_autocast(asked, flags), bfloat16_units(flags)
    named: dict[str, list[str]] = {}
    for model in asked.models:
        if asked.autocast_of_model(model) is None:
            continue
        if decided.autocast_of_model(decided.model(model.name)):
            how = f"bfloat16 ({', '.join(units) or 'slow: this processor has no units for it'}), weights float32"
        else:
            how = "float32: this processor multiplies bfloat16 no faster"
        named.setdefault(how, []).append(f"`{model.name}`")
    return [f"products of {', '.join(names)}: {how}" for how, names in named.items()]
