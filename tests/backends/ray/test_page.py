"""The commands of the pages on one machine and on debugging run as they stand there, and every run gives the numbers of
the first."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import chdir
from itertools import pairwise
from pathlib import Path

import pytest

from rlgraph.cli import run_command

pytest.importorskip("ray.util")
pytest.importorskip("reasoning_gym")

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
PAGES = tuple(ROOT / "docs" / "how-to" / name for name in ("one-machine.md", "debug.md"))
"""In the order in which they are read: the second needs what the first has recorded."""


STEPS = 10
"""At most, of a run: the model that the others begin with need not be as good as the page's."""


def commands() -> Iterator[list[str]]:
    """Those with the files of the examples; the others are for a real cluster."""
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    for fence in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
        for line in fence.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["rlgraph"] and any(word.startswith("examples/") for word in words):
                yield [str(min(int(word), STEPS)) if before == "--steps" else word for before, word in pairwise(words)]


def metrics(run: Path) -> list[dict[str, float]]:
    """What the program reports, step by step."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [{name: step[name] for name in ("reward", "length")} for step in found]


@pytest.fixture(scope="module")
def runs(kept: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `runs` after all commands of the pages. Those that would start Ray find the one that is there."""
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(ROOT / "examples" / "spell_backward", folder / "examples" / "spell_backward")
    for command in commands():
        if _needs_missing(command):
            continue
        with chdir(folder):
            assert run_command(command) == 0, command
    return folder / "runs"


def _needs_missing(command: list[str]) -> bool:
    """Whether a run wants an engine that is not installed; in one process it needs none."""
    if command[0] != "run" or not any(word.endswith("engines.rls") for word in command):
        return False
    from rlgraph.passes.compilation.default_plan import installed_engines

    return not {"megatron", "vllm"} <= installed_engines()


def test_copies_compute_what_one_process_does(runs: Path) -> None:
    local = metrics(runs / "local")
    assert len(local) == 5
    for here, there in zip(local, metrics(runs / "copies"), strict=True):
        assert there == pytest.approx(here, abs=1e-6)


def test_engines_begin_with_the_same_answers(runs: Path) -> None:
    """Nothing is replayed here: sampling is by row, so that equal probabilities give equal answers."""
    pytest.importorskip("megatron.core")
    pytest.importorskip("vllm")
    found = [json.loads(line) for line in (runs / "engines" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert metrics(runs / "engines")[0] == pytest.approx(metrics(runs / "local")[0], abs=0.02)
    assert [step.get("sync/bytes", 0) > 0 for step in found] == [False, True, True, True, True]


def test_a_timeline_has_every_process(runs: Path) -> None:
    pytest.importorskip("megatron.core")
    pytest.importorskip("vllm")
    events = json.loads((runs / "engines.json").read_text("utf-8"))["traceEvents"]
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"host 0", "learn.megatron 0", "learn.megatron 1", "play.vllm 0"} <= tracks
    assert {event["name"] for event in events if event["ph"] == "s"} == {"rows", "weights over shared"}


def test_a_plan_in_one_process_replays_the_run(runs: Path) -> None:
    pytest.importorskip("megatron.core")
    pytest.importorskip("vllm")
    local = metrics(runs / "local")[:2]
    for here, there in zip(local, metrics(runs / "debug"), strict=True):
        assert there == pytest.approx(here, abs=1e-6)
