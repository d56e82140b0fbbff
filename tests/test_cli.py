"""The command line: whole outputs, and exit codes."""

from __future__ import annotations

import io
import json
import os
import pty
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from programs_on_disk import PROGRAM, start, write_tiny

import rlgraph
from rlgraph import cli
from rlgraph.cli import run_command
from tests.waits import NEVER

ALGORITHMS = Path(cli.__file__).parents[1] / "algorithms"
BROKEN = PROGRAM.replace("rollout.", "rolout.").replace("center(reward", "center(rewards")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a folder of its own, where `tiny.rlf` is."""
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    code = run_command(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


# check


def test_check_of_a_right_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "check", "tiny.rlf") == (0, "", "tiny.rlf: no errors\n")


def test_check_of_a_wrong_program(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "wrong.rlf").write_text(BROKEN)
    assert told(capsys, "check", "wrong.rlf", "tiny.rlf") == (
        1,
        "",
        """\
error[E0201]: nothing is called `rewards`
  --> wrong.rlf:14:22
   |
14 |     adv     = center(rewards, prompts)
   |                      ^^^^^^^
help: did you mean `reward`?

2 files: 1 error
""",
    )


def test_check_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "wrong.rlf").write_text(BROKEN)
    code, out, err = told(capsys, "check", "--message-format", "json", "wrong.rlf")
    assert (code, err) == (1, "")
    assert json.loads(out) == {
        "type": "diagnostic",
        "severity": "error",
        "code": "E0201",
        "message": "nothing is called `rewards`",
        "hint": "did you mean `reward`?",
        "file": "wrong.rlf",
        "line": 14,
        "column": 22,
        "end_line": 14,
        "end_column": 29,
        "related": [],
    }


def test_check_looks_at_the_columns_of_the_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "column.rlf").write_text(PROGRAM.replace("mean(reward)", "mean(prompts.promt)"))
    code, _, err = told(capsys, "check", "column.rlf")
    assert code == 1
    assert "the table has no column `promt`" in err
    assert "did you mean `prompt`?" in err


def test_check_of_a_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    program, schedule = str(ALGORITHMS / "ppo.rlf"), str(ALGORITHMS / "ppo.rls")
    assert told(capsys, "check", program, schedule)[0] == 0
    assert told(capsys, "check", schedule)[0] == 0


def test_check_of_a_schedule_without_its_program(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "lonely.rls").write_text("schedule lonely\n\npool all = 8 devices\n")
    assert told(capsys, "check", "tiny.rlf", "lonely.rls") == (
        1,
        "",
        """\
error[E0808]: there is no program `lonely.rlf` for this schedule
 --> lonely.rls:1:1
  |
1 | schedule lonely
  | ^^^^^^^^^^^^^^^
help: give the program too: `rlgraph check PROGRAM.rlf SCHEDULE.rls`

2 files: 1 error
""",
    )


def test_files_that_cannot_be_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "picture.rlf").write_bytes(b"algorithm a\n\xff\xfe\n")
    (folder / "huge.rlf").write_bytes(b"#" * 2_000_000)
    (folder / "huge.jsonl").write_bytes(b'{"prompt": "a>"}\n' * 100_000)
    (folder / "score.py").write_text("import re\n")
    (folder / "few.csv.gz").write_bytes(b"")
    files = ["tinny.rlf", "nowhere/tiny.rlf", "grpo.rlf", ".", "picture.rlf", "huge.rlf", "a\0b"]
    (folder / "plan.json").write_text('{\n "rlgraph": 2,\n "program": {}\n}\n')
    files += ["huge.jsonl", "few.csv.gz", "score.py", "plan.json", "none.jsonl"]
    assert told(capsys, "check", *files) == (
        1,
        "",
        f"""\
error[E0805]: there is no file `tinny.rlf`
help: did you mean `tiny.rlf`?

error[E0805]: there is no file `nowhere/tiny.rlf`
help: there is no folder `nowhere` either

error[E0805]: there is no file `grpo.rlf`
help: an algorithm of that name ships with rlgraph: `{ALGORITHMS / "grpo.rlf"}`

error[E0805]: `.` is a folder
help: name the files in it: `./*.rlf`

error[E0806]: `picture.rlf` is no text in UTF-8: line 2 has the byte 0xff
help: save it as UTF-8

