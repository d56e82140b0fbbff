"""Checks the `place` lines of a schedule: which engine does what work on which pool, split how."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlgraph.backends.enginespec.registry import broken_engines, engines_by_name
from rlgraph.backends.enginespec.spec import EngineSpec
from rlgraph.dsl import constants, tree
from rlgraph.dsl.scope import Meaning, Reporter, StatementError
from rlgraph.dsl.signatures import METHODS, STATEMENTS
from rlgraph.errors import Related, count_phrase, did_you_mean, quoted_list
from rlgraph.ir.graph import Program
from rlgraph.ir.mesh import AXES, make_mesh
from rlgraph.ir.plan import HOST
from rlgraph.ir.schedule import PlacedWork, PlacementLine, PoolLine
from rlgraph.ops import MODEL_OPERATIONS, NODES
from rlgraph.ops.program_work import agents, model_operations, user_code_usage

WAYS = ("recompute", "attention", "adapters", "gather", "optimizer", "sleep")
"""The options that say how models are worked with."""
CACHE_OPTIONS = ("cache", "share", "max_len")
"""The options about the cache of keys and values of a model that samples."""


class PlaceChecker(Reporter):
    """Checks lines that place work of a program, and knows the pools."""

    def __init__(self, program: Program, scope: Mapping[str, Meaning]) -> None:
        super().__init__()
        self.program, self.scope = program, scope
        self.uses = model_operations(program)
        self.code = user_code_usage(program)
        self.agents = agents(program)
        self.pools: dict[str, PoolLine] = {}
        self.invalid_pools: set[str] = set()
        """Names of pools whose declarations are wrong."""
        self.placed: dict[str, PlacedWork] = {}

    def pool_named(self, name: tree.Name) -> PoolLine:
        if name.id in self.invalid_pools:
            raise StatementError
        if name.id not in self.pools:
            hint = did_you_mean(name.id, self.pools) or f"declare it: `pool {name.id} = 8 devices`"
            raise self.statement_error("E0903", f"no pool is called `{name.id}`", name.span, hint)
        return self.pools[name.id]

    def placed_work(self, line: tree.Place) -> list[PlacedWork]:
        """Return the work that a line places."""
        works: list[PlacedWork] = []
        for expr in line.work:
            try:
                works.append(self.check_work(expr))
            except StatementError:
                continue
        return works

    def check_work(self, expr: tree.Expr) -> PlacedWork:
        base = expr.base if isinstance(expr, tree.Attribute) else expr
        assert isinstance(base, tree.Name)
        used = set() if base.id in self.code else self.operations_of_model(base, self.code)
        work = PlacedWork(base.id, None, expr.span)
        if isinstance(expr, tree.Attribute):
            work = replace(work, operation=self.check_operation(expr, base.id))
        elif not used and base.id not in self.code:
            raise self.statement_error(
                "E0904", f"the program computes nothing with `{base.id}`", expr.span, "leave it out"
            )
        if str(work) in self.placed:
            first = Related(self.placed[str(work)].span, "the first place")
            raise self.statement_error("E0905", f"`{work}` is placed twice", expr.span, "keep one of them", (first,))
        self.placed[str(work)] = work
        return work

    def operations_of_model(self, name: tree.Name, functions: Collection[str] = ()) -> set[str]:
        """Return what the program does with a model that the schedule names, where functions can be named, too."""
        names = (*self.uses, *functions)
        if name.id not in self.uses:
            hint = (
                did_you_mean(name.id, names)
                or f"it has {', '.join(f'`{known_name}`' for known_name in names) or 'none'}"
            )
            expected = "model and no function" if functions else "model"
            raise self.statement_error("E0904", f"the program has no {expected} `{name.id}`", name.span, hint)
        return self.uses[name.id]

    def check_operation(self, expr: tree.Attribute, model: str) -> str:
        if model in self.code:
            hint = f"`place {model} on ...`"
            raise self.statement_error("E0904", f"`{model}` is placed as a whole", expr.name_span, hint)
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
            did_you_mean(expr.name, used)
            or f"it uses {', '.join(f'`{model}.{name}`' for name in used) or 'none of its work'}"
        )
        raise self.statement_error("E0904", shown, expr.name_span, hint)

    def check_place(self, line: tree.Place, works: Sequence[PlacedWork]) -> PlacementLine:
        options = tuple(self.quote_engine(option) for option in line.options)
        given = constants.evaluate_options(self, STATEMENTS["place"], options, line.span, self.scope)
        spans = {option.name: option for option in line.options}
        pool = self.pools.get(line.pool.id)
        self.check_pool_kind(line, works, pool)
        if pool is not None and pool.cpus:
            return PlacementLine(tuple(work for work in works if work.model in self.code), pool.name, span=line.span)
        works = [work for work in works if work.model in self.uses]
        splits = {axis.name: value for axis in AXES if isinstance(value := given[axis.name], int)}
        engine = given["engine"]
        assert engine is None or isinstance(engine, str)
        self.check_work_options(given, spans, works)
        self.check_memory_options(given, spans, works)
        if engine is not None:
            self.check_engine(engine, spans, splits, works)
        else:
            self.check_any_engine(spans, splits, works)
        pool = self.pool_named(line.pool)
        split = make_mesh(**splits)
        if pool.devices % split.rank_count:
            split_names = [name for name in splits if name in dict(split.rank_axes)]
            shown = " * ".join(f"{name}={splits[name]}" for name in split_names)
            first, size = spans[split_names[0]], split.rank_count
            total = f", {size} devices," if "*" in shown else ""
            raise self.statement_error(
                "E0907",
                f"{shown}{total} does not divide the {count_phrase(pool.devices, 'device')} of `{pool.name}`",
                first.span,
                "choose numbers whose product divides the pool",
                (Related(pool.span, "it is declared here"),),
            )
        places = tuple((name, option.span) for name, option in spans.items())
        ways: dict[str, Any] = {name: given[name] for name in (*WAYS, *CACHE_OPTIONS)}
        return PlacementLine(
            tuple(works), pool.name, engine, tuple(splits.items()), **ways, span=line.span, spans=places
        )

    def check_work_options(
        self, given: Mapping[str, object], spans: Mapping[str, tree.Option], works: Sequence[PlacedWork]
    ) -> None:
        """Check how models are worked with: the engine can do it, and there is something to do."""
        name, attention = given["engine"], given["attention"]
        engine = engines_by_name().get(str(name))
        trains = any(NODES[operation].trains for work in works for operation in self.needed_operations(work))
        if given["recompute"] and not trains:
            message = "layers are computed again where a model is trained, and nothing is trained here"
            self.report("E0908", message, spans["recompute"].span, "leave it out")
        elif given["recompute"] and engine is not None and "recompute" not in engine.settings:
            recomputing = [spec.name for spec in engines_by_name().values() if "recompute" in spec.settings]
            message = f"`{name}` computes no layer again"
            self.report(
                "E0908", message, spans["recompute"].span, f"leave it out, or take {quoted_list(recomputing, 'or')}"
            )
        if (adapters := given["adapters"]) is not None:
            self.check_engine_choice(
                given, spans["adapters"], "adapters are held", f"holds no adapters that way: `{adapters}`"
            )
        if attention is not None:
            selectable = engine is None or bool(engine.attention)
            cannot = f"computes no attention by `{attention}`" if selectable else "does not let `attention` be chosen"
            self.check_engine_choice(given, spans["attention"], "attention is computed", cannot)
        if given["gather"] is not None and not trains:
            message = "how parameters are gathered is said where a model is trained, and nothing is trained here"
            self.report("E0908", message, spans["gather"].span, "leave it out")
        elif given["gather"] is not None:
            self.check_engine_choice(
                given, spans["gather"], "parameters are gathered", f"gathers none by `{given['gather']}`"
            )
        if given["optimizer"] is not None and not trains:
            message = "where an optimizer keeps its state is said where a model is trained, and nothing is trained here"
            self.report("E0949", message, spans["optimizer"].span, "leave it out")
        elif given["optimizer"] is not None:
            self.check_engine_choice(
                given,
                spans["optimizer"],
                "an optimizer's state is kept",
                f"keeps no optimizer's state on the {given['optimizer']}",
                "E0949",
            )

    def check_memory_options(
        self, given: Mapping[str, object], spans: Mapping[str, tree.Option], works: Sequence[PlacedWork]
    ) -> None:
        """Check what is said of a device's memory: the engine does it, and there is something that it is about."""
        engine = engines_by_name().get(str(given["engine"]))
        if given["sleep"] and engine is not None and not engine.sleeps:
            able = [spec.name for spec in engines_by_name().values() if spec.sleeps]
            message = f"`{engine.name}` does not leave its devices to others"
            self.report("E0887", message, spans["sleep"].span, f"leave it out, or take {quoted_list(able, 'or')}")
        samples = any(NODES[operation].generates for work in works for operation in self.needed_operations(work))
        able = [spec.name for spec in engines_by_name().values() if "kv_bytes" in spec.settings]
        for name in (name for name in CACHE_OPTIONS if given[name] is not None):
            span = spans[name].span
            if not samples:
                message = f"`{name}` is about models that sample, and none samples here"
                self.report("E0888", message, span, "leave it out")
            elif engine is None and given["engine"] is None:
                message = f"`{name}` is a matter of the engine, and none is named"
                self.report("E0888", message, span, f"`engine={able[0]}, {name}=...`")
            elif engine is not None and engine.name not in able:
                message = f"`{engine.name}` reserves no cache that `{name}` could be about"
                self.report("E0888", message, span, f"leave it out, or take {quoted_list(able, 'or')}")
        if given["cache"] is not None and given["share"] is not None:
            message = "`share` says how large the cache is, and `cache` says it, too"
            self.report("E0888", message, spans["share"].span, "keep one of them")

    def check_engine_choice(
        self, given: Mapping[str, object], option: tree.Option, activity: str, cannot: str, code: str = "E0908"
    ) -> None:
        """Check a way in which engines do something: an engine is named, and lists the way under the option's name."""

        def engine_choices(spec: EngineSpec) -> Collection[str]:
            ways: Collection[str] = getattr(spec, option.name)
            return ways

        choice, name = str(given[option.name]), given["engine"]
        engine = engines_by_name().get(str(name))
        capable = [spec.name for spec in engines_by_name().values() if choice in engine_choices(spec)]
        if name is None:
            message = f"how {activity} is a matter of the engine, and none is named"
            self.report(code, message, option.span, f"`engine={capable[0]}, {option.name}={choice}`")
        elif engine is not None and choice not in engine_choices(engine):
            others = [f"`{option.name}={other}`" for other in engine_choices(engine)]
            hint = f"it takes {', '.join(others)}" if others else f"leave it out; {quoted_list(capable, 'and')} can"
            self.report(code, f"`{name}` {cannot}", option.span, hint)

    def check_pool_kind(self, line: tree.Place, works: Sequence[PlacedWork], pool: PoolLine | None) -> None:
        """Check that models are on devices, and the user's Python on cpus, which are not split in any way."""
        if pool is None:
            return
        declared = (Related(pool.span, "it is declared here"),)
        for work in works:
            if pool.name == HOST and work.model in self.code and work.model not in self.agents:
                message = f"the cpus of `{HOST}` do mathematics, and `{work.model}` is the user's Python"
                hint = "leave it out: one process of the host calls it; or give it a pool: `pool judges = 8 cpus`"
                self.report("E0416", message, work.span, hint, declared)
            elif pool.cpus and work.model in self.uses:
                hint = f"place `{work.model}` on a pool of devices"
                message = f"`{pool.name}` has cpus, on which functions run: `{work.model}` is a model"
                self.report("E0916", message, work.span, hint, declared)
            elif pool.cpus and work.model in self.agents:
                hint = "leave it out: `workers=` in its declaration says how many processes it has"
                message = f"`{work.model}` is an agent, which runs where the model is that it asks"
                self.report("E0859", message, work.span, hint, declared)
            elif pool.devices and work.model in self.code:
                hint = "place it on a pool of cpus, as in `pool judges = 8 cpus`, or leave it out"
                message = f"`{pool.name}` has devices, on which models run: `{work.model}` is the user's Python"
                self.report("E0916", message, work.span, hint, declared)
        if pool.cpus and line.options:
            message = f"`{pool.name}` has cpus, and each of them is a worker: there is nothing to choose"
            self.report("E0916", message, line.options[0].span, "leave the options out", declared)

    def quote_engine(self, option: tree.Option) -> tree.Option:
        """Return the option with the name of an engine as a text: it needs no quotes."""
        if option.name == "engine" and isinstance(option.value, tree.Name):
            return replace(option, value=tree.String(option.value.id, option.value.span))
        return option

    def check_engine(
        self, name: str, spans: Mapping[str, tree.Option], splits: Mapping[str, int], works: Sequence[PlacedWork]
    ) -> None:
        """Check that the named engine can do the work, split as it is said."""
        specs = engines_by_name()
        if name not in specs:
            broken = next((str(fault) for fault in broken_engines() if fault.name == name), None)
            if broken is not None:
                raise self.statement_error(
                    "E0906", broken, spans["engine"].value.span, "mend the package, or name another engine"
                )
            hint = did_you_mean(name, specs) or f"there are {', '.join(f'`{other}`' for other in specs)}"
            raise self.statement_error("E0906", f"no engine is called `{name}`", spans["engine"].value.span, hint)
        engine = specs[name]
        for split in splits:
            if split not in engine.axes_inner_first:
                legal = ", ".join(f"`{axis}`" for axis in engine.axes_inner_first)
                self.report(
                    "E0908", f"`{name}` does not split models by `{split}`", spans[split].span, f"it takes {legal}"
                )
        split_axes = [axis for axis, size in splits.items() if size > 1 and axis in engine.axes_inner_first]
        model_axes = [axis for axis in split_axes if axis != "dp"]
        for work in works:
            needed = sorted(self.needed_operations(work))
            missing = [op for op in needed if op not in engine.operations]
            unsplit = [op for op in needed if engine.supports(op) and not engine.supports(op, split_axes)]
            if unsplit:
                shown = " and ".join(f"`{axis}`" for axis in model_axes if not engine.supports(unsplit[0], [axis]))
                self.report(
                    "E0908",
                    f"`{name}` cannot do the `{unsplit[0]}` of `{work.model}` split by {shown}",
                    spans[model_axes[0]].span,
                    f"leave out {shown}" if work.operation else f"place `{work.model}.{unsplit[0]}` by itself",
                )
            if missing:
                others = [other for other, spec in specs.items() if spec.operations.issuperset(missing)]
                advice = "" if work.operation else f"place `{work.model}.{missing[0]}` by itself, on "
                self.report(
                    "E0908",
                    f"`{name}` cannot do the `{missing[0]}` of `{work.model}`",
                    work.span,
                    f"{advice}{' or '.join(f'`{other}`' for other in others)}{'' if advice else ' can'}",
                )

    def check_any_engine(
        self, spans: Mapping[str, tree.Option], splits: Mapping[str, int], works: Sequence[PlacedWork]
    ) -> None:
        """Check that, where no engine is named, one can do each kind of work, split as it is said."""
        split_axes = [name for name, size in splits.items() if size > 1]
        capable = [engine for engine in engines_by_name().values() if set(split_axes) <= set(engine.axes_inner_first)]
        for work in works:
            needed = sorted(self.needed_operations(work))
            missing = [op for op in needed if not any(engine.supports(op, split_axes) for engine in capable)]
            if missing:
                shown = " and ".join(f"`{name}`" for name in split_axes)
                legal = (
                    f"`{engine.name}` takes {', '.join(f'`{axis}`' for axis in takes)}"
                    for engine in engines_by_name().values()
                    if (takes := [axis for axis in engine.axes_inner_first if engine.supports(missing[0], [axis])])
                )
                advice = ", ".join(legal) if work.operation else f"place `{work.model}.{missing[0]}` by itself"
                self.report(
                    "E0908",
                    f"no engine can do the `{missing[0]}` of `{work.model}` split by {shown}",
                    spans[split_axes[-1]].span,
                    advice,
                )

    def needed_operations(self, work: PlacedWork) -> set[str]:
        """Return the operations that an engine has to do for a line: of a model those that are not placed by
        themselves."""
        unplaced = (name for name in self.uses[work.model] if f"{work.model}.{name}" not in self.placed)
        return set(filter(None, [work.operation] if work.operation else unplaced))
