"""Plan files: a program after all passes and the plan of where it runs, as one JSON document.

    {"rlgraph": 2,
     "program": {"name", "source", "sha256", "folder", "set", "graph_sha256", "graph": [lines of the printed graph]},
     "cluster": {"text", ...},
     "plan": {"pools", "groups", "roles", "owners", "blocks", "holdings"},
     "contract": {"engines": [...]},
     "assumptions": {...},
     "predicted": {...}}

`cluster`, `assumptions` and `predicted` exist if the compiler chose the plan. `contract` is what engines on GPUs are
opened with: it follows from the plan, and is not read. Paths are relative to the folder of the plan file, so that it
can be moved with its program. The same input gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rlgraph.errors import Diagnostic, ProgramError, Source
from rlgraph.files import failure_reason, read_bytes
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import VERSION, Plan
from rlgraph.ir.schedule import Schedule
from rlgraph.ir.text.parse import parse_program
from rlgraph.ir.text.program_text import program_text
from rlgraph.ir.verify import BrokenGraph
from rlgraph.passes.compilation.compilation import Compilation, replaced_settings
from rlgraph.passes.compilation.plan_file import PlanFile, ProgramOrigin
from rlgraph.passes.compilation.read_program import decode_source, file_span, open_program_file
from rlgraph.passes.rewrites.pipeline import PassResult, verify_passes
from rlgraph.runs.planfiles.checks import plan_problems
from rlgraph.runs.planfiles.document import Document, JsonNode
from rlgraph.runs.planfiles.format import DOCUMENT, PLAN, PROGRAM, SECTIONS, format_ranges

LARGEST_BYTES = 16 << 20


# Writing


def plan_document(compiled: Compilation, beside: Path) -> str:
    """Return the plan file of a compiled program, for a file in the folder `beside`."""
    return plan_file_text(plan_file_of(compiled, beside))


def plan_file_of(compiled: Compilation, beside: Path) -> PlanFile:
    """Return what the plan file of a compiled program has in it, for a file in the folder `beside`."""
    sections = dict(compiled.plan_file_sections)
    # It follows from the plan: one that was read and changed has another.
    contracts = [contract.to_json() for contract in compiled.contracts if contract.visible_devices]
    if contracts:
        sections["contract"] = {"engines": contracts}
    return PlanFile(compiled.program, compiled.plan, _origin(compiled, beside), sections)


def plan_file_text(file: PlanFile) -> str:
    """Return the text of a plan file: three levels are laid out, and what is inside stands on one line."""
    plan, origin = file.plan, file.origin
    document: dict[str, Any] = {
        "rlgraph": VERSION,
        "program": {
            "name": file.program.name,
            **_without_empty(asdict(origin), "graph_sha256"),
            "graph": _lines(file.program),
        },
    }
    if plan.cluster:
        document["cluster"] = {"text": plan.cluster, **file.sections.get("cluster", {})}
    document["plan"] = {
        "pools": [_without_empty(asdict(pool), "cpus") for pool in plan.pools],
        "groups": [
            _without_empty(
                {**asdict(group), "mesh": dict(group.mesh.axes), "devices": format_ranges(group.devices)}, "code"
            )
            for group in plan.groups
        ],
        "roles": [asdict(role) for role in plan.roles],
        "owners": dict(plan.owners),
        "blocks": dict(plan.blocks),
        "holdings": [_without_empty(_without_empty(asdict(holding), "share"), "max_len") for holding in plan.holdings],
    }
    if plan.free:
        document["plan"]["free"] = list(plan.free)
    if plan.tails:
        document["plan"]["tails"] = [
            {**asdict(tail), "under": tail.under if tail.under < 1 else int(tail.under)} for tail in plan.tails
        ]
    if plan.fused:
        document["plan"]["fused"] = [asdict(fused) for fused in plan.fused]
    if plan.admits:
        document["plan"]["admits"] = [_without_empty(asdict(admit), "name") for admit in plan.admits]
    others = ("contract", "assumptions", "predicted")
    document |= {name: file.sections[name] for name in others if name in file.sections}
    # Some programs take these for line ends, although JSON does not require them to be escaped.
    return f"{_laid_out(document, 3)}\n".translate({ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"})


def _without_empty(record: dict[str, Any], optional: str) -> dict[str, Any]:
    """Return a record without an optional field that is empty."""
    return {name: value for name, value in record.items() if value or name != optional}


def _laid_out(value: object, levels: int, indent: str = "") -> str:
    if not levels or not isinstance(value, (dict, list)) or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    inner = f"{indent} "
    if isinstance(value, dict):
        lines = [f"{_laid_out(name, 0)}: {_laid_out(item, levels - 1, inner)}" for name, item in value.items()]
    else:
        lines = [_laid_out(item, levels - 1, inner) for item in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}{last}"


def _origin(compiled: Compilation, beside: Path) -> ProgramOrigin:
    folder = _from(beside, compiled.folder)
    if compiled.file is not None:
        origin, path = compiled.file.origin, Path(compiled.source.path).parent / compiled.file.origin.source
        source, digest = origin.source if _no_file(origin.source) else _from(beside, path), origin.sha256
    else:
        source, digest = compiled.source.path, _digest(compiled.source.text)
        source = source if _no_file(source) else _from(beside, Path(source))
    graph_digest = compiled.file.origin.graph_sha256 if compiled.file else _digest("\n".join(_lines(compiled.program)))
    return ProgramOrigin(source, digest, folder, dict(compiled.set), graph_digest)


def _from(folder: Path, path: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def _no_file(source: str) -> bool:
    return source.startswith("<")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# Reading


def load_plan(path: str | Path) -> Compilation:
    """Return a plan file as the compiled program that it was made from, with the plan in it. Raise ProgramError."""
    source = open_plan_file(path)
    document, file = _read(source)
    beside = Path(path).parent
    head = Schedule(span=document.value_span(("plan",), field=True))
    changed = _changed(document, file.origin, beside)
    compilation = Compilation(
        source,
        beside / file.origin.folder,
        replaced_settings(file.origin.set),
        (PassResult("plan", file.program),),
        changed,
        head,
        file=file,
    )
    if file.plan.cluster:
        # Imported late: it loads the cost model, which a plan without a cluster does not need.
        from rlgraph.runs.planfiles.memory import memory_errors
        from rlgraph.runs.planfiles.node_groups import split_replica_errors

        if wrong := [*split_replica_errors(compilation), *memory_errors(compilation)]:
            raise ProgramError(wrong)
    return compilation


def open_plan_file(path: str | Path) -> Source:
    """Return the text of a plan file. Raise ProgramError where the file cannot be read."""
    path = str(path)
    try:
        return decode_source(path, read_bytes(path, LARGEST_BYTES))
    except (OSError, ValueError) as error:
        raise ProgramError(
            Diagnostic("E0805", f"`{path}` cannot be read: {failure_reason(error)}", file_span(path))
        ) from None


def read_plan_file(source: Source) -> PlanFile:
    """Return the content of a plan file. Raise ProgramError with everything that is wrong with it."""
    return _read(source)[1]


def _read(source: Source) -> tuple[Document, PlanFile]:
    document = Document(source)
    top = document.top
    _check_version(top)
    if not top.check_fields(*DOCUMENT.needed, optional=DOCUMENT.optional):
        document.raise_errors()
    program, origin = _program(top.field("program"))
    sections = {name: section.read_value(top.field(name)) for name, section in SECTIONS.items() if top.has_field(name)}
    values = PLAN.read_value(top.field("plan"))
    document.raise_errors()
    cluster = sections.get("cluster", {}).get("text", "")
    values |= {name: tuple(values[name].items()) for name in ("owners", "blocks")}
    plan = Plan(program.name, cluster=cluster, **values)
    for path, code, message, hint in plan_problems(plan, program, sections):
        document.add_error(path, code, message, hint)
    document.raise_errors()
    return document, PlanFile(program, plan, origin, sections)


def _check_version(top: JsonNode) -> None:
    if not top.has_field("rlgraph"):
        hint = "`rlgraph compile PROGRAM.rlf --emit plan` writes one"
        top.add_error("E0950", "this is no plan file: it has no field `rlgraph`", hint)
        top.document.raise_errors()
    version = top.field("rlgraph").read_int()
    top.document.raise_errors()
    if version != VERSION:
        hint = "install a newer rlgraph" if version > VERSION else "compile the program again"
        age = "a newer" if version > VERSION else "an older"
        message = f"the plan file is of version {version}, made by {age} rlgraph: this one reads version {VERSION}"
        top.field("rlgraph").add_error("E0951", message, hint)
    top.document.raise_errors()


def _program(node: JsonNode) -> tuple[Program, ProgramOrigin]:
    values = PROGRAM.read_value(node)
    # Nothing else can be checked without a graph.
    node.document.raise_errors()
    name, lines = values.pop("name"), values.pop("graph")
    program = _graph(node.field("graph"), lines)
    if program.name != name:
        node.field("name").add_error(
            "E0954", f"the graph is of the program `{program.name}`", f"call it `{program.name}`"
        )
    node.document.raise_errors()
    return program, ProgramOrigin(**values)


def _graph(node: JsonNode, lines: Sequence[str]) -> Program:
    """Return the program whose printed graph this is. Raise ProgramError if it is none."""
    try:
        program = parse_program("\n".join(lines))
        verify_passes(program)
        fault = _unlike(program, lines)
    except BrokenGraph as error:
        fault = error.problems[0]
    except Exception as error:  # a text that no program prints can break the parser in any way
        fault = str(error) or type(error).__name__
    if fault:
        node.add_error("E0954", f"the graph cannot be read: {fault:.200}", "compile the program again")
        node.document.raise_errors()
    return program


def _unlike(program: Program, lines: Sequence[str]) -> str:
    """Return how a printed graph differs from that of the program that was read from it: the parser accepts more than
    what is printed."""
    for line, printed in zip_longest(lines, _lines(program), fillvalue=""):
        if line != printed:
            return f"`{line.strip()}` is not as a graph is printed"
    return "" if any(phase.name == "step" for phase in program.phases) else "it has no phase `step`"


def _lines(program: Program) -> list[str]:
    return program_text(program).rstrip("\n").split("\n")


def _changed(document: Document, origin: ProgramOrigin, beside: Path) -> tuple[Diagnostic, ...]:
    """Return warnings if the program has changed since it was compiled, or the graph was edited."""
    return (*_edited(document, origin), *_outdated(document, origin, beside))


def _edited(document: Document, origin: ProgramOrigin) -> Iterator[Diagnostic]:
    graph = "\n".join(document.top.field("program").field("graph").read_texts())
    if origin.graph_sha256 and _digest(graph) != origin.graph_sha256:
        message = f"the graph was changed after `{origin.source}` was compiled: what runs is what stands here"
        place = document.value_span(("program", "graph_sha256"))
        yield Diagnostic("W0951", message, place, "compile the program again, unless you have changed it yourself")


def _outdated(document: Document, origin: ProgramOrigin, beside: Path) -> tuple[Diagnostic, ...]:
    try:
        path = beside / origin.source
        # The graph is what runs, so the program may be missing.
        text = open_program_file(str(path)).source.text if path.is_file() else None
    except (OSError, ValueError, ProgramError):
        return ()
    if text is None or _digest(text) == origin.sha256:
        return ()
    message = f"`{origin.source}` has changed since this plan was made of it: what runs is the program of then"
    return (Diagnostic("W0950", message, document.value_span(("program", "source")), "compile it again"),)
