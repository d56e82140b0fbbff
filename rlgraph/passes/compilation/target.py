"""What a plan is searched for: a cluster, lengths of rows, constants of the cost model, and what to minimize."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError
from rlgraph.passes.cost.constants import Constants, default_constants
from rlgraph.passes.cost.lengths import parse_lengths
from rlgraph.passes.cost.workload import Workload

if TYPE_CHECKING:
    from rlgraph.catalog.clusters.cluster import Cluster
    from rlgraph.passes.cost.calibration import Calibration
    from rlgraph.passes.placement.search.problem import Goal

GOALS = ("time", "cost")


@dataclass(frozen=True)
class Target:
    """The cluster that a plan is searched for, and the options of the search."""

    cluster: Cluster
    workload: Workload
    constants: Constants
    goal: Goal = "time"
    offload: bool = True
    """Whether models may be offloaded to the host's memory while they are not used."""
    fuse: bool = True
    """Whether trainings may share a pipeline."""
    stream: bool = True
    """Whether tables may stream that the schedule does not mention."""
    search_seconds: float = inf
    """The time limit, after which a search ends with the best plan so far."""
    search_gap: float | None = None
    """The relative gap to the best plan at which a search ends; None: the default of `placement.choose`."""

    @property
    def on_cpus(self) -> bool:
        """Whether the cluster's devices are CPUs."""
        return self.cluster.islands[0].device.kind == "cpu"

    def assumptions(self) -> dict[str, Any]:
        """Return the assumptions that the program does not contain, as plain data."""
        response = self.workload.response
        return {
            "prompt_tokens": self.workload.prompt.to_text(),
            "response_tokens": None if response is None else response.to_text(),
            **{name: told.to_text() for name, told in self.workload.of_episodes.items() if told is not None},
            "kept": self.workload.kept,
            **({} if self.workload.kept_tokens is None else {"kept_tokens": self.workload.kept_tokens}),
            "constants": self.constants.source,
            "minimize": self.goal,
            "offload": self.offload,
        }


def make_target(
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
    """Return the target for these options. Raises ProgramError for an invalid cluster, goal or gap."""
    from rlgraph.catalog.clusters.read import read_cluster

    if goal not in GOALS:
        raise ProgramError(Diagnostic("E0934", f"`{goal}` cannot be minimized", NO_SPAN, "`time` or `cost` can"))
    if search_gap is not None and not 0 <= search_gap < 1:
        hint = "a share from 0 on and less than 1: 0.05 ends the search at a plan at most 5% from the best there is"
        raise ProgramError(Diagnostic("E0934", f"{search_gap:g} is no gap to end a search at", NO_SPAN, hint))
    parsed = read_cluster(cluster) if isinstance(cluster, str) else cluster
    parsed, constants = (
        (parsed, default_constants(parsed.islands[0].device.kind))
        if calibration is None
        else (calibration.with_measured_rates(parsed), calibration.constants)
    )
    seconds = inf if search_seconds is None else search_seconds
    wanted: Goal = goal  # type: ignore[assignment]
    return Target(parsed, workload or Workload(), constants, wanted, offload, fuse, stream, seconds, search_gap)


def parse_workload(
    prompt_tokens: str | None = None,
    response_tokens: str | None = None,
    kept: float = 1.0,
    *,
    files: bool = True,
    turns: str | None = None,
    environment_seconds: str | None = None,
    observation_tokens: str | None = None,
    kept_tokens: float | None = None,
) -> Workload:
    """Return the workload of texts that `rlgraph.passes.cost.lengths` reads; None is the default. Raises ProgramError
    for a text that it cannot read. files: whether a text may name a file."""
    lengths = Workload(kept=kept, kept_tokens=kept_tokens)
    if prompt_tokens is not None:
        lengths = replace(lengths, prompt=parse_lengths(prompt_tokens, files))
    if response_tokens is not None:
        lengths = replace(lengths, response=parse_lengths(response_tokens, files))
    if turns is not None:
        lengths = replace(lengths, turns=parse_lengths(turns, files, "turns", "--turns"))
    if environment_seconds is not None:
        taken = parse_lengths(environment_seconds, files, "seconds", "--environment-seconds")
        lengths = replace(lengths, environment_s=taken)
    if observation_tokens is not None:
        lengths = replace(lengths, observation=parse_lengths(observation_tokens, files))
    return lengths
