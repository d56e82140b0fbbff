"""`rlgraph compile` with a schedule: the plan, what it moves, and what is said where that cannot be."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rlgraph
from rlgraph.backends.enginespec.registry import engines_by_name
from rlgraph.catalog.models.families import parameter_count
from rlgraph.catalog.models.shape import Shape
from rlgraph.cli import run_command
from rlgraph.errors import ProgramError, Source
from rlgraph.ir.plan import Plan, Pool
from rlgraph.passes.compilation import default_plan
from rlgraph.runs.planfiles.file import LARGEST_BYTES, read_plan_file

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"
PPO = [str(ALGORITHMS / "ppo.rlf"), str(ALGORITHMS / "ppo.rls")]
PROGRAM = """\
algorithm small

param wide   = 2
model actor  = causal_lm(random("llama", hidden_size=32, intermediate_size=64, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, tokenizer=chars("abcde")))
data prompts = jsonl("prompts.jsonl", batch=8)

step:
    rollout = actor.generate(prompts, max_tokens=8)
    train actor(lr=1e-3):
        minimize -mean(actor.logprobs(rollout) * rollout.length)
"""
SCHEDULE = """\
schedule small

pool learn = 4 devices
pool play  = 2 devices
place actor.train    on learn(engine=megatron, tp=wide, pp=2)
place actor.generate on play(engine=vllm, tp=2)
stream rollout(block=4)
"""
BLOCK = "schedule:\n" + "".join(f"    {line}\n" for line in SCHEDULE.splitlines()[2:])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.rlf").write_text(PROGRAM)
    (tmp_path / "small.rls").write_text(SCHEDULE)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    code = run_command(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def plan_in(text: str) -> Plan:
    """The plan that a plan file says."""
    return read_plan_file(Source("small.plan.json", text)).plan


# The plan


def test_compile_tells_where_a_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "compile", "small.rls", "small.rlf")
    assert (code, err) == (0, "")
    assert out.endswith("""
4 devices in `learn`
  megatron, pp2 x tp2  actor.train
2 devices in `play`
  vllm, tp2  actor.generate
weights of actor: learn.megatron to play.vllm
rollout goes on in blocks of 4 rows, before all of it is there
train actor adds gradients up while rows stream, and takes its step when all are there
""")


def test_without_a_schedule_nothing_is_told_of_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert "device" not in told(capsys, "compile", "small.rlf")[1]


def test_the_plan_as_a_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "compile", "small.rlf", "small.rls", "--emit", "plan")
    assert (code, err) == (0, "")
    plan = plan_in(out)
    assert plan == rlgraph.compile("small.rlf", schedule="small.rls").plan
    assert plan.owner("actor").name == "learn.megatron"
    assert plan.blocks == (("rollout", 4),)
    told(capsys, "compile", "small.rlf", "--emit", "plan", "--emit", "transfers", "-o", "out")
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["small.plan.json", "small.transfers.txt"]


def test_a_schedule_is_a_path_a_text_or_a_block(folder: Path) -> None:
    expected = rlgraph.compile("small.rlf", schedule="small.rls").plan
    assert rlgraph.compile(Path("small.rlf"), schedule=SCHEDULE).plan == expected
    (folder / "block.rlf").write_text(f"{PROGRAM}\n{BLOCK}")
    assert rlgraph.compile("block.rlf").plan == expected


def test_a_schedule_uses_the_params_of_its_program(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_in(told(capsys, "compile", "small.rlf", "small.rls", "--set", "wide=1", "--emit", "plan")[1])
    assert str(plan.owner("actor").mesh) == "dp2 x pp2"


def test_devices_that_are_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    for given, devices in ((["--devices", "4"], 4), ([], 1)):
        plan = plan_in(told(capsys, "compile", "small.rlf", *given, "--emit", "plan")[1])
        assert plan.pools[1] == Pool("all", devices)


# Plan files


@pytest.fixture
def plans(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Two plan files: with generation on two devices of another pool, and with all on four."""
    (folder / "one.rls").write_text(
        "schedule small\npool learn = 4 devices\nplace actor.train on learn(engine=megatron, tp=2, pp=2)\n"
        "place actor.generate on learn(engine=vllm, tp=2)\n"
    )
    for name, schedule in (("a.json", "small.rls"), ("b.json", "one.rls")):
        (folder / name).write_text(told(capsys, "compile", "small.rlf", schedule, "--emit", "plan")[1])
    return "a.json", "b.json"


