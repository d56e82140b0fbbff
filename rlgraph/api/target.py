"""How long rows are, for `rlgraph.compile(workload=)` and `rlgraph.simulate(workload=)`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rlgraph.errors.arguments import check_arguments
from rlgraph.passes.compilation import target
from rlgraph.passes.cost.workload import Workload
from rlgraph.profiles.lengths import fit_lengths, read_fitted_lengths

__all__ = ["fit_lengths", "workload"]


def workload(
    prompt_tokens: str | float | None = None,
    response_tokens: str | float | None = None,
    kept: float = 1.0,
    *,
    lengths: str | Path | None = None,
    foresight: float | None = None,
    alike: float = 0.0,
    turns: str | float | None = None,
    environment_seconds: str | float | None = None,
    observation_tokens: str | float | None = None,
    kept_tokens: float | None = None,
) -> Workload:
    """Return how long rows are, and how many of them filters keep, for plans and simulations. Raise RlgraphError.

    - `prompt_tokens`: tokens of a prompt, such as 300 or "mean=256,p99=1024".
    - `response_tokens`: tokens of an answer, up to the `max_tokens` of the program; log-normal with a long tail if not
      given.
    - `kept`: the share of the rows that a `keep` keeps.
    - `lengths`: a file that `rlgraph lengths` wrote, for what the first two do not say.
    - `foresight`: how much what `admit` expects of a prompt correlates with what its answers will be, from 0 to 1.
    - `alike`: how much the lengths of the answers to one prompt correlate, from 0 to less than 1.
    - `turns`: how often a model acts in an episode, such as "mean=4,p99=10", up to the `max_turns` of the program.
    - `environment_seconds`: what an environment takes to answer an action, such as "mean=2,p99=30".
    - `observation_tokens`: tokens of such an answer.
    - `kept_tokens`: tokens that `likeliest` and `support=keep` keep in the mean place where no `top_k` bounds them; 64
      if not given.
    """
    check_arguments(prompt_tokens=prompt_tokens, response_tokens=response_tokens, kept=kept, lengths=lengths)
    check_arguments(foresight=foresight, alike=alike, turns=turns, environment_seconds=environment_seconds)
    check_arguments(observation_tokens=observation_tokens, kept_tokens=kept_tokens)
    described = target.parse_workload(
        _text(prompt_tokens),
        _text(response_tokens),
        kept,
        turns=_text(turns),
        environment_seconds=_text(environment_seconds),
        observation_tokens=_text(observation_tokens),
        kept_tokens=kept_tokens,
    )
    described = replace(described, alike=alike)
    described = described if foresight is None else replace(described, foresight=foresight)
    if lengths is None:
        return described
    prompt, response = read_fitted_lengths(lengths)
    return replace(
        described,
        prompt=described.prompt if prompt is None or prompt_tokens is not None else prompt,
        response=described.response or response,
    )


def _text(length: str | float | None) -> str | None:
    """Return a length as the command line writes it."""
    return None if length is None else str(length)
