"""From text to graph: declarations get their meaning, and each step becomes a graph.

Nothing is run here. No Python file of the user's is imported, and no file is opened but the program itself, those it
`use`s, and (through `columns`) the first row of its data files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from rlgraph.dsl import tree
from rlgraph.dsl.defs import AXES, FUNCTIONS, names_in
from rlgraph.dsl.lints import allowed, lint
from rlgraph.dsl.parse import parse
from rlgraph.dsl.schedule import Schedule, check_schedule
from rlgraph.dsl.scope import (
    Block,
    DefName,
    Literal,
    Meaning,
    ModelName,
    OutsideName,
    StateName,
    Stop,
    Wrong,
    describe,
    nearest,
)
from rlgraph.dsl.signatures import MODELS, OUTSIDE, STATEMENTS
from rlgraph.dsl.statements import Statements
from rlgraph.dsl.training import chosen_inside
from rlgraph.dsl.use import Read, assemble
from rlgraph.errors import Diagnostic, ProgramError, Related, Source, Span
from rlgraph.ir.graph import Const, Constant, Graph, Model, Outside, Phase, Program, Record, State, Value
from rlgraph.ir.types import DType, Handle, Tensor

Columns = Callable[[Record], tuple[str, ...] | None]
"""Column names of a data source as far as they can be known without running anything."""


@cache
def _prelude() -> tree.File:
    path = files("rlgraph.dsl") / "prelude.rlf"
    return parse(Source("<prelude>", path.read_text("utf-8")))


@dataclass(frozen=True, slots=True)
class Checked:
    """What a text says."""

    program: Program
    warnings: list[Diagnostic]
    schedule: Schedule
    """Of its block `schedule:`; empty if it has none."""
    scope: Mapping[str, Meaning]
    """What its names mean: a schedule in a file of its own may use its params."""


def check(
    source: Source,
    changes: Mapping[str, tree.Expr] | None = None,
    *,
    columns: Columns = lambda record: None,
    read: Read | None = None,
) -> tuple[Program, list[Diagnostic]]:
    """The program that a text says, and warnings about it.

    `changes` replaces right sides of declarations by name. Raises ProgramError with everything that is wrong.
    """
    found = check_all(source, changes, columns=columns, read=read)
    return found.program, found.warnings


def check_all(
    source: Source,
    changes: Mapping[str, tree.Expr] | None = None,
    *,
    columns: Columns = lambda record: None,
    read: Read | None = None,
) -> Checked:
    """The same with all that a text says beside the program."""
    checker = Checker(columns)
    file = assemble(parse(source), source, checker, read)
    if any(d.code != "E0803" for d in checker.diagnostics):
        # Without the used file, what else is wrong cannot be known.
        raise ProgramError(_ordered(checker.diagnostics))
    program = checker.program(file, source, changes or {})
    # A value that nobody uses may be used in what is wrong: warnings wait until all is right.
    errors = [d for d in checker.diagnostics if d.severity == "error"]
    if errors:
        raise ProgramError(_ordered(errors))
    comments = {(source.path, comment.line): comment.text for comment in file.comments}
    return Checked(program, allowed(_ordered(checker.diagnostics), comments), checker.schedule, checker.scope)


def _ordered(found: Sequence[Diagnostic]) -> list[Diagnostic]:
    unique = {(d.span.source.path, d.span, d.code, d.message): d for d in reversed(found)}
    return sorted(unique.values(), key=lambda d: (d.span.source.path, d.span.line, d.span.column, d.code))


class Checker(Statements):
    """Checks one program."""

    def __init__(self, columns: Columns = lambda record: None) -> None:
        super().__init__()
        self.look = columns
        self.known_columns: dict[str, tuple[str, ...] | None] = {}
        self.schedule = Schedule()

    def program(self, file: tree.File, source: Source, changes: Mapping[str, tree.Expr]) -> Program:
        top = Span(source, 1, 1, 1, max(2, len(source.line(1)) + 1))
        self.prelude()
        declared = file.declarations
        self.unknown_changes(declared, changes)
        self.below = {d.name: d.name_span for d in declared if isinstance(d, (tree.Declaration, tree.State))}
        for item in declared:
            if isinstance(item, (tree.Declaration, tree.State)):
                self.below.pop(item.name, None)
            try:
                self.declaration(item, changes)
            except Stop:
                if isinstance(item, (tree.Declaration, tree.State, tree.Def)):
                    self.scope[item.name] = Wrong()
        wrong = [item.name for item in declared if isinstance(item, tree.Def) and self.unknown_in(item)]
        self.scope.update({name: Wrong() for name in wrong})
        heads = [item for item in declared if isinstance(item, tree.Algorithm)]
        if not heads:
            self.say(
                "E0609", "the file does not say what its algorithm is called", top, "begin it with `algorithm NAME`"
            )
        for extra in heads[1:]:
            self.say("E0203", "a file is one algorithm", extra.span, related=(Related(heads[0].span, "the first one"),))
        phases = self.phases([item for item in declared if isinstance(item, tree.Phase)], top)
        self.unused(declared, source)
        meanings = self.scope.values()
        outside = [m.outside for m in meanings if isinstance(m, OutsideName)]
        outside += [Outside("buffer", f"{name}.surplus", Record("surplus")) for name in sorted(self.collected_ever)]
        program = Program(
            heads[0].name if heads else "program",
            tuple(m.model for m in meanings if isinstance(m, ModelName)),
            tuple(outside),
            tuple(m.state for m in meanings if isinstance(m, StateName)),
            tuple(phases),
        )
        if not any(d.severity == "error" for d in self.diagnostics):
            self.placements(file, program, source)
            self.diagnostics += [*chosen_inside(program), *lint(program)]
        return program

    def placements(self, file: tree.File, program: Program, source: Source) -> None:
        """The block `schedule:`, or what is wrong with it."""
        try:
            self.schedule = check_schedule(file, program, source, self.scope)
        except ProgramError as error:
            self.diagnostics += error.diagnostics

    # Declarations

    def prelude(self) -> None:
        known: dict[str, Meaning] = {}
        for item in _prelude().declarations:
            assert isinstance(item, tree.Def)
            # Its defs see each other only: what a program declares cannot change what they mean.
            known[item.name] = DefName(item, known)
        self.scope.update(known)

    def unknown_changes(self, declared: Sequence[tree.Decl], changes: Mapping[str, tree.Expr]) -> None:
        known = [d.name for d in declared if isinstance(d, (tree.Declaration, tree.State))]
        for name, expr in changes.items():
            if name not in known:
                hint = nearest(name, known) or f"it declares {', '.join(f'`{n}`' for n in known) or 'nothing'}"
                self.say("E0804", f"the program declares nothing called `{name}`", expr.span, hint)

    def declaration(self, item: tree.Decl, changes: Mapping[str, tree.Expr]) -> None:
        if isinstance(item, (tree.Declaration, tree.State, tree.Def)):
            if item.name in self.declared:
                related = (Related(self.declared[item.name], "it is declared here"),)
                raise self.stop("E0203", f"`{item.name}` is declared twice", item.name_span, related=related)
            self.declared[item.name] = item.name_span
            if item.name in AXES:
                raise self.stop("E0208", f"`{item.name}` is the name of an axis", item.name_span, "choose another name")
            function = item.name in FUNCTIONS or item.name in ("min", "max", "pick", "encode")
            if function and (
                isinstance(item, tree.Def) or (isinstance(item, tree.Declaration) and item.kind == "func")
            ):
                self.say(
                    "W0202",
                    f"`{item.name}` takes the place of a built-in function",
                    item.name_span,
                    "choose another name",
                    "warning",
                )
        if isinstance(item, tree.Declaration):
            changed = changes.get(item.name)
            self.scope[item.name] = self.declare(replace(item, value=changed) if changed else item)
        elif isinstance(item, tree.State):
            self.scope[item.name] = self.declare_state(item, changes.get(item.name, item.value))
        elif isinstance(item, tree.Def):
            self.define(item)

    def declare(self, item: tree.Declaration) -> Meaning:
        if item.kind == "param":
            value = self.constants.evaluate(item.value, self.scope)
            if isinstance(value, (bool, int, float)):
                return Const(value, Tensor(_dtype(value)), item.value.span)
            return Literal(value)
        if item.kind == "model":
            return ModelName(self.model(item))
        if not isinstance(item.value, tree.Call) or not isinstance(item.value.func, tree.Name):
            forms = ", ".join(f"`{name}(...)`" for name in OUTSIDE[item.kind])
            raise self.stop("E0406", f"`{item.kind} {item.name}` needs one of {forms}", item.value.span)
        what = {"data": "data source", "func": "function", "env": "environment", "buffer": "buffer"}[item.kind]
        record = self.constants.record(item.value, OUTSIDE[item.kind], self.scope, what)
        return OutsideName(Outside(item.kind, item.name, record, item.span))

    def model(self, item: tree.Declaration) -> Model:
        value, frozen = item.value, False
        if isinstance(value, tree.Call) and isinstance(value.func, tree.Name) and value.func.id == "frozen":
            if len(value.args) != 1 or value.options:
                raise self.stop("E0405", "`frozen` takes one model", value.span, "`frozen(actor)`")
            value, frozen = value.args[0], True
        if isinstance(value, tree.Name):
            held = self.scope.get(value.id)
            if isinstance(held, Wrong):
                raise Stop
            if isinstance(held, ModelName):
                self.used.add(value.id)
                return replace(
                    held.model, name=item.name, source=None, copy_of=value.id, frozen=frozen, options=(), span=item.span
                )
            if held is None and value.id in self.below:
                raise self.stop(
                    "E0202",
                    f"`{value.id}` is used before it is declared",
                    value.span,
                    "move its line up",
                    (Related(self.below[value.id], "it is declared here"),),
                )
            known = [name for name, found in self.scope.items() if isinstance(found, ModelName)]
            shown = f"`{value.id}` is {describe(held)}, not a model" if held else f"nothing is called `{value.id}`"
            hint = nearest(value.id, known) or f"load one: `causal_lm({value.id})`"
            raise self.stop("E0201", shown, value.span, hint)
        if not isinstance(value, tree.Call) or not isinstance(value.func, tree.Name):
            name = value.value if isinstance(value, tree.String) else "folder or hub name"
            raise self.stop("E0406", "a model is needed here", value.span, f'`causal_lm("{name}")` for example')
        if value.func.id == "random":
            raise self.stop(
                "E0406",
                "`random` makes weights, and the kind of model is missing",
                value.func.span,
                "`causal_lm(random(...))` for example",
            )
        record = self.constants.record(value, MODELS, self.scope, "model")
        if record.option("dtype") not in (None, "float32", "float64", "bfloat16"):
            place = next(option.value.span for option in value.options if option.name == "dtype")
            raise self.stop(
                "E0403", f'a dtype is "float32", "float64" or "bfloat16", not "{record.option("dtype")}"', place
            )
        return Model(item.name, record.name, record.args[0], None, frozen, record.options, item.span)

    def declare_state(self, item: tree.State, expr: tree.Expr) -> Meaning:
        value = self.constants.evaluate(expr, self.scope)
        if not isinstance(value, (int, float)):
            raise self.stop("E0304", "a state begins with a number", expr.span)
        return StateName(State(item.name, float(value), item.key is not None, item.span))

    def define(self, item: tree.Def) -> None:
        seen: dict[str, Span] = {}
        for parameter in item.parameters:
            if parameter.id in seen:
                raise self.stop("E0203", f"`{item.name}` has two parameters `{parameter.id}`", parameter.span)
            seen[parameter.id] = parameter.span
        own = [*item.parameters, *(tree.Name(s.target, s.target_span) for s in item.body if isinstance(s, tree.Assign))]
        for name in own:
            if name.id in AXES:
                raise self.stop("E0208", f"`{name.id}` is the name of an axis", name.span, "choose another name")
        local = {p.id for p in item.parameters} | {s.target for s in item.body if isinstance(s, tree.Assign)}
        self.used.update(name.id for name in names_in(item.body) if name.id not in local)
        # A def sees every declaration, those below it too.
        self.scope[item.name] = DefName(item, self.scope)

    def data_columns(self, outside: Outside) -> tuple[str, ...] | None:
        if outside.name not in self.known_columns:
            self.known_columns[outside.name] = self.look(outside.record)
        return self.known_columns[outside.name]

    # Steps

    collected_ever: frozenset[str] = frozenset()

    def phases(self, found: Sequence[tree.Phase], top: Span) -> list[Phase]:
        if not any(phase.name == "step" for phase in found):
            self.say("E0609", "the program has no `step:`", top, "say in `step:` what one step does")
        seen: dict[str, Span] = {}
        phases: list[Phase] = []
        for item in found:
            if item.name in seen:
                self.say(
                    "E0203",
                    f"there are two phases `{item.name}`",
                    item.span,
                    related=(Related(seen[item.name], "the first one"),),
                )
            seen[item.name] = item.span
            try:
                phases.append(self.phase(item))
            except Stop:
                continue
        return sorted(phases, key=lambda phase: phase.name == "step")

    def phase(self, item: tree.Phase) -> Phase:
        steps: Constant = None
        self.staleness = 0
        if item.asynchronous:
            options = self.constants.options(STATEMENTS["async"], item.options, item.span, self.scope)
            staleness = options["staleness"]
            assert isinstance(staleness, int)
            self.staleness = staleness
        elif item.name != "step":
            steps = self.constants.options(STATEMENTS["phase"], item.options, item.span, self.scope)["steps"]
        elif item.options:
            raise self.stop(
                "E0401",
                f"`step` has no option `{item.options[0].name}`",
                item.options[0].name_span,
                "write `step async(staleness=2):` to let sampling run ahead",
            )
        self.taken, self.axis_keys, self.columns, self.chosen = {}, set(), {}, {}
        self.used -= set(self.assigned)
        self.reported, self.assigned, self.levels = {}, {}, {}
        collected = {s.table.id for s in _walk(item.body) if isinstance(s, tree.Collect)}
        self.collected = {name for name in collected if self.is_data(name)}
        self.collected_ever |= self.collected
        given = self.given(item)
        versions = {kind.type.name if isinstance(kind.type, Handle) else name: kind for name, kind in given.items()}
        self.block = Block(dict(self.scope), versions)
        for name in self.drawn(item.body):
            self.read(name)
        before = len(self.diagnostics)
        self.statements(item.body)
        if not self.block.nodes and len(self.diagnostics) == before:
            self.say("E0609", f"`{item.name}` does nothing", item.span)
        self.unused_values()
        names = tuple(self.block.versions[name].name for name in versions)
        graph = Graph(tuple(given.values()), tuple(self.block.nodes), names)
        assert steps is None or isinstance(steps, int)
        return Phase(item.name, graph, steps, self.staleness)

    def is_data(self, name: str) -> bool:
        held = self.scope.get(name)
        return isinstance(held, OutsideName) and held.outside.kind == "data"

    def given(self, item: tree.Phase) -> dict[str, Value]:
        """First versions of everything that lives across steps and that the phase names, or a copy of what it names."""
        named = self.named(item.body)
        found: dict[str, Value] = {}
        for name, meaning in self.scope.items():
            if name not in named:
                continue
            if isinstance(meaning, ModelName):
                found[name] = self.version(name, Handle("model", name))
            elif isinstance(meaning, StateName):
                kind = Handle("keyed", name) if meaning.state.keyed else Tensor("float")
                found[name] = self.version(name, kind)
            elif isinstance(meaning, OutsideName) and meaning.outside.kind == "data":
                found[name] = self.version(name, Handle("cursor", name))
                if name in self.collected:
                    surplus = f"{name}.surplus"
                    found[surplus] = self.version(surplus, Handle("buffer", surplus))
            elif isinstance(meaning, OutsideName) and meaning.outside.kind == "buffer":
                found[name] = self.version(name, Handle("buffer", name))
        return found

    def drawn(self, body: Sequence[tree.Stmt]) -> list[str]:
        """Data that is drawn when the step begins: all but what `collect` draws and what only `every` needs."""
        named = self.named(tuple(statement for statement in body if not isinstance(statement, tree.Every)))
        return [name for name in self.scope if name in named and self.is_data(name) and name not in self.collected]

    # What is there and does nothing

    def unused_values(self) -> None:
        for name, span in self.assigned.items():
            if name not in self.used and not name.startswith("_"):
                self.say("W0201", f"`{name}` is never used", span, "use it, report it or leave it out", "warning")

    def unused(self, declared: Sequence[tree.Decl], source: Source) -> None:
        named = {name.id for item in declared for name in names_in(item)} | self.used
        for item in declared:
            # What a used file declares cannot be left out by the file that changes it.
            own = item.span.source.path == source.path
            if own and isinstance(item, (tree.Declaration, tree.State)) and item.name not in named:
                kind = item.kind if isinstance(item, tree.Declaration) else "state"
                self.say("W0201", f"{kind} `{item.name}` is never used", item.name_span, "leave it out", "warning")


def _dtype(value: bool | int | float) -> DType:
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"


def _walk(body: Sequence[tree.Stmt]) -> list[tree.Stmt]:
    """Statements, and those of the blocks in which `collect` may stand."""
    found: list[tree.Stmt] = []
    for statement in body:
        found.append(statement)
        if isinstance(statement, (tree.Collect, tree.Every)):
            found += _walk(statement.body)
    return found