def test_what_differs_between_two_plans(plans: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "diff", *plans) == (
        1,
        """\
1 moved, 1 split changed

pools
  - play

work
  ~ actor.generate  moved from `play` (2 devices) to `learn` (4 devices)
                    split tp2 -> tp2 dp2

streams
  - rollout
""",
        "",
    )
    assert told(capsys, "diff", plans[0], plans[0]) == (0, "", "")
    code, out, err = told(capsys, "diff", *plans, "--message-format", "json")
    records = [json.loads(line) for line in out.splitlines()]
    assert (code, err, {record["type"] for record in records}) == (1, "", {"difference"})
    assert records[1] == {
        "type": "difference",
        "section": "work",
        "name": "actor.generate",
        "before": "play vllm tp2",
        "after": "learn vllm tp2 dp2",
    }


def test_the_graphs_of_two_plans(folder: Path, plans: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "b.json").write_text((folder / "a.json").read_text().replace("max_tokens=8", "max_tokens=9"))
    code, out, _ = told(capsys, "diff", *plans)
    lines = out.splitlines()
    assert (code, lines[0]) == (1, "all work as before, 1 change in the graph")
    assert lines[2:] == ["graph", "  ~ rollout  max_tokens 8 -> 9"]
    code, out, _ = told(capsys, "diff", *plans, "--message-format", "json")
    changed = [line.strip() for line in json.loads(out)["diff"] if line[0] in "+-"]
    assert len(changed) == 2 and "max_tokens=8" in changed[0] and "max_tokens=9" in changed[1]


