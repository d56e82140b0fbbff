"""Engines are found by their specs, ours and those of other packages; nothing else knows their names."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlgraph
from rlgraph.backends.enginespec import registry
from rlgraph.backends.enginespec.registry import (
    broken_engines,
    embedded_engine,
    engines_by_name,
    engines_by_preference,
    rank_opener,
)
from rlgraph.backends.ray import backend
from rlgraph.backends.worker.session import Settings
from rlgraph.catalog.models.shape import Shape
from rlgraph.errors import ProgramError
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.placement.search.meshes import legal_replica_meshes
from tests.backends.enginespec.packages import installed

PROGRAM = """algorithm a
model actor = causal_lm(random("qwen2", hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                               num_attention_heads=2, num_key_value_heads=2, tokenizer=bytes()))
data prompts = jsonl("prompts.jsonl")
step:
    rollout = actor.generate(prompts, max_tokens=4)
    train actor(lr=1e-4):
        minimize mean(actor.logprobs(rollout))
"""
SCHEDULE = "schedule a\npool one = 1 devices\nplace actor on one(engine=plain)\n"


def look_again() -> None:
    """At what is installed. What a folder has Python knows by the time of its last change, which is too coarse for one
    that changes twice."""
    importlib.invalidate_caches()
    registry._discovered.cache_clear()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose packages are found, as `site-packages` is; ours are looked for again after it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    look_again()
    yield tmp_path
    look_again()


def test_ours_are_folders() -> None:
    folder = Path(registry.__file__).parent.parent / "engines"
    ours = {each.parent.name for each in folder.glob("*/spec.py")}
    assert ours <= set(engines_by_name()) and next(iter(engines_by_name())) == embedded_engine().name
    assert all(callable(rank_opener(engines_by_name()[name])) for name in ours & registry.installed_engines())
    assert {each.name for operation in ("train", "generate") for each in engines_by_preference(operation)} == ours


def test_what_an_engine_does_only_where_parameters_are_not_shared_out() -> None:
    spec = engines_by_name()["transformers"]
    assert spec.supports("generate") and spec.supports("generate", ["tp"]) and spec.supports("train", ["fsdp"])
    assert not spec.supports("generate", ["tp", "fsdp"])


def test_an_engine_of_a_package_is_as_good_as_ours(package: Path) -> None:
    installed(package)
    compiled = rlgraph.compile(PROGRAM, schedule=SCHEDULE)
    assert {group.engine for group in compiled.plan.groups} == {"host", "plain"}
    assert "plain" in registry.installed_engines() and not broken_engines()
    assert rlgraph.compile(PROGRAM).plan.group_of_role("actor", "train").engine != "plain", "no default takes it"
    # Its layout is asked where its weights go to another engine.
    apart = SCHEDULE.replace("place actor", "place actor.train")
    assert rlgraph.compile(PROGRAM, schedule=apart).plan.owner("actor").engine == "plain"


LONG = """from dataclasses import replace
from plain_engine.spec import SPEC as PLAIN

