"""Names that engines of other packages import from where modules were before."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from rlgraph.moved import MOVED

ROOT = Path(__file__).parent.parent


def test_an_old_name_leads_to_the_same_thing_and_says_the_new_name() -> None:
    from rlgraph.backends.enginespec.spec import EngineSpec

    with pytest.warns(
        DeprecationWarning, match="`rlgraph.enginespec.spec` is `rlgraph.backends.enginespec.spec` now"
    ) as told:
        from rlgraph.enginespec.spec import EngineSpec as same
    assert same is EngineSpec
    assert told[0].filename == __file__


@pytest.mark.parametrize(
    "code",
    [
        "import rlgraph.engines.base\nassert rlgraph.engines.base.Rank is Rank",
        "import rlgraph.engines.base as base\nassert base.Rank is Rank",
        "from rlgraph.engines import base\nassert base.Rank is Rank",
        "from rlgraph.engines.base import Rank as old\nassert old is Rank",
    ],
)
def test_every_way_to_import_finds_it(code: str) -> None:
    script = f"from rlgraph.backends.engines.base import Rank\n{code}"
    ran = subprocess.run(
        [sys.executable, "-W", "always", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "DeprecationWarning: `rlgraph.engines" in ran.stderr


def test_a_module_that_has_another_name_beside_others_is_found_by_its_old_one() -> None:
    script = (
        "import rlgraph.backends.engines.blocks\n"
        "from rlgraph.backends.enginespec.legal import model_chunk_counts\n"
        "assert rlgraph.backends.engines.blocks.plan_micro_batches"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "always", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "`rlgraph.backends.engines.blocks` is `rlgraph.backends.engines.micro_batches` now" in ran.stderr
    assert "`rlgraph.backends.enginespec.legal` is `rlgraph.backends.enginespec.layout_checks` now" in ran.stderr


def test_what_has_moved_is_where_it_is_said_to_be() -> None:
    assert all(find_spec(new) for new in MOVED.values())


def test_what_is_not_in_a_module_is_not_in_it_under_its_old_name() -> None:
    old = import_module("rlgraph.enginespec.spec")
    assert not hasattr(old, "__file__") and not hasattr(old, "nothing")


def test_the_example_of_an_engine_has_the_new_names() -> None:
    text = "".join(path.read_text("utf-8") for path in (ROOT / "examples" / "engine").rglob("*.py"))
    assert not [old for old in MOVED if f"from {old} import" in text]
