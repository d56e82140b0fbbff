"""The result of the compiler for a program: its graph after every pass, and where it runs.

Planning and search are imported only when a plan is asked for, so that looking at the graph is fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rlgraph.errors import Diagnostic, ProgramError, Source
from rlgraph.errors.arguments import no_cluster_error
from rlgraph.errors.lookups import ByName, thing_of_name
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Plan
from rlgraph.ir.schedule import Schedule
from rlgraph.ir.text.program_text import program_text
from rlgraph.passes.compilation.plan_file import PlanFile, Sections
from rlgraph.passes.rewrites.pipeline import PassResult
from rlgraph.user_code.files import SearchFolders

if TYPE_CHECKING:
    from rlgraph.passes.compilation.default_plan import PlannedProgram
    from rlgraph.passes.compilation.target import Target
    from rlgraph.passes.placement.choose import PlacementChoice
    from rlgraph.passes.placement.engine_contracts import EngineContract
    from rlgraph.passes.placement.place import Machine


def replaced_settings(settings: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings that a program was compiled with, as users look them up."""
    return ByName(settings, "the compiled program", "replaced setting")


@dataclass(frozen=True)
class Compilation:
    """The result of the compiler for a program; everything else about it is derived from these fields."""

    source: Source = field(repr=False)
    """The text of the program, and its path."""
    folder: Path
    """The folder of the program."""
    set: Mapping[str, str]
    """The settings that were replaced, as expressions of the language."""
    stages: tuple[PassResult, ...] = field(repr=False)
    """The program after the checker and after each pass."""
    diagnostics: tuple[Diagnostic, ...] = field(repr=False)
    """The warnings."""
    schedule: Schedule = field(default=Schedule(), repr=False)
    """The user's schedule."""
    devices: int = 1
    """The number of devices where the schedule declares no pools."""
    file: PlanFile | None = field(default=None, repr=False)
    """The plan file that it was read from, which says where everything runs; None if it was compiled."""
    target: Target | None = None
    """What a plan is searched for; None: the schedule and simple defaults say where it runs."""
    gpus: bool = False
    """Whether it is placed as on a machine with GPUs, whatever this one has."""

    @property
    def program(self) -> Program:
        """The program after the last pass, which is what runs."""
        return self.stages[-1].program

    @property
    def folders(self) -> SearchFolders:
        """The folders to which the program's relative paths refer."""
        return SearchFolders(self.folder)

    @property
    def name(self) -> str:
        """The name of the algorithm."""
        return self.program.name

    def after(self, name: str) -> Program:
        """Return the program after the pass of this name; `check` is before all passes. Raise UnknownName for other
        names."""
        return thing_of_name("the compiled program", "pass", name, self.stages).program

    def text(self, after: str | None = None) -> str:
        """Return the graph as text, after one pass or after all."""
        return program_text(self.after(after) if after else self.program)

    # Placement

    @property
    def planned(self) -> bool:
        """Whether a cluster, a schedule or a plan file says where it runs."""
        return self.target is not None or self.file is not None or bool(self.schedule.span.line)

    @cached_property
    def placed(self) -> PlannedProgram:
        """The plan, and what is known of the models. Raise ProgramError where the program cannot run as scheduled."""
        from rlgraph.passes.compilation.default_plan import (
            PlannedProgram,
            place_program,
            read_model_shapes,
        )

        if self.file is not None:
            return PlannedProgram(self.file.plan, read_model_shapes(self.program, self.folders), ())
        if self.target is not None:
            from rlgraph.passes.compilation.choose_plan import plan_warnings

            return PlannedProgram(
                self.choice.plan, self.choice.question.shapes, plan_warnings(self.choice, self.schedule)
            )
        return place_program(self.program, self.schedule, self.folders, self._machine)

    @property
    def _machine(self) -> Machine:
        """The machine that it is placed for where no cluster is named."""
        from rlgraph.passes.compilation.default_plan import local_machine

        machine = local_machine(self.devices)
        return replace(machine, kind="gpu") if self.gpus else machine

    @cached_property
    def choice(self) -> PlacementChoice:
        """The plan that was found for its cluster, with the search's problem. Raise ProgramError where none fits, or
        there is no cluster."""
        from rlgraph.passes.compilation.choose_plan import choose_plan

        if self.target is None:
            raise no_cluster_error("without a cluster no plan is chosen")
        return choose_plan(self.program, self.schedule, self.folders, self.target)

    @property
    def plan(self) -> Plan:
        """The plan: which processes do which work."""
        return self.placed.plan

    @cached_property
    def contracts(self) -> tuple[EngineContract, ...]:
        """What the processes of its plan are opened with. Raise ProgramError where there is no plan."""
        from rlgraph.catalog.clusters.read import read_cluster
        from rlgraph.passes.placement.engine_contracts import engine_contracts

        plan, cluster = self.plan, None
        if self.target is not None:
            cluster = self.target.cluster
        elif plan.cluster:
            cluster = read_cluster(plan.cluster)
        return engine_contracts(self.program, plan, self.placed.shapes, cluster, self._machine.kind)

    def _row_room_errors(self) -> list[Diagnostic]:
        """Return what is wrong with the caches that the schedule says."""
        from rlgraph.passes.placement.row_room import row_room_errors

        cluster, kind = self.target.cluster if self.target else None, self._machine.kind
        return list(row_room_errors(self.program, self.plan, self.schedule, self.placed.shapes, cluster, kind))

    @property
    def assumptions(self) -> Mapping[str, Any]:
        """The assumptions of its plan, as plan files have them: lengths, constants, what is minimized."""
        if self.target is None:
            return {} if self.file is None else self.file.sections.get("assumptions", {})
        return self.target.assumptions()

    @cached_property
    def plan_file_sections(self) -> Sections:
        """The sections of its plan file besides the plan."""
        if self.target is None:
            return {} if self.file is None else self.file.sections
        from rlgraph.passes.compilation.choose_plan import plan_file_sections

        return plan_file_sections(self.choice, self.target)

    def checked_placement(self) -> Self:
        """Return the same with the warnings of its placement; raise ProgramError where the schedule cannot be
        followed."""
        if wrong := self._row_room_errors():
            raise ProgramError(wrong)
        checked = replace(self, diagnostics=(*self.diagnostics, *self.placed.warnings))
        # Copying the cached properties avoids a second search.
        checked.__dict__.update(
            {name: value for name, value in self.__dict__.items() if name in ("placed", "choice", "told")}
        )
        return checked
