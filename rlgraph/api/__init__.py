"""The functions that Python and notebooks call, `check`, `compile`, `load_plan` and `functions`, and compiled programs.

    program = rlgraph.compile("grpo.rlf", set={"n": 4})
    program.show()
    run = program.run(steps=30)

A program is a path (a `Path`, or a str that ends in `.rlf`), the name of an algorithm that ships, or the text itself.
`set` replaces what `--set` replaces: a `param`, or the right side of a `model`, `data`, `func` or `env`. Its values are
numbers, booleans, paths, or expressions of the language as text:
`{"prompts": 'jsonl("mine.jsonl", batch=8)', "base": '"Qwen/Qwen2.5-0.5B"'}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rlgraph.errors import Diagnostic, ProgramError, sorted_diagnostics
from rlgraph.errors.arguments import check_arguments, no_cluster_error
from rlgraph.passes.compilation.absent_model_files import absent_model_warnings
from rlgraph.passes.compilation.read_program import (
    Setting,
    make_column_reader,
    make_python_reference_checker,
    open_program,
    parse_settings,
    settings_as_text,
    with_quote_hints,
)

if TYPE_CHECKING:
    from rlgraph.api.compiled import Compiled
    from rlgraph.api.namespace import Functions
    from rlgraph.catalog.clusters.cluster import Cluster
    from rlgraph.passes.cost.workload import Workload


def check(
    program: str | Path,
    set: Mapping[str, Setting] | None = None,
    *,
    name: str = "<text>",
    programs: Sequence[Path] = (),
) -> list[Diagnostic]:
    """Return everything that is wrong with a program, and every warning; an empty list if it is fine.

    Nothing is run, and no file of Python is imported.

    - `program`: a path (a `Path`, or a text that ends in `.rlf`), the name of an algorithm that ships, or the text of a
      program. The path of a schedule (`.rls`) is checked against its program: one of `programs`, or the one beside it.
    - `set`: what `--set` replaces, as numbers, booleans, paths, or expressions of the language as text.
    - `name`: what diagnostics call a text.
    """
    from rlgraph.dsl.check import check as check_program

    try:
        check_arguments(program=program, name=name, programs=programs)
        opened = open_program(program, name)
        texts = settings_as_text(set)
        if opened.source.path.endswith(".rls"):
            from rlgraph.passes.compilation.schedule_files import check_schedule_file

            return check_schedule_file(opened, texts, programs)
        folders = opened.search_folders
        compiled, warnings = check_program(
            opened.source,
            parse_settings(texts),
            columns=make_column_reader(folders),
            faults=make_python_reference_checker(folders),
        )
        return sorted_diagnostics([*warnings, *absent_model_warnings(compiled, folders)])
    except ProgramError as error:
        return with_quote_hints(error.diagnostics)


def compile(
    program: str | Path,
    set: Mapping[str, Setting] | None = None,
    *,
    name: str = "<text>",
    schedule: str | Path | None = None,
    devices: int = 1,
    cluster: str | Cluster | None = None,
    workload: Workload | None = None,
    calibration: str | Path | None = None,
    minimize: Literal["time", "cost"] = "time",
    offload: bool = True,
    fuse: bool = True,
    stream: bool = True,
    search_seconds: float | None = None,
    search_gap: float | None = None,
) -> Compiled:
    """Return the program as a graph, after every pass. Raise ProgramError with everything that is wrong.

    - `program`, `set`, `name`: as for `rlgraph.check`.
    - `schedule`: where it runs, as the path of an `.rls` file or its text; the block `schedule:` of the program says
      the same.
    - `devices`: how many there are, where neither declares pools.
    - `cluster`: the machines, such as "16x8:a100-80gb". The fastest plan for them is searched for; what the schedule
      says is kept.

    The others go with `cluster`:

    - `workload`: how long rows are, from `rlgraph.workload`.
    - `calibration`: a file that `rlgraph profile` wrote.
    - `minimize`: "cost" for the cheapest plan in place of the fastest one.
    - `offload`: models may be in the host's memory while others work, where nothing fits without, or that is faster.
    - `fuse`: trainings that can may share a pipeline.
    - `stream`: rows may go on before a batch is complete where no line of the schedule says so, on 64 devices or of
      2,048 rows at most.
    - `search_seconds`: after so long the search ends with the best plan that it has.
    - `search_gap`: the search ends with a plan that is at most so far from the best there is, as a share.
    """
    from rlgraph.api.compiled import Compiled
    from rlgraph.passes.compilation.compile import check_program, compile_program

    check_arguments(program=program, name=name, schedule=schedule, cluster=cluster, workload=workload)
    check_arguments(calibration=calibration, offload=offload, fuse=fuse, stream=stream)
    check_arguments(search_seconds=search_seconds, search_gap=search_gap)
    if cluster is None:
        given = {
            "calibration": calibration is not None,
            "minimize": minimize != "time",
            "offload": not offload,
            "fuse": not fuse,
            "stream": not stream,
            "search_seconds": search_seconds is not None,
            "search_gap": search_gap is not None,
        }
        for option in (name for name, is_given in given.items() if is_given):
            raise no_cluster_error(f"`{option}` is for the search for a plan, and there is no cluster to search on")
    opened, texts = open_program(program, name), settings_as_text(set)
    unplanned = check_program(opened, texts, schedule)
    calibrated = goal = None
    if calibration is not None:
        from rlgraph.profiles.calibration import read_calibration

        calibrated = read_calibration(calibration)
    if cluster is not None:
        from rlgraph.passes.compilation.target import make_target

        goal = make_target(cluster, workload, calibrated, minimize, offload, search_seconds, search_gap, fuse, stream)
    return Compiled.of(compile_program(opened, texts, unplanned, devices, goal))


def load_plan(path: str | Path) -> Compiled:
    """Return the compiled program in a plan file, as `rlgraph compile --emit plan` or `Compiled.plan_json` wrote it.

    Its graph and its plan are fixed: no pass runs, and no plan is searched for. Raise ProgramError with everything that
    is wrong with the file.
    """
    from rlgraph.api.compiled import Compiled
    from rlgraph.runs.planfiles.file import load_plan

    check_arguments(path=path)
    return Compiled.of(load_plan(path))


def functions(program: str | Path = "std", set: Mapping[str, Setting] | None = None) -> Functions:
    """Return every `def` of a program as a Python function on tensors; those of the prelude for "std".

    The functions are attributes: `rlgraph.functions("std").gae(reward, value, 1.0, 0.95, mask=mask)`. An argument is a
    number, a tensor [rows] or a tensor [rows, tokens]; `mask` [rows, tokens] says which tokens count. Gradients go
    through. `set` replaces what `--set` replaces. Raise ProgramError if a declaration of the program is wrong.
    """
    from rlgraph.api.namespace import make_namespace

    check_arguments(program=program)
    if program == "std":
        return make_namespace("std", None, {})
    opened = open_program(program)
    return make_namespace(opened.source.path, opened.source, parse_settings(settings_as_text(set)))