error[E0805]: `huge.rlf` cannot be read: it is too large: it has more than 128 KiB

error[E0805]: `a\\x00b` cannot be read: embedded null byte

error[E0805]: `huge.jsonl` is a file of data, not a program
help: run a program with it: `rlgraph run PROGRAM.rlf --data huge.jsonl`

error[E0805]: `few.csv.gz` is a file of data, not a program
help: run a program with it: `rlgraph run PROGRAM.rlf --data few.csv.gz`

error[E0805]: `score.py` is a file of Python, not a program
help: run a program with a function of it: `rlgraph run PROGRAM.rlf --reward score.py:NAME`

error[E0805]: `plan.json` is a plan file, not a program
help: it has its program: name it alone, `rlgraph run plan.json`

error[E0805]: there is no file `none.jsonl`
help: give a file, or the name of an algorithm that ships: `rlgraph list` has them

12 files: 12 errors
""",
    )


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("prompts=rows.jsonl", '`files("rows.jsonl", batch=16)` for example'),
        ("actor=Qwen/Qwen2.5-0.5B", """for example: `--set 'actor=causal_lm("Qwen/Qwen2.5-0.5B")'`"""),
        ("score=rewards.py:score", """for example: `--set 'score=python("rewards.py:score")'`"""),
    ],
)
def test_a_text_alone_where_more_is_needed(
    setting: str, hint: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = told(capsys, "check", "tiny.rlf", "--set", setting)
    assert code == 1 and f"help: {hint}\n" in err


def test_an_empty_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "empty.rlf").write_text("")
    code, _, err = told(capsys, "check", "empty.rlf")
    assert code == 1
    assert "the file does not say what its algorithm is called" in err


def test_what_does_not_compute_loads_no_torch(folder: Path) -> None:
    script = """
import sys, rlgraph
from rlgraph.cli import run_command
assert "lark" not in sys.modules and "click" in sys.modules
commands = ["check tiny.rlf", "fmt --check tiny.rlf", "explain E0101", "compile tiny.rlf --emit json --emit dot -o out",
            "compile tiny.rlf --visualize", "compile tiny.rlf --print-after simplify"]
for command in commands:
    assert run_command(command.split()) == 0, command
print([name for name in ("torch", "ray", "transformers", "numpy", "rich") if name in sys.modules])
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


# fmt


def test_fmt_writes_what_has_changed_and_keeps_the_mode(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    untidy = folder / "untidy.rlf"
    untidy.write_text(PROGRAM.replace("mean(reward)", "mean( reward )"))
    untidy.chmod(0o640)
    assert told(capsys, "fmt", "--check", "tiny.rlf", "untidy.rlf") == (1, "would reformat untidy.rlf\n", "")
    assert "mean( reward )" in untidy.read_text()
    assert told(capsys, "fmt", "tiny.rlf", "untidy.rlf") == (0, "reformatted untidy.rlf\n", "")
    assert untidy.read_text() == PROGRAM
    assert stat.S_IMODE(untidy.stat().st_mode) == 0o640
    assert told(capsys, "fmt", "--check", "tiny.rlf", "untidy.rlf") == (0, "", "")
    assert sorted(path.name for path in folder.iterdir()) == ["prompts.jsonl", "rewards.py", "tiny.rlf", "untidy.rlf"]


def test_fmt_of_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    untidy = io.TextIOWrapper(io.BytesIO(PROGRAM.replace("= 4", "=4").encode()))
    monkeypatch.setattr(sys, "stdin", untidy)
    assert told(capsys, "fmt", "-") == (0, PROGRAM, "")


def test_fmt_leaves_a_wrong_program_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = folder / "wrong.rlf"
    wrong.write_text("step:\n    x = (1\n")
    code, out, err = told(capsys, "fmt", "wrong.rlf", "missing.rlf")
    assert (code, out) == (1, "")
    assert "error[E0102]" in err and "error[E0805]" in err
    assert wrong.read_text() == "step:\n    x = (1\n"


# compile


def test_compile_tells_what_became_of_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "compile", str(ALGORITHMS / "grpo.rlf"), "--set", 'base="a folder"')
    assert (code, err) == (0, "")
    assert (
        out
        == """\
grpo: 18 nodes, 2 models
  actor  causal_lm("a folder"), generate, train, logprobs
  ref    copy of actor, frozen, logprobs

3 barriers: a node that waits for its whole group or batch
  adv          per prompts: `mean` is over each group of `prompts`
  minibatch    per batch: slices are of the whole batch
  train actor  per batch: an optimizer step needs the gradient of all its rows
"""
    )


