"""What is installed: rlgraph without what computes; torch for this machine; what vLLM needs."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distribution
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

from rlgraph import cli
from rlgraph.cli.namesake import namesake_warning
from rlgraph.errors import DISTRIBUTION
from tests.suites import few
from tests.waits import NEVER

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

METADATA = f"""\
Metadata-Version: 2.4
Name: engine
Version: 1.0
Requires-Dist: regex
Requires-Dist: transformers<6,>=5
Requires-Dist: fastapi[standard]>=0.133
Requires-Dist: torch==2.13.0+cpu
Requires-Dist: torchaudio
Requires-Dist: torchvision; sys_platform == "{sys.platform}"
Requires-Dist: ninja; sys_platform == "{sys.platform}"
Requires-Dist: elsewhere; sys_platform == "nowhere"
Requires-Dist: pandas; extra == "bench"
"""


def test_what_a_wheel_needs(tmp_path: Path) -> None:
    wheel = tmp_path / "engine-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("engine-1.0.dist-info/METADATA", METADATA)
    assert tool("install_cpu_engines")._needed_by(wheel) == [
        "regex",
        "transformers<6,>=5",
        "fastapi[standard]>=0.133",
        "ninja",
    ]


def tool(name: str) -> ModuleType:
    """A script of `tools` as a module."""
    spec = spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


# torch for this machine


@pytest.fixture
def index() -> Iterator[str]:
    """A package index that has one build of torch."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/torch/" else 404)
            self.end_headers()
            self.wfile.write(b'<a href="/whl/cpu/torch-9.8.7%2Bcpu-cp311-cp311-linux_x86_64.whl">torch</a>')

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_machine_without_a_gpu_gets_the_torch_for_cpus(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tool("torch_for_here")
    arguments = script.arguments
    monkeypatch.setattr(script, "PATIENCE_S", NEVER)
    # No proxy of the environment is asked.
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert arguments("9.8.7", index) == ["--extra-index-url", index, "torch==9.8.7+cpu"]
    # A build that it lacks, an index that is not there, and a machine with a GPU.
    assert arguments("9.8.6", index) == ["torch==9.8.6"]
    assert arguments("9.8.7", f"{index}/elsewhere") == ["torch==9.8.7"]
    with socket.socket() as taken:
        # Nobody listens at it, nor can while it is taken.
        taken.bind(("127.0.0.1", 0))
        assert arguments("9.8.7", f"http://127.0.0.1:{taken.getsockname()[1]}") == ["torch==9.8.7"]
    (tmp_path / "nvidia-smi").write_text("")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert arguments("9.8.7", index) == ["torch==9.8.7"]


# Without what computes


def needed(requirements: list[str]) -> set[str]:
    """The distributions that these need here, and all that those need."""
    found: set[str] = set()
    left = [Requirement(each) for each in requirements]
    while left:
        each = left.pop()
        if each.name not in found and (each.marker is None or each.marker.evaluate({"extra": ""})):
            found.add(each.name)
            left += [Requirement(text) for text in distribution(each.name).requires or []]
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install rlgraph` brings, and nothing else: a folder of packages in place of an environment."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "rlgraph").symlink_to(ROOT / "rlgraph")
    for name in needed(PROJECT["dependencies"]):
        found = distribution(name)
        for top in {Path(str(file)).parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(found.locate_file(top))))
    assert not (folder / "torch").exists() and (folder / "numpy").exists()
    return folder


def ran(bare: Path, folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of the command line; `-S` leaves out the environment of the tests."""
    command = [sys.executable, "-S", "-m", "rlgraph", *arguments]
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(bare)}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


SHIPPED = {name: str(ROOT / f"rlgraph/algorithms/{name}.rlf") for name in ("grpo", "dapo", "online_dpo")}
WITHOUT = {
    "checked": [["check", SHIPPED["grpo"]]],
    "drawn": [["compile", SHIPPED["grpo"], "--visualize", "grpo.png"]],
    "planned": [
        ["compile", SHIPPED["grpo"], "--cluster", "1x4:a100-80gb", "--emit", "plan", "--out", "."],
        ["simulate", "grpo.plan.json", "--steps", "2", "--trace", "step.json", "--svg", "step.svg"],
    ],
    "explained": [
        ["compile", SHIPPED["grpo"], "--cluster", "1x8:a100-80gb", "--explain", "--emit", "plan", "--out", "."],
        ["diff", "grpo.plan.json", "grpo.plan.json"],
        ["simulate", "grpo.plan.json", "--steps", "2", "--trace", "step.json", "--svg", "step.svg"],
    ],
    "simulated": [
        ["simulate", SHIPPED["dapo"], "--cluster", "4x8:a100-80gb", "--kept", "0.5"],
        ["simulate", SHIPPED["online_dpo"], "--cluster", "4x8:a100-80gb"],
    ],
}


@pytest.mark.parametrize("name", few(WITHOUT, "drawn", "planned"))
def test_without_torch_programs_are_checked_compiled_planned_drawn_and_simulated(
    name: str, bare: Path, tmp_path: Path
) -> None:
    for command in WITHOUT[name]:
        code, _, err = ran(bare, tmp_path, *command)
        assert code == 0, err
    assert name != "drawn" or (tmp_path / "grpo.png").exists()


@pytest.mark.parametrize("command", [["run", "PROGRAM"], ["profile"]], ids=lambda c: c[0])
def test_what_computes_says_what_to_install(command: list[str], bare: Path, tmp_path: Path) -> None:
    program = str(ROOT / "rlgraph/algorithms/grpo.rlf")
    code, out, err = ran(bare, tmp_path, *(program if word == "PROGRAM" else word for word in command))
    assert (code, out) == (2, "")
    assert err == "error[E0819]: the package `torch` is not installed\nhelp: pip install 'rlgraph-compiler[run]'\n\n"
    assert not list(tmp_path.iterdir())


def test_who_runs_anything_gets_what_computes() -> None:
    extras = PROJECT["optional-dependencies"]
    for name in ("demo", "ray", "test", "megatron", "vllm"):
        assert {"torch", "transformers"} <= needed_by_extra(extras, name)


def installed_in(folder: Path, version: str, commands: str = "") -> str:
    """A folder of packages with a project called `rlgraph`."""
    info = folder / f"rlgraph-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: rlgraph\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(commands)
    return str(folder)


def test_another_project_of_our_name_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = installed_in(tmp_path / "other", "0.5.5")
    ours = installed_in(tmp_path / "ours", "0.1.0", "[console_scripts]\nrlgraph = rlgraph.cli:main\n")
    (tmp_path / "plain" / "rlgraph_compiler-0.1.0.dist-info").mkdir(parents=True)
    plain = str(tmp_path / "plain")
    found = namesake_warning([plain, "", str(tmp_path / "nowhere"), ours, other])
    assert found is not None and found.render() == (
        "warning[W0801]: another project called `rlgraph` (0.5.5) is installed here, and its files are among ours\n"
        "help: `pip uninstall rlgraph`, then `pip install --force-reinstall rlgraph-compiler`"
    )
    assert namesake_warning([ours]) is None
    monkeypatch.setattr(sys, "path", [*sys.path, other])
    monkeypatch.setattr(sys, "argv", ["rlgraph", "--version"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0 and "warning[W0801]" in capsys.readouterr().err
    # It takes what `check` has no time for only where there may be one.
    monkeypatch.setattr("importlib.metadata.distributions", None)
    assert namesake_warning([plain]) is None


def test_what_pip_is_told_to_install_is_this_project() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    said = re.compile(r"\brlgraph\[[a-z]")
    texts = [path for end in ("py", "md", "toml") for path in ROOT.rglob(f"*.{end}") if ".venv" not in path.parts]
    ours = [path for path in texts if path.relative_to(ROOT).parts[0] not in ("build", "dist", "runs")]
    assert [path for path in ours if path.name != "CHANGELOG.md" and said.search(path.read_text("utf-8"))] == []


def needed_by_extra(extras: dict[str, list[str]], name: str) -> set[str]:
    """The names of the packages that an extra brings, those of the extras in it too."""
    found: set[str] = set()
    for each in map(Requirement, extras[name]):
        if each.name == DISTRIBUTION:
            found |= {package for inner in each.extras for package in needed_by_extra(extras, inner)}
        else:
            found.add(each.name)
    return found


def test_every_extra_that_is_advised_is_there() -> None:
    from rlgraph.backends.enginespec.registry import engines_by_name
    from rlgraph.runs.options import BACKENDS
    from rlgraph.user_code.spec import EXTRAS

    texts = [
        *ROOT.glob("rlgraph/**/*.py"),
        *ROOT.glob("rlgraph/**/*.md"),
        *ROOT.glob("docs/**/*.md"),
        ROOT / "README.md",
    ]
    found = "\n".join(path.read_text("utf-8") for path in texts)
    found += "".join(spec.install for spec in engines_by_name().values())
    lists = re.findall(rf"{DISTRIBUTION}\[([a-z_,]+)\]", found)
    advised = {extra for each in lists for extra in each.split(",")} | {each.extra for each in BACKENDS.values()}
    extras = PROJECT["optional-dependencies"]
    assert len(advised) > 3 and advised <= set(extras), advised - set(extras)
    for package, extra in EXTRAS.items():
        assert package.replace("_", "-") in needed_by_extra(extras, extra)
