"""A program after the compiler: its graph after every pass, and where it runs.

What plans and what searches is loaded where a plan is asked for: who only looks at the graph does not wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rlgraph.errors import Diagnostic, Source, nearest
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Plan
from rlgraph.ir.schedule import Schedule
from rlgraph.ir.text.text import print_program
from rlgraph.passes.compilation.saved import PlanFile, Sections
from rlgraph.passes.rewrites.pipeline import Stage
from rlgraph.user_code.files import Folders

if TYPE_CHECKING:
    from rlgraph.passes.compilation.planning import Placed
    from rlgraph.passes.compilation.target import Target
    from rlgraph.passes.placement.choose import Choice


@dataclass(frozen=True)
class Compilation:
    """What the compiler made of a program; all else is worked out from it."""

    source: Source = field(repr=False)
    folder: Path
    """The program's."""
    set: Mapping[str, str]
    """What was replaced in it, as expressions of the language."""
    stages: tuple[Stage, ...] = field(repr=False)
    """The program after the checker and after each pass."""
    diagnostics: tuple[Diagnostic, ...] = field(repr=False)
    """Warnings."""
    schedule: Schedule = field(default=Schedule(), repr=False)
    """What is said about where it runs."""
    devices: int = 1
    """Where the schedule declares no pools."""
    file: PlanFile | None = field(default=None, repr=False)
    """The plan file that it was read from: it says where everything runs."""
    target: Target | None = None
    """What its plan is searched for; None: the schedule and simple defaults say where it runs."""

    @property
    def program(self) -> Program:
        """After the last pass: what runs."""
        return self.stages[-1].program

    @property
    def folders(self) -> Folders:
        """Where the relative paths of the program begin."""
        return Folders(self.folder)

    @property
    def name(self) -> str:
        """The algorithm's."""
        return self.program.name

    def after(self, name: str) -> Program:
        """The program after the pass of this name; `check` is before all passes."""
        found = {stage.name: stage.program for stage in self.stages}
        if name not in found:
            hint = nearest(name, found) or f"there are {', '.join(found)}"
            raise LookupError(f"there is no pass {name}: {hint}")
        return found[name]

    def text(self, after: str | None = None) -> str:
        """The graph as text, after a pass or after all of them."""
        return print_program(self.after(after) if after else self.program)

    # Placement

    @property
    def planned(self) -> bool:
        """Whether somebody said, or asked, where it runs: a cluster, a schedule or a plan file."""
        return self.target is not None or self.file is not None or bool(self.schedule.span.line)

    @cached_property
    def placed(self) -> Placed:
        """Where everything runs, and what is known of the models. Raises ProgramError where that cannot be."""
        from rlgraph.passes.compilation.planning import Placed, find_shapes, here, placed

        if self.file is not None:
            return Placed(self.file.plan, find_shapes(self.program, self.folders), ())
        if self.target is not None:
            from rlgraph.passes.compilation.choosing import warnings

            return Placed(self.choice.plan, self.choice.question.shapes, warnings(self.choice, self.schedule))
        return placed(self.program, self.schedule, self.folders, here(self.devices))

    @cached_property
    def choice(self) -> Choice:
        """The plan that was found for its cluster, and what it was chosen from. Raises ProgramError where none fits,
        ValueError without a cluster."""
        from rlgraph.passes.compilation.choosing import chosen

        if self.target is None:
            raise ValueError('without a cluster no plan is chosen: compile(..., cluster="1x8:h100-80gb")')
        return chosen(self.program, self.schedule, self.folders, self.target)

    @property
    def plan(self) -> Plan:
        """Which processes do which work: what the schedule says, and defaults for the rest."""
        return self.placed.plan

    @property
    def assumptions(self) -> Mapping[str, Any]:
        """What its plan was made for and with, as plan files say it: lengths, constants, what is least."""
        if self.target is None:
            return {} if self.file is None else self.file.sections.get("assumptions", {})
        return self.target.assumptions()

    @cached_property
    def told(self) -> Sections:
        """What its plan file says beside the plan."""
        if self.target is None:
            return {} if self.file is None else self.file.sections
        from rlgraph.passes.compilation.choosing import sections

        return sections(self.choice, self.target)

    def checked_placement(self) -> Self:
        """The same, with the warnings of its placement; raises ProgramError where the schedule cannot be done."""
        found = replace(self, diagnostics=(*self.diagnostics, *self.placed.warnings))
        # A search is not done twice.
        found.__dict__.update(
            {name: value for name, value in self.__dict__.items() if name in ("placed", "choice", "told")}
        )
        return found