def test_compile_writes_every_form(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forms = [word for form in ("graph", "json", "dot", "svg", "png", "html") for word in ("--emit", form)]
    code, out, err = told(capsys, "compile", "tiny.rlf", *forms, "-o", "new/out")
    names = ["tiny.graph.txt", "tiny.json", "tiny.dot", "tiny.svg", "tiny.png", "tiny.html"]
    assert (code, out, err) == (0, "", "".join(f"wrote new/out/{name}\n" for name in names))
    made = folder / "new" / "out"
    assert (made / "tiny.graph.txt").read_text().startswith("program tiny\n")
    plain = json.loads((made / "tiny.json").read_text())
    assert (plain["format"], plain["program"], plain["models"][0]["name"]) == (1, "tiny", "actor")
    assert {node["op"] for node in plain["phases"][0]["graph"]["nodes"]} >= {"read", "generate", "call", "train"}
    assert (made / "tiny.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (made / "tiny.svg").read_text()


def test_compile_to_stdout_and_the_graph_after_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "compile", "tiny.rlf", "--emit", "dot")
    assert (code, err) == (0, "") and out.startswith("digraph")
    code, out, err = told(capsys, "compile", "tiny.rlf", "--print-after", "check")
    assert (code, err) == (0, "") and out.startswith("program tiny\n")


@pytest.mark.parametrize("arguments", [["--visualize", "tiny.rlf"], ["tiny.rlf", "--visualize"]])
def test_visualize(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "compile", *arguments) == (0, "", "wrote tiny.html\n")
    assert "<svg" in (folder / "tiny.html").read_text()
    assert (folder / "tiny.rlf").read_text() == PROGRAM
    assert told(capsys, "compile", "tiny.rlf", "--visualize", "a.svg", "-o", "pictures")[2] == "wrote pictures/a.svg\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compile"], "Missing argument 'FILE...'."),
        (["compile", "tiny.rlf", "--set", "n"], "Invalid value for '--set': `n` is not NAME=EXPR, as in `--set n=4`"),
        (["compile", "tiny.rlf", "--set", "n=1", "--set", "n=2"], "Invalid value for '--set': `n` is set twice"),
        (
            ["compile", "tiny.rlf", "--emit", "dot", "--emit", "svg"],
            "say with -o DIR where the files go: only one form alone can go to stdout",
        ),
        (
            ["compile", "tiny.rlf", "--visualize", "tiny.txt"],
            "Invalid value for '--visualize': `tiny.txt` does not end in .html, .svg, .png or .dot",
        ),
        (
            ["compile", "tiny.rlf", "--print-after", "simplfy"],
            "Invalid value for '--print-after': the compiled program has no pass `simplfy`: did you mean `simplify`? it",
        ),
        (["run", "tiny.rlf", "--steps", "0"], "Invalid value for '--steps': 0 is not in the range x>=1."),
        (["run", "tiny.rlf", "--steps", "-3"], "Invalid value for '--steps': -3 is not in the range x>=1."),
        (["explain", "0805"], "Invalid value for 'CODE': there is no code 0805: did you mean `E0805`?"),
        (["explain", "what"], "Invalid value for 'CODE': there is no code what: `rlgraph explain` lists all codes"),
        (["fmt", "-", "tiny.rlf"], "Invalid value for 'FILE...': `-` stands alone"),
        (["chekc", "tiny.rlf"], "No such command 'chekc'."),
    ],
)
def test_a_wrong_command(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, *arguments)
    assert (code, out) == (2, "")
    assert " ".join(err.split("Error: ")[1].split()).startswith(message)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "m=4",
            """\
error[E0804]: the program declares nothing called `m`
 --> --set m:1:1
  |
1 | 4
  | ^
help: it declares `n`, `lr`, `actor`, `prompts`, `score`
""",
        ),
        (
            "max_tokens=8",
            """\
error[E0804]: the program declares nothing called `max_tokens`
 --> --set max_tokens:1:1
  |
1 | 8
  | ^
note: it is written here
  --> tiny.rlf:12:44
   |
12 |     rollout = actor.generate(prompts, n=n, max_tokens=4)
   |                                            ^^^^^^^^^^^^
help: to set it, declare `param max_tokens = 4`, and write `max_tokens=max_tokens` there
""",
        ),
        (
            "n=",
            """\
error[E0101]: an expression is missing
 --> --set n:1:1
  |
1 |
  | ^
help: write a value behind the `=`: `n=8`, `lr=1e-6`, `base="models/small"`
""",
        ),
        (
            "actor=causal_lm(Qwen/Qwen2.5-7B)",
            """\
error[E0106]: `7B` is not a number
 --> --set actor:1:24
  |
1 | causal_lm(Qwen/Qwen2.5-7B)
  |                        ^^
help: numbers are written 12, 1_000, 0.5, 1e-6
""",
        ),
        (
            "n=Qwen/Qwen2.5-7B",
            """\
error[E0101]: `Qwen/Qwen2.5-7B` is no expression
 --> --set n:1:1
  |
1 | Qwen/Qwen2.5-7B
  | ^^^^^^^^^^^^^^^
help: a text has quotes of its own: `--set 'n="Qwen/Qwen2.5-7B"'`
""",
        ),
    ],
)
def test_a_wrong_setting(setting: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "compile", "tiny.rlf", "--set", setting) == (1, "", f"{message}\n")


