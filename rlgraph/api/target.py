"""How long rows are, for `rlgraph.compile(workload=)` and `rlgraph.simulate(workload=)`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rlgraph.passes.compilation import target
from rlgraph.passes.cost.workload import Workload
from rlgraph.profiles.lengths import fit_lengths, read_fitted

__all__ = ["fit_lengths", "workload"]


def workload(
    prompt_tokens: str | None = None,
    response_tokens: str | None = None,
    kept: float = 1.0,
    *,
    lengths: str | Path | None = None,
    foresight: float | None = None,
    alike: float = 0.0,
) -> Workload:
    """Return a workload as `--prompt-tokens`, `--response-tokens`, `--kept`, `--lengths`, `--foresight` and `--alike`
    say.

    lengths: a file that `rlgraph lengths` wrote, for what the first two do not say. Raise RlgraphError.
    """
    described = replace(target.workload(prompt_tokens, response_tokens, kept), alike=alike)
    described = described if foresight is None else replace(described, foresight=foresight)
    if lengths is None:
        return described
    prompt, response = read_fitted(lengths)
    return replace(
        described,
        prompt=described.prompt if prompt is None or prompt_tokens is not None else prompt,
        response=described.response or response,
    )
