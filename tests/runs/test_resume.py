"""A run that ended too early and is gone on with: it ends as the run that was never interrupted, to the last bit."""

from __future__ import annotations

import datetime
import json
import os
import platform
import random
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from programs_on_disk import start, write_tiny
from safetensors.torch import load_file

import rlgraph
from benchmarks import kills
from rlgraph.backends.engines.base import TrainOptions
from rlgraph.backends.engines.optimizer import Optimizer
from rlgraph.backends.step import Step
from rlgraph.backends.worker import saving as process_saving
from rlgraph.backends.worker.session import Session
from rlgraph.cli import run_command
from rlgraph.errors import RunError, UsageMistake
from rlgraph.runs.checkpoint import disk, document, resuming, saving
from rlgraph.runs.checkpoint import interval as clock
from rlgraph.runs.checkpoint.best import REPORTED
from rlgraph.runs.checkpoint.interval import SaveInterval, parse_interval
from rlgraph.runs.checkpoint.values import Unsavable, decode_value, encode_value
from rlgraph.runs.events import EventReader, WorkDone, WorkStarted
from tests.suites import few
from tests.waits import NEVER

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)
    return tmp_path


def ran(steps: int, out: str | None = None, program: str = "tiny.rlf", **more: Any) -> rlgraph.Run:
    made = rlgraph.compile(Path(program), more.pop("settings", {}))
    return made.run(steps, out=out, threads=1, progress=False, **more)


def numbers(folder: str) -> list[dict[str, Any]]:
    """The metrics that are on the disk."""
    lines = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    machine = ("seconds", "sync/")
    return [{name: value for name, value in line.items() if not name.startswith(machine)} for line in lines]


def weights(run: rlgraph.Run) -> Mapping[str, torch.Tensor]:
    found: Mapping[str, torch.Tensor] = run.models["actor"].engine.state()
    return found


def same(a: rlgraph.Run, b: rlgraph.Run) -> bool:
    first, second = weights(a), weights(b)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = run_command(list(arguments))
    return code, capsys.readouterr().err


