"""What plans of public layouts have for vLLM is what vLLM asks for, by its own code; the page has the table."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

pytest.importorskip("vllm")

from benchmarks import contracts
from benchmarks.public_layouts import LAYOUTS, Layout
from rlgraph.passes.placement.engine_contracts import EngineContract
from tests.documents import ROOT
from tests.suites import few

PAGE = (ROOT / "docs" / "why" / "gpu.md").read_text("utf-8")
NAMES = [layout.name for layout in LAYOUTS]


def layout_named(name: str) -> Layout:
    [found] = [layout for layout in LAYOUTS if layout.name == name]
    return found


def test_the_page_has_ten_layouts_with_their_sources() -> None:
    [table] = re.findall(r"<!-- contracts -->\n(.*?)\n<!-- end -->", PAGE, re.DOTALL)
    assert "\n".join(table.splitlines()[:2]) == contracts.HEAD
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == NAMES
    assert len(NAMES) == 10 and all(re.match(r"[\w-]+/[\w-]+@[0-9a-f]{7} ", layout.source) for layout in LAYOUTS)


@pytest.mark.parametrize("name", few(NAMES, NAMES[0], NAMES[2], NAMES[6]))
def test_vllm_asks_for_what_the_plan_has(name: str) -> None:
    found = contracts.sampler(layout_named(name))
    assert not found.wrong
    assert contracts.line(found) in PAGE, "put what `python benchmarks/contracts.py` prints there"


def test_what_differs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another row than the engine is told; and a trainer that is awake on a device that vLLM wants for itself."""
    layout = layout_named("30B-A3B on 8, shared (verl)")
    whole = contracts.differences

    def one_token_less(contract: EngineContract, *rest: object) -> object:
        assert contract.cache is not None
        cache = replace(contract.cache, row_tokens=contract.cache.row_tokens - 1)
        return whole(replace(contract, cache=cache), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(contracts, "differences", one_token_less)
    monkeypatch.setattr(contracts, "awake_bytes", lambda *_: 40 << 30)
    first, second = contracts.sampler(layout).wrong
    assert first == "tokens of a row: 10239 in the contract, 10240 asked for"
    assert second.startswith("vLLM cannot start with this model: Free memory on device")
