"""A cache that has no room for a row is refused when the program is compiled, with what to write."""

from __future__ import annotations

import pytest
from test_contract import CLUSTER, on_gpus

from rlgraph.errors import ProgramError
from rlgraph.passes.cost.cache_reservation import one_row_cache_bytes
from rlgraph.passes.placement.engine_contracts import cache_question
from tests.shared_pool import compiled

__all__ = ["on_gpus"]


def refused(sampler: str, cluster: str | None) -> str:
    with pytest.raises(ProgramError) as caught:
        compiled(", sleep=true", f", sleep=true, {sampler}", cluster)
    [found] = caught.value.diagnostics
    assert found.code == "E0757" and found.span.line == 5
    option = sampler.split(", ")[-1]
    assert found.span.source.text.splitlines()[4][found.span.column - 1 :].startswith(option)
    return found.render()


@pytest.mark.usefixtures("on_gpus")
@pytest.mark.parametrize("cluster", [None, CLUSTER])
def test_a_longest_row_without_room_for_an_answer_and_a_prompt(cluster: str | None) -> None:
    text = refused("max_len=1024", cluster)
    assert "an answer of `rollout` may have 1,024 tokens" in text and "help: `max_len=1025` and the tokens of" in text
    assert compiled(", sleep=true", ", sleep=true, max_len=1025", cluster).contracts


@pytest.mark.usefixtures("on_gpus")
@pytest.mark.parametrize(("said", "tokens"), [("", 1025), ("max_len=8192, ", 8192)])
def test_a_cache_without_room_for_a_row(said: str, tokens: int) -> None:
    """Half of 28 layers' keys and values, of 2 of 4 heads with 128 numbers each: 28 KiB a token on each rank."""
    text = refused(f"{said}cache=20e6", None)
    assert "does not fit a cache of 20MB on each rank of `all`" in text
    least = text.split("`cache=")[-1].split("`")[0]
    made = compiled(", sleep=true", f", sleep=true, {said}cache={least}")
    group = made.plan.group_of_role("actor", "generate")
    asked = cache_question(made.program, made.plan, group, "actor", made.placed.shapes["actor"], "gpu", None)
    assert asked is not None
    assert one_row_cache_bytes(*asked, tokens) <= float(least) < 1.2 * one_row_cache_bytes(*asked, tokens)
    [contract] = [contract for contract in made.contracts if contract.group == group.name]
    assert contract.cache is not None
    # What is printed is what was said: nothing is made larger behind one's back.
    assert (contract.cache.cache_bytes, contract.cache.row_tokens >= tokens) == (int(float(least)), True)