def test_what_is_expected_of_two_plans(
    folder: Path, plans: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((folder / "a.json").read_text())
    for name, seconds in zip(plans, (8.0, 7.0), strict=True):
        (folder / name).write_text(json.dumps({**document, "predicted": {"seconds": seconds, "gap": 0.25}}))
    expected = "all work as before, 1.14x as fast\n\nstep\n  ~ a step  8 s -> 7 s (-12.5%) by the search\n"
    assert told(capsys, "diff", *plans) == (1, expected, "")
    # What no section shows is not left out without a word.
    (folder / "b.json").write_text(json.dumps({**document, "predicted": {"seconds": 8.0, "gap": 0.25, "heat": 1.5}}))
    code, out, _ = told(capsys, "diff", *plans)
    assert (code, out) == (
        1,
        "all work as before, as fast\n\n1 other value differs: `--message-format json` has them\n",
    )


def test_what_differs_between_programs_and_schedules(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "longer.rlf").write_text(PROGRAM.replace("max_tokens=8", "max_tokens=9"))
    text = "all work as before, 1 change in the graph\n\ngraph\n  ~ rollout  max_tokens 8 -> 9\n"
    code, out, err = told(capsys, "diff", "small.rlf", "longer.rlf")
    assert (code, out) == (1, text) and err.count("warning[W0201]") == 2
    (folder / "other.rls").write_text(SCHEDULE.replace("tp=2)", "tp=1)").replace("block=4", "block=8"))
    expected = """\
1 split changed

work
  ~ actor.generate  split tp2 -> dp2

streams
  ~ rollout  blocks of 4 rows -> blocks of 8 rows
"""
    assert told(capsys, "diff", "small.rls", "other.rls") == (1, expected, "")
    assert told(capsys, "diff", "small.rlf", "small.rls", "other.rls") == (1, expected, "")
    code, _, err = told(capsys, "diff", "small.rls")
    assert code == 2 and "diff takes two files or folders of runs, or a program and two schedules" in err


def test_colours_of_a_difference(
    plans: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlgraph.cli.planfiles.wants_colours", lambda stream: True)
    _, out, _ = told(capsys, "diff", *plans)
    assert out.startswith("\x1b[1m1 moved, 1 split changed\x1b[0m\n\n\x1b[1mpools\x1b[0m\n  \x1b[31m-\x1b[0m play\n")


def test_a_plan_file_fixes_program_and_plan(plans: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for name, given in (("--set", ["--set", "wide=1"]), ("SCHEDULE", ["small.rls"]), ("--devices", ["--devices", "2"])):
        code, out, err = told(capsys, "run", plans[0], *given)
        assert (code, out) == (2, "") and f"`{name}` does not go with a plan file" in err


@pytest.mark.parametrize("command", [["run"], ["diff", "a.json"]])
def test_files_that_are_no_plans(
    command: list[str], folder: Path, plans: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (folder / "a.json").read_bytes()
    wide = json.dumps({**json.loads(whole), "plan": []}).encode()
    texts = {
        "it is empty": b"",
        "unterminated string": whole[:-300],
        "no text in UTF-8": b"\x80\x81" * 99,
        "expecting value": bytes(99),
        "more than 16 MiB": b'{"rlgraph": 2, "program": "' + b"x" * LARGEST_BYTES + b'"}',
        "nested too deep": b'{"rlgraph": 2, "program": ' + b"[" * 90 + b"]" * 90 + b"}",
        "too deep": b"[" * 200_000,
        "deep": b'{"a":' * 200_000,
        "it is a list": b"[]",
        "integer string": b"1" * 9999,
        "no number Infinity": b'{"rlgraph": Infinity}',
        "two fields `rlgraph`": b'{"rlgraph": 2, "rlgraph": 2}',
        "surrogate pair": b'{"rlgraph": 2, "\\ud800": 1}',
        "no field `rlgraph`": b'{"name": "a"}',
        "no JSON": PROGRAM.encode(),
        "`plan` is a list": wide,
    }
    for name, text in texts.items():
        (folder / "bad.json").write_bytes(text)
        code, out, err = told(capsys, *command, "bad.json")
        assert (code, out) == (1, ""), name
        assert name in err, (name, err)
        assert err.count("error[") == 1 and len(err) < 1000, (name, err)
    (folder / "folder.json").mkdir()
    # Of a folder `diff` wants a run's.
    folders = (2, "it is not the folder of a run") if command[0] == "diff" else (1, "it is a folder")
    for name, (wrong, message) in {"folder": folders, "missing": (1, "no such file")}.items():
        code, out, err = told(capsys, *command, f"{name}.json")
        assert (code, out) == (wrong, "") and message.removeprefix("it ") in err


def test_a_plan_that_was_changed_since(folder: Path, plans: tuple[str, str]) -> None:
    assert rlgraph.load_plan("a.json").diagnostics == ()
    (folder / "small.rlf").write_text(PROGRAM.replace("max_tokens=8", "max_tokens=9"))
    (warning,) = rlgraph.load_plan("a.json").diagnostics
    assert (warning.code, warning.severity, warning.span.covered_text) == ("W0950", "warning", '"small.rlf"')
    (folder / "small.rlf").unlink()
    assert rlgraph.load_plan("a.json").diagnostics == ()


# What is wrong


def test_two_schedules(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "small.rlf").write_text(f"{PROGRAM}\n{BLOCK}")
    assert told(capsys, "compile", "small.rlf", "small.rls") == (
        1,
        "",
        """\
error[E0901]: the program `small` has a schedule of its own
 --> small.rls:1:1
  |
1 | schedule small
  | ^^^^^^^^^^^^^^
note: it is here
  --> small.rlf:13:1
   |
13 | schedule:
   | ^^^^^^^^
help: keep one of them

""",
    )


def test_a_schedule_that_the_model_does_not_fit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "small.rls").write_text(SCHEDULE.replace("learn = 4", "learn = 6"))
    code, out, err = told(capsys, "compile", "small.rlf", "small.rls", "--set", "wide=3")
    assert (code, out) == (1, "")
    assert err.startswith("error[E0911]: `actor`: tp=3 does not divide the 4 attention heads")
    assert re.search(r"^5 .*tp=wide, pp=2\)\n +\| {48}\^{7}$", err, re.MULTILINE)


def test_a_model_of_unknown_shape_is_placed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(
        capsys, "compile", "small.rlf", "small.rls", "--set", 'actor=causal_lm("nobody/knows")', "--emit", "transfers"
    )
    assert code == 0
    assert err.startswith("warning[W0901]: the shape of `actor` is not known")
    assert "its layout is not known: its configuration is not here" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["small.rls"], "Missing argument 'FILE...'."),
        (["small.rlf", "small.rlf"], "compile takes a program (.rlf) and at most one schedule (.rls), or a plan file"),
        (
            ["small.rlf", "small.rls", "small.rls"],
            "compile takes a program (.rlf) and at most one schedule (.rls), or a plan file",
        ),
        (["small.rlf", "--devices", "0"], "Invalid value for '--devices': 0 is not in the range 1<=x<=1048576."),
    ],
)
def test_a_wrong_command(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = told(capsys, "compile", *arguments)
    assert (code, " ".join(err.split("Error: ")[1].split())) == (2, message)


def test_a_schedule_of_another_program() -> None:
    with pytest.raises(ProgramError, match="this is a schedule for `other`, and the program is `small`"):
        rlgraph.compile("small.rlf", schedule="schedule other\npool one = 2 devices\n")


# Transfers


def test_the_transfers_of_the_schedule_that_ships(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(default_plan, "installed_engines", lambda: frozenset(engines_by_name()))
    code, out, err = told(capsys, "compile", *PPO, "--emit", "transfers")
    assert (code, err) == (0, "")
    assert "weights of actor: learn.megatron (pp2 x tp4) -> play.vllm (dp4 x tp2)\n" in out
    rows = [re.split(" {2,}", line.strip()) for line in out.partition("\nrows\n")[2].splitlines()]
    assert rows[:3] == [
        ["prompts", "host -> play.vllm", "1 process -> 4 copies: 0-1 | 2-3 | 4-5 | 6-7", "columns of the data"],
        [
            "rollout",
            "play.vllm -> play.megatron",
            "4 copies: 0, 2, 4, 6 -> 8 copies: 0-7",
            "12 bytes a token, 9 bytes a row of prompts, columns of the data",
        ],
        [
            "rollout",
            "play.vllm -> learn.megatron",
            "4 copies: 0, 2, 4, 6 -> 1 copy: 0-7",
            "12 bytes a token, 9 bytes a row of prompts, columns of the data",
        ],
    ]
    assert ["score", "play.megatron -> host", "8 copies: 0-7 -> 1 process", "4 bytes a row of prompts"] in rows
    assert ["value", "learn.megatron -> host", "1 copy: 4 -> 1 process", "4 bytes a token"] in rows


def test_bytes_are_what_the_destination_lacks() -> None:
    """One copy of the model on the other pool: all its weights arrive, each once."""
    from rlgraph.explain.transfers import plan_weight_transfer

    compiled = rlgraph.compile("small.rlf", schedule="small.rls")
    shape = compiled.placed.shapes["actor"]
    assert isinstance(shape, Shape)
    plan = compiled.plan
    moves = plan_weight_transfer(plan, plan.group("learn.megatron"), plan.group("play.vllm"), shape, "causal_lm", 4)
    # Norms are on both ranks of vLLM, everything else on one.
    norms = (2 * shape.layers + 1) * shape.hidden
    assert moves.bound == moves.moved == 4 * (parameter_count(shape) + norms)
    assert moves.copied == 0


def test_in_one_pool_nothing_that_is_there_is_moved() -> None:
    from rlgraph.explain.transfers import plan_weight_transfer

    shared = "schedule small\npool one = 2 devices\nplace actor.train on one(engine=megatron, tp=2)\nplace actor.generate on one(engine=vllm, tp=2)\n"
    compiled = rlgraph.compile("small.rlf", schedule=shared)
    shape, plan = compiled.placed.shapes["actor"], compiled.plan
    assert isinstance(shape, Shape)
    moves = plan_weight_transfer(plan, plan.group("one.megatron"), plan.group("one.vllm"), shape, "causal_lm", 4)
    # Both split alike but for the vocabulary, which vLLM pads.
    vocabulary = 2 * shape.vocab * shape.hidden
    assert moves.moved == moves.bound <= 4 * vocabulary
    assert moves.moved + moves.copied == 4 * (parameter_count(shape) + (2 * shape.layers + 1) * shape.hidden)


# Speed


def test_planning_loads_nothing_that_computes(folder: Path) -> None:
    script = """
import sys
from rlgraph.cli import run_command
for command in ("compile small.rlf small.rls", "compile small.rlf small.rls --emit plan -o out",
                "diff out/small.plan.json out/small.plan.json"):
    assert run_command(command.split()) == 0, command
print([name for name in ("torch", "ray", "transformers", "numpy", "vllm", "megatron.core") if name in sys.modules])
"""
    root = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root},
        text=True,
        capture_output=True,
    )
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