def test_what_a_setting_declares_stands_in_the_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is found out later is shown there, and not under what it has taken the place of."""
    code, _, err = told(capsys, "run", "tiny.rlf", "--steps", "1", "--set", 'actor=causal_lm("no/such/folder")')
    assert code == 1 and "error[E0730]" in err
    assert (
        """\
 --> --set actor:1:1
  |
1 | causal_lm("no/such/folder")
  | ^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
        in err
    )
    settings = {"score": 'python("other.py:f")', "prompts": 'jsonl("other.jsonl", batch=2)', "actor": 'causal_lm("m")'}
    program = rlgraph.compile(Path("tiny.rlf"), settings).program
    for each in (*program.outside, *program.models):
        assert each.span.covered_text == settings[each.name]


# What surrounds every command


def test_a_bug_of_ours_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("oops\nand more")

    monkeypatch.setattr("rlgraph.api.check", broken)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    code, out, err = told(capsys, "check", "tiny.rlf")
    (kept,) = folder.glob("rlgraph-error-*.txt")
    assert (code, out) == (3, "")
    assert err == f"internal error: KeyError: 'oops\\nand more'; please report it with {kept}\n"
    assert "Traceback (most recent call last)" in kept.read_text()


def test_a_closed_pipe_is_silent(folder: Path) -> None:
    process = start(["compile", "tiny.rlf", "--emit", "svg"], folder)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert (process.wait(timeout=NEVER), process.stderr.read()) == (141, "")
    process.stderr.close()


def test_colour_is_for_terminals_that_want_it(folder: Path) -> None:
    (folder / "wrong.rlf").write_text(BROKEN)
    assert b"\x1b[1;31merror[E0201]\x1b[0m: nothing is called `rewards`" in on_terminal(folder, {})
    assert b"\x1b" not in on_terminal(folder, {"NO_COLOR": "1"})


