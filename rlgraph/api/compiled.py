"""A compiled program: its graph after every pass, as text and as pictures, and how to run it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlgraph.dsl.schedule import Schedule
from rlgraph.errors import Diagnostic, Source
from rlgraph.ir.graph import Graph, Program
from rlgraph.passes.pipeline import Stage

if TYPE_CHECKING:
    from rlgraph.analysis.explain import Explanation
    from rlgraph.analysis.whatif import Sweep
    from rlgraph.api.planning import Placed
    from rlgraph.api.target import Target
    from rlgraph.backends.local.run import Observer
    from rlgraph.ir.plan import Plan
    from rlgraph.placement.choose import Choice
    from rlgraph.planfiles.file import PlanFile, Sections
    from rlgraph.runs.run import Run


@dataclass(frozen=True)
class Compiled:
    """What `rlgraph.compile` makes of a program."""

    source: Source = field(repr=False)
    folder: Path
    """Where the relative paths of the program begin."""
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
    sections: Sections = field(default_factory=dict, repr=False)
    """What its plan file says beside the plan: `cluster`, `assumptions`, `predicted`."""
    target: Target | None = None
    """What its plan is searched for; None: the schedule and simple defaults say where it runs."""

    @property
    def program(self) -> Program:
        """After the last pass: what runs."""
        return self.stages[-1].program

    @property
    def name(self) -> str:
        """The algorithm's."""
        return self.program.name

    @property
    def graph(self) -> Graph:
        """Of the main step, after the last pass."""
        return next(phase.graph for phase in self.program.phases if phase.name == "step")

    def after(self, name: str) -> Program:
        """The program after the pass of this name; `check` is before all passes."""
        found = {stage.name: stage.program for stage in self.stages}
        if name not in found:
            near = get_close_matches(name, found, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(found)}"
            raise LookupError(f"there is no pass {name}: {hint}")
        return found[name]

    def text(self, after: str | None = None) -> str:
        """The graph as text, after a pass or after all of them."""
        from rlgraph.ir.text import print_program

        return print_program(self.after(after) if after else self.program)

    # Placement

    @cached_property
    def placed(self) -> Placed:
        """Where everything runs, and what is known of the models. Raises ProgramError where that cannot be."""
        from rlgraph.api.choosing import warnings
        from rlgraph.api.planning import Placed, find_shapes, here, placed

        if self.file is not None:
            return Placed(self.file.plan, find_shapes(self.program, self.folder), ())
        if self.target is not None:
            return Placed(self.choice.plan, self.choice.question.shapes, warnings(self.choice))
        return placed(self.program, self.schedule, self.folder, here(self.devices))

    @cached_property
    def choice(self) -> Choice:
        """The plan that was found for its cluster, and what it was chosen from. Raises ProgramError where none fits."""
        from rlgraph.api.choosing import chosen

        assert self.target is not None, "without a cluster nothing is chosen"
        return chosen(self, self.target)

    def explain(self) -> Explanation:
        """Why this plan: what the step goes to, what plans of other shapes lose, and what would help. Needs a
        cluster."""
        from rlgraph.analysis.explain import explain

        return explain(self)

    def what_if(self, sweep: str) -> Sweep:
        """The best plan for each of some values: `devices=16,32,64`. Needs a cluster."""
        from rlgraph.analysis.whatif import what_if

        return what_if(self, sweep)

    @property
    def plan(self) -> Plan:
        """Which processes do which work: what the schedule says, and defaults for the rest."""
        return self.placed.plan

    @cached_property
    def told(self) -> Sections:
        """What its plan file says beside the plan."""
        from rlgraph.api.choosing import sections

        return sections(self.choice, self.target) if self.target is not None else self.sections

    def plan_json(self, beside: str | Path = ".") -> str:
        """The text of its plan file, which `rlgraph.load_plan` reads: program, plan and what they were made from.

        beside: the folder that the file will be in; the paths in it begin there.
        """
        from rlgraph.planfiles.file import plan_document

        return plan_document(self, Path(beside))

    def transfers(self) -> str:
        """What travels between the groups of the plan: weights after they changed, and rows."""
        from rlgraph.analysis.transfers import show_transfers

        return show_transfers(self.program, self.placed)

    def checked_placement(self) -> Compiled:
        """The same, with the warnings of its placement; raises ProgramError where the schedule cannot be done."""
        found = replace(self, diagnostics=(*self.diagnostics, *self.placed.warnings))
        # A search is not done twice.
        found.__dict__.update({name: value for name, value in self.__dict__.items() if name in ("placed", "choice")})
        return found

    # Pictures

    def to_dot(self) -> str:
        """Graphviz text."""
        from rlgraph.viz.dot import to_dot

        return to_dot(self.program)

    def to_svg(self, prefix: str = "") -> str:
        """`prefix` begins the ids in it: pictures on one page need different ones."""
        from rlgraph.viz.svg import to_svg

        return to_svg(self.program, prefix)

    def to_png(self, path: str | Path | None = None) -> bytes:
        """Also written to the path if one is given."""
        from rlgraph.viz.png import to_png

        return to_png(self.program, path)

    def to_html(self) -> str:
        """One self-contained page with the picture after every pass."""
        from rlgraph.viz.html import to_html

        return to_html([(stage.name, stage.program) for stage in reversed(self.stages)], self.source.text)

    def to_json(self) -> dict[str, Any]:
        """The graph as plain data."""
        from rlgraph.ir.plain import to_plain

        return to_plain(self.program)

    def show(self) -> None:
        """The picture in a notebook, the text elsewhere."""
        if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
            sys.modules["IPython"].display.display(self)
        else:
            print(self.text(), end="")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        from rlgraph.api.notebook import bundle

        return bundle(self)

    # Running

    def run(
        self,
        steps: int = 100,
        *,
        seed: int = 0,
        out: str | Path | None = None,
        overwrite: bool = False,
        threads: int | None = None,
        block: int | None = None,
        token_budget: int | None = None,
        backend: Literal["local", "ray"] = "local",
        address: str | None = None,
        debug: bool = False,
        timeout: float = 1800.0,
        record: str | Path | None = None,
        replay: str | Path | None = None,
        trace: str | Path | None = None,
        progress: bool = True,
        observer: Observer | None = None,
    ) -> Run:
        """Runs the phases before the main step, then the main step `steps` times.

        out: a folder, new or empty, for metrics and trained models; None writes nothing. overwrite: it may
        hold an earlier run, which is removed. threads: None takes every core. block: rows that a node works
        on at a time. token_budget: padded tokens of a micro-batch. backend: `local` is this process, `ray` the
        processes of the plan, on the cluster at `address` or else on one that is started on this machine; with
        `debug` they are objects in this process, so that breakpoints work. timeout: seconds after which a process that
        does not answer is given up. record: a folder, new or empty, for all
        that is sampled. replay: such a folder, whose rows take the place of sampling. trace: a file for a timeline
        that ui.perfetto.dev shows. progress: on stderr. None of these changes what is computed but `seed` and
        `replay`.

        Raises ProgramError for what cannot be opened, RunError for what fails on the way, Interrupted on
        Ctrl-C; in the last two cases the trained models are in `out`.
        """
        from rlgraph.runs.backends import Options
        from rlgraph.runs.run import run

        record, replay, trace = (None if path is None else Path(path) for path in (record, replay, trace))
        options = Options(
            steps,
            seed,
            threads,
            block,
            token_budget,
            backend,
            address,
            debug,
            record=record,
            replay=replay,
            trace=trace,
            timeout=timeout,
        )
        return run(self, options, out, overwrite, progress, observer)
