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
    "errors.codes": 0,
    "errors.source_files": 1,
    "columns": 0,
    "conversations": 1,
    "files": 0,
    "digests": 0,
    "hub": 0,
    "rewards": 0,
    "moved": 0,
    "user_code": 1,
    "ir": 1,
    "ir.text": 3,
    "ops": 2,
    "data": 4,
    "catalog": 2,
    "catalog.models": 2,
    "catalog.clusters": 2,
    "dsl": 4,
    "passes": 3,
    "passes.pipelines": 3,
    "passes.cost": 4,
    "passes.rewrites": 5,
    "passes.resharding": 5,
    "passes.placement": 6,
    "passes.compilation": 9,
    "backends": 8,
    "backends.enginespec": 3,
    "backends.lowering": 5,
    "backends.engines": 6,
    "backends.exchange": 7,
    "backends.hard": 7,
    "viz": 8,
    "runs": 10,
    "runs.planfiles": 10,
    "runs.exporting": 11,
    "explain": 11,
    "profiles": 12,
    "api": 13,
    "cli": 14,
    "__main__": 15,
}
"""Of every package and module: the longest name that fits is where one lives."""

DATA = {"algorithms"}
"""Folders without Python."""

ONLY = {"user_code": {"errors"}, "data": {"columns", "errors", "hub", "user_code"}, "ops": {"ir"}}
"""Packages that can be used without the compiler, and the packages that each may import."""

ROOMS = {
    "rlgraph.backends.distributed": {"ray", "sim", "local"},
    "rlgraph.backends.sim": {"ray", "local"},
    "rlgraph.backends.ray": {"sim", "local"},
    "rlgraph.backends.local": {"ray", "sim", "distributed"},
    "rlgraph.backends.worker": {"ray", "sim", "distributed", "local"},
}
"""Packages, and the siblings of theirs that they do not know: transports of one backend know it, and not each other.
Nor do backends: what two of them need is beside them."""

PLUGINS: dict[str, set[str]] = {
    "rlgraph/data/files.py": {
        f"rlgraph.data.{name}" for name in ("base", "json_arrays", "json_lines", "listing", "tables")
    },
    "rlgraph/data/jsonl.py": {f"rlgraph.data.{name}" for name in ("base", "json_lines", "listing")},
    "rlgraph/data/parquet.py": {f"rlgraph.data.{name}" for name in ("base", "listing", "tables")},
    "rlgraph/data/hub.py": {"rlgraph.data.base", "rlgraph.data.tables"},
    "rlgraph/data/mix.py": {
        f"rlgraph.data.{name}" for name in ("base", "concatenated", "mixture", "sources", "streamed_mixture")
    },
    "rlgraph/data/python.py": {"rlgraph.data.base"},
    "rlgraph/data/reasoning_gym.py": {"rlgraph.data.base"},
    "rlgraph/runs/trackers/mlflow.py": {"rlgraph.runs.trackers.base"},
    "rlgraph/runs/trackers/tensorboard.py": {"rlgraph.runs.trackers.base"},
    "rlgraph/runs/trackers/trackio.py": {"rlgraph.runs.trackers.base"},
    "rlgraph/runs/trackers/wandb.py": {"rlgraph.runs.trackers.base"},
    "rlgraph/ops/nodes.py": {"rlgraph.ops.node_op", "rlgraph.ops.records"},
    "rlgraph/ops/node_op.py": set(),
    "rlgraph/ops/records.py": {"rlgraph.ops.loop_records", "rlgraph.ops.node_op", "rlgraph.ops.optimizers"},
    "rlgraph/ops/loop_records.py": {"rlgraph.ops.node_op"},
    "rlgraph/ops/optimizers.py": set(),
    "rlgraph/ops/tensor.py": set(),
    "rlgraph/ops/reference.py": {"rlgraph.ops.scans", "rlgraph.ops.text_reference"},
    "rlgraph/ops/scans.py": set(),
    "rlgraph/ops/text_reference.py": set(),
    "rlgraph/passes/rewrites/common_subexpressions.py": {"rlgraph.passes.rewrites.splittable_units"},
    "rlgraph/passes/rewrites/dead.py": {"rlgraph.passes.rewrites.splittable_units"},
    "rlgraph/passes/rewrites/fold.py": {"rlgraph.passes.rewrites.splittable_units"},
    "rlgraph/passes/rewrites/reuse_logprobs.py": {"rlgraph.passes.rewrites.splittable_units"},
    "rlgraph/passes/rewrites/split_losses.py": {"rlgraph.passes.rewrites.splittable_units"},
    "rlgraph/passes/rewrites/granularity.py": {"rlgraph.passes.rewrites.splittable_units"},
}
"""Files that can be added and taken away one by one, and the siblings that each may import."""


def home(module: str) -> str:
    """Where a module lives: of `rlgraph.passes.cost.latency` that is `passes.cost`."""
    parts = module.split(".")[1:]
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((each for each in names if each in FLOORS), "")


def floor(module: str) -> int:
    """Of a module's name, `rlgraph.dsl.check`."""
    return FLOORS[home(module)]


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
    wrong = [
        f"line {line}: {own} (floor {floor(own)}) imports {module} (floor {floor(module)})"
        for line, module in imports(path)
        if module != "rlgraph" and home(module) != home(own) and floor(module) >= floor(own)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_documents_have_every_floor() -> None:
    page = (ROOT / "docs" / "why" / "how-it-works.md").read_text("utf-8")
    found = re.findall(r"^\| (\d*) ?\| \[`([\w/]+?)(?:\.py|/)`\]", page, re.MULTILINE)
    rows = [(number, where.replace("/", ".")) for number, where in found]
    assert {where: int(number) for number, where in rows if number} == {
        where: number for where, number in FLOORS.items() if where != "__main__"
    }
    assert {where for number, where in rows if not number} == DATA


@pytest.mark.parametrize("package", ONLY)
def test_a_package_that_stands_alone_does(package: str) -> None:
    used = {home(module) for path in (ROOT / "rlgraph" / package).rglob("*.py") for _, module in imports(path)}
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
    assert found - {"__init__", "__pycache__"} == {each.partition(".")[0] for each in FLOORS} | DATA
    assert all(_is_module(f"rlgraph.{each}") for each in FLOORS)


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
        if home(name(path)) != "backends" and name(path) != "rlgraph.runs.options"
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
            "import rlgraph.passes.rewrites.pipeline",
            "import rlgraph.data, rlgraph.user_code",
            COMPILING,
            "import rlgraph.viz.svg, rlgraph.viz.html, rlgraph.viz.dot",
            "import rlgraph.cli",
        ],
        COMPILING,
        "import rlgraph.data, rlgraph.user_code",
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
        "assert found.choice.search_result.seconds > 0\n"
        "print([m for m in ('torch', 'transformers', 'ray', 'vllm', 'megatron') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "[]", ran.stdout + ran.stderr


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest imports a file of tests by its name alone: of two with one name it takes one, and reports the other."""
    names = [file.name for file in (ROOT / "tests").rglob("test_*.py")]
    assert names
    assert sorted(names) == sorted(set(names))
