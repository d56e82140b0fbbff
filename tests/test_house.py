"""How the house is built: which module may import which, and what may be loaded when.

A module imports from lower floors and from its own package. A plug-in file imports no sibling but its base, so that
adding one is adding one file.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.suites import few

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "rlgraph").rglob("*.py"))

FLOORS = {
    "errors": 0,
    "columns": 0,
    "files": 0,
    "digests": 0,
    "codes": 0,
    "rewards": 0,
    "ir": 1,
    "foreign": 1,
    "ops": 2,
    "models": 2,
    "clusters": 2,
    "notation": 3,
    "enginespec": 3,
    "pipelines": 3,
    "cost": 4,
    "data": 4,
    "dsl": 4,
    "passes": 5,
    "transfers": 5,
    "lowering": 5,
    "placement": 6,
    "engines": 6,
    "exchange": 7,
    "backends": 8,
    "viz": 8,
    "compilation": 9,
    "planfiles": 10,
    "runs": 10,
    "analysis": 11,
    "profiles": 12,
    "api": 13,
    "cli": 14,
    "__main__": 15,
}
"""Of every package and module."""

DATA = {"algorithms"}
"""Folders without Python."""

ONLY = {"foreign": {"errors"}, "data": {"columns", "errors", "foreign"}, "ops": {"ir"}}
"""Packages that can be used without the compiler, and the packages that each may import."""

ROOMS = {
    "rlgraph.backends.placed": {"ray", "sim", "local"},
    "rlgraph.backends.sim": {"ray", "local"},
    "rlgraph.backends.ray": {"sim", "local"},
    "rlgraph.backends.local": {"ray", "sim", "placed"},
    "rlgraph.backends.process": {"ray", "sim", "placed", "local"},
}
"""Packages, and the siblings of theirs that they do not know: transports of one backend know it, and not each other.
Nor do backends: what two of them need is beside them."""

PLUGINS: dict[str, set[str]] = {
    "rlgraph/data/jsonl.py": {"rlgraph.data.base"},
    "rlgraph/data/parquet.py": {"rlgraph.data.base"},
    "rlgraph/data/hub.py": {"rlgraph.data.base"},
    "rlgraph/data/python.py": {"rlgraph.data.base"},
    "rlgraph/data/reasoning_gym.py": {"rlgraph.data.base"},
    "rlgraph/ops/nodes.py": {"rlgraph.ops.optimizers"},
    "rlgraph/ops/optimizers.py": set(),
    "rlgraph/ops/tensor.py": set(),
    "rlgraph/ops/reference.py": set(),
    "rlgraph/passes/common.py": {"rlgraph.passes.units"},
    "rlgraph/passes/dead.py": {"rlgraph.passes.units"},
    "rlgraph/passes/fold.py": {"rlgraph.passes.units"},
    "rlgraph/passes/reuse.py": {"rlgraph.passes.units"},
    "rlgraph/passes/split.py": {"rlgraph.passes.units"},
    "rlgraph/passes/granularity.py": {"rlgraph.passes.units"},
}
"""Files that can be added and taken away one by one, and the siblings that each may import."""


def floor(module: str) -> int:
    """Of a module's name, `rlgraph.dsl.check`."""
    return FLOORS[module.split(".")[1]]


def name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def read(path: Path) -> tuple[list[ast.Import | ast.ImportFrom], set[int]]:
    """All imports of a file, and the lines under `if TYPE_CHECKING`."""
    nodes = [*ast.walk(ast.parse(path.read_text("utf-8")))]
    blocks = [
        node
        for node in nodes
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    lines = {line for block in blocks for line in range(block.lineno, (block.end_lineno or 0) + 1)}
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)], lines


@cache
def imports(path: Path) -> list[tuple[int, str]]:
    """Line and name of every module of ours that a file imports, also inside functions and for types only."""
    found: list[tuple[int, str]] = []
    for node in read(path)[0]:
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        else:
            assert node.level == 0, f"{path}:{node.lineno}: imports are written in full"
            assert node.module
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [(node.lineno, each if _is_module(each) else node.module) for each in modules]
    return [(line, module) for line, module in found if module.split(".")[0] == "rlgraph"]


