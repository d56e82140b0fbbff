"""Plan files: what is written is read back, whatever the plan; what is wrong is told; a run of one is a run of its
program."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs_on_disk import write_tiny

import rlgraph
from rlgraph.backends.enginespec.registry import engines_by_name
from rlgraph.cli import run_command
from rlgraph.errors import ProgramError, Source
from rlgraph.ir.graph import Program
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.ir.plan import HOST, Group, ModelHolding, Plan, Pool, Role
from rlgraph.ir.text.program_text import program_text
from rlgraph.ops.program_work import model_operations, user_code_usage
from rlgraph.passes.compilation.plan_file import PlanFile, ProgramOrigin
from rlgraph.runs.planfiles.file import plan_file_text, read_plan_file
from rlgraph.runs.planfiles.format import format_ranges

ALGORITHMS = sorted((Path(rlgraph.__file__).parent / "algorithms").glob("*.rlf"))


@cache
def compiled(name: str) -> rlgraph.Compiled:
    """An algorithm that ships, with its schedule if it has one."""
    path = ALGORITHMS[0].parent / f"{name}.rlf"
    schedule = path.with_suffix(".rls")
    return rlgraph.compile(path, schedule=schedule if schedule.exists() else None, devices=4)


def read(text: str) -> PlanFile:
    return read_plan_file(Source("p.json", text))


# Round trip


@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda path: path.stem)
def test_every_algorithm_is_read_back(path: Path) -> None:
    made = compiled(path.stem)
    file = read(made.plan_json())
    assert file.program == made.program and program_text(file.program) == made.text()
    assert file.plan == made.plan
    assert plan_file_text(file) == made.plan_json()


def test_the_document_can_be_read_by_a_person() -> None:
    text = compiled("ppo").plan_json(ALGORITHMS[0].parent)
    assert text.startswith("""\
{
 "rlgraph": 2,
 "program": {
  "name": "ppo",
  "source": "ppo.rlf",
  "sha256": \"""")
    assert '"folder": ".",\n  "set": {},\n  "graph_sha256": "' in text
    assert (
        """\
  "graph": [
   "program ppo",
   "axis prompts",
"""
        in text
    )
    assert text.endswith("""\
 "plan": {
  "pools": [
   {"name": "host", "devices": 0, "first": 0},
   {"name": "learn", "devices": 8, "first": 0},
   {"name": "play", "devices": 8, "first": 0}
  ],
  "groups": [
   {"name": "host", "pool": "host", "engine": "host", "mesh": {"dp": 1, "pp": 1, "tp": 1}, "devices": "", "models": []},
   {"name": "learn.megatron", "pool": "learn", "engine": "megatron", "mesh": {"dp": 1, "pp": 2, "tp": 4}, "devices": "0-7", "models": ["actor", "critic"]},
   {"name": "play.vllm", "pool": "play", "engine": "vllm", "mesh": {"dp": 4, "pp": 1, "tp": 2}, "devices": "0-7", "models": ["actor"]},
   {"name": "play.megatron", "pool": "play", "engine": "megatron", "mesh": {"dp": 8, "pp": 1, "tp": 1}, "devices": "0-7", "models": ["ref", "reward"]}
  ],
  "roles": [
   {"model": "actor", "operation": "generate", "group": "play.vllm"},
   {"model": "actor", "operation": "train", "group": "learn.megatron"},
   {"model": "critic", "operation": "values", "group": "learn.megatron"},
   {"model": "critic", "operation": "train", "group": "learn.megatron"},
   {"model": "ref", "operation": "logprobs", "group": "play.megatron"},
   {"model": "reward", "operation": "score", "group": "play.megatron"}
  ],
  "owners": {
   "actor": "learn.megatron",
   "critic": "learn.megatron",
   "ref": "play.megatron",
   "reward": "play.megatron"
  },
  "blocks": {
   "rollout": 64
  },
  "holdings": []
 }
}
""")


@st.composite
def plans(draw: st.DrawFn, program: Program) -> Plan:
    """Any legal one: each piece of work on any pool, by any engine that can, split in any way, on any devices."""
    pools = [Pool(f"pool{number}", draw(st.integers(1, 8))) for number in range(draw(st.integers(1, 3)))]
    groups: dict[str, Group] = {HOST: Group(HOST, HOST, HOST, make_mesh(), ())}
    roles: list[Role] = []
    for model, work in model_operations(program).items():
        for operation in sorted(work):
            pool = draw(st.sampled_from(pools))
            engine = draw(
                st.sampled_from([name for name, engine in engines_by_name().items() if operation in engine.operations])
            )
            left, axes = pool.devices, []
            for axis in draw(st.permutations(("dp", "pp", "tp"))):
                able = axis in engines_by_name()[engine].axes_inner_first and engines_by_name()[engine].supports(
                    operation, (axis,)
                )
                size = draw(st.integers(1, left)) if able else 1
                left //= size
                axes.append((axis, size))
            split = Mesh(tuple(axes))
            devices = tuple(draw(st.permutations(range(pool.devices)))[: split.rank_count])
            group = Group(f"{pool.name}.{engine}.{split}.{format_ranges(devices)}", pool.name, engine, split, devices)
            known = groups.get(group.name, group)
            groups[group.name] = replace(known, models=tuple(dict.fromkeys((*known.models, model))))
            roles.append(Role(model, operation, group.name))
    owners = {role.model: role.group for role in draw(st.permutations(roles))}
    held = [(model, group.name) for group in groups.values() for model in group.models]
    holdings = [
        ModelHolding(
            model,
            group,
            draw(st.integers(0, 1 << 20)),
            draw(st.booleans()),
            draw(st.sampled_from(["", *engines_by_name()[groups[group].engine].attention])),
            draw(st.sampled_from(["", *engines_by_name()[groups[group].engine].adapters])),
            draw(st.sampled_from(["", *engines_by_name()[groups[group].engine].gather])),
            draw(st.sampled_from(["", *engines_by_name()[groups[group].engine].optimizer])),
            draw(st.booleans()),
            draw(st.integers(0, 1 << 40)),
        )
        for model, group in held
        if draw(st.booleans())
    ]
    cluster = draw(st.sampled_from(["", "3x8:a100-80gb"]))
    placed = [replace(pool, first=8 * number) for number, pool in enumerate(pools)] if cluster else pools
    blocks = draw(st.dictionaries(st.text(max_size=8), st.integers(1, 1 << 20), max_size=2))
    judged = (
        draw(st.lists(st.sampled_from(sorted(user_code_usage(program))), unique=True))
        if user_code_usage(program)
        else []
    )
    if judged:
        cpus = draw(st.integers(1, 9))
        placed = [*placed, Pool("judges", 0, cpus=cpus)]
        groups["j"] = Group("j", "judges", "python", make_mesh(dp=cpus), tuple(range(cpus)), code=tuple(judged))
    return Plan(
        program.name,
        (Pool(HOST, 0), *placed),
        tuple(groups.values()),
        tuple(roles),
        tuple(owners.items()),
        tuple(blocks.items()),
        tuple(holdings),
        cluster,
    )


WORDS = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
ORIGIN = ProgramOrigin("ppo.rlf", "0" * 64, "größe", {"n": "4", "base": '"a\u2028b\x85"'})


@settings(max_examples=25)
@given(st.data())
def test_what_is_written_is_read_back(data: st.DataObject) -> None:
    written_and_read(data)


@pytest.mark.long
@settings(max_examples=75)
@given(st.data())
def test_whatever_is_written_is_read_back(data: st.DataObject) -> None:
    written_and_read(data)


def written_and_read(data: st.DataObject) -> None:
    program = compiled(data.draw(st.sampled_from(["ppo", "async_grpo", "dapo"]))).program
    plan = data.draw(plans(program))
    sections = data.draw(
        st.dictionaries(st.sampled_from(["assumptions", "predicted"]), st.dictionaries(WORDS, JSON, max_size=3))
    )
    if plan.cluster:
        sections["cluster"] = {"text": plan.cluster, "devices": 24}
    file = PlanFile(program, plan, ORIGIN, sections)
    text = plan_file_text(file)
    assert read(text) == file
    assert len(text.splitlines()) == text.count("\n")
    assert plan_file_text(read(text)) == text
    # What a person writes with another layout says the same.
    assert read(json.dumps(json.loads(text), indent=4)) == file


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    """In any process: sets have an order of their own in each."""
    texts = set()
    for seed in ("0", "1", "2"):
        script = f"import rlgraph; print(rlgraph.compile({str(ALGORITHMS[0].parent / 'safe_rlhf.rlf')!r}, devices=8).plan_json(), end='')"
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[3])}
        ran = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, check=True
        )
        texts.add(ran.stdout)
    assert len(texts) == 1 and b"train" in texts.pop()


# What is wrong

TRAIN = '{"model": "actor", "operation": "train", "group": "learn.megatron"}'
PLAY = '"dp": 4, "pp": 1, "tp": 2}, "devices": "0-7"'
WRONG = [
    ('"rlgraph": 2', '"rlgraph": 3', "E0951", "3", "install a newer rlgraph"),
    ('"rlgraph": 2', '"rlgraph": 1', "E0951", "1", "compile the program again"),
    ('"rlgraph": 2', '"rlgraf": 2', "E0950", "{", "writes one"),
    (' "plan": {', ' "plam": {', "E0952", '"plam"', "did you mean `plan`?"),
    ('"name": "learn", "devices"', '"name": "learn", "device"', "E0952", '"device"', "did you mean `devices`?"),
    (
        '"holdings": []',
        '"holdings": [{"model": "actor", "group": "play.vllm", "offlod": true}]',
        "E0952",
        '"offlod"',
        "`offload`",
    ),
    ('"folder": "', '"folder": "\\u0000', "E0953", None, ""),
    ('"learn", "devices": 8', '"learn", "devices": "8"', "E0953", '"8"', ""),
    ('"learn", "devices": 8', '"learn", "devices": true', "E0953", "true", ""),
    ('"learn", "devices": 8', '"learn", "devices": -8', "E0953", "-8", ""),
    ('"learn", "devices": 8', '"learn", "devices": 8e0', "E0953", "8e0", ""),
    ('"learn", "devices": 8', '"learn", "devices": 99999999', "E0953", "99999999", ""),
    (PLAY, PLAY.replace("0-7", "0-3,x"), "E0953", '"0-3,x"', "0-3,8,9"),
    (PLAY, PLAY.replace("0-7", "7-0"), "E0953", '"7-0"', ""),
    (PLAY, PLAY.replace("0-7", "0-9999999"), "E0953", '"0-9999999"', ""),
    ('"name": "ppo"', '"name": "pqo"', "E0954", '"pqo"', "call it `ppo`"),
    ('"program ppo"', '"programme ppo"', "E0954", "[", "compile the program again"),
    ('"axis prompts"', '"axis  prompts"', "E0954", "[", "compile the program again"),
    ("score(reward@0, rollout)", "score(reward@0, rollouts)", "E0954", "[", "compile the program again"),
    ("mean(score)", "mean(scores)", "E0954", "[", "compile the program again"),
    ("phase step(", "phase stop(", "E0954", "[", "compile the program again"),
    ('"pool": "learn"', '"pool": "lern"', "E0955", '"lern"', "did you mean `learn`?"),
    ('"engine": "vllm"', '"engine": "vlm"', "E0955", '"vlm"', "did you mean `vllm`?"),
    ('"models": ["ref", "reward"]', '"models": ["ref", "rewards"]', "E0955", '"rewards"', "did you mean `reward`?"),
    ('"name": "play", "dev', '"name": "learn", "dev', "E0955", '"learn"', "keep one of them"),
    ('"name": "play.megatron"', '"name": "play.vllm"', "E0955", '"play.vllm"', "keep one of them"),
    ('{"name": "host", "pool"', '{"name": "hast", "pool"', "E0955", "[", ""),
    (TRAIN, TRAIN.replace("actor", "acter"), "E0955", '"acter"', "did you mean `actor`?"),
    (TRAIN, f"{TRAIN},\n   {TRAIN}", "E0955", '"train"', "keep one of them"),
    ('"actor": "learn', '"acter": "learn', "E0955", '"learn.megatron"', "did you mean `actor`?"),
    (
        '"holdings": []',
        '"holdings": [{"model": "acto", "group": "play.vllm"}]',
        "E0955",
        '"acto"',
        "did you mean `actor`?",
    ),
    (PLAY, PLAY.replace("0-7", "0-8"), "E0956", '"0-8"', "each rank has one device"),
    (PLAY, PLAY.replace("0-7", "1-8"), "E0956", '"1-8"', "counted from 0"),
    (PLAY, PLAY.replace("0-7", "0-3,0-3"), "E0956", '"0-3,0-3"', "one of its own"),
    (PLAY, PLAY.replace('4, "pp": 1', '2, "pp": 2'), "E0956", "2", "it does by `tp`, `ep` and `dp`"),
    (' "plan": {', ' "cluster": {"text": "1x8:a"},\n "plan": {', "E0956", "0", "in one pool"),
    ('"devices": 8, "first": 0}\n', '"devices": 8, "first": 8}\n', "E0956", "8", "counted from 0"),
    (f"{TRAIN},\n", "", "E0957", "[", 'add `{"model": "actor", "operation": "train", "group": ...}`'),
    (TRAIN, TRAIN.replace("train", "score"), "E0957", '"score"', "leave the role out"),
    (TRAIN, TRAIN.replace("learn.megatron", "play.vllm"), "E0957", '"play.vllm"', ""),
    (TRAIN, TRAIN.replace("learn", "play"), "E0957", '"play.megatron"', "add it to the `models`"),
    (TRAIN, TRAIN.replace("learn.megatron", "host"), "E0957", '"host"', ""),
    ('"actor": "learn.megatron",', "", "E0957", "{", "that is the group that trains it"),
    ('"actor": "learn.megatron"', '"actor": "play.megatron"', "E0957", '"play.megatron"', "add it to the `models`"),
    ('"holdings": []', '"holdings": [{"model": "ref", "group": "play.vllm"}]', "E0957", '"ref"', ""),
    (
        '"holdings": []',
        '"holdings": [{"model": "actor", "group": "learn.megatron", "attention": "sdpa"}]',
        "E0955",
        '"sdpa"',
        "there are none",
    ),
    (
        '"holdings": []',
        '"holdings": [{"model": "actor", "group": "play.vllm", "adapters": "apar"}]',
        "E0955",
        '"apar"',
        "did you mean `apart`?",
    ),
    (
        '"holdings": []',
        '"holdings": [{"model": "actor", "group": "learn.megatron", "gather": "update"}]',
        "E0955",
        '"update"',
        "there are none",
    ),
    (
        '"holdings": []',
        '"holdings": [{"model": "actor", "group": "learn.megatron", "reread": true}]',
        "E0918",
        "true",
        "leave it out",
    ),
]


@pytest.mark.parametrize(("old", "new", "code", "under", "hint"), WRONG)
def test_what_is_wrong_is_told_with_its_place(old: str, new: str, code: str, under: str | None, hint: str) -> None:
    text = compiled("ppo").plan_json()
    if code == "E0956" and '"first": 8' in new:
        text = text.replace(' "plan": {', ' "cluster": {"text": "1x8:a", "devices": 8},\n "plan": {')
    assert old in text
    with pytest.raises(ProgramError) as raised:
        read(text.replace(old, new, 1))
    found = [each for each in raised.value.diagnostics if each.code == code and hint in each.hint]
    assert found, str(raised.value)
    assert under is None or under in [each.span.covered_text for each in found], str(raised.value)


JUDGES = '"devices": "0-3", "models": [], "code": ["correct"]'
WRONG_CODE = [
    ('"code": ["correct"]', '"code": ["corect"]', "E0955", '"corect"', "did you mean `correct`?"),
    ('"code": ["correct"]', '"code": ["correct", "correct"]', "E0955", '"correct"', "keep one of them"),
    ('"engine": "python"', '"engine": "vllm"', "E0955", '"vllm"', "there is `python`"),
    (JUDGES, JUDGES.replace("0-3", "0-2,4"), "E0956", '"0-2,4"', "counted from 0"),
    (JUDGES, JUDGES.replace("[],", '["actor"],'), "E0956", '["actor"]', "models are on pools of devices"),
    ('{"dp": 4, "pp": 1, "tp": 1}, ' + JUDGES, '{"dp": 2, "pp": 1, "tp": 2}, ' + JUDGES, "E0956", "2", "by `dp`"),
]


@pytest.mark.parametrize(("old", "new", "code", "under", "hint"), WRONG_CODE)
def test_what_is_wrong_of_functions_is_told_with_its_place(
    old: str, new: str, code: str, under: str, hint: str
) -> None:
    schedule = "schedule grpo\npool judges = 4 cpus\nplace correct on judges"
    text = rlgraph.compile(str(ALGORITHMS[0].parent / "grpo.rlf"), schedule=schedule).plan_json()
    assert text.count(old) == 1
    with pytest.raises(ProgramError) as refused:
        read(text.replace(old, new))
    found = refused.value.diagnostics[0]
    assert (found.code, found.span.covered_text) == (code, under) and hint in found.hint


def test_all_that_is_wrong_is_said_at_once_but_no_flood() -> None:
    text = compiled("ppo").plan_json()
    with pytest.raises(ProgramError) as raised:
        read(text.replace('"devices": 8', '"device": 8').replace('"rollout": 64', '"rollout": 0'))
    assert [each.code for each in raised.value.diagnostics] == ["E0952"] * 4 + ["E0953"]
    with pytest.raises(ProgramError) as raised:
        read(text.replace('"holdings": []', f'"holdings": [{", ".join(["1"] * 5000)}]'))
    assert len(raised.value.diagnostics) == 20


def test_a_number_that_is_none_is_refused_wherever_it_stands() -> None:
    """A section may have fields that nobody here knows; they are written back."""
    text = compiled("ppo").plan_json()
    for number in ("1e999", "Infinity"):
        with pytest.raises(ProgramError) as raised:
            read(text.rstrip().removesuffix("}") + f', "mine": {{"number": {number}}}}}')
        assert [each.code for each in raised.value.diagnostics] == ["E0950"]


def keys(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The ways to all pieces of a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for name, each in inner for found in keys(each, (*path, name)))]


def mutated(document: Any, rng: random.Random) -> str:
    """The text of a document in which something is missing, of another kind, or cut off."""
    text = json.dumps(document, indent=1)
    change = rng.randrange(5)
    if change == 0:
        return text[: rng.randrange(len(text))]
    if change == 1:
        at = rng.randrange(len(text))
        return text[:at] + rng.choice('{}[]",:0-x\\\n\0é@<=()') + text[at + rng.randrange(2) :]
    path = rng.choice(keys(document)[1:])
    holder = document
    for step in path[:-1]:
        holder = holder[step]
    if change == 2:
        del holder[path[-1]]
    elif change == 3:
        holder[path[-1]] = rng.choice(
            [None, True, -1, 0, 2.5, 1 << 70, "", "actor", "0-3", [], {}, [[]], {"a": 1}, "\ud800"]
        )
    elif isinstance(holder[path[-1]], str):
        letters = list(holder[path[-1]])
        for _ in range(rng.randrange(3)):
            letters.insert(rng.randrange(len(letters) + 1), rng.choice('()[]<>=-+*"\\.,:@ 09ayield'))
        holder[path[-1]] = "".join(letters)
    return json.dumps(document)


@settings(max_examples=100)
@given(st.integers(0, 1 << 32), st.sampled_from(["ppo", "async_grpo"]))
def test_what_is_broken_is_read_or_refused(seed: int, name: str) -> None:
    broken(seed, name)


@pytest.mark.long
@settings(max_examples=400)
@given(st.integers(0, 1 << 32), st.sampled_from(["ppo", "async_grpo"]))
def test_whatever_is_broken_is_read_or_refused(seed: int, name: str) -> None:
    broken(seed, name)


def broken(seed: int, name: str) -> None:
    rng = random.Random(seed)
    try:
        file = read(mutated(json.loads(compiled(name).plan_json()), rng))
    except ProgramError as error:
        assert all(each.message and each.code.startswith("E095") for each in error.diagnostics)
        assert str(error)
    else:
        assert read(plan_file_text(file)) == file


# Running


def metrics(run: rlgraph.Run) -> list[dict[str, Any]]:
    """Of each step, what is no time."""
    return [{name: value for name, value in step.items() if not name.endswith("seconds")} for step in run.metrics]


def weights(run: rlgraph.Run) -> list[bytes]:
    return [tensor.detach().numpy().tobytes() for tensor in run.models["actor"].model.state_dict().values()]


SCHEDULE = """\
schedule tiny
pool learn = 1 devices
pool play = 1 devices
place actor.train on learn(engine=transformers)
place actor.generate on play(engine=transformers)
"""


@pytest.mark.parametrize("options", [{}, {"backend": "ray", "debug": True}], ids=["local", "ray"])
def test_a_run_of_a_plan_file_is_the_run_of_its_program(options: dict[str, Any], tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "plans").mkdir(parents=True)
    made = rlgraph.compile(write_tiny(here), {"n": 2}, schedule=SCHEDULE)
    (here / "plans" / "tiny.json").write_text(made.plan_json(here / "plans"))
    expected = made.run(3, progress=False, **options)
    # The folder is moved as a whole: data and rewards are found where it is now.
    here.rename(there)
    again = rlgraph.load_plan(there / "plans" / "tiny.json")
    assert (again.set, again.name, again.diagnostics) == ({"n": "2"}, "tiny", ())
    found = again.run(3, progress=False, out=tmp_path / "out", **options)
    assert metrics(found) == metrics(expected) and len(found.metrics) == 3
    assert weights(found) == weights(expected)


def test_run_takes_a_plan_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)
    assert run_command(["compile", "tiny.rlf", "--emit", "plan", "-o", "plans"]) == 0
    for file, folder in (("tiny.rlf", "a"), ("plans/tiny.plan.json", "b")):
        assert run_command(["run", file, "--steps", "2", "--seed", "5", "--threads", "1", "--out", folder]) == 0
    assert "saved b/models/actor" in capsys.readouterr().err
    rewards = [
        [json.loads(line)["reward"] for line in (tmp_path / folder / "metrics.jsonl").read_text().splitlines()]
        for folder in "ab"
    ]
    assert rewards[0] == rewards[1]
    assert json.loads((tmp_path / "b/run.json").read_text())["program"] == "plans/tiny.plan.json"
    # What was run is kept under the name of what it is, and a run that takes the folder over leaves only its own.
    assert (tmp_path / "b/plan.json").read_text() == (tmp_path / "plans/tiny.plan.json").read_text()
    assert not (tmp_path / "b/program.rlf").exists() and not (tmp_path / "a/plan.json").exists()
    assert (tmp_path / "a/models/actor/model.safetensors").read_bytes() == (
        tmp_path / "b/models/actor/model.safetensors"
    ).read_bytes()
    assert run_command(["run", "tiny.rlf", "--steps", "1", "--threads", "1", "--out", "b", "--overwrite"]) == 0
    assert (tmp_path / "b/program.rlf").exists() and not (tmp_path / "b/plan.json").exists()


def test_what_a_plan_file_holds_can_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made = compiled("ppo")
    Path("ppo.json").write_text(made.plan_json())
    again = rlgraph.load_plan("ppo.json")
    again.show()
    assert capsys.readouterr().out == made.text()
    assert (again.plan, again.transfers(), again.plan_json()) == (made.plan, made.transfers(), made.plan_json())
    assert "<svg" in again.to_svg() and "<html" in again.to_html()
    from rlgraph.api.summary import summary_text

    assert "megatron, pp2 x tp4" in summary_text(again)


def test_a_program_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = rlgraph.compile(write_tiny(tmp_path).read_text())
    (tmp_path / "tiny.json").write_text(made.plan_json())
    again = rlgraph.load_plan("tiny.json")
    assert again.file is not None and again.file.origin.source == "<text>"
    assert again.plan_json() == made.plan_json()


def test_a_graph_that_was_edited_is_told(tmp_path: Path) -> None:
    path = write_tiny(tmp_path)
    text = rlgraph.compile(path).plan_json(tmp_path)
    plan = tmp_path / "p.json"
    assert text.count("lr=0.001") == 1
    plan.write_text(text.replace("lr=0.001", "lr=0.5"))
    [warning] = rlgraph.load_plan(plan).diagnostics
    assert warning.code == "W0951"
    # Nor does it become one that nobody has edited by being written again.
    plan.write_text(rlgraph.load_plan(plan).plan_json(tmp_path))
    assert [found.code for found in rlgraph.load_plan(plan).diagnostics] == ["W0951"]
    # Files of before do not say it.
    document = json.loads(text)
    del document["program"]["graph_sha256"]
    plan.write_text(json.dumps(document))
    assert rlgraph.load_plan(plan).diagnostics == ()


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("assumptions", "kept", []),
        ("assumptions", "kept", 0),
        ("assumptions", "prompt_tokens", 3),
        ("predicted", "seconds", "1"),
        ("predicted", "gap", 10**400),
    ],
)
def test_what_a_plan_was_made_for_is_read_too(section: str, name: str, value: object) -> None:
    document = json.loads(compiled("ppo").plan_json()) | {section: {name: value}}
    with pytest.raises(ProgramError) as refused:
        read(json.dumps(document))
    assert [(each.code, name in each.message) for each in refused.value.diagnostics] == [("E0953", True)]


def test_lengths_in_a_plan_are_no_file(tmp_path: Path) -> None:
    """A stranger's plan would have a line of any file shown."""
    (tmp_path / "secret").write_text("s3cret\n")
    made = rlgraph.compile(
        ALGORITHMS[0].parent / "grpo.rlf", {"base": '"Qwen/Qwen2.5-0.5B"'}, cluster="1x1:h100-80gb", search_gap=0.5
    )
    document = json.loads(made.plan_json())
    document["assumptions"]["prompt_tokens"] = str(tmp_path / "secret")
    plan = tmp_path / "p.json"
    plan.write_text(json.dumps(document))
    with pytest.raises(ProgramError) as refused:
        rlgraph.simulate(rlgraph.load_plan(plan))
    assert "s3cret" not in str(refused.value) and refused.value.diagnostics[0].code == "E0926"


def test_a_loop_of_links_is_no_program(tmp_path: Path) -> None:
    """The program that a plan names is only looked at: what cannot be opened is not there."""
    path = tmp_path / "p.json"
    (tmp_path / "loop").symlink_to("loop")
    document = json.loads(compiled("ppo").plan_json())
    for source in ("loop", "x" * 5000, "/dev/zero", ".", ""):
        document["program"]["source"] = source
        path.write_text(json.dumps(document))
        assert rlgraph.load_plan(path).diagnostics == ()


# Memory


def test_a_cache_that_is_too_large_for_its_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever the file is read; the cache that the hint names fits, and a larger one does not."""
    made = rlgraph.compile(ALGORITHMS[0].parent / "grpo.rlf", {"base": '"Qwen/Qwen2.5-1.5B"'}, cluster="1x8:h20-96gb")
    text, path = made.plan_json(), tmp_path / "grpo.plan.json"
    own = next(each.kv_bytes for each in made.plan.holdings if each.kv_bytes)

    def edited(size: int) -> str:
        path.write_text(text.replace(f'"kv_bytes": {own}', f'"kv_bytes": {size}'))
        return str(path)

    edited(500_000_000_000)
    with pytest.raises(ProgramError) as found:
        rlgraph.load_plan(path)
    [refused] = found.value.diagnostics
    assert refused.code == "E0958" and refused.span.covered_text == "500000000000"
    for command in ("simulate", "compile", "run"):
        assert run_command([command, str(path)]) == 1
        assert "error[E0958]" in capsys.readouterr().err
    [most] = re.findall(r"at most (\d+) fits", refused.hint)
    assert rlgraph.load_plan(edited(int(most))).plan.cluster
    with pytest.raises(ProgramError, match="E0958"):
        rlgraph.load_plan(edited(int(most) + 4096))


def test_a_plan_that_another_cluster_cannot_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = rlgraph.compile(ALGORITHMS[0].parent / "grpo.rlf", {"base": '"Qwen/Qwen2.5-1.5B"'}, cluster="1x8:h20-96gb")
    path = tmp_path / "grpo.plan.json"
    path.write_text(made.plan_json())
    assert run_command(["simulate", str(path), "--cluster", "1x8:l4(memory=8GiB)"]) == 1
    assert "error[E0958]" in capsys.readouterr().err


@cache
def asleep() -> rlgraph.Compiled:
    """A plan in which models sleep."""
    return rlgraph.compile(ALGORITHMS[0].parent / "grpo.rlf", cluster="1x8:h100-80gb")


def test_a_plan_in_which_models_sleep_is_read_back(tmp_path: Path) -> None:
    made = asleep()
    path = tmp_path / "grpo.plan.json"
    path.write_text(made.plan_json(tmp_path))
    [memory] = json.loads(path.read_text())["predicted"]["memory"].values()
    assert memory["host"] > 0 and set(memory["asleep"]) >= {"ref", "actor.generate"}
    assert memory["host"] <= memory["node"] <= memory["node_capacity"]
    again = rlgraph.load_plan(path)
    assert again.plan == made.plan and again.plan_json(tmp_path) == path.read_text()


def test_a_plan_whose_hosts_have_too_little_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = asleep()
    path = tmp_path / "grpo.plan.json"
    path.write_text(made.plan_json(tmp_path))
    assert run_command(["simulate", str(path), "--cluster", "1x8:h100-80gb(host_memory=8GB/node)"]) == 1
    assert "error[E0958]" in capsys.readouterr().err
    path.write_text(path.read_text().replace("1x8:h100-80gb", "1x8:h100-80gb(host_memory=1GB)"))
    with pytest.raises(ProgramError) as found:
        rlgraph.load_plan(path)
    [refused] = found.value.diagnostics
    assert refused.code == "E0958" and refused.span.covered_text == "true"
    assert re.search(r"sleep in the memory of node 0's host \(.*`ref`.*\), and 4GB of it can be used", refused.message)
