"""Schedules are checked: an `.rls` file, or the block `schedule:` of a program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from rlgraph.backends.enginespec.registry import engines, faults
from rlgraph.backends.enginespec.spec import EngineSpec
from rlgraph.dsl import constants, tree
from rlgraph.dsl.admitting import check_admit
from rlgraph.dsl.fusing import check_fuse
from rlgraph.dsl.offpolicy import recomputed
from rlgraph.dsl.scope import Meaning, Reporter, Stop
from rlgraph.dsl.signatures import METHODS, STATEMENTS
from rlgraph.dsl.tails import check_tail
from rlgraph.errors import Diagnostic, ProgramError, Related, Source, Span, counted, listed, nearest
from rlgraph.ir.graph import Program
from rlgraph.ir.mesh import AXES, mesh
from rlgraph.ir.plan import HOST, LARGEST
from rlgraph.ir.schedule import Admit, Fuse, Placement, Pool, Refresh, Schedule, Send, Stream, Tail, Work
from rlgraph.ir.types import Table, is_model
from rlgraph.ops import MODEL_OPERATIONS, NODES
from rlgraph.ops.work import code, operations


def check_schedule(
    file: tree.File, program: Program, source: Source, scope: Mapping[str, Meaning] | None = None
) -> Schedule:
    """What a file says about where a program runs: nothing, if it holds no schedule.

    `scope` holds the program's params. Raises ProgramError with everything that is wrong.
    """
    checker = _Checker(program, scope or {})
    found = checker.file(file, source)
    if checker.diagnostics:
        raise ProgramError(sorted(checker.diagnostics, key=_place))
    return found


def _place(found: Diagnostic) -> tuple[int, int]:
    return found.span.line, found.span.column


class _Checker(Reporter):
    def __init__(self, program: Program, scope: Mapping[str, Meaning]) -> None:
        super().__init__()
        self.program, self.scope = program, scope
        self.uses = operations(program)
        self.code = code(program)
        self.pools: dict[str, Pool] = {}
        self.placed: dict[str, Work] = {}
        self.streamed: dict[str, Span] = {}
        self.tailed: dict[str, Span] = {}
        self.admitted: dict[str, Span] = {}
        self.sent: dict[tuple[str, str], Span] = {}
        self.refreshed: dict[tuple[str, str], Span] = {}
        self.unclear: set[str] = set()
        """Pools that are declared, and wrong."""

    def file(self, file: tree.File, source: Source) -> Schedule:
        schedules = [item for item in file.declarations if isinstance(item, tree.Schedule)]
        others = [item for item in file.declarations if not isinstance(item, tree.Schedule)]
        if not schedules:
            if not others or source.path.endswith(".rls"):
                top = Span(source, 1, 1, 1, max(2, len(source.line(1)) + 1))
                self.say("E0901", "there is no schedule here", top, f"begin it with `schedule {self.program.name}`")
            return Schedule()
        for extra in schedules[1:]:
            self.say(
                "E0901", "there are two schedules", extra.span, related=(Related(schedules[0].span, "the first one"),)
            )
        if schedules[0].name:
            self.named(schedules[0], others)
        return self.schedule(schedules[0])

    def named(self, item: tree.Schedule, others: Sequence[tree.Decl]) -> None:
        """The schedule of an `.rls` file."""
        if item.name != self.program.name:
            self.say(
                "E0901",
                f"this is a schedule for `{item.name}`, and the program is `{self.program.name}`",
                item.span,
                f"`schedule {self.program.name}`",
            )
        for other in others:
            self.say(
                "E0901",
                "only pools, places, streams, admits, tails, fuses, sends and refreshes can stand in a schedule",
                other.span,
                "move this line into the program",
            )

    def schedule(self, item: tree.Schedule) -> Schedule:
        placements: list[Placement] = []
        streams: list[Stream] = []
        sends: list[Send] = []
        refreshes: list[Refresh] = []
        tails: list[Tail] = []
        fuses: list[Fuse] = []
        admits: list[Admit] = []
        for line in item.body:
            if isinstance(line, tree.Pool):
                try:
                    self.pool(line)
                except Stop:
                    self.unclear.add(line.name)
        places = [line for line in item.body if isinstance(line, tree.Place)]
        works = [self.all_work(line) for line in places]
        for line, placed in zip(places, works, strict=True):
            try:
                placements.append(self.place(line, placed))
            except Stop:
                continue
        for line in item.body:
            if isinstance(line, tree.Stream):
                try:
                    streams.append(self.stream(line))
                except Stop:
                    continue
            if isinstance(line, tree.Admit):
                try:
                    admits.append(self.admit(line))
                except Stop:
                    continue
            if isinstance(line, tree.Tail):
                try:
                    tails.append(self.tail(line, item.body))
                except Stop:
                    continue
            if isinstance(line, tree.Fuse):
                try:
                    fuses.append(
                        check_fuse(self, self.program, line, [self.trained(each) for each in line.work], fuses)
                    )
                except Stop:
                    continue
            if isinstance(line, tree.Send):
                try:
                    sends.append(self.send(line))
                except Stop:
                    continue
            if isinstance(line, tree.Refresh):
                try:
                    refreshes.append(self.refresh(line))
                except Stop:
                    continue
        return Schedule(
            tuple(self.pools.values()),
            tuple(placements),
            tuple(streams),
            tuple(sends),
            tuple(refreshes),
            tuple(tails),
            tuple(fuses),
            tuple(admits),
            item.span,
        )

    # Pools

    def pool(self, line: tree.Pool) -> None:
        if line.name in self.pools or line.name in self.unclear:
            first = self.pools.get(line.name)
            related = (Related(first.span, "the first one"),) if first else ()
            raise self.stop("E0902", f"there are two pools `{line.name}`", line.name_span, related=related)
        if line.name == HOST:
            raise self.stop(
                "E0902",
                f"`{HOST}` is the process that reads data and calls functions: no pool is called so",
                line.name_span,
                "choose another name",
            )
        count = constants.evaluate(self, line.count, self.scope)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise self.stop(
                "E0902",
                f"a pool has a whole number of {line.unit}, at least 1",
                line.count.span,
                f"`pool {line.name} = 8 {line.unit}`",
            )
        if count > LARGEST:
            message = f"`{line.name}` has more than {LARGEST:,} {line.unit}"
            raise self.stop("E0902", message, line.count.span, f"`pool {line.name} = 8 {line.unit}`")
        counts = (0, count) if line.unit == "cpus" else (count, 0)
        self.pools[line.name] = Pool(line.name, *counts, line.span)

    def pool_named(self, name: tree.Name) -> Pool:
        if name.id in self.unclear:
            raise Stop
        if name.id not in self.pools:
            hint = nearest(name.id, self.pools) or f"declare it: `pool {name.id} = 8 devices`"
            raise self.stop("E0903", f"no pool is called `{name.id}`", name.span, hint)
        return self.pools[name.id]

    # Placements

    def all_work(self, line: tree.Place) -> list[Work]:
        found: list[Work] = []
        for expr in line.work:
            try:
                found.append(self.one_work(expr))
            except Stop:
                continue
        return found

    def one_work(self, expr: tree.Expr) -> Work:
        base = expr.base if isinstance(expr, tree.Attribute) else expr
        assert isinstance(base, tree.Name)
        used = set() if base.id in self.code else self.model(base, self.code)
        work = Work(base.id, None, expr.span)
        if isinstance(expr, tree.Attribute):
            work = replace(work, operation=self.operation(expr, base.id))
        elif not used and base.id not in self.code:
            raise self.stop("E0904", f"the program computes nothing with `{base.id}`", expr.span, "leave it out")
        if str(work) in self.placed:
            first = Related(self.placed[str(work)].span, "the first place")
            raise self.stop("E0905", f"`{work}` is placed twice", expr.span, "keep one of them", (first,))
        self.placed[str(work)] = work
        return work

    def model(self, name: tree.Name, functions: Collection[str] = ()) -> set[str]:
        """What the program does with a model that the schedule names, where functions can be named, too."""
        known = (*self.uses, *functions)
        if name.id not in self.uses:
            hint = nearest(name.id, known) or f"it has {', '.join(f'`{each}`' for each in known) or 'none'}"
            what = "model and no function" if functions else "model"
            raise self.stop("E0904", f"the program has no {what} `{name.id}`", name.span, hint)
        return self.uses[name.id]

    def operation(self, expr: tree.Attribute, model: str) -> str:
        if model in self.code:
            hint = f"`place {model} on ...`"
            raise self.stop("E0904", f"`{model}` is placed as a whole", expr.name_span, hint)
        used = sorted(self.uses[model], key=MODEL_OPERATIONS.index)
        if expr.name in used:
            return expr.name
        kind = self.program.model(model).kind
        legal = {*METHODS[kind], *(name for name in MODEL_OPERATIONS if NODES[name].trains)}
        shown = (
            f"the program does not use `{model}.{expr.name}`"
            if expr.name in legal
            else f"`{model}` cannot `{expr.name}`"
        )
        hint = (
            nearest(expr.name, used)
            or f"it uses {', '.join(f'`{model}.{name}`' for name in used) or 'none of its work'}"
        )
        raise self.stop("E0904", shown, expr.name_span, hint)

    def place(self, line: tree.Place, works: Sequence[Work]) -> Placement:
        options = tuple(self.quoted(option) for option in line.options)
        given = constants.options(self, STATEMENTS["place"], options, line.span, self.scope)
        spans = {option.name: option for option in line.options}
        pool = self.pools.get(line.pool.id)
        self.kinds(line, works, pool)
        if pool is not None and pool.cpus:
            return Placement(tuple(work for work in works if work.model in self.code), pool.name, span=line.span)
        works = [work for work in works if work.model in self.uses]
        splits = {axis.name: value for axis in AXES if isinstance(value := given[axis.name], int)}
        engine = given["engine"]
        assert engine is None or isinstance(engine, str)
        self.ways(given, spans, works)
        if engine is not None:
            self.engine(engine, spans, splits, works)
        else:
            self.some_engine(spans, splits, works)
        pool = self.pool_named(line.pool)
        split = mesh(**splits)
        if pool.devices % split.size:
            said = [name for name in splits if name in dict(split.spread)]
            shown = " * ".join(f"{name}={splits[name]}" for name in said)
            first, size = spans[said[0]], split.size
            total = f", {size} devices," if "*" in shown else ""
            raise self.stop(
                "E0907",
                f"{shown}{total} does not divide the {counted(pool.devices, 'device')} of `{pool.name}`",
                first.span,
                "choose numbers whose product divides the pool",
                (Related(pool.span, "it is declared here"),),
            )
        places = tuple((name, option.span) for name, option in spans.items())
        recompute, attention = given["recompute"], given["attention"]
        assert recompute is None or isinstance(recompute, bool)
        adapters, gather = given["adapters"], given["gather"]
        assert attention is None or isinstance(attention, str)
        assert adapters is None or isinstance(adapters, str)
        assert gather is None or isinstance(gather, str)
        return Placement(
            tuple(works),
            pool.name,
            engine,
            tuple(splits.items()),
            recompute,
            attention,
            adapters,
            gather,
            line.span,
            places,
        )

    def ways(self, given: Mapping[str, object], spans: Mapping[str, tree.Option], works: Sequence[Work]) -> None:
        """How models are worked with: the engine can do it, and there is something to do."""
        name, attention = given["engine"], given["attention"]
        able = engines().get(str(name))
        trains = any(
            NODES[each].trains
            for work in works
            for each in ({work.operation} if work.operation else self.left(work.model))
            if each
        )
        if given["recompute"] and not trains:
            message = "layers are computed again where a model is trained, and nothing is trained here"
            self.say("E0908", message, spans["recompute"].span, "leave it out")
        elif given["recompute"] and able is not None and "recompute" not in able.settings:
            able_to = [each.name for each in engines().values() if "recompute" in each.settings]
            message = f"`{name}` computes no layer again"
            self.say("E0908", message, spans["recompute"].span, f"leave it out, or take {listed(able_to, 'or')}")
        if (adapters := given["adapters"]) is not None:
            self.known_way(given, spans["adapters"], "adapters are held", f"holds no adapters that way: `{adapters}`")
        if attention is not None:
            chosen = able is None or bool(able.attention)
            cannot = f"computes no attention by `{attention}`" if chosen else "does not let `attention` be chosen"
            self.known_way(given, spans["attention"], "attention is computed", cannot)
        if given["gather"] is not None and not trains:
            message = "how parameters are gathered is said where a model is trained, and nothing is trained here"
            self.say("E0908", message, spans["gather"].span, "leave it out")
        elif given["gather"] is not None:
            self.known_way(given, spans["gather"], "parameters are gathered", f"gathers none by `{given['gather']}`")

    def known_way(self, given: Mapping[str, object], option: tree.Option, done: str, cannot: str) -> None:
        """A way in which engines do something, each of which says under the option's name what it knows: one is named,
        and knows it."""

        def known(spec: EngineSpec) -> Collection[str]:
            ways: Collection[str] = getattr(spec, option.name)
            return ways

        said, name = str(given[option.name]), given["engine"]
        able, knowing = engines().get(str(name)), [each.name for each in engines().values() if said in known(each)]
        if name is None:
            message = f"how {done} is a matter of the engine, and none is named"
            self.say("E0908", message, option.span, f"`engine={knowing[0]}, {option.name}={said}`")
        elif able is not None and said not in known(able):
            others = [f"`{option.name}={each}`" for each in known(able)]
            hint = f"it takes {', '.join(others)}" if others else f"leave it out; {listed(knowing, 'and')} can"
            self.say("E0908", f"`{name}` {cannot}", option.span, hint)

    def kinds(self, line: tree.Place, works: Sequence[Work], pool: Pool | None) -> None:
        """Models are on devices; functions and environments are on cpus, which are not split in any way."""
        if pool is None:
            return
        declared = (Related(pool.span, "it is declared here"),)
        for work in works:
            if pool.cpus and work.model in self.uses:
                hint = f"place `{work.model}` on a pool of devices"
                message = f"`{pool.name}` has cpus, on which functions run: `{work.model}` is a model"
                self.say("E0916", message, work.span, hint, declared)
            elif pool.devices and work.model in self.code:
                hint = "place it on a pool of cpus, as in `pool judges = 8 cpus`, or leave it out"
                message = f"`{pool.name}` has devices, on which models run: `{work.model}` is the user's Python"
                self.say("E0916", message, work.span, hint, declared)
        if pool.cpus and line.options:
            message = f"`{pool.name}` has cpus, and each of them is a worker: there is nothing to choose"
            self.say("E0916", message, line.options[0].span, "leave the options out", declared)

    def quoted(self, option: tree.Option) -> tree.Option:
        """The name of an engine needs no quotes."""
        if option.name == "engine" and isinstance(option.value, tree.Name):
            return replace(option, value=tree.String(option.value.id, option.value.span))
        return option

    def engine(
        self, name: str, spans: Mapping[str, tree.Option], splits: Mapping[str, int], works: Sequence[Work]
    ) -> None:
        known = engines()
        if name not in known:
            broken = next((str(fault) for fault in faults() if fault.name == name), None)
            if broken is not None:
                raise self.stop("E0906", broken, spans["engine"].value.span, "mend the package, or name another engine")
            hint = nearest(name, known) or f"there are {', '.join(f'`{each}`' for each in known)}"
            raise self.stop("E0906", f"no engine is called `{name}`", spans["engine"].value.span, hint)
        able = known[name]
        for split in splits:
            if split not in able.splits:
                legal = ", ".join(f"`{each}`" for each in able.splits)
                self.say(
                    "E0908", f"`{name}` does not split models by `{split}`", spans[split].span, f"it takes {legal}"
                )
        wanted = [each for each, size in splits.items() if size > 1 and each in able.splits]
        inner = [each for each in wanted if each != "dp"]
        for work in works:
            asked = {work.operation} if work.operation else self.left(work.model)
            missing = sorted(operation for operation in asked if operation and operation not in able.operations)
            apart = sorted(each for each in asked if each and able.does(each) and not able.does(each, wanted))
            if apart:
                shown = " and ".join(f"`{each}`" for each in inner if not able.does(apart[0], [each]))
                self.say(
                    "E0908",
                    f"`{name}` cannot do the `{apart[0]}` of `{work.model}` split by {shown}",
                    spans[inner[0]].span,
                    f"leave out {shown}" if work.operation else f"place `{work.model}.{apart[0]}` by itself",
                )
            if missing:
                others = [other for other, engine in known.items() if engine.operations.issuperset(missing)]
                more = "" if work.operation else f"place `{work.model}.{missing[0]}` by itself, on "
                self.say(
                    "E0908",
                    f"`{name}` cannot do the `{missing[0]}` of `{work.model}`",
                    work.span,
                    f"{more}{' or '.join(f'`{other}`' for other in others)}{'' if more else ' can'}",
                )

    def some_engine(self, spans: Mapping[str, tree.Option], splits: Mapping[str, int], works: Sequence[Work]) -> None:
        """Where no engine is named: one can do each kind of work, split as it is said."""
        wanted = [name for name, size in splits.items() if size > 1]
        able = [engine for engine in engines().values() if set(wanted) <= set(engine.splits)]
        for work in works:
            asked = {work.operation} if work.operation else self.left(work.model)
            missing = sorted(op for op in asked if op and not any(engine.does(op, wanted) for engine in able))
            if missing:
                shown = " and ".join(f"`{name}`" for name in wanted)
                legal = (
                    f"`{engine.name}` takes {', '.join(f'`{each}`' for each in takes)}"
                    for engine in engines().values()
                    if (takes := [each for each in engine.splits if engine.does(missing[0], [each])])
                )
                more = ", ".join(legal) if work.operation else f"place `{work.model}.{missing[0]}` by itself"
                self.say(
                    "E0908",
                    f"no engine can do the `{missing[0]}` of `{work.model}` split by {shown}",
                    spans[wanted[-1]].span,
                    more,
                )

    def left(self, model: str) -> set[str]:
        """The model's work that is not placed by itself."""
        return {operation for operation in self.uses[model] if f"{model}.{operation}" not in self.placed}

    # Streams

    def table(self, line: tree.Stream | tree.Admit | tree.Tail, seen: Mapping[str, Span], happens: str) -> str:
        """The table that a line is about."""
        tables = {
            name.split(".")[0]: None
            for phase in self.program.phases
            for name, kind in phase.graph.values().items()
            if isinstance(kind, Table) and kind.token is not None
        }
        name = line.table.id
        if name not in tables:
            hint = nearest(name, tables) or f"it makes {', '.join(f'`{table}`' for table in tables) or 'none'}"
            raise self.stop("E0909", f"the program makes no table `{name}`", line.table.span, hint)
        if name in seen:
            first = Related(seen[name], "the first time")
            raise self.stop("E0905", f"`{name}` {happens} twice", line.table.span, "keep one of them", (first,))
        return name

    def stream(self, line: tree.Stream) -> Stream:
        name = self.table(line, self.streamed, "is streamed")
        found = constants.options(self, STATEMENTS["stream"], line.options, line.span, self.scope)
        block = found["block"]
        assert block is None or isinstance(block, int)
        self.streamed[name] = line.table.span
        return Stream(name, block, found["deal"] == "free", line.span)

    def admit(self, line: tree.Admit) -> Admit:
        name = self.table(line, self.admitted, "is admitted")
        by = constants.options(self, STATEMENTS["admit"], line.options, line.span, self.scope)["by"]
        self.admitted[name] = line.table.span
        return check_admit(self, self.program, line, name, str(by))

    def tail(self, line: tree.Tail, lines: Sequence[tree.Placed]) -> Tail:
        name = self.table(line, self.tailed, "has a tail")
        found = constants.options(self, STATEMENTS["tail"], line.options, line.span, self.scope)
        self.tailed[name] = line.table.span
        return check_tail(self, self.program, line, name, found, lines)

    def trained(self, expr: tree.Expr) -> str:
        """The model whose training a line names."""
        base = expr.base if isinstance(expr, tree.Attribute) else expr
        assert isinstance(base, tree.Name)
        self.model(base)
        if not isinstance(expr, tree.Attribute):
            message = f"trainings share a pipeline, and `{base.id}` is a model with all its work"
            raise self.stop("E0972", message, expr.span, f"`fuse {base.id}.train, ...`")
        if not NODES[self.operation(expr, base.id)].trains:
            message = f"trainings share a pipeline, and `{base.id}.{expr.name}` is none"
            raise self.stop("E0972", message, expr.name_span, f"`{base.id}.train`")
        return base.id

    # Weights

    def way(self, line: tree.Send | tree.Refresh, seen: dict[tuple[str, str], Span], happens: str) -> tuple[str, str]:
        """The model and the pool that a line is about."""
        self.model(line.model)
        way = line.model.id, self.pool_named(line.pool).name
        if way in seen:
            first = Related(seen[way], "the first time")
            message = f"two lines say how `{way[0]}` is {happens} `{way[1]}`"
            raise self.stop("E0905", message, line.span, "keep one of them", (first,))
        seen[way] = line.span
        return way

    def send(self, line: tree.Send) -> Send:
        way = self.way(line, self.sent, "sent to")
        delta = constants.options(self, STATEMENTS["send"], line.options, line.span, self.scope)["delta"]
        return Send(*way, delta=bool(delta), span=line.span)

    def refresh(self, line: tree.Refresh) -> Refresh:
        way = self.way(line, self.refreshed, "refreshed on")
        found = constants.options(self, STATEMENTS["refresh"], line.options, line.span, self.scope)
        by = str(found["by"])
        where = next((option.value.span for option in line.options if option.name == "by"), line.span)
        if by != "drain" and not self.spans(way[0]):
            raise self.stop(
                "E0917",
                f"`by={by}` gives unfinished rows new weights, and each row of `{way[0]}` is of one version",
                where,
                "the program grants it: `step async(staleness=2, span=token)`",
            )
        if by == "keep":
            self.recomputed(way[0], where)
        return Refresh(*way, by, found["each"] == "replica", line.span)

    def recomputed(self, model: str, where: Span) -> None:
        """Tokens of rows that go on as they are have log-probabilities that no weights give: a loss may weight by them
        alone."""
        for phase in self.program.phases:
            for span in recomputed(phase, model):
                raise self.stop(
                    "E0919",
                    f"with `by=keep` no weights give `{model}`'s log-probabilities of its rows, and a loss takes them "
                    "for those of some",
                    where,
                    "`by=reread`, or use them in `exp(prox - rollout.logprobs)` alone, where `prox` are the trainer's",
                    (Related(span, "they are used here"),),
                )

    def spans(self, model: str) -> bool:
        """Whether rows that a model samples may be of several versions."""
        for phase in self.program.phases:
            types = phase.graph.values()
            for node in phase.graph.walk():
                held = types[node.inputs[0]] if node.inputs else None
                if held is not None and is_model(held) and held.name == model and node.attr("span", "row") != "row":
                    return True
        return False
