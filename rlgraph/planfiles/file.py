"""Plan files: a program after all passes and the plan of where it runs, as one JSON document.

    {"rlgraph": 2,
     "program": {"name", "source", "sha256", "folder", "set", "graph": [the lines of the printed graph]},
     "cluster": {"text", ...},
     "plan": {"pools", "groups", "roles", "owners", "blocks", "holdings"},
     "assumptions": {...},
     "predicted": {...}}

`cluster`, `assumptions` and `predicted` are there where the compiler chose the plan. Paths begin in the folder of the
plan file, so that it can be moved with its program. The same input gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from itertools import zip_longest
from pathlib import Path
from typing import Any, get_args

from rlgraph.compilation.compilation import Compilation
from rlgraph.compilation.programs import decoded, open_file, whole
from rlgraph.compilation.saved import Origin, PlanFile
from rlgraph.dsl.schedule import Schedule
from rlgraph.dsl.scope import nearest
from rlgraph.errors import Diagnostic, ProgramError, Source
from rlgraph.ir.graph import Program
from rlgraph.ir.mesh import Mesh, MeshAxis
from rlgraph.ir.parse import parse_program
from rlgraph.ir.plan import VERSION, Group, Holding, Plan, Pool, Role
from rlgraph.ir.text import print_program
from rlgraph.ir.verify import BrokenGraph
from rlgraph.ops import infer
from rlgraph.passes.pipeline import Stage, verify_after
from rlgraph.planfiles.checks import problems
from rlgraph.planfiles.document import LARGEST, Document, Part

LARGEST_BYTES = 16 << 20

EXTRA = ("assumptions", "predicted")
"""What may stand in a plan file beside program, cluster and plan, as the compiler's search left it."""


# Writing


def plan_document(compiled: Compilation, beside: Path) -> str:
    """The plan file of a compiled program, for a file in the folder `beside`."""
    return print_plan_file(PlanFile(compiled.program, compiled.plan, _origin(compiled, beside), compiled.told))