def on_terminal(folder: Path, more: dict[str, str]) -> bytes:
    """What `rlgraph check wrong.rlf` writes on a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "TERM": "xterm", **more}
    if "NO_COLOR" not in more:
        environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "rlgraph", "check", "wrong.rlf"]
    subprocess.run(command, cwd=folder, env=environment, stderr=theirs)
    os.close(theirs)
    written = b""
    # It comes in pieces; when all are read, and nobody can write any more, Linux says EIO.
    with suppress(OSError):
        while piece := os.read(ours, 1 << 16):
            written += piece
    os.close(ours)
    return written


def test_every_code_in_the_source_that_is_ours_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for code in ("E0805", "E0806", "E0807", "E0808", "E0809", "E0810", "E0811", "E0812", "E0813"):
        assert told(capsys, "explain", code)[1].startswith(f"{code} ")
    assert "E0810  the folder for a run is not empty\n" in told(capsys, "explain")[1]


def test_an_option_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, hint in (
        (("run", "a.rlf", "--resume"), []),
        (("run", "a.rlf", "--stepz", "3"), ["Did you mean --steps?"]),
        (
            ("simulate", "a.rlf", "--schedule", "b.rls"),
            ["It stands by itself: `rlgraph simulate [OPTIONS] FILE [SCHEDULE]`."],
        ),
        (("check", "a.rlf", "--seed", "1"), ["It is one of `rlgraph run`, `rlgraph simulate`."]),
    ):
        code, _, err = told(capsys, *arguments)
        # Not every version of Click quotes what it suggests.
        assert code == 2 and err.splitlines()[-1].replace("'", "").split(". ", 1)[1:] == hint, err


def test_a_reference_that_is_none_is_found_by_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ALGORITHMS / "grpo.rlf").read_text("utf-8")
    for reference, code in (("rewards.vowels", "E0702"), ("rlgraph.rewards:exact", "E0722"), ("nowhere:f", "W0703")):
        Path("a.rlf").write_text(text.replace("rlgraph.rewards:exact_match", reference))
        assert f"[{code}]" in told(capsys, "check", "a.rlf")[2]


NAMED = "p\x1b]0;title\x07.rlf"
"""A file whose name a terminal would obey."""


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", NAMED],
        ["fmt", "--check", NAMED],
        ["compile", NAMED],
        ["compile", NAMED, "--emit", "plan", "--out", "a\x1b[2J"],
        ["compile", NAMED, "--set", "\x1b[2J"],
        ["compile", NAMED, "--print-after", "\x1b[2J"],
        ["check", "\x1b[2J.rlf"],
        ["explain", "\x1b[2J"],
        ["plan", "diff", NAMED, NAMED],
        ["run", NAMED, "--overwrite"],
        ["simulate", NAMED, "--format", "json"],
        ["\x1b[2J"],
    ],
)
def test_a_terminal_obeys_nothing_that_a_file_is_called(
    folder: Path, capfd: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    (folder / NAMED).write_text((folder / "tiny.rlf").read_text() + "\n\n")
    run_command(arguments)
    shown = "".join(capfd.readouterr())
    assert shown and "\x1b" not in shown and "\x07" not in shown


@pytest.mark.parametrize("text", ["Qwen/Qwen2.5-0.5B", "gpt2", "./my-model", "~/models/a_b", "models/x"])
def test_a_text_needs_no_quotes_where_a_text_stands(text: str) -> None:
    program = 'algorithm t\nparam base = "a"\nmodel actor = causal_lm(base)\ndata q = jsonl("q.jsonl", batch=1)\n'
    program += "step:\n    r = actor.generate(q, max_tokens=4)\n    report n = mean(r.length)\n"
    assert rlgraph.compile(program, set={"base": text}).program.model("actor").source == text


def test_what_is_declared_is_no_text() -> None:
    program = 'algorithm t\nparam other = "b"\nparam base = "a"\nmodel actor = causal_lm(base)\n'
    program += 'data q = jsonl("q.jsonl", batch=1)\nstep:\n    r = actor.generate(q, max_tokens=4)\n    report n = mean(r.length)\n'
    assert rlgraph.compile(program, set={"base": "other"}).program.model("actor").source == "b"


def test_an_algorithm_that_ships_is_called_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["check", "grpo"]) == 0
    assert run_command(["check", "grpoo"]) != 0 and "there is no file `grpoo`" in capsys.readouterr().err
    (tmp_path / "ppo").write_text("no program")
    assert run_command(["check", "ppo"]) != 0, "a file of that name is taken first"


def test_the_algorithms_that_ship_are_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_command(["list"]) == 0
    shown = capsys.readouterr().out
    lines = [line.split(maxsplit=1) for line in shown.splitlines()]
    assert ["grpo", "Group Relative Policy Optimization (arXiv 2402.03300)"] in lines and "safe_rlhf" in shown
    assert ["gspo", "Group Sequence Policy Optimization (arXiv 2507.18071)"] in lines
    assert run_command(["list", "grpo"]) == 0
    program = capsys.readouterr().out
    assert program == (Path(rlgraph.__file__).parent / "algorithms" / "grpo.rlf").read_text()
    assert run_command(["list", "gropo"]) == 2 and "did you mean `grpo`?" in capsys.readouterr().err
