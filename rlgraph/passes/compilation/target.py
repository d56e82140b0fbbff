"""What a plan is searched for: a cluster, how long rows are, constants of the cost model, and what is to be least."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError
from rlgraph.passes.cost.constants import Constants, defaults
from rlgraph.passes.cost.lengths import read_lengths
from rlgraph.passes.cost.tasks import Workload

if TYPE_CHECKING:
    from rlgraph.catalog.clusters.cluster import Cluster
    from rlgraph.passes.compilation.compilation import Compilation
    from rlgraph.passes.cost.calibration import Calibration
    from rlgraph.passes.placement.search.problem import Goal

GOALS = ("time", "cost")


@dataclass(frozen=True)
class Target:
    cluster: Cluster
    workload: Workload
    constants: Constants
    goal: Goal = "time"
    offload: bool = True
    """Models may be in the host's memory while they are not at work."""
    fuse: bool = True
    """Trainings that can may share a pipeline."""
    stream: bool = True
    """Tables may stream of which the schedule says nothing."""
    search_seconds: float = inf
    """After which a search ends with the best plan that it has."""
    search_gap: float | None = None
    """How far from the best plan is near enough, as a share; None: as `placement.choose` has it."""

    @property
    def on_cpus(self) -> bool:
        return self.cluster.islands[0].device.kind == "cpu"

    def assumptions(self) -> dict[str, Any]:
        """What the program does not say, as plain data."""
        response = self.workload.response
        return {
            "prompt_tokens": self.workload.prompt.to_text(),
            "response_tokens": None if response is None else response.to_text(),
            "kept": self.workload.kept,
            "constants": self.constants.source,
            "minimize": self.goal,
            "offload": self.offload,
        }


def target(
    cluster: str | Cluster,
    workload: Workload | None,
    calibration: Calibration | None,
    goal: str,
    offload: bool,
    search_seconds: float | None = None,
    search_gap: float | None = None,
    fuse: bool = True,
    stream: bool = True,
) -> Target:
    """Raises ProgramError for a text that is no cluster, for a goal that is none, and for a gap that is no share."""
    from rlgraph.catalog.clusters.read import read_cluster

    if goal not in GOALS:
        raise ProgramError(Diagnostic("E0934", f"`{goal}` cannot be minimized", NO_SPAN, "`time` or `cost` can"))
    if search_gap is not None and not 0 <= search_gap < 1:
        hint = "a share from 0 on and less than 1: 0.05 ends the search at a plan at most 5% from the best there is"
        raise ProgramError(Diagnostic("E0934", f"{search_gap:g} is no gap to end a search at", NO_SPAN, hint))
    found = read_cluster(cluster) if isinstance(cluster, str) else cluster
    found, constants = (
        (found, defaults(found.islands[0].device.kind))
        if calibration is None
        else (calibration.on(found), calibration.constants)
    )
    seconds = inf if search_seconds is None else search_seconds
    wanted: Goal = goal  # type: ignore[assignment]
    return Target(found, workload or Workload(), constants, wanted, offload, fuse, stream, seconds, search_gap)


def assumed(compiled: Compilation) -> Workload:
    """The lengths that its plan was made for; a plan file says them, too."""
    if compiled.target is not None:
        return compiled.target.workload
    told = compiled.assumptions
    prompt, response = (told.get(name) for name in ("prompt_tokens", "response_tokens"))
    return workload(prompt, response, float(told.get("kept", 1.0)), files=False)


def workload(
    prompt_tokens: str | None = None, response_tokens: str | None = None, kept: float = 1.0, *, files: bool = True
) -> Workload:
    """From texts as `rlgraph.passes.cost.lengths` reads them; None is the default. Raises ProgramError for one that it
    cannot read. files: a text may name one."""
    found = Workload(kept=kept)
    if prompt_tokens is not None:
        found = replace(found, prompt=read_lengths(prompt_tokens, files))
    if response_tokens is not None:
        found = replace(found, response=read_lengths(response_tokens, files))
    return found
