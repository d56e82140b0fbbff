"""Notebooks: the cell magic, and the example, which is run."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from programs_on_disk import PROGRAM, write_tiny

import rlgraph
from tests.waits import NEVER

pytest.importorskip("IPython")
EXAMPLE = Path(__file__).parent.parent / "examples" / "notebook" / "grpo.ipynb"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A shell of IPython in a folder with data, with the magic loaded."""
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance()
    made.run_line_magic("load_ext", "rlgraph")
    yield made
    InteractiveShell.clear_instance()


def test_a_cell_becomes_a_program(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run_cell(f"%%rlf\n{PROGRAM}").success
    assert shell.run_cell(f"%%rlf other --set n=7 --set=lr=0.5\n{PROGRAM}").success
    assert capsys.readouterr().out == "tiny: 1 model, ready to run\nother: 1 model, ready to run\n"
    assert isinstance(shell.user_ns["tiny"], rlgraph.Compiled)
    assert shell.user_ns["other"].set == {"n": "7", "lr": "0.5"}
    assert len(shell.user_ns["other"].run(1, progress=False).metrics) == 1


def test_a_mistake_is_shown_without_a_traceback(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    done = shell.run_cell("%%rlf\n" + PROGRAM.replace("center(reward", "center(rewards"))
    assert not done.success
    out, err = capsys.readouterr()
    assert (
        (out + err).rstrip("\n")
        == """\
error[E0201]: nothing is called `rewards`
  --> <cell>:15:22
   |
15 |     adv     = center(rewards, prompts)
   |                      ^^^^^^^
help: did you mean `reward`?"""
    )


def test_a_warning_is_shown(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run_cell("%%rlf\n" + PROGRAM.replace("param lr", "param unused = 1\nparam lr")).success
    assert "warning[W0201]: param `unused` is never used" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("my program", "`program` cannot stand here"),
        ("2nd", "`2nd` cannot stand here"),
        ("class", "`class` cannot stand here"),
        ("--draw", "`--draw` cannot stand here"),
        ("--set n", "`n` is not NAME=EXPR"),
        ("--set", "`` is not NAME=EXPR"),
        ("--set 'n=1", "no closing quotation"),
    ],
)
def test_a_wrong_magic(line: str, message: str, shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert not shell.run_cell(f"%%rlf {line}\n{PROGRAM}").success
    out, err = capsys.readouterr()
    assert (out + err).splitlines() == [
        f"error[E0809]: {message}",
        "help: write `%%rlf [NAME] [--visualize] [--set NAME=EXPR]...`",
    ]


@pytest.mark.long
def test_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    from jupyter_client.manager import AsyncKernelManager

    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE.parent.parent.parent))
    notebook = nbformat.read(EXAMPLE, as_version=4)
    with TemporaryDirectory() as sockets:
        # Files: of five ports that were free a moment before somebody else may have one.
        kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=str(Path(sockets) / "kernel"))
        resources = {"metadata": {"path": str(EXAMPLE.parent)}}
        client = nbclient.NotebookClient(
            notebook, km=kernel, timeout=int(NEVER), startup_timeout=int(NEVER), resources=resources
        )
        client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    picture = next(output["data"] for output in outputs if "image/svg+xml" in output.get("data", {}))
    assert set(picture) == {"image/svg+xml", "text/html", "text/plain"}
    plain = [output["data"]["text/plain"] for output in outputs if "data" in output]
    assert "{'a>': 'aaaaaa', 'b>': 'bbbbbb', 'c>': 'cccccc', 'd>': 'dddddd'}" in plain
    assert not [output for output in outputs if output.get("name") == "stderr"]