def _is_module(module: str) -> bool:
    path = ROOT / Path(*module.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_imports_from_lower_floors(path: Path) -> None:
    own = name(path)
    if own == "rlgraph":
        return  # It names the API, which is loaded when it is used.
    package = own.split(".")[1]
    wrong = [
        f"line {line}: {own} (floor {floor(own)}) imports {module} (floor {floor(module)})"
        for line, module in imports(path)
        if module != "rlgraph" and module.split(".")[1] != package and floor(module) >= floor(own)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_documents_have_every_floor() -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d*) ?\| \[`(\w+)[./]", page, re.MULTILINE)
    assert {where: int(number) for number, where in rows if number} == {
        where: number for where, number in FLOORS.items() if where != "__main__"
    }
    assert {where for number, where in rows if not number} == DATA


@pytest.mark.parametrize("package", ONLY)
def test_a_package_that_stands_alone_does(package: str) -> None:
    used = {module.split(".")[1] for path in (ROOT / "rlgraph" / package).rglob("*.py") for _, module in imports(path)}
    assert used <= ONLY[package] | {package}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_nothing_imports_in_a_circle(path: Path) -> None:
    """Also not inside functions; only what is imported for its type alone makes no circle."""
    seen: set[str] = set()
    pending = _run(path)
    while pending:
        module = pending.pop()
        assert module != name(path), f"{module} imports itself through {seen}"
        if module not in seen:
            seen.add(module)
            pending += _run(_file(module))


@cache
def _run(path: Path) -> list[str]:
    """What a file imports when it is loaded, and when its functions are called."""
    return [module for line, module in imports(path) if line not in read(path)[1] and module != "rlgraph"]


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_nothing_imports_the_whole(path: Path) -> None:
    """`rlgraph` itself names the API: who needs that from below needs something else. Its version is anybody's."""
    for node in read(path)[0]:
        assert not isinstance(node, ast.Import) or "rlgraph" not in [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom) and node.module == "rlgraph":
            assert [alias.name for alias in node.names] == ["__version__"] or all(
                _is_module(f"rlgraph.{alias.name}") for alias in node.names
            )


def test_every_package_has_a_floor() -> None:
    found = {path.stem for path in (ROOT / "rlgraph").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert found - {"__init__", "__pycache__"} == FLOORS.keys() | DATA


def _file(module: str) -> Path:
    path = ROOT / Path(*module.split("."))
    return found if (found := path.with_suffix(".py")).exists() else path / "__init__.py"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_does_not_know_its_siblings(room: str) -> None:
    around = room.rpartition(".")[0]
    own = [path for path in MODULES if name(path).startswith(room)]
    assert own
    used = {module.removeprefix(f"{around}.").split(".")[0] for path in own for _, module in imports(path)}
    assert not used & ROOMS[room]


def test_a_backend_is_named_once() -> None:
    """Who asks for one imports its spec."""
    from rlgraph.runs.options import BACKENDS

    wrong = [
        f"{name(path)}:{node.lineno}: {node.value!r}"
        for path in MODULES
        if not name(path).startswith(("rlgraph.backends.", "rlgraph.runs.options"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in BACKENDS
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("file", PLUGINS)
def test_a_plugin_imports_no_sibling_but_its_base(file: str) -> None:
    path = ROOT / file
    package = name(path).rpartition(".")[0]
    siblings = {module for _, module in imports(path) if module.startswith(f"{package}.")}
    assert siblings <= PLUGINS[file]


def test_every_data_source_is_a_plugin() -> None:
    from rlgraph.data.sources import SOURCES

    assert {f"rlgraph/data/{name}.py" for name in SOURCES} == {file for file in PLUGINS if "/data/" in file}


COMPILING = (
    'import rlgraph; rlgraph.compile(\'algorithm a\\nmodel m = causal_lm("m")\\ndata d = jsonl("d")\\n'
    "step:\\n    r = m.generate(d, max_tokens=1)\\n    report n = mean(r.length)').text()"
)


@pytest.mark.parametrize(
    "code",
    few(
        [
            "import rlgraph",
            "import rlgraph; rlgraph.check('step:')",
            "import rlgraph.dsl.check",
            "import rlgraph.passes.pipeline",
            "import rlgraph.data, rlgraph.foreign",
            COMPILING,
            "import rlgraph.viz.svg, rlgraph.viz.html, rlgraph.viz.dot",
            "import rlgraph.cli",
        ],
        COMPILING,
        "import rlgraph.data, rlgraph.foreign",
        "import rlgraph.viz.svg, rlgraph.viz.html, rlgraph.viz.dot",
        "import rlgraph.cli",
    ),
)
def test_what_does_not_compute_loads_nothing_heavy(code: str) -> None:
    heavy = ("torch", "transformers", "ray", "numpy", "vllm")
    script = f"import sys\n{code}\nprint([m for m in {heavy} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "[]", ran.stdout + ran.stderr


@pytest.mark.long
def test_a_plan_is_searched_for_without_torch() -> None:
    """On a laptop, in about a second."""
    code = (
        "import sys, rlgraph\n"
        "found = rlgraph.compile('rlgraph/algorithms/grpo.rlf', cluster='1x8:a100-80gb')\n"
        "found.plan_json()\n"
        "assert found.choice.found.seconds > 0\n"
        "print([m for m in ('torch', 'transformers', 'ray', 'vllm', 'megatron') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "[]", ran.stdout + ran.stderr


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest imports a file of tests by its name alone: of two with one name it takes one, and reports the other."""
    names = [file.name for file in (ROOT / "tests").rglob("test_*.py")]
    assert names
    assert sorted(names) == sorted(set(names))
