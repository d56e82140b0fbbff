"""Says what lengths of rows a plan was made for."""

from __future__ import annotations

from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.compilation.target import parse_workload
from rlgraph.passes.cost.workload import Workload


def assumed_workload(compiled: Compilation) -> Workload:
    """Return the lengths that a compilation's plan was made for; a plan file has them, too."""
    if compiled.target is not None:
        return compiled.target.workload
    assumptions = compiled.assumptions
    prompt, response = (assumptions.get(name) for name in ("prompt_tokens", "response_tokens"))
    told = {name: assumptions.get(name) for name in (*Workload().of_episodes, "kept_tokens")}
    return parse_workload(prompt, response, float(assumptions.get("kept", 1.0)), files=False, **told)