def test_a_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    grpo = str(ALGORITHMS / "grpo.rlf")
    code, out, err = told(capsys, "compile", grpo, "--cluster", "1x8:a100-80gb", "--message-format", "json")
    compiled, plan = (json.loads(line) for line in out.splitlines())
    assert (code, err) == (0, "")
    assert (compiled["type"], compiled["name"], compiled["models"]) == ("compiled", "grpo", ["actor", "ref"])
    assert (plan["type"], plan["cluster"]["devices"]) == ("plan", 8)
    assert plan["predicted"]["seconds"] > 0 and {role["model"] for role in plan["plan"]["roles"]} == {"actor", "ref"}
    code, out, _ = told(capsys, "compile", grpo, "--message-format", "json")
    assert [json.loads(line)["type"] for line in out.splitlines()] == ["compiled"]


def test_times_and_counts_are_told_in_one_way(capsys: pytest.CaptureFixture[str]) -> None:
    sft = str(ALGORITHMS / "sft.rlf")
    _, out, _ = told(capsys, "compile", sft, "--cluster", "1x1:h100-80gb", "--set", 'base="Qwen/Qwen2.5-0.5B"')
    head, work, *rest = out[out.index("1x1:h100-80gb") :].splitlines()
    assert re.match(r"1x1:h100-80gb: [\d.]+ m?s a step by the search, on 1 device, ", head)
    assert re.fullmatch(r"work of all pools by the search, added up: train [\d.]+ m?s", work)
    assert any(line.startswith("1 device in `") for line in rest)


def test_the_searches_of_a_command_end_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What one search took of `--search-seconds` the next has no longer."""
    for took, said in ((1.0, False), (1000.0, True)):
        clock = iter((0.0, took))
        monkeypatch.setattr("rlgraph.cli.compiling.monotonic", clock.__next__)
        limited = ["--cluster", "1x1:h100-80gb", "--search-seconds", "100", "--what-if", "nodes=1"]
        code, out, _ = told(capsys, "compile", str(folder / "small.rlf"), *limited)
        assert code == 0 and ("the time was over" in out) == said