SPEC = replace(PLAIN, name="long", axes=("dp", "cp"), preference=9)
"""
SPLIT = SCHEDULE.replace("1 devices", "8 devices").replace("engine=plain", "engine=long, cp=2")


def test_an_axis_that_an_engine_of_a_package_has_is_said_planned_and_shown(package: Path) -> None:
    installed(package, "long = long_engine:SPEC\n")
    (package / "long_engine.py").write_text(LONG)
    look_again()
    compiled = rlgraph.compile(PROGRAM, schedule=SPLIT)
    group = compiled.plan.group_of_role("actor", "train")
    assert (group.mesh.axes, str(group.mesh)) == ((("dp", 4), ("pp", 1), ("cp", 2), ("tp", 1)), "dp4 x cp2")
    assert group.replica_ranks() == ((0, 1), (2, 3), (4, 5), (6, 7)) and group.result_ranks() == (0, 2, 4, 6)
    assert '"mesh": {"dp": 4, "pp": 1, "cp": 2, "tp": 1}' in compiled.plan_json()
    with pytest.raises(ProgramError, match="cp=3 does not divide the 8 devices"):
        rlgraph.compile(PROGRAM, schedule=SPLIT.replace("cp=2", "cp=3"))
    shape = Shape("llama", 512, 64, 128, 2, 2, 2, 32)
    assert legal_replica_meshes(shape, "long", "causal_lm", 2, (("cp", 2),)) == (make_mesh(cp=2),)
    assert legal_replica_meshes(shape, "long", "causal_lm", 2) == (make_mesh(),)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("engine=plain, tp=2", "`plain` does not split models by `tp`"),
        ("engine=plainn", "did you mean `plain`?"),
    ],
)
def test_what_it_cannot_do_is_said(package: Path, options: str, said: str) -> None:
    installed(package)
    with pytest.raises(ProgramError) as error:
        rlgraph.compile(PROGRAM, schedule=SCHEDULE.replace("engine=plain", options))
    assert said in str(error.value)


def test_a_stop_text_that_it_does_not_look_for_is_refused_before_processes_start(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(package)
    monkeypatch.setattr(backend, "start_processes", lambda *_, **__: pytest.fail("started"))
    for stop, said in {
        '"end"': '"end" is 3 tokens to `actor`, and its engine `plain` ends answers at one',
        '"e"': "",
    }.items():
        made = rlgraph.compile(PROGRAM.replace("max_tokens=4", f"max_tokens=4, stop={stop}"), schedule=SCHEDULE)
        with pytest.raises(ProgramError if said else pytest.fail.Exception, match=said or "started"):
            backend.RayBackend(made.program, made.plan, Settings(folder=package))


def test_an_engine_without_the_optimizer_trains_nothing(package: Path) -> None:
    installed(package, "long = long_engine:SPEC\n")
    (package / "long_engine.py").write_text(LONG)
    assert rlgraph.compile(PROGRAM).plan.group_of_role("actor", "train").engine == "long"
    (package / "long_engine.py").write_text(LONG.replace("preference", "optimizers=frozenset(), preference"))
    sys.modules.pop("long_engine")
    look_again()
    assert rlgraph.compile(PROGRAM).plan.group_of_role("actor", "train").engine != "long"
    apart = SCHEDULE.replace("engine=plain", "engine=long")
    with pytest.raises(ProgramError, match="`long` does not have `adamw`, with which `actor` is trained"):
        rlgraph.compile(PROGRAM, schedule=apart)
    assert rlgraph.compile(PROGRAM, schedule=apart.replace("actor on", "actor.generate on")).plan


@pytest.mark.parametrize(
    ("entries", "name", "said"),
    [
        ("plain = nowhere.spec:SPEC\n", "plain", "nowhere.spec:SPEC raises ModuleNotFoundError"),
        ("plain = plain_engine.spec:NAME\n", "plain", "plain_engine.spec:NAME raises AttributeError"),
        ("plain = plain_engine:__doc__\n", "plain", "plain_engine:__doc__ is no EngineSpec"),
        ("other = plain_engine.spec:SPEC\n", "other", "plain_engine.spec:SPEC calls itself `plain`"),
    ],
)
def test_a_broken_one_is_a_diagnostic_and_the_others_work(package: Path, entries: str, name: str, said: str) -> None:
    installed(package, entries)
    [warning] = rlgraph.compile(PROGRAM).placed.warnings
    assert warning.code == "W0902" and said in warning.message
    with pytest.raises(ProgramError) as error:
        rlgraph.compile(PROGRAM, schedule=SCHEDULE.replace("plain", name))
    assert said in str(error.value) and "E0906" in str(error.value)


def test_of_two_with_one_name_the_first_is_taken(package: Path) -> None:
    installed(package)
    installed(package, name="another")
    compiled = rlgraph.compile(PROGRAM, schedule=SCHEDULE)
    assert [each.code for each in compiled.placed.warnings] == ["W0902"]
    assert compiled.plan.owner("actor").engine == "plain"


ROOT = Path(rlgraph.__file__).parent
LIBRARIES = {"runs/run.py", "runs/options.py", "runs/exporting/card.py", "backends/recording.py"}
"""They say which version of the Hugging Face package there was, that it has to be there, or that it reads a model."""


def names(path: Path) -> Iterator[str]:
    """Where a module's code or messages name an engine; comments, docstrings and imports of libraries may."""
    tree = ast.parse(path.read_text("utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    word = re.compile(rf"\b({'|'.join(engines_by_name())})\b")
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in docs else None
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rlgraph."):
            text = node.module
        if isinstance(text, str) and word.search(text):
            yield f"{path}:{node.lineno}: {text[:60]}"


def test_no_engine_is_named_outside_its_folder() -> None:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT)
        inside = place.parts[:2] == ("backends", "engines") and place.parts[2] in engines_by_name()
        if not inside and place.as_posix() not in LIBRARIES:
            found += list(names(path))
    assert not found, "\n".join(found)
