"""A program from a stranger is safe to check and to compile: nothing of it is run, imported or opened but what it
`use`s and the first rows of its data files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suites import few
from tests.waits import NEVER

EVIL = """\
algorithm evil
param home = "/etc/passwd"
model actor = causal_lm("model")
model other = causal_lm("./model")
model third = reward_lm(random("qwen2", tokenizer="model"))
data prompts = python("evil.py:rows", batch=4)
data lines = jsonl("/etc/passwd", batch=4)
data more = jsonl("../secret.jsonl", batch=4)
data rows = jsonl("rows.jsonl", batch=4)
data task = reasoning_gym("evil.task", batch=4)
data files = parquet(home, batch=4)
data net = hub("evil/data", batch=4)
func correct = python("evil.py:reward")
func other_one = python("/tmp/evil.py:__import__")
env shell = python("evil.py:Shell", command="touch marker")
step:
    rollout = actor.generate(prompts, max_tokens=8)
    episode = other.interact(shell, lines, max_turns=2, max_tokens=8)
    score = correct(rollout, root=rollout.root) + other_one(rollout)
    a = actor.generate(more, max_tokens=8)
    b = actor.generate(rows, max_tokens=8)
    c = actor.generate(task, max_tokens=8)
    d = actor.generate(files.text, max_tokens=8)
    e = actor.generate(net, max_tokens=8)
    train actor(lr=1e-6):
        minimize mean(-actor.logprobs(rollout) * score)
    report x = mean(third.score(episode)), y = sum(a.length) + sum(b.length) + sum(c.length) + sum(d.length) + sum(e.length)
    report z = mean(b.secret_column == "x")
"""

PYTHON = """\
from pathlib import Path
Path("marker").write_text("run")
def rows():
    Path("marker").write_text("run")
def reward(prompts, completions):
    Path("marker").write_text("run")
class Shell:
    pass
"""

WATCH = """\
import json, sys
from pathlib import Path
from rlgraph.data import source_columns
from rlgraph.dsl.check import check
from rlgraph.dsl.parse import parse_expression
from rlgraph.errors import NO_SPAN, ProgramError, Source
from rlgraph.user_code.spec import CallSpec
from rlgraph.user_code.files import SearchFolders
from rlgraph.passes.rewrites.pipeline import run_passes

def look(record):
    return source_columns(CallSpec(record.name, record.args, {n: v for n, v in record.options if v is not None}, record.span), SearchFolders(Path()))

# Whatever rlgraph itself loads late is loaded now.
import rlgraph.data.files, rlgraph.data.jsonl, rlgraph.data.parquet, rlgraph.data.hub, rlgraph.data.python, rlgraph.data.reasoning_gym
check(Source("<warm>", 'algorithm w\\nuse "grpo.rlf"\\n'))
for kind in ("files", "jsonl", "parquet", "hub", "python", "reasoning_gym"):
    source_columns(CallSpec(kind, ("nothing:here",), {}, NO_SPAN), SearchFolders(Path()))
    source_columns(CallSpec(kind, ("rows.jsonl",), {}, NO_SPAN), SearchFolders(Path()))

seen, text = [], Path(sys.argv[1]).read_text()
source, before = Source(sys.argv[1], text), set(sys.modules)
sets = {name: parse_expression(Source("--set", value)) for name, value in json.loads(sys.argv[2]).items()}
armed = True
def hook(event, args):
    if armed and event in ("open", "exec", "import", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect",
                           "compile", "ctypes.dlopen", "os.remove", "os.mkdir", "os.fork"):
        seen.append([event, str(args[0])[:200]])
sys.addaudithook(hook)
try:
    program, found = check(source, sets, columns=look)
    run_passes(program)
except ProgramError as error:
    found = error.diagnostics
armed = False
print(json.dumps({"seen": seen, "said": "\\n".join(d.render() for d in found), "new": sorted(set(sys.modules) - before)}))
"""


def watched(folder: Path, text: str, sets: dict[str, str] | None = None) -> tuple[list[list[str]], str, list[str]]:
    """What checking and compiling a program touches, what is said about it, and the modules that were loaded."""
    (folder / "evil.rlf").write_text(text, "utf-8")
    command = [sys.executable, "-c", WATCH, "evil.rlf", json.dumps(sets or {})]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PYTHONPATH": str(root), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=NEVER,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert not (folder / "marker").exists()
    return answer["seen"], answer["said"], answer["new"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "inside"
    (inside / "model").mkdir(parents=True)
    for place in (inside / "evil.py", inside / "model" / "modeling_evil.py", inside / "sitecustomize.py"):
        place.write_text(PYTHON, "utf-8")
    (inside / "model" / "config.json").write_text('{"auto_map": {"AutoModel": "modeling_evil.Evil"}}', "utf-8")
    (inside / "rows.jsonl").write_text('{"prompt": "hello", "answer": "s3cret-content"}\n', "utf-8")
    (tmp_path / "secret.jsonl").write_text('{"prompt": "s3cret-prompt"}\n', "utf-8")
    (tmp_path / "secret.rlf").write_text('algorithm secret\nparam key = "s3cret-key" +\n', "utf-8")
    (tmp_path / "secret.txt").write_text("s3cret-text\n", "utf-8")
    return inside


def test_nothing_runs_and_only_data_files_are_opened(folder: Path) -> None:
    seen, said, new = watched(folder, EVIL)
    opened = {Path(what).name for event, what in seen if event == "open"}
    assert opened <= {"passwd", "secret.jsonl", "rows.jsonl"}
    assert not [what for event, what in seen if event not in ("open", "import", "exec", "compile")]
    assert not [name for name in new if "evil" in name or not name.startswith("rlgraph")]
    assert {event for event, _ in seen} <= {"open", "import"}
    assert "root:" not in said and "s3cret" not in said
    assert "secret_column" in said


def test_use_opens_programs_only_and_does_not_show_other_files(folder: Path) -> None:
    (folder / "folder.rlf").mkdir()
    os.mkfifo(folder / "pipe.rlf")
    long = "x" * 300 + ".rlf"
    uses = (
        "folder.rlf",
        "pipe.rlf",
        long,
        "a\\0.rlf",
        "/etc/passwd",
        "../secret.txt",
        "../../../../etc/shadow",
        "model",
        "/dev/zero",
        "~/.ssh/id_rsa",
        "evil.py",
        "",
    )
    text = "algorithm evil\n" + "".join(f'use "{path}"\n' for path in uses) + "step:\n    report x = 3\n"
    seen, said, _ = watched(folder, text)
    assert [what for event, what in seen if event == "open"] == []
    assert said.count("error[E0801]") == len(uses)
    assert "root:" not in said and "s3cret" not in said


@pytest.mark.parametrize(
    "value",
    few(
        ['python("evil.py:rows")', 'jsonl("/etc/passwd")', '"/etc/passwd"', 'hub("evil/data")'],
        'python("evil.py:rows")',
        'jsonl("/etc/passwd")',
    ),
)
def test_changes_from_the_command_line_run_nothing(folder: Path, value: str) -> None:
    seen, said, _ = watched(folder, EVIL, {"rows": value, "home": '"/etc/hosts"'})
    assert {Path(what).name for event, what in seen if event == "open"} <= {
        "passwd",
        "secret.jsonl",
        "rows.jsonl",
        "hosts",
    }
    assert "root:" not in said and "localhost" not in said