def print_plan_file(file: PlanFile) -> str:
    """Three levels are laid out; what is inside stands on one line."""
    plan, origin = file.plan, file.origin
    document: dict[str, Any] = {
        "rlgraph": VERSION,
        "program": {"name": file.program.name, **asdict(origin), "graph": _lines(file.program)},
    }
    if plan.cluster:
        document["cluster"] = {"text": plan.cluster, **file.sections.get("cluster", {})}
    document["plan"] = {
        "pools": [asdict(pool) for pool in plan.pools],
        "groups": [
            {**asdict(group), "mesh": dict(group.mesh.axes), "devices": ranges(group.devices)} for group in plan.groups
        ],
        "roles": [asdict(role) for role in plan.roles],
        "owners": dict(plan.owners),
        "blocks": dict(plan.blocks),
        "holdings": [asdict(holding) for holding in plan.holdings],
    }
    document |= {name: file.sections[name] for name in EXTRA if name in file.sections}
    # Some programs take these for the end of a line; JSON lets them stand as they are.
    return f"{_laid_out(document, 3)}\n".translate({ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"})


def _laid_out(value: object, levels: int, indent: str = "") -> str:
    if not levels or not isinstance(value, (dict, list)) or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    inner = f"{indent} "
    if isinstance(value, dict):
        lines = [f"{_laid_out(name, 0)}: {_laid_out(each, levels - 1, inner)}" for name, each in value.items()]
    else:
        lines = [_laid_out(each, levels - 1, inner) for each in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n{inner}" + f",\n{inner}".join(lines) + f"\n{indent}{last}"


def ranges(numbers: Iterable[int]) -> str:
    """`0-3,6,5` for 0, 1, 2, 3, 6, 5: runs that count up are told by their ends."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _origin(compiled: Compilation, beside: Path) -> Origin:
    folder = _from(beside, compiled.folder)
    if compiled.file is not None:
        known, path = compiled.file.origin, Path(compiled.source.path).parent / compiled.file.origin.source
        source, digest = known.source if _no_file(known.source) else _from(beside, path), known.sha256
    else:
        source, digest = compiled.source.path, _digest(compiled.source.text)
        source = source if _no_file(source) else _from(beside, Path(source))
    return Origin(source, digest, folder, dict(compiled.set))


def _from(folder: Path, path: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def _no_file(source: str) -> bool:
    return source.startswith("<")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# Reading


def load_plan(path: str | Path) -> Compilation:
    """A plan file as the compiled program that it was made from, with the plan that it says. Raises ProgramError."""
    source = open_plan_file(path)
    document, file = _read(source)
    beside = Path(path).parent
    head = Schedule(span=document.span(("plan",), field=True))
    changed = _changed(document, file.origin, beside)
    return Compilation(
        source,
        beside / file.origin.folder,
        file.origin.set,
        (Stage("plan", file.program),),
        changed,
        head,
        file=file,
    )


def open_plan_file(path: str | Path) -> Source:
    """The text of a plan file. Raises ProgramError where the file cannot be read."""
    path = str(path)
    try:
        with open(path, "rb") as file:
            raw = file.read(LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        message = f"`{path}` cannot be read: {reason[:1].lower()}{reason[1:]}"
        raise ProgramError(Diagnostic("E0805", message, whole(path))) from None
    if len(raw) > LARGEST_BYTES:
        message = f"`{path}` is too large for a plan file: it has more than {LARGEST_BYTES >> 20} MiB"
        raise ProgramError(Diagnostic("E0805", message, whole(path)))
    return decoded(path, raw)


def read_plan_file(source: Source) -> PlanFile:
    """What a plan file says. Raises ProgramError with everything that is wrong with it."""
    return _read(source)[1]


def _read(source: Source) -> tuple[Document, PlanFile]:
    document = Document(source)
    _check_version(document.top)
    if not document.top.fields("rlgraph", "program", "plan", optional=("cluster", *EXTRA)):
        document.done()
    program, origin = _program(document.top.part("program"))
    sections = {name: document.top.part(name).mapping() for name in ("cluster", *EXTRA) if document.top.has(name)}
    plan = _plan(document.top.part("plan"), program.name, _cluster(document.top))
    document.done()
    for path, code, message, hint in problems(plan, program, sections):
        document.say(path, code, message, hint)
    document.done()
    return document, PlanFile(program, plan, origin, sections)


def _check_version(top: Part) -> None:
    if not top.has("rlgraph"):
        hint = "`rlgraph compile PROGRAM.rlf --emit plan` writes one"
        top.say("E0950", "this is no plan file: it has no field `rlgraph`", hint)
        top.document.done()
    version = top.part("rlgraph").number()
    top.document.done()
    if version != VERSION:
        hint = "install a newer rlgraph" if version > VERSION else "compile the program again"
        age = "a newer" if version > VERSION else "an older"
        message = f"the plan file is of version {version}, made by {age} rlgraph: this one reads version {VERSION}"
        top.part("rlgraph").say("E0951", message, hint)
    top.document.done()


def _program(part: Part) -> tuple[Program, Origin]:
    if not part.fields("name", "source", "sha256", "folder", "set", "graph"):
        part.document.done()
    name, source, digest, folder = (part.part(each).text() for each in ("name", "source", "sha256", "folder"))
    changes = {each: value.text() for each, value in part.part("set").entries()}
    lines = part.part("graph").texts()
    for each in ("source", "folder"):
        if "\0" in part.part(each).text():
            part.part(each).say("E0953", f"{part.part(each).shown} is no path: it has a null character")
    # Without a graph nothing else can be checked.
    part.document.done()
    program = _graph(part.part("graph"), lines)
    if program.name != name:
        part.part("name").say("E0954", f"the graph is of the program `{program.name}`", f"call it `{program.name}`")
    part.document.done()
    return program, Origin(source, digest, folder, changes)


def _graph(part: Part, lines: Sequence[str]) -> Program:
    """The program whose printed graph this is. Raises ProgramError where it is none."""
    try:
        program = parse_program("\n".join(lines), infer)
        verify_after(program)
        said = _unlike(program, lines)
    except BrokenGraph as error:
        said = error.problems[0]
    except Exception as error:  # a text that no program prints can break the parser in any way
        said = str(error) or type(error).__name__
    if said:
        part.say("E0954", f"the graph cannot be read: {said:.200}", "compile the program again")
        part.document.done()
    return program


def _unlike(program: Program, lines: Sequence[str]) -> str:
    """The parser is no judge: what it took for a program has to print as it stands here."""
    for found, printed in zip_longest(lines, _lines(program), fillvalue=""):
        if found != printed:
            return f"`{found.strip()}` is not as a graph is printed"
    return "" if any(phase.name == "step" for phase in program.phases) else "it has no phase `step`"


def _lines(program: Program) -> list[str]:
    return print_program(program).rstrip("\n").split("\n")


def _cluster(top: Part) -> str:
    if not top.has("cluster"):
        return ""
    cluster = top.part("cluster")
    if not cluster.has("text"):
        cluster.say("E0952", "`cluster` lacks the field `text`, the cluster as `--cluster` reads it")
        return ""
    return cluster.part("text").text()


def _plan(part: Part, program: str, cluster: str) -> Plan:
    if not part.fields("pools", "groups", "roles", "owners", "blocks", "holdings"):
        part.document.done()
    pools = [_pool(each) for each in part.part("pools").items()]
    groups = [_group(each) for each in part.part("groups").items()]
    roles = [_role(each) for each in part.part("roles").items()]
    owners = tuple((model, group.text()) for model, group in part.part("owners").entries())
    blocks = tuple((table, rows.number(least=1)) for table, rows in part.part("blocks").entries())
    holdings = [_holding(each) for each in part.part("holdings").items()]
    part.document.done()
    return Plan(
        program,
        tuple(filter(None, pools)),
        tuple(filter(None, groups)),
        tuple(filter(None, roles)),
        owners,
        blocks,
        tuple(filter(None, holdings)),
        cluster,
    )


def _pool(part: Part) -> Pool | None:
    if not part.fields("name", "devices", "first"):
        return None
    return Pool(part.part("name").text(), part.part("devices").number(), part.part("first").number())


def _group(part: Part) -> Group | None:
    if not part.fields("name", "pool", "engine", "mesh", "devices", "models"):
        return None
    name, pool, engine = (part.part(each).text() for each in ("name", "pool", "engine"))
    mesh, devices = _mesh(part.part("mesh")), _devices(part.part("devices"))
    return Group(name, pool, engine, mesh, devices, part.part("models").texts())


def _mesh(part: Part) -> Mesh:
    axes = get_args(MeshAxis)
    for name in part.mapping():
        if name not in axes:
            hint = nearest(name[:60], axes) or f"there are {', '.join(f'`{axis}`' for axis in axes)}"
            message = f"no axis of a mesh is called `{name:.60}`"
            part.document.say((*part.path, name), "E0952", message, hint, field=True)
    return Mesh(tuple((name, size.number(least=1)) for name, size in part.entries()))


_RANGES = re.compile(r"([0-9]{1,7}(-[0-9]{1,7})?(,[0-9]{1,7}(-[0-9]{1,7})?)*)?")


def _devices(part: Part) -> tuple[int, ...]:
    """The numbers that `ranges` wrote."""
    text = part.text()
    if not _RANGES.fullmatch(text):
        message = f"{part.shown} is {json.dumps(text):.60}, and has to be numbers and ranges"
        part.say("E0953", message, 'as in "0-3,8,9"')
        return ()
    runs = [range(int(first), int(last or first) + 1) for first, _, last in (run.partition("-") for run in _runs(text))]
    if not all(runs) or sum(map(len, runs)) > LARGEST:
        part.say("E0953", f"{part.shown} has a range that does not count up, or is too large")
        return ()
    return tuple(number for run in runs for number in run)


def _runs(text: str) -> list[str]:
    return text.split(",") if text else []


def _role(part: Part) -> Role | None:
    names = ("model", "operation", "group")
    return Role(*(part.part(each).text() for each in names)) if part.fields(*names) else None


def _holding(part: Part) -> Holding | None:
    """What is not said of it is as the engine does by itself."""
    own = {each.name: each.default for each in fields(Holding) if each.name not in ("model", "group")}
    if not part.fields("model", "group", optional=own):
        return None
    said = {
        name: part.part(name).flag() if isinstance(default, bool) else part.part(name).number(most=1 << 62)
        for name, default in own.items()
        if part.has(name)
    }
    return Holding(part.part("model").text(), part.part("group").text(), **said)  # type: ignore[arg-type]


def _changed(document: Document, origin: Origin, beside: Path) -> tuple[Diagnostic, ...]:
    """A warning where the program is not the one that was compiled any more."""
    try:
        path = beside / origin.source
        # What runs is the graph: the program need not be there.
        text = open_file(str(path)).source.text if path.is_file() else None
    except (OSError, ValueError, ProgramError):
        return ()
    if text is None or _digest(text) == origin.sha256:
        return ()
    message = f"`{origin.source}` has changed since this plan was made of it: what runs is the program of then"
    return (Diagnostic("W0950", message, document.span(("program", "source")), "compile it again", "warning"),)
