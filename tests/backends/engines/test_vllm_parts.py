"""What this engine needs of vLLM's private parts is there, in the version that is installed, and all of it is named.

Nothing of vLLM is imported: its files are read.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlgraph.backends.engines.vllm as ours
from rlgraph.backends.engines.vllm.private_parts import PRIVATE_PARTS, PrivatePart

OFFERED = {
    "vllm",
    "vllm.config",
    "vllm.engine.arg_utils",
    "vllm.envs",
    "vllm.lora.request",
    "vllm.sampling_params",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.sample.logits_processor.interface",
}
"""Modules that vLLM's own documents and examples import."""


def vllm_file(module: str) -> Path:
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("vllm is not installed")
    path = Path(spec.submodule_search_locations[0], *module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def names_of(body: list[ast.stmt]) -> Iterator[str]:
    """What is defined or assigned in a module, and in its classes by `Class.name`, there or on `self`."""
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement.name
        if isinstance(statement, ast.ClassDef):
            for node in ast.walk(statement):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{statement.name}.{node.name}"
                for target in assigned(node):
                    if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                        yield f"{statement.name}.{target.attr}"
        for target in assigned(statement):
            if isinstance(target, ast.Name):
                yield target.id


def assigned(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


@pytest.mark.parametrize("part", PRIVATE_PARTS, ids=lambda part: part.module)
def test_it_is_where_it_was(part: PrivatePart) -> None:
    there = set(names_of(ast.parse(vllm_file(part.module).read_text("utf-8")).body))
    assert set(part.names) <= there, f"{part.module} has changed; it is needed since {part.reason}"
    assert part.reason and not part.reason.endswith(".")


def test_all_that_is_imported_is_offered_or_named() -> None:
    named = OFFERED | {part.module for part in PRIVATE_PARTS}
    imported = set()
    for path in Path(ours.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names if alias.name.split(".")[0] == "vllm"}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                module = str(node.module)
                whole = {f"{module}.{alias.name}" for alias in node.names} & named
                imported |= whole or {module}
    assert imported <= named
    assert {"vllm.distributed.parallel_state", "vllm.v1.engine.llm_engine"} <= imported


def test_the_path_to_what_is_in_a_worker_is_the_offered_one() -> None:
    text = "".join(path.read_text("utf-8") for path in Path(ours.__file__).parent.glob("*.py"))
    assert "driver_worker" not in text and "model_executor.driver" not in text
