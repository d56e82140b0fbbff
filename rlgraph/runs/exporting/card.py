"""The card of an exported model: the README.md of its folder, made of what the run's folder says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlgraph.catalog.models.configs import find_model_folder
from rlgraph.errors import RlgraphError
from rlgraph.ir.graph import Model
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.runs.exporting.choice import ExportChoice
from rlgraph.runs.folder import METRICS
from rlgraph.runs.jsonlines import decode_nonfinite
from rlgraph.runs.trackers.sending import configuration_of

CARD = "README.md"
_LICENSE = re.compile(r"^license:\s*['\"]?([\w.+-]+)", re.MULTILINE)
_LONGEST = 1 << 20
"""The most characters that are read of a base's card."""
_LEFT_OUT = {"seconds", "phase", "step"}


def model_card(choice: ExportChoice, compiled: Compilation | None, title: str, *, merged: bool = False) -> str:
    """Return the card of a model. compiled: the run's program; None where it cannot be compiled here."""
    base = _base(compiled, choice.model)
    configuration = {name: str(value) for name, value in configuration_of(choice.run).items()}
    program = compiled.source.text.strip() if compiled else ""
    algorithm = compiled.name if compiled else "a program"
    first = f"Model `{choice.model}` of a run of the algorithm `{algorithm}` with rlgraph"
    first += f", after step {choice.step}" if choice.step else ""
    first += f". It began as {_link(base)}." if base else "."
    parts = [
        _header(base, algorithm),
        f"# {title}",
        first + (" Its adapters are merged into it." if merged else ""),
        _section("Metrics", _metrics(choice)),
        _section("Data and rewards", _fenced(_declared(compiled), "rlf")),
        _section("How it was run", _settings(configuration)),
        _section("Plan", _plan(compiled)),
        _section("Program", _fenced(program, "rlf")),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def license_of(base: str) -> str | None:
    """Return the license that the card of a base names, where it is on this machine."""
    with suppress(OSError, ValueError):
        folder = find_model_folder(base)
        if folder is not None and (folder / CARD).is_file():
            text = (folder / CARD).read_text("utf-8", errors="replace")[:_LONGEST]
            head = text.split("\n---", 1)[0] if text.startswith("---") else ""
            found = _LICENSE.search(head)
            return found[1] if found else None
    return None


def _header(base: str | None, algorithm: str) -> str:
    lines = ["library_name: transformers"]
    if base and _is_hub_name(base):
        lines.append(f"base_model: {base}")
    if base and (found := license_of(base)):
        lines.append(f"license: {found}")
    lines += ["tags:", "- rlgraph", f"- {algorithm}"] if algorithm.isidentifier() else ["tags:", "- rlgraph"]
    return "\n".join(["---", *lines, "---"])


def _base(compiled: Compilation | None, name: str) -> str | None:
    """Return the source of a model as the program has it; None of one that began at random, or is not known."""
    if compiled is None:
        return None
    with suppress(RlgraphError, LookupError):
        model: Model = compiled.program.original_model(compiled.program.model(name))
        if isinstance(model.source, str):
            return model.source
        args = getattr(model.source, "args", ())
        if getattr(model.source, "name", "") == "gguf" and args:
            return Path(str(args[0])).name
    return None


def _is_hub_name(base: str) -> bool:
    return bool(re.fullmatch(r"[\w.-]+/[\w.-]+", base)) and not Path(base).exists() and not base.endswith(".gguf")


def _link(base: str) -> str:
    return f"[{base}](https://huggingface.co/{base})" if _is_hub_name(base) else f"`{base}`"


def _metrics(choice: ExportChoice) -> str:
    """Return a table with what was reported first, then at this step, and the least and the greatest until then."""
    columns: dict[str, list[float]] = {}
    steps: list[int] = []
    for record in _records(choice.run / METRICS):
        step = record.get("step")
        if not isinstance(step, int) or choice.step and step > choice.step:
            break
        steps.append(step)
        for name, value in record.items():
            if name not in _LEFT_OUT and "/" not in name and isinstance(value, (int, float)):
                columns.setdefault(name, []).append(float(value))
    if not columns:
        return ""
    lines = [f"| | step {steps[0]} | step {steps[-1]} | least | greatest |", "|---|---|---|---|---|"]
    lines += [
        f"| {name} | {values[0]:.4g} | {values[-1]:.4g} | {min(values):.4g} | {max(values):.4g} |"
        for name, values in columns.items()
    ]
    return "\n".join(lines)


def _records(path: Path) -> Iterator[Mapping[str, Any]]:
    with suppress(OSError), path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                return
            if isinstance(record, dict):
                yield decode_nonfinite(record)


def _declared(compiled: Compilation | None) -> str:
    """Return the lines of the program that declare what comes from outside, and what was set in their place."""
    if compiled is None:
        return ""
    lines = [line for line in compiled.source.text.splitlines() if re.match(r"(data|func|env)\s", line)]
    given = [f"# --set {name}={value}" for name, value in compiled.set.items()]
    return "\n".join([*lines, *given])


def _settings(configuration: Mapping[str, str]) -> str:
    shown = [
        (name, value)
        for name, value in configuration.items()
        if name in ("seed", "steps", "backend") or name.startswith(("set.", "versions."))
    ]
    lines = ["| | |", "|---|---|", *(f"| {name} | `{value}` |" for name, value in shown)]
    return "\n".join(lines) if shown else ""


def _plan(compiled: Compilation | None) -> str:
    if compiled is None or not compiled.planned:
        return ""
    with suppress(RlgraphError):
        lines = [f"- `{group.name}`: {group.engine}, {group.mesh}" for group in compiled.plan.groups]
        return "\n".join(lines)
    return ""


def _section(title: str, content: str) -> str:
    return f"## {title}\n\n{content}" if content else ""


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text}\n```" if text else ""
