"""Some algorithms that ship, five steps on Ray with vLLM and Megatron, and replayed in one process, as the benchmark does
it with all of them. Costs 10 s for each."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray.util")
pytest.importorskip("megatron.core")
pytest.importorskip("vllm")

from tiny import data_folder

from benchmarks.zoo import flat_programs
from benchmarks.zoo_on_ray import compared, is_rounding


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "mesh"),
    [("reward_model", "dp=2"), ("vapo", "dp=2"), ("spin", "tp=2"), ("gigpo", "dp=2"), ("gkd", "tp=2")],
)
def test_an_algorithm_on_ray_is_its_replay(name: str, mesh: str, kept: None, tmp_path: Path) -> None:
    result = compared(name, flat_programs()[name].text, mesh, data_folder(tmp_path))
    assert is_rounding(result), result
