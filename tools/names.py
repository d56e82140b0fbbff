"""Draws names from the code, to read cold: what must each be, for somebody who knows PyTorch and Ray?

    python tools/names.py            # twenty names, seed 1
    python tools/names.py --seed 2 --count 20 --answers

Write down what each is before you look at the answers: the first line of its docstring and where it is. A name that you
could not tell is a name to change.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def names() -> Iterator[tuple[str, str, str]]:
    """Yield the name, the place and the docstring's first line of every module, class and function without a `_`.

    A method is named with its class, as a reader meets it.
    """
    for path in sorted((ROOT / "rlgraph").rglob("*.py")):
        tree, place = ast.parse(path.read_text("utf-8")), str(path.relative_to(ROOT))
        if not path.name.startswith("_"):
            yield f"{path.parent.name}/{path.name}", place, _first(tree)
        owners = {
            id(child): f"{node.name}."
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for child in node.body
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                name = owners.get(id(node), "") + node.name
                yield f"{name} in {path.parent.name}/{path.name}", f"{place}:{node.lineno}", _first(node)


def _first(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    said = ast.get_docstring(node)
    return said.splitlines()[0] if said else "no docstring"


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws names from the code, to read cold.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--answers", action="store_true", help="and what they are")
    options = parser.parse_args()
    for number, (name, place, said) in enumerate(random.Random(options.seed).sample([*names()], options.count), 1):
        print(f"{number:2}  {name}" + (f"\n      {place}: {said}" if options.answers else ""))


if __name__ == "__main__":
    main()
