"""How long rows are, for `rlgraph.compile(workload=)` and `rlgraph.simulate(workload=)`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rlgraph.compilation import target
from rlgraph.cost.tasks import Workload
from rlgraph.profiles.lengths import fit_lengths, read_fitted

__all__ = ["fit_lengths", "workload"]


def workload(
    prompt_tokens: str | None = None,
    response_tokens: str | None = None,
    kept: float = 1.0,
    *,
    lengths: str | Path | None = None,
) -> Workload:
    """As `--prompt-tokens`, `--response-tokens`, `--kept` and `--lengths` say.

    lengths: a file that `rlgraph lengths` wrote, for what the first two do not say. Raises RlgraphError.
    """
    said = target.workload(prompt_tokens, response_tokens, kept)
    if lengths is None:
        return said
    prompt, response = read_fitted(lengths)
    return replace(
        said,
        prompt=said.prompt if prompt is None or prompt_tokens is not None else prompt,
        response=said.response or response,
    )