class Breaks(EventReader):
    """Ends a run at one of its events, as an interruption or a failure does."""

    def __init__(self, at: int) -> None:
        self.left = at

    def work_started(self, event: WorkStarted) -> None:
        self.count()

    def work_done(self, event: WorkDone) -> None:
        self.count()

    def count(self) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def broken(seed: int, *options: str) -> str:
    """What is said of runs with faults, whose moments are drawn from a seed."""
    command = [sys.executable, str(ROOT / "benchmarks/kills.py"), "--seed", str(seed), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout


def test_a_run_that_is_killed_ends_as_the_one_that_is_not() -> None:
    """GRPO with adapters, at one moment that is the same each time."""
    said = broken(0, "--program", "grpo", "--kills", "1")
    assert "0 differ" in said and "kill:" in said


@pytest.mark.long
def test_runs_that_are_killed_end_as_the_one_that_is_not() -> None:
    """GRPO with adapters; PPO; states, a buffer, what `collect` carries; a lag: SIGKILL at a random moment, also while
    a checkpoint is written."""
    assert broken(random.randrange(100_000), "--kills", "1").count("0 differ") == len(kills.PROGRAMS)


@pytest.mark.long
def test_runs_without_room_and_runs_that_are_held_up_end_as_the_one_that_is_not() -> None:
    """From a random moment on no file can be written; or a process stands still for two seconds."""
    seed = random.randrange(100_000)
    said = broken(seed, "--program", "kept", "--kills", "4", "--fault", "full", "--fault", "delay")
    assert "full:run" in said and "delay:" in said


SHELL = """
import os, signal
from pathlib import Path

class Shell:
    def reset(self, row):
        return ""

    def step(self, action):
        with open("calls", "a") as file:
            file.write("x")
        if Path("calls").stat().st_size == int(Path("when").read_text()):
            os.kill(os.getpid(), signal.SIGKILL)
        return "b", float(len(action) % 3), len(action) == 2
"""
ACTS = """algorithm acts
model actor  = causal_lm(BASE)
data prompts = jsonl("prompts.jsonl", batch=4, shuffle=true)
env shell    = python("shell.py:Shell")

step:
    episode = actor.interact(shell, prompts, n=2, max_turns=2, max_tokens=8)
    gain    = sum(episode.reward, turn)
    train actor(lr=1e-2):
        minimize mean(-actor.logprobs(episode) * center(gain, prompts))
    report gain = mean(gain)
"""


def test_an_environment_that_is_killed_takes_the_run_back_to_its_checkpoint(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its episodes are gone with it. They begin again, from the checkpoint, as if nothing had happened."""
    kills.write(folder, "grpo")
    Path("acts.rlf").write_text(ACTS.replace("BASE", kills.weights()))
    Path("shell.py").write_text(SHELL)
    Path("when").write_text("0")
    how = ("run", "acts.rlf", "--steps", "4", "--threads", "1", "--save-every", "1", "--out")
    assert told(capsys, *how, "whole")[0] == 0
    turns = Path("calls").stat().st_size
    for out, restarts in (("run", "3"), ("other", "0")):
        Path("calls").unlink()
        Path("when").write_text(str(turns * 3 // 4))
        code, said = told(capsys, *how, out, "--max-restarts", restarts)
        assert "the process of `Shell` ended by signal SIGKILL" in said
        if restarts != "0":
            assert code == 0 and "the run goes on from step 2 by itself, 2 more times" in said
            assert kills.differing(kills.result(Path(out)), kills.result(Path("whole"))) == []
        else:
            assert code == 4 and "error[E0740]" in said and "rlgraph resume" in said


@pytest.mark.parametrize("name", few(kills.PROGRAMS, "grpo", "kept", "late", "chats"))
def test_an_interrupted_run_goes_on(name: str, folder: Path) -> None:
    """Nothing was saved on the way: what the last whole step left is, where no weights have changed since then."""
    kills.write(folder, name)
    program, steps = f"{name}.rlf", kills.STEPS
    ran(steps, "whole", program, save_every=steps)
    wanted = kills.result(Path("whole"))
    again = []
    for at in (37, 58, 84):
        with pytest.raises(KeyboardInterrupt):
            ran(steps, f"cut-{at}", program, save_every=99, on_event=Breaks(at))
        if not Path(f"cut-{at}").exists() or not disk.complete_checkpoints(Path(f"cut-{at}/checkpoints")):
            continue
        ran(steps, program=program, resume=f"cut-{at}")
        assert kills.differing(kills.result(Path(f"cut-{at}")), wanted) == []
        again.append(at)
    assert again


@pytest.mark.parametrize("name", ["kept", "async"])
def test_a_run_goes_on_with_another_backend(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From processes that are objects in this one to one process, and the other way round, to the last bit."""
    kills.write(folder, name)
    program, ray = f"{name}.rlf", {"backend": "ray", "debug": True}
    (folder / "plan.rls").write_text(f"schedule {name if name == 'kept' else 'async_collect'}\npool all = 2 devices\n")
    whole = ran(6, "whole", program)
    words = ["--steps", "3", "--save-every", "2", "--backend", "ray", "--debug", "--threads", "1"]
    assert told(capsys, "run", program, "plan.rls", "--out", "split", *words)[0] == 0
    code, err = told(capsys, "resume", "split", "--steps", "4")
    assert code == 0 and "step 4/4" in err and "step 3/4" not in err
    how = json.loads(Path("split/run.json").read_text())
    assert (how["backend"], how["debug"], how["schedule"]) == ("ray", True, "plan.rls")
    ran(5, program=program, resume="split")
    ran(6, program=program, resume="split", **ray)
    assert numbers("split") == numbers("whole") and whole.metrics


def test_turns_of_a_chat_are_the_same_in_any_plan_and_from_a_recording(folder: Path) -> None:
    """An environment replies in the model's chat template: in one process, in processes that are objects in this one,
    and where all answers come from a recording."""
    kills.write(folder, "chats")
    (folder / "plan.rls").write_text("schedule chats\npool all = 2 devices\n")
    ran(3, "whole", "chats.rlf", record="kept")
    rlgraph.compile(Path("chats.rlf"), {}, schedule="plan.rls").run(
        3, out="split", threads=1, progress=False, backend="ray", debug=True
    )
    ran(3, "again", "chats.rlf", replay="kept")
    assert numbers("split") == numbers("whole") == numbers("again")
    assert {line["turns"] for line in numbers("whole")} != {1.0}


class SlowDisk(EventReader):
    """Begins to write the models of the first checkpoint when the next step has sampled; notes what happens when."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, interrupts: bool = False) -> None:
        self.told: list[str] = []
        self.interrupts = interrupts
        self._sampled, self._waits = threading.Event(), threading.Event()
        """The next step has sampled; its update waits, or is over."""
        self._write = process_saving.write_tensors
        monkeypatch.setattr(process_saving, "write_tensors", self.write)
        changing, waits = Session.prepare_weight_change, self._waits

        def change(session: Session, name: str, step: Step) -> None:
            if session.models[name].held:
                waits.set()
            changing(session, name, step)

        monkeypatch.setattr(Session, "prepare_weight_change", change)

    def write(self, *args: Any, **named: Any) -> Any:
        if "written" not in self.told:
            assert self._sampled.wait(NEVER)
            # An update that would not wait is over by now.
            assert self.interrupts or self._waits.wait(NEVER)
        written = self._write(*args, **named)
        self.told.append("written")
        return written

    def work_done(self, event: WorkDone) -> None:
        if event.node.op in ("generate", "train"):
            self.told.append(event.node.op)
        if self.told.count("train") == 2:
            self._waits.set()
        if self.told.count("generate") == 2:
            self._sampled.set()
            if self.interrupts:
                raise KeyboardInterrupt


@pytest.mark.parametrize("backend", [{}, {"backend": "ray", "debug": True}])
def test_a_checkpoint_is_written_beside_the_next_step(
    backend: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which samples meanwhile, and waits before it changes what is written."""
    ran(3, "quick", save_every=1, keep=3, **backend)
    slow = SlowDisk(monkeypatch)
    ran(3, "slow", save_every=1, keep=3, on_event=slow, **backend)
    weights_and_moments = ["written"] * 2
    assert slow.told[:6] == ["generate", "train", "generate", *weights_and_moments, "train"]
    for step in range(1, 4):
        files = [path for path in Path("quick/checkpoints", disk.checkpoint_name(step)).rglob("*") if path.is_file()]
        assert len(files) == 6
        for path in files:
            assert path.read_bytes() == Path("slow", path.relative_to("quick")).read_bytes(), path


def test_a_run_that_is_interrupted_while_it_is_saved_has_been_saved(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ran(3)
    slow = SlowDisk(monkeypatch, interrupts=True)
    with pytest.raises(KeyboardInterrupt):
        ran(3, "a", save_every=1, on_event=slow)
    assert slow.told == ["generate", "train", "generate", "written", "written"]
    assert sorted(path.name for path in Path("a/checkpoints").iterdir()) == ["latest", "step-000000001"]
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert same(whole, ran(3, resume="a"))


def test_what_is_left_over_is_in_a_checkpoint(folder: Path) -> None:
    """The programs that are killed do have what they are to keep."""
    for name, things in {
        "kept": ("baseline", "solved", "past", "prompts.surplus"),
        "async": ("prompts.surplus",),
    }.items():
        kills.write(folder, name)
        ran(3, name, f"{name}.rlf", save_every=1)
        found = json.loads((folder / name / "checkpoints/step-000000003/checkpoint.json").read_text())
        assert all(found["things"][thing] for thing in things)
        assert bool(found["models"]["actor"]["past"]) == (name == "async")
    assert (folder / "kept/checkpoints/step-000000003/models/slow/weights.safetensors").exists()
    moments = load_file(folder / "kept/checkpoints/step-000000003/models/actor/moments.safetensors")
    masters = {name.partition(":")[2]: tensor for name, tensor in moments.items() if name.startswith("master:")}
    # Who goes on in float32 goes on with these, and not with what was rounded.
    (folder / "wide.rlf").write_text((folder / "kept.rlf").read_text().replace(', dtype="bfloat16"', ""))
    wide = ran(3, None, "wide.rlf", resume="kept", changed=True).models["actor"].engine.tensors()
    assert masters and not all(torch.equal(each, each.bfloat16().float()) for each in masters.values())
    assert all(torch.equal(wide[name], each) for name, each in masters.items())


def test_a_run_gets_more_steps(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = ran(5)
    first = ran(2, "a", save_every="2h", keep=1)
    assert [step["step"] for step in first.metrics] == [1, 2]
    second = ran(5, resume="a")
    assert same(whole, second)
    assert [step["step"] for step in second.metrics] == [1, 2, 3, 4, 5]
    assert [path.name for path in sorted(Path("a/checkpoints").iterdir())] == ["latest", "step-000000005"]
    how = json.loads(Path("a/run.json").read_text())
    assert (how["steps"], how["save_every"], how["threads"]) == (5, "2h", 1)
    assert second.models["actor"].updates == 5
    code, err = told(capsys, "resume", "a")
    assert code == 0 and "the run has its 5 steps: `--steps 10` would let it have more" in err
    code, err = told(capsys, "resume", "a", "--steps", "3")
    assert code == 2 and "error[E0829]: the run in `a` has more than 3 steps already" in err
    code, err = told(capsys, "run", "tiny.rlf", "--resume", "a", "--steps", "6", "--threads", "1")
    assert code == 0 and "step 6/6" in err and "step 5/6" not in err
    assert numbers("a")[:5] == [{k: v for k, v in step.items() if k != "seconds"} for step in whole.metrics]


BEST = """\
algorithm best
data prompts = jsonl("prompts.jsonl", batch=1, shuffle=false)
step:
    every 2:
        report rare = mean(prompts.value)
    report value = mean(prompts.value), odd = mean(prompts.value) / 0.0
"""


def test_the_best_checkpoint_stays(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the program reports, of equal ones the first; a run goes on from the newest."""
    values = [2.0, 5.0, -1.0, 5.0, 3.0, 0.0, 9.0]
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"value": each}) + "\n" for each in values))
    (folder / "best.rlf").write_text(BEST)

    def left(out: str) -> list[str]:
        place = Path(out, "checkpoints")
        found = [str(disk.step_of(path)) for path in disk.complete_checkpoints(place)]
        best = (place / "best").read_text().strip() if (place / "best").exists() else "-"
        return [*found, best.lstrip("step-0") or best]

    for text, wanted in (
        ("value", ["2", "5", "6", "2"]),
        ("value:max", ["2", "5", "6", "2"]),
        ("value:min", ["3", "5", "6", "3"]),
        ("odd", ["5", "6", "-"]),
    ):
        ran(6, text.replace(":", ""), "best.rlf", save_every=1, keep=2, keep_best=text)
        assert left(text.replace(":", "")) == wanted
    # Of what was not reported in its step, what was since the checkpoint before.
    ran(6, "rare", "best.rlf", save_every=3, keep=1, keep_best="rare")
    assert left("rare") == ["3", "6", "3"]
    ran(4, "often", "best.rlf", save_every=1, keep=9, keep_best="rare")
    said = {
        disk.step_of(path): json.loads((path / "checkpoint.json").read_text()).get(REPORTED)
        for path in disk.complete_checkpoints(Path("often/checkpoints"))
    }
    assert said == {1: None, 2: {"rare": 5.0}, 3: None, 4: {"rare": 5.0}}
    # It is as it was begun.
    assert told(capsys, "resume", "value", "--steps", "7")[0] == 0
    assert left("value") == ["6", "7", "7"]
    for words, said in (
        (["--keep-best", "vlue"], "does not report `vlue`\nhelp: did you mean `value`? it reports `rare`, `value` and"),
        (
            ["--keep-best", "value:least"],
            "`value:least` does not say what is best\nhelp: write `value:max` or `value:m",
        ),
    ):
        code, err = told(capsys, "run", "best.rlf", "--out", "none", "--save-every", "1", *words)
        assert code == 2 and said in err and "E0833" in err and not Path("none").exists(), err
    code, err = told(capsys, "run", "best.rlf", "--out", "none", "--keep-best", "value")
    assert code == 2 and "E0833]: a run without checkpoints has no best one" in err


def test_a_recording_goes_on(folder: Path) -> None:
    ran(4, "whole", record="whole-rec")
    ran(3, "a", save_every=2, record="rec")
    disk.remove_folder(Path("a/checkpoints/step-000000003"))
    ran(4, resume="a")
    replayed = ran(4, "again", replay="a")
    assert numbers("again") == numbers("whole") and replayed.folder
    rows = {
        name: sorted(line for path in Path(name).glob("step-*") for line in path.read_text().splitlines())
        for name in ("rec", "whole-rec")
    }
    assert rows["rec"] == rows["whole-rec"]


def test_another_program_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran(2, "a", save_every=1)
    text = (folder / "tiny.rlf").read_text()
    # Words for readers change nothing.
    (folder / "tiny.rlf").write_text(f"# the same\n\n{text}")
    assert told(capsys, "resume", "a", "--steps", "3")[0] == 0
    (folder / "tiny.rlf").write_text(text.replace("lr     = 1e-3", "lr     = 1e-2"))
    code, err = told(capsys, "resume", "a", "--steps", "4")
    assert code == 2
    assert err.splitlines()[:5] == [
        "error[E0826]: the program has changed since the run was saved: this was `param lr     = 1e-3`",
        " --> tiny.rlf:4:19",
        "  |",
        "4 | param lr     = 1e-2",
        "  |                   ^",
    ]
    assert len(numbers("a")) == 3
    (folder / "tiny.rlf").write_text(text)
    code, err = told(capsys, "run", "tiny.rlf", "--resume", "a", "--set", "n=3")
    assert code == 2 and "E0826]: the run was begun without `--set n=...`" in err
    (folder / "prompts.jsonl").write_text('{"prompt": "a>"}\n' * 3)
    code, err = told(capsys, "resume", "a", "--steps", "4")
    assert code == 2 and "E0826]: `prompts` is not what it was when the run was saved: `prompts.jsonl` changed" in err
    code, err = told(capsys, "resume", "a", "--steps", "4", "--changed")
    assert code == 0 and "step 4/4" in err
    last = Path("a/checkpoints/step-000000004")
    (last / document.DOCUMENT).write_text(
        document.text_with_digest(document.read_document(last) | {"rows": {"prompts": 5}})
    )
    code, err = told(capsys, "resume", "a", "--steps", "5")
    assert code == 2 and "E0826]: `prompts` has 3 rows, and had 5 rows when the run was saved" in err


def test_files_that_have_changed_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of functions and what these import, of data with as many rows as before, of models: a run goes on with others
    only where that is said, and says so."""
    source = folder / "source"
    ran(1).models["actor"].save(source)
    text = (folder / "tiny.rlf").read_text()
    start = text.index("causal_lm(")
    text = text[:start] + 'causal_lm("source")' + text[text.index("\ndata") :]
    (folder / "tiny.rlf").write_text(text)
    (folder / "helper.py").write_text("LETTER = 'a'\n")
    (folder / "rewards.py").write_text("import helper\n" + (folder / "rewards.py").read_text())
    ran(1, "a", save_every=1)
    changes = {
        "rewards.py": ("score", lambda old: old.replace(b'"a"', b'"b"')),
        "helper.py": ("score", lambda old: old.replace(b"'a'", b"'b'")),
        "prompts.jsonl": ("prompts", lambda old: old.replace(b"d>", b"c>")),
        "source/config.json": ("actor", lambda old: old + b"\n"),
    }
    for file, (name, change) in changes.items():
        before = Path(file).read_bytes()
        assert change(before) != before
        Path(file).write_bytes(change(before))
        code, err = told(capsys, "resume", "a", "--steps", "2")
        assert code == 2 and f"E0826]: `{name}` is not what it was when the run was saved: `{file}` changed" in err, err
        assert "tiny.rlf:" in err and "`--changed`" in err
        Path(file).write_bytes(before)
    for file, name in {"prompts.jsonl": "prompts", "helper.py": "score"}.items():
        Path(file).rename("away")
        code, err = told(capsys, "resume", "a", "--steps", "2")
        assert code == 2 and f"`{name}` is not what it was when the run was saved: `{file}` is gone" in err, err
        Path("away").rename(file)
    # A run that cannot begin, with another program's text, leaves how it was run as it was.
    before, tiny = Path("a/run.json").read_text(), Path("tiny.rlf").read_text()
    Path("tiny.rlf").write_text(tiny.replace('causal_lm("source")', 'causal_lm("nothing")'))
    assert told(capsys, "run", "tiny.rlf", "--resume", "a", "--steps", "7", "--changed")[0] == 1
    assert (Path("a/run.json").read_text(), Path("a/program.rlf").read_text()) == (before, tiny)
    Path("tiny.rlf").write_text(tiny)
    Path("tiny.rlf").rename("away")
    code, err = told(capsys, "resume", "a", "--steps", "2")
    assert code == 1 and f"E0805]: there is no file `tiny.rlf` in `{folder}`, where the run was begun" in err
    assert (
        "help: if it was moved: `rlgraph run tiny.rlf --resume a`, where it is now; as it was it is in `a/prog" in err
    )
    Path("away").rename("tiny.rlf")
    assert len(numbers("a")) == 1
    Path("helper.py").write_text("LETTER = 'c'\n")
    code, err = told(capsys, "resume", "a", "--steps", "2", "--changed")
    said = "`score` is not what it was when the run was saved: `helper.py` changed: it goes on with what is there now"
    assert code == 0 and said in err
    assert json.loads(Path("a/run.json").read_text())["differs"] == [said]
    assert told(capsys, "resume", "a", "--steps", "3")[0] == 0


def test_a_changed_program_goes_on_where_that_has_a_meaning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran(2, "a", save_every=1)
    path = folder / "tiny.rlf"
    text = path.read_text()
    path.write_text(
        text.replace("func score", "state seen = 0.0\nfunc score").replace(
            "    report", "    seen := seen + 1\n    report seen\n    report", 1
        )
    )
    code, err = told(capsys, "resume", "a", "--steps", "4", "--changed")
    assert code == 0 and "`seen` begins anew: the checkpoint has nothing of that name" in err
    assert [step.get("seen") for step in numbers("a")] == [None, None, 1.0, 2.0]
    path.write_text(text)
    code, err = told(capsys, "resume", "a", "--steps", "5", "--changed")
    assert code == 0 and "`seen` of the checkpoint is not in the program any more" in err
    for old, new, said in (
        ("hidden_size=16", "hidden_size=32", "are not those of the program's models"),
        ("step:", "step async(lag=1):", "samples with older weights of `actor` than the run has kept"),
        ("step:", "phase first(steps=1):\n    report one = 1.0\n\nstep:", "the phases of the program"),
        ("    train actor(lr=lr):\n        ", "    every 2:\n      train actor(lr=lr):\n        ", "would have 2"),
    ):
        path.write_text(text.replace(old, new))
        code, err = told(capsys, "resume", "a", "--steps", "6", "--changed")
        assert code == 2 and "error[E0826]" in err and said in err, err


def test_a_folder_without_a_checkpoint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran(1, "a")
    code, err = told(capsys, "resume", "a")
    assert code == 2 and "E0829]: there is no checkpoint in `a`\nhelp: a run can be gone on with if it was beg" in err
    code, err = told(capsys, "resume", "nothing")
    assert code == 2 and "E0829]: `nothing` is not the folder of a run" in err
    for words in (["--changed"], ["--resume", "a", "--seed", "1"], ["--resume", "a", "--out", "b"]):
        assert told(capsys, "run", "tiny.rlf", *words)[0] == 2
    for often in ("0", "-1", "10 days", "1.5"):
        code, err = told(capsys, "run", "tiny.rlf", "--out", "b", "--save-every", often)
        assert code == 2 and not Path("b").exists() and f"E0825]: `{often}` does not say how often to save" in err
    with pytest.raises(UsageMistake, match="without a folder"):
        ran(1, save_every=1)
    with pytest.raises(UsageMistake, match="E0830"):
        ran(1, "b", save_every=1, replay="a")
    assert not Path("b").exists()


def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_is_good(folder: Path) -> None:
    whole = ran(4)
    ran(3, "a", save_every=1)
    newest = Path("a/checkpoints/step-000000003")
    file = newest / "models/actor/weights.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(UsageMistake) as refused:
        ran(4, resume="a")
    assert "E0827" in str(refused.value) and "`models/actor/weights.safetensors` has" in str(refused.value)
    disk.remove_folder(newest)
    assert same(whole, ran(4, resume="a"))


def test_steps_of_earlier_phases_are_no_main_steps(folder: Path) -> None:
    text = (folder / "tiny.rlf").read_text()
    (folder / "two.rlf").write_text(text.replace("step:", "phase first(steps=2):\n    report one = 1.0\n\nstep:"))
    compiled: Any = rlgraph.compile(Path("two.rlf"))
    options: Any = SimpleNamespace(steps=3)
    assert [resuming.steps_left(compiled, options, done) for done in range(6)] == [3, 3, 3, 2, 1, 0]


def test_a_full_disk_leaves_the_checkpoint_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, plain = ran(4), saving.document.write_checkpoint

    def full(place: Path, header: Mapping[str, Any], *more: Any) -> None:
        plain(place, header, *more)
        if header["step"] == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving.document, "write_checkpoint", full)
    with pytest.raises(RunError) as failed:
        ran(4, "a", save_every=1)
    assert str(failed.value) == (
        "error[E0828]: the checkpoint of step 3 cannot be written: No space left on device\n"
        "help: make room, or go on in another folder; the last one is `a/checkpoints/step-000000002`"
    )
    assert sorted(path.name for path in Path("a/checkpoints").iterdir()) == [
        "latest",
        *(f"step-00000000{n}" for n in (1, 2)),
    ]
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert same(whole, ran(4, resume="a"))


def test_a_disk_that_is_full_when_weights_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(process_saving, "write_tensors", full)
    with pytest.raises(RunError, match="E0828.* of step 1 cannot be written: No space left on device"):
        ran(1, "a", save_every=1)


def test_a_model_that_diverged_is_no_checkpoint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Diverges(EventReader):
        def __init__(self) -> None:
            self.updates = 0

        def work_done(self, event: WorkDone) -> None:
            self.updates += event.node.op == "train"
            if self.updates == 3 and event.node.op == "train":
                parameter = next(iter(model.parameters()))
                parameter.data[0] = float("inf")

    compiled = rlgraph.compile(Path("tiny.rlf"))
    from rlgraph.backends.local.backend import LocalBackend

    plain = LocalBackend.run_steps

    def steps(self: LocalBackend, wanted: int | None) -> Any:
        nonlocal model
        model = self.session.models["actor"].engine.model
        return plain(self, wanted)

    model: Any = None
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RunError) as failed:
        patch.setattr(LocalBackend, "run_steps", steps)
        compiled.run(5, out="a", threads=1, save_every=1, on_event=Diverges())
    # The next step has begun to sample with it.
    assert "error[E0731]: `actor` cannot generate: the model's logits are not finite" in str(failed.value)
    assert "help: lower `lr`, or bound every update" in str(failed.value)
    err = capsys.readouterr().err
    assert "error[E0831]: `actor` has diverged in step 3" in err
    assert "the last one is `a/checkpoints/step-000000002`" in err
    assert [path.name for path in disk.complete_checkpoints(Path("a/checkpoints"))] == [
        "step-000000001",
        "step-000000002",
    ]


TAKES = """\
import os

calls = 0

def score(completions, **columns):
    global calls
    calls += 1
    if calls == 3:
        os.rename("a", "taken")
    return [float(answer.count("a")) for answer in completions]
"""


@pytest.mark.parametrize("save_every", [None, "1"])
def test_a_run_whose_folder_is_removed_is_not_lost(
    save_every: str | None, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ran(4)
    (folder / "rewards.py").write_text(TAKES)
    options = ["--save-every", save_every] if save_every else []
    code, err = told(capsys, "run", "tiny.rlf", "--steps", "4", "--out", "a", "--threads", "1", *options)
    assert code == 0 and "`a` is not there any more: it was removed or moved" in err
    assert [step["reward"] for step in numbers("a")] == [step["reward"] for step in whole.metrics]
    saved = load_file("a/models/actor/model.safetensors")
    assert all(torch.equal(each, saved[name]) for name, each in weights(whole).items() if name in saved)
    if save_every:
        assert disk.newest_checkpoint(Path("a/checkpoints")) == Path("a/checkpoints/step-000000004")
        assert told(capsys, "resume", "a", "--steps", "5")[0] == 0


class Others(EventReader):
    """Other commands amid a run, in its folder."""

    def __init__(self, *commands: list[str]) -> None:
        self.commands, self.told = commands, []  # type: ignore[var-annotated]

    def work_done(self, event: WorkDone) -> None:
        if event.node.op == "train":
            self.told += [run_command(words) for words in self.commands]


def test_a_folder_belongs_to_the_run_that_is_at_work_in_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others = Others(["run", "tiny.rlf", "--out", "a", "--overwrite"], ["resume", "a"])
    ran(2, "a", save_every=1, on_event=others)
    assert others.told == [2] * 4
    who = f"process {os.getpid()} on {platform.node()}\n"
    assert capsys.readouterr().err.count(f"error[E0832]: a run is at work in `a`: {who}") == 4
    assert len(numbers("a")) == 2
    assert told(capsys, "run", "tiny.rlf", "--out", "a", "--overwrite", "--steps", "1")[0] == 0


@pytest.mark.long
def test_a_folder_belongs_to_one_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Until its process is dead, however it died."""
    with start(["run", "tiny.rlf", "--steps", "1000000", "--out", "a", "--save-every", "1"], folder) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step 3/"):
                break
        for words in (["run", "tiny.rlf", "--out", "a", "--overwrite"], ["resume", "a"]):
            code, err = told(capsys, *words)
            assert code == 2 and "error[E0832]: a run is at work in `a`" in err
        process.kill()
        process.communicate(timeout=NEVER)
    code, err = told(capsys, "resume", "a", "--steps", "3")
    assert code == 2 and "more than 3 steps" in err or code == 0
    assert told(capsys, "run", "tiny.rlf", "--out", "a", "--overwrite", "--steps", "1")[0] == 0
    assert not Path("a/checkpoints").exists()


@pytest.mark.parametrize(
    "value",
    [
        [1, 2.5, -0.0, float("inf"), "a", None, True],
        {"a": (1, ("b", 2)), 3: [], None: {}},
        {
            1.5: {
                "x": [
                    b"\x00\xff",
                    Decimal("1.10"),
                    datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
                    datetime.date(2026, 1, 2),
                ]
            }
        },
        [np.int64(3), np.float32(0.1), 1 << 80, "\ud800"],
    ],
)
def test_values_come_back(value: Any) -> None:
    tensors: dict[str, torch.Tensor] = {}
    plain = json.loads(json.dumps(encode_value(value, "x", tensors), allow_nan=False))
    found = decode_value(plain, tensors, rlgraph.compile(Path("tiny.rlf")).program)
    assert repr(found) == repr(value)


def test_tensors_come_back() -> None:
    value = {"t": torch.arange(6.0).view(2, 3).T, "h": torch.ones(0, dtype=torch.bfloat16), "n": np.arange(3)}
    tensors: dict[str, torch.Tensor] = {}
    found = decode_value(encode_value(value, "x", tensors), tensors, rlgraph.compile(Path("tiny.rlf")).program)
    assert torch.equal(found["t"], value["t"]) and found["h"].dtype == torch.bfloat16
    assert isinstance(found["n"], np.ndarray) and (found["n"] == value["n"]).all()
    with pytest.raises(Unsavable, match="x/0: builtins.set"):
        encode_value({"a": {1}}, "x", {})


def test_moments_lie_as_their_parameter_does() -> None:
    """The fused AdamW walks over both as they lie."""
    options = replace(TrainOptions(lr=0.1), clip_norm=None)
    gradients = [torch.randn(3, 5) for _ in range(3)]

    def optimizer() -> tuple[torch.Tensor, Optimizer]:
        parameter = torch.nn.Parameter(torch.zeros(5, 3).T)
        return parameter, Optimizer({"w": parameter})

    whole, plain = optimizer()
    for step, gradient in enumerate(gradients):
        plain.step([gradient], options, step)
    first, before = optimizer()
    for step, gradient in enumerate(gradients[:2]):
        before.step([gradient], options, step)
    second, after = optimizer()
    second.data.copy_(first.data)
    kinds = before.state_by_weight()
    steps = kinds.pop("step")["w"]
    after.resume(kinds, float(steps))
    for kind, kept in kinds.items():
        after.state_by_weight()[kind]["w"].copy_(kept["w"].contiguous())
    after.step([gradients[2]], options, 2)
    assert torch.equal(whole, second)


def test_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [step for step in range(1, 10) if parse_interval("3").is_due(step)] == [3, 6, 9]
    assert (parse_interval("10m").seconds, parse_interval("1.5h").seconds, parse_interval(90).steps) == (
        600.0,
        5400.0,
        90,
    )
    often = SaveInterval(seconds=600.0, _last=1000.0)
    for now, due in ((1000.0, False), (1599.0, False), (1600.0, True)):
        monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda now=now: now))
        assert often.is_due(1) == due
    often.note_saved()
    assert not often.is_due(2)


ODD = """\
algorithm odd
model actor  = causal_lm(BASE)
data prompts = jsonl("prompts.jsonl", batch=2, shuffle=false)
step:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    minibatch prompts(parts=2):
        train actor(lr=1e-3):
            minimize mean(-actor.logprobs(rollout) * exp(rollout.hurt))
    report length = mean(rollout.length), worst = max(exp(rollout.hurt))
"""


@pytest.mark.parametrize("backend", [{}, {"backend": "ray", "debug": True}])
def test_a_gradient_that_is_not_finite(folder: Path, backend: dict[str, Any]) -> None:
    rows = [{"prompt": f"{letter}>", "hurt": 1000 if letter == "c" else 0} for letter in "abcd"]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    compiled = rlgraph.compile(ODD.replace("BASE", kills.weights()))
    with pytest.raises(RunError) as failed:
        compiled.run(3, out="stops", threads=1, progress=False, **backend)
    assert "is not finite: the weights were left as they are" in str(failed.value)
    # Processes of a plan know their rows by number.
    assert backend or "nor is the loss of prompts row 2, sample 0, prompts row 2, sample 1\n" in str(failed.value)
    assert ("help: lower `lr`" if backend else "help: keep what it divides by") in str(failed.value)
    made = compiled.run(4, out="skips", threads=1, progress=False, on_nonfinite="skip", **backend)
    assert [step["actor.skipped"] for step in made.metrics] == [0, 1, 0, 1]
    # A controller counts those that it has ordered.
    assert made.models["actor"].updates == (8 if backend else 6)
    assert all(bool(tensor.isfinite().all()) for tensor in made.models["actor"].engine.state().values())
    assert [step["worst"] for step in numbers("skips")] == [1.0, "Infinity"] * 2


@pytest.mark.parametrize("backend", [{}, {"backend": "ray", "debug": True}])
def test_weights_that_an_update_has_half_changed(
    folder: Path, backend: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not saved: not as those of before, and not as new ones."""
    calls, plain = [], torch.optim.AdamW.step

    def step(self: torch.optim.AdamW) -> None:
        plain(self)
        calls.append(self)
        if len(calls) == 3:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    (folder / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{each}>", "hurt": 1.0}) + "\n" for each in "ab")
    )
    compiled = rlgraph.compile(ODD.replace("BASE", kills.weights()))
    with pytest.raises(RunError, match="training `actor` failed: the update has ended in the midst: out of memory"):
        compiled.run(3, out="half", threads=1, progress=False, **backend)
    assert len(numbers("half")) == 1
    assert not list(Path("half").glob("models/*"))
